"""A link against a scripted server, on a clock that moves by hand: answers in pieces, in any order, too late, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from ledgermq.pipeline.link import Link, LinkLost
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.remoting.connection import Connection
from ledgermq.world.address import Address

SOMEWHERE = Address("server", 9876)

Script = Callable[["ScriptedSocket", RemotingCommand], None]


@attrs.define
class HandClock:
    """Moves only by hand."""

    now: float = 0.0

    def wall_ms(self) -> int:
        return round(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


@attrs.define(eq=False)
class ScriptedSocket:
    """A socket whose other end answers at once; receiving with nothing to come takes as long as the timeout."""

    script: Script
    clock: HandClock
    timeout: float = 0.0
    incoming: list[bytes] = attrs.field(factory=list[bytes])
    closed: bool = False
    _core: Connection[None] = attrs.field(factory=Connection[None])

    def settimeout(self, value: float, /) -> None:
        self.timeout = value

    def sendall(self, data: bytes, /) -> None:
        for request in self._core.receive(data)[0]:
            self.script(self, request)

    def recv(self, size: int, /) -> bytes:
        if not self.incoming:
            self.clock.now += self.timeout
            raise TimeoutError
        return self.incoming.pop(0)

    def close(self) -> None:
        self.closed = True


@attrs.define(eq=False)
class ScriptedSockets:
    """Connects to the script, or refuses."""

    script: Script
    clock: HandClock = attrs.field(factory=HandClock)
    refuses: bool = False
    opened: list[ScriptedSocket] = attrs.field(factory=list[ScriptedSocket])

    def connect(self, address: Address, timeout_seconds: float) -> ScriptedSocket:
        if self.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        self.opened.append(ScriptedSocket(self.script, self.clock))
        return self.opened[-1]

    def link(self) -> Link:
        return Link(SOMEWHERE, self, self.clock)


def echo(end: ScriptedSocket, request: RemotingCommand) -> None:
    end.incoming.append(encode_frame(request.response(body=request.body)))


def test_requests_follow_one_another_on_one_connection() -> None:
    sockets = ScriptedSockets(echo)
    link = sockets.link()

    assert [link.call(RemotingCommand(1, body=body), 3).body for body in (b"a", b"b")] == [b"a", b"b"]
    assert len(sockets.opened) == 1


def test_an_answer_in_pieces_is_one_answer() -> None:
    """Bytes come as the network likes."""

    def trickle(end: ScriptedSocket, request: RemotingCommand) -> None:
        frame = encode_frame(request.response(body=request.body))
        end.incoming += [frame[at : at + 1] for at in range(len(frame))]

    assert ScriptedSockets(trickle).link().call(RemotingCommand(1, body=b"a"), 3).body == b"a"


def test_answers_in_any_order_find_their_requests() -> None:
    """The server answers the second request first."""
    held: list[bytes] = []

    def turned_round(end: ScriptedSocket, request: RemotingCommand) -> None:
        held.insert(0, encode_frame(request.response(body=request.body)))
        if len(held) == 2:
            end.incoming.append(b"".join(held))

    link = ScriptedSockets(turned_round).link()
    first, second = (link.submit(RemotingCommand(1, body=body), 3) for body in (b"a", b"b"))

    assert (link.answer(first, 3).body, link.answer(second, 3).body) == (b"a", b"b")


def test_without_an_answer_the_link_closes_when_the_time_is_over() -> None:
    """Requests that are still pending fail with it; the next one opens a connection."""
    sockets = ScriptedSockets(lambda end, request: echo(end, request) if request.body else None)
    link = sockets.link()
    pending = link.submit(RemotingCommand(1), 3)

    with pytest.raises(LinkLost, match="server:9876: no answer in time") as lost:
        link.call(RemotingCommand(1), 3)

    assert lost.value.timed_out
    assert sockets.clock.now == 3
    with pytest.raises(LinkLost, match="closed"):
        link.answer(pending, 3)
    assert link.call(RemotingCommand(1, body=b"x"), 3).body == b"x"
    assert [end.closed for end in sockets.opened] == [True, False]


def test_a_request_of_an_ended_connection_gets_no_answer_of_the_next_one() -> None:
    """Its opaque is not used again. Otherwise a message that was never stored would count as stored."""

    def end_at_the_second(end: ScriptedSocket, request: RemotingCommand) -> None:
        if request.body == b"second":
            raise ConnectionResetError
        if len(sockets.opened) == 2:
            echo(end, request)

    sockets = ScriptedSockets(end_at_the_second)
    link = sockets.link()
    first = link.submit(RemotingCommand(1, body=b"first"), 3)
    with pytest.raises(LinkLost):
        link.submit(RemotingCommand(1, body=b"second"), 3)
    third, fourth = (link.submit(RemotingCommand(1, body=body), 3) for body in (b"third", b"fourth"))

    with pytest.raises(LinkLost, match="closed"):
        link.answer(first, 3)
    assert [link.answer(each, 3).body for each in (third, fourth)] == [b"third", b"fourth"]


@pytest.mark.parametrize("end_with", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_broken_connection_fails_the_request_and_is_replaced(end_with: bytes) -> None:
    """The server closes it, or speaks another protocol."""

    def break_first(end: ScriptedSocket, request: RemotingCommand) -> None:
        if len(sockets.opened) == 1:
            end.incoming.append(end_with)
        else:
            echo(end, request)

    sockets = ScriptedSockets(break_first)
    link = sockets.link()

    with pytest.raises(LinkLost) as lost:
        link.call(RemotingCommand(1), 3)

    assert not lost.value.timed_out
    assert link.call(RemotingCommand(1, body=b"again"), 3).body == b"again"
    assert [end.closed for end in sockets.opened] == [True, False]


def test_a_refused_connection_is_named_with_its_address() -> None:
    """Nothing was carried out."""
    with pytest.raises(LinkLost, match="server:9876: Connection refused"):
        ScriptedSockets(echo, refuses=True).link().call(RemotingCommand(1), 3)
