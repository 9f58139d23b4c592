"""The connection for plain threads, against a scripted server and against a real one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator

import attrs
import pytest

from ledgermq.remoting.blocking import BlockingChannel
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import CallTimeout, ConnectionLost
from ledgermq.world.network import Address

SOMEWHERE = Address("server", 9876)

Server = Callable[["FakeSocket", RemotingCommand], None]


@attrs.define
class HandClock:
    """Moves only by hand."""

    now: float = 0.0

    def wall_ms(self) -> int:
        return round(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


@attrs.define(eq=False)
class FakeSocket:
    """A socket whose other end answers at once; receiving with nothing to come takes as long as the timeout."""

    server: Server
    clock: HandClock
    timeout: float = 0.0
    incoming: list[bytes] = attrs.field(factory=list[bytes])
    closed: bool = False
    _core: Connection[None] = attrs.field(factory=Connection[None])

    def settimeout(self, value: float, /) -> None:
        self.timeout = value

    def sendall(self, data: bytes, /) -> None:
        for request in self._core.receive(data)[0]:
            self.server(self, request)

    def recv(self, size: int, /) -> bytes:
        if not self.incoming:
            self.clock.now += self.timeout
            raise TimeoutError
        return self.incoming.pop(0)

    def close(self) -> None:
        self.closed = True


@attrs.define(eq=False)
class FakeSockets:
    """Connects to the script."""

    server: Server
    clock: HandClock
    opened: list[FakeSocket] = attrs.field(factory=list[FakeSocket])

    def connect(self, address: Address, timeout_seconds: float) -> FakeSocket:
        self.opened.append(FakeSocket(self.server, self.clock))
        return self.opened[-1]


def echo(end: FakeSocket, request: RemotingCommand) -> None:
    end.incoming.append(encode_frame(request.response(body=request.body)))


def channel_to(
    server: Server, on_request: Callable[[RemotingCommand], RemotingCommand | None] | None = None
) -> BlockingChannel:
    clock = HandClock()
    return BlockingChannel(SOMEWHERE, FakeSockets(server, clock), clock, on_request)


def sockets_of(channel: BlockingChannel) -> list[FakeSocket]:
    assert isinstance(channel.sockets, FakeSockets)
    return channel.sockets.opened


def test_a_call_returns_its_answer_over_one_connection() -> None:
    """Calls follow each other on the connection that the first one opened."""
    channel = channel_to(echo)

    answers = [channel.call(RemotingCommand(1, body=body), 3).body for body in (b"a", b"b")]

    assert answers == [b"a", b"b"]
    assert len(sockets_of(channel)) == 1


def test_an_answer_in_pieces_is_one_answer() -> None:
    """Bytes come as the network likes."""

    def trickle(end: FakeSocket, request: RemotingCommand) -> None:
        frame = encode_frame(request.response(body=request.body))
        end.incoming += [frame[at : at + 1] for at in range(len(frame))]

    assert channel_to(trickle).call(RemotingCommand(1, body=b"a"), 3).body == b"a"


def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    """A call that timed out leaves its connection usable; what still comes for it is dropped."""
    held: list[bytes] = []

    def slow_once(end: FakeSocket, request: RemotingCommand) -> None:
        answer = encode_frame(request.response(body=request.body))
        if not held:
            held.append(answer)
        else:
            end.incoming += [held[0], answer]

    channel = channel_to(slow_once)

    with pytest.raises(CallTimeout, match="within 3000 ms"):
        channel.call(RemotingCommand(1, body=b"late"), 3)
    assert channel.call(RemotingCommand(1, body=b"next"), 3).body == b"next"
    assert len(sockets_of(channel)) == 1


@pytest.mark.parametrize("end_with", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_broken_connection_fails_the_call_and_is_replaced(end_with: bytes) -> None:
    """The next call opens a new connection; the old one is closed."""

    def break_first(end: FakeSocket, request: RemotingCommand) -> None:
        if len(sockets_of(channel)) == 1:
            end.incoming.append(end_with)
        else:
            echo(end, request)

    channel = channel_to(break_first)

    with pytest.raises(ConnectionLost):
        channel.call(RemotingCommand(1), 3)
    assert channel.call(RemotingCommand(1, body=b"again"), 3).body == b"again"
    first, second = sockets_of(channel)
    assert (first.closed, second.closed) == (True, False)


def test_what_the_server_asks_in_between_is_answered() -> None:
    """A broker may notify or ask its client at any time."""
    asked: list[int] = []
    answered: list[bytes] = []

    def ask_first(end: FakeSocket, request: RemotingCommand) -> None:
        end.incoming.append(encode_frame(RemotingCommand(40, flag=2)) + encode_frame(RemotingCommand(307, opaque=7)))
        echo(end, request)

    def on_request(request: RemotingCommand) -> RemotingCommand:
        asked.append(request.code)
        return request.response(body=b"mine")

    channel = channel_to(ask_first, on_request)
    original = FakeSocket.sendall

    def watch(end: FakeSocket, data: bytes, /) -> None:
        answered.append(data)
        original(end, data)

    FakeSocket.sendall = watch  # type: ignore[method-assign]
    try:
        assert channel.call(RemotingCommand(1, body=b"x"), 3).body == b"x"
    finally:
        FakeSocket.sendall = original  # type: ignore[method-assign]

    assert asked == [40, 307]
    assert len(answered) == 2  # the call, and the answer to 307; a oneway request has none


def test_a_oneway_request_expects_nothing() -> None:
    """It is out when `send` returns."""
    seen: list[bool] = []

    channel_to(lambda _, request: seen.append(request.is_oneway)).send(RemotingCommand(1))

    assert seen == [True]


def test_a_refused_connection_is_a_lost_one() -> None:
    """Nothing was carried out, and the address is named."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = Address("127.0.0.1", int(free.getsockname()[1]))

        with pytest.raises(ConnectionLost, match=str(address)):
            BlockingChannel(address).call(RemotingCommand(1), 3)


@pytest.fixture
def echo_server() -> Generator[Address]:
    """A server on a real socket, for any number of connections one after the other."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            core = Connection[None]()
            with connection:
                while data := connection.recv(65536):
                    for request in core.receive(data)[0]:
                        connection.sendall(encode_frame(request.response(body=request.body)))

    thread = threading.Thread(target=serve)
    thread.start()
    yield Address("127.0.0.1", int(listener.getsockname()[1]))
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_threads_that_share_a_channel_get_their_own_answers(echo_server: Address) -> None:
    """One call is out at a time, whoever makes it."""
    wrong: list[bytes] = []
    with BlockingChannel(echo_server) as channel:

        def work(name: int) -> None:
            for count in range(50):
                body = b"%d-%d" % (name, count)
                if channel.call(RemotingCommand(1, body=body), 30).body != body:
                    wrong.append(body)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert wrong == []
