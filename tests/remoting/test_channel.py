"""The trio shell of a client connection, over in-memory connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing
from trio.abc import Listener

from ledgermq.remoting.channel import LONG_RECEIVE_BYTES, Channel, connected, open_channel
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.remoting.connection import Connection
from ledgermq.remoting.errors import CallTimeout, ConnectionLost
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.world.network import RECEIVE_BYTES, Address, Network, PlainStream, Stream

SOMEWHERE = Address("server", 9876)


@attrs.define(eq=False)
class Server:
    """The other end of one connection, which does as the test says."""

    stream: Stream
    core: Connection[None] = attrs.field(factory=Connection[None])

    async def receive(self) -> list[RemotingCommand]:
        """The requests of one receive."""
        return self.core.receive(bytes(await self.stream.receive_some(1 << 20)))[0]

    async def answer(self, request: RemotingCommand) -> None:
        await self.stream.send_all(encode_frame(request.response(body=request.body)))


@asynccontextmanager
async def pair(network: Network, listeners: list[Listener[Stream]] | None = None) -> AsyncGenerator[tuple[Channel, Server]]:
    (listener,) = listeners or await network.open_listeners("", 0)
    async with connected(SOMEWHERE, network=network) as channel:
        yield channel, Server(await listener.accept())


async def test_calls_of_one_turn_leave_in_one_write_and_get_their_own_answers(network: Network) -> None:
    """Any number of tasks share a connection; answers may come in any order."""
    answers: dict[int, bytes] = {}
    async with pair(network) as (channel, server), trio.open_nursery() as nursery:

        async def call(number: int) -> None:
            answers[number] = (await channel.call(RemotingCommand(1, body=b"%d" % number), 3)).body

        await trio.testing.wait_all_tasks_blocked()
        for number in range(5):
            nursery.start_soon(call, number)
        requests = await server.receive()
        assert len(requests) == 5
        for request in reversed(requests):
            await server.answer(request)

    assert answers == {number: b"%d" % number for number in range(5)}


async def test_a_call_without_an_answer_times_out_and_its_late_answer_is_dropped(
    network: Network, autojump_clock: trio.testing.MockClock
) -> None:
    """The connection goes on, and the next call gets its own answer."""
    async with pair(network) as (channel, server):
        started = trio.current_time()
        with pytest.raises(CallTimeout) as timeout:
            await channel.call(RemotingCommand(34, body=b"first"), 3)
        assert trio.current_time() - started == pytest.approx(3, abs=0.1)
        assert (timeout.value.code, timeout.value.timeout_ms) == (34, 3000)

        (first,) = await server.receive()
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                (second,) = await server.receive()
                await server.answer(first)
                await server.answer(second)

            nursery.start_soon(serve)
            answer = await channel.call(RemotingCommand(34, body=b"second"), 3)

    assert answer.body == b"second"


async def test_each_call_has_its_own_deadline(network: Network, autojump_clock: trio.testing.MockClock) -> None:
    """A short call behind a long poll ends on time, and the long one still gets its answer."""
    ended: dict[str, float] = {}
    async with pair(network) as (channel, server), trio.open_nursery() as nursery:
        started = trio.current_time()

        async def long_poll() -> None:
            await channel.call(RemotingCommand(11), 30)
            ended["long"] = trio.current_time() - started

        async def short(seconds: float) -> None:
            with pytest.raises(CallTimeout):
                await channel.call(RemotingCommand(34), seconds)
            ended[f"short {seconds}"] = trio.current_time() - started

        nursery.start_soon(long_poll)
        await trio.testing.wait_all_tasks_blocked()
        (request,) = await server.receive()
        for seconds in (5.0, 2.0, 8.0):
            nursery.start_soon(short, seconds)
        await trio.sleep(20)
        await server.answer(request)

    assert ended == {
        "short 2.0": pytest.approx(2, abs=0.1),
        "short 5.0": pytest.approx(5, abs=0.1),
        "short 8.0": pytest.approx(8, abs=0.1),
        "long": pytest.approx(20, abs=0.1),
    }


async def test_a_cancelled_call_leaves_nothing_behind(network: Network) -> None:
    """Its late answer is dropped, and other calls do not notice."""
    async with pair(network) as (channel, server):
        with trio.move_on_after(0):
            await channel.call(RemotingCommand(1, body=b"cancelled before it could be sent"), 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.call, RemotingCommand(1, body=b"cancelled"), 3)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        requests = await server.receive()

        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                (request,) = await server.receive()
                for late in requests:
                    await server.answer(late)
                await server.answer(request)

            nursery.start_soon(serve)
            assert (await channel.call(RemotingCommand(1, body=b"next"), 3)).body == b"next"


async def test_when_the_connection_ends_every_call_fails_at_once(network: Network) -> None:
    """Nobody waits for a timeout, and later calls fail before anything is sent."""
    closed: list[Channel] = []
    lost: list[ConnectionLost] = []
    (listener,) = await network.open_listeners("", 0)
    async with trio.open_nursery() as nursery:
        channel = await open_channel(SOMEWHERE, network=network, nursery=nursery, on_close=closed.append)
        server = await listener.accept()

        async def call() -> None:
            with pytest.raises(ConnectionLost) as error:
                await channel.call(RemotingCommand(1), 30)
            lost.append(error.value)

        for _ in range(3):
            nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        await server.aclose()

    assert [error.address for error in lost] == ["server:9876"] * 3
    assert "closed by the server" in str(lost[0])
    assert closed == [channel]
    assert channel.closed
    with pytest.raises(ConnectionLost):
        await channel.call(RemotingCommand(1), 3)
    with pytest.raises(ConnectionLost):
        await channel.send(RemotingCommand(1))


async def test_leaving_the_block_ends_calls_and_closes_the_stream(network: Network) -> None:
    """No task and no connection is left of a channel whose owner has gone."""
    async with trio.open_nursery() as nursery:
        async with pair(network) as (channel, server):

            async def call() -> None:
                with pytest.raises(ConnectionLost, match="closed by us"):
                    await channel.call(RemotingCommand(1), 30)

            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
        assert await server.receive() != []
        assert await server.stream.receive_some(1) == b""


async def test_what_is_not_remoting_ends_the_connection(network: Network) -> None:
    """There is no way to find the next frame; calls fail with the reason."""
    async with pair(network) as (channel, server), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(ConnectionLost, match="a frame of"):
                await channel.call(RemotingCommand(1), 30)

        nursery.start_soon(call)
        await server.receive()
        with capture_logs() as logs:
            await server.stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await trio.testing.wait_all_tasks_blocked()

        assert [entry["event"] for entry in logs] == ["malformed_frame_received"]
        assert channel.closed


async def test_a_oneway_request_goes_out_marked_and_expects_nothing(network: Network) -> None:
    """Java sets bit 1, and so do we."""
    async with pair(network) as (channel, server):
        await channel.send(RemotingCommand(34))

        (request,) = await server.receive()
        assert request.is_oneway


async def test_requests_of_the_server_are_answered_unless_oneway(network: Network) -> None:
    """A broker asks its clients over the same connection."""
    (listener,) = await network.open_listeners("", 0)

    def on_request(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=str(channel.address).encode())

    async with connected(SOMEWHERE, network=network, on_request=on_request):
        stream = await listener.accept()
        core = Connection[str]()
        core.calls[7] = "asked"
        await stream.send_all(
            encode_frame(RemotingCommand(40, opaque=6, flag=2)) + encode_frame(RemotingCommand(307, opaque=7))
        )
        requests, answers = core.receive(bytes(await stream.receive_some(65536)))

    assert requests == []
    assert [(waiter, answer.body) for waiter, answer in answers] == [("asked", b"server:9876")]


async def test_a_call_to_a_port_without_listener_fails_at_once(network: Network, nursery: trio.Nursery) -> None:
    """The error names the address, and no task is left."""
    with pytest.raises(ConnectionLost, match="server:9876 lost: could not connect"):
        await open_channel(SOMEWHERE, network=network, nursery=nursery)

    assert not nursery.child_tasks


async def test_a_server_that_never_accepts_is_given_up(
    network: Network, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """After 3 seconds, as Java does."""

    @attrs.define(eq=False)
    class BlackHole:
        async def open_stream(self, address: Address) -> Stream:
            await trio.sleep_forever()
            raise AssertionError

        async def open_listeners(self, host: str, port: int) -> list[Listener[Stream]]:
            return []

        def listener_port(self, listener: Listener[Stream]) -> int:
            return 0

        def own_host(self) -> str:
            return "127.0.0.1"

    started = trio.current_time()
    with pytest.raises(ConnectionLost, match="not connected within"):
        await open_channel(SOMEWHERE, network=BlackHole(), nursery=nursery)

    assert trio.current_time() - started == pytest.approx(3, abs=0.1)


async def test_receives_are_long_while_much_arrives(monkeypatch: pytest.MonkeyPatch, network: Network) -> None:
    """Long pull answers take few receives, and the short answers of a producer do not pay for so much memory each."""
    limits: list[tuple[Stream, int | None]] = []
    receive_some = PlainStream.receive_some

    def recorded(stream: PlainStream, max_bytes: int | None = None) -> Awaitable[bytes | bytearray]:
        limits.append((stream, max_bytes))
        return receive_some(stream, max_bytes)

    monkeypatch.setattr(PlainStream, "receive_some", recorded)
    async with pair(network) as (channel, server), trio.open_nursery() as nursery:

        async def serve() -> None:
            for size in (10, RECEIVE_BYTES + LONG_RECEIVE_BYTES, 10):
                (request,) = await server.receive()
                await server.stream.send_all(encode_frame(request.response(body=bytes(size))))

        nursery.start_soon(serve)
        for _ in range(3):
            await channel.call(RemotingCommand(11), 3)
        await trio.testing.wait_all_tasks_blocked()

        short, long = RECEIVE_BYTES, LONG_RECEIVE_BYTES
        assert [limit for stream, limit in limits if stream is not server.stream] == [short, short, long, long, short, short]


def test_a_request_that_was_given_up_does_not_arrive_behind_later_ones() -> None:
    """A commit is held up on its way, its connection is given up, and the next one brings a newer commit."""

    async def main() -> None:
        fabric = SimFabric()
        server, client = fabric.machine("10.0.0.2"), fabric.machine("10.0.0.1")
        address = Address("10.0.0.2", 10911)
        (listener,) = await server.open_listeners("", address.port)
        async with connected(address, network=client) as channel:
            first = Server(await listener.accept())
            fabric.part(["10.0.0.1"], ["10.0.0.2"])
            with pytest.raises(CallTimeout):
                await channel.call(RemotingCommand(15, body=b"older"), 3)
            channel.close()
            await trio.testing.wait_all_tasks_blocked()
            fabric.heal()
        async with connected(address, network=client) as channel, trio.open_nursery() as nursery:
            second = Server(await listener.accept())
            nursery.start_soon(channel.call, RemotingCommand(15, body=b"newer"), 3)
            (request,) = await second.receive()
            await second.answer(request)
        assert request.body == b"newer"
        assert await first.receive() == []

    seeded_run(main, seed=1)
