"""The trio shell of a server, over in-memory connections."""

from __future__ import annotations

import resource
import struct

import attrs
import pytest
import trio
import trio.testing

from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import HEADER_SIZE_MAX, RemotingCommand, encode_frame
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.errors import CallTimeout, ConnectionLost
from ledgermq.remoting.server import TURN_BYTES, TURN_SECONDS, ServerConnection, ServerLimits
from ledgermq.testing.logs import capture_logs
from ledgermq.world.clock import Clock
from ledgermq.world.network import Network

from .serving import StallingNetwork, SteppingClock, serving


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{}" + b"\x00\x00\x00\x08\x00\x00\x00\x04nope",
        b"\x00\x00\x00\x06\x07\x00\x00\x02{}",
        b"\x00\x00\x00\x04\x00\x00\x00\x09",
    ],
)
async def test_a_malformed_frame_closes_that_connection_and_no_other(network: Network, clock: Clock, garbage: bytes) -> None:
    """There is no way to find the next frame; whoever else is connected notices nothing."""
    async with serving(network, clock) as running:
        good, bad = await running.connect(), await running.connect()
        assert (await good.ask(1)).code == ResponseCode.SUCCESS

        with capture_logs() as logs:
            await bad.stream.send_all(garbage)
            await bad.wait_closed()

        assert [entry["event"] for entry in logs] == ["malformed_frame_received"]
        assert (await good.ask(1)).code == ResponseCode.SUCCESS
        assert len(running.server.connections) == 1


@attrs.define(eq=False)
class Stumbling:
    """Answers like the handler it wraps, but for one code fails in a way that nobody foresaw."""

    inner: Dispatcher

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> int:
        if requests[0].code == 666:
            raise RecursionError("deeper than anybody thought")
        return self.inner.handle(connection, requests)

    def connection_closed(self, connection: ServerConnection) -> None:
        self.inner.connection_closed(connection)


async def test_a_fault_of_ours_costs_the_peer_that_met_it_its_connection_and_no_more(network: Network, clock: Clock) -> None:
    """It is logged as an error with its traceback, and everybody else is served on."""
    async with serving(network, clock) as running:
        running.server.handler = Stumbling(running.dispatcher)
        unlucky, other = await running.connect(), await running.connect()
        assert (await other.ask(1)).code == ResponseCode.SUCCESS

        with capture_logs() as events:
            await unlucky.send(RemotingCommand(666))
            await unlucky.wait_closed()

        assert [(event["event"], event["log_level"]) for event in events] == [("connection_failed", "error")]
        assert (await other.ask(1)).code == ResponseCode.SUCCESS


async def test_an_idle_connection_is_closed_and_a_busy_one_stays(
    network: Network, clock: Clock, autojump_clock: trio.testing.MockClock
) -> None:
    """RocketMQ closes after 120 seconds without traffic; a heartbeat every 30 keeps a client."""
    async with serving(network, clock) as running:
        idle, busy = await running.connect(), await running.connect()
        start = trio.current_time()

        async with trio.open_nursery() as nursery:

            async def beat() -> None:
                while True:
                    await trio.sleep(30)
                    assert (await busy.ask(1)).code == ResponseCode.SUCCESS

            nursery.start_soon(beat)
            await idle.wait_closed()
            closed_after = trio.current_time() - start
            await trio.sleep(300)
            nursery.cancel_scope.cancel()

        assert 120 <= closed_after <= 126
        assert len(running.server.connections) == 1


async def test_connections_beyond_the_bound_are_closed_at_once(network: Network, clock: Clock) -> None:
    """Those that are in keep their service."""
    async with serving(network, clock, ServerLimits(connections_max=2)) as running:
        first, second = await running.connect(), await running.connect()
        for peer in (first, second):
            await peer.ask(1)

        third = await running.connect()
        await third.wait_closed()

        assert (await first.ask(1)).code == (await second.ask(1)).code == ResponseCode.SUCCESS


async def test_connections_that_ask_nothing_lock_nobody_out(network: Network, clock: Clock) -> None:
    """At the bound a new connection ends the oldest one that has sent no complete request, and no other."""
    async with serving(network, clock, ServerLimits(connections_max=3)) as running:
        asking, silent, partial = [await running.connect() for _ in range(3)]
        await asking.ask(1)
        await partial.stream.send_all(encode_frame(RemotingCommand(1))[:-1])
        await trio.testing.wait_all_tasks_blocked()

        with capture_logs() as logs:
            third = await running.connect()
            assert (await third.ask(1)).code == ResponseCode.SUCCESS
            await silent.wait_closed()

        assert [entry["event"] for entry in logs] == ["silent_connection_closed"]
        assert (await asking.ask(1)).code == ResponseCode.SUCCESS
        await partial.stream.send_all(encode_frame(RemotingCommand(1))[-1:])
        assert (await partial.receive()).code == ResponseCode.SUCCESS
        assert len(running.server.connections) == 3


async def test_a_peer_that_reads_no_answers_is_closed(network: StallingNetwork, clock: Clock) -> None:
    """What it leaves unread is bounded, also when it is pushed from elsewhere, as long polls are answered."""
    async with serving(network, clock, ServerLimits(unsent_bytes_max=100_000)) as running:
        network.stall()
        held: list[ServerConnection] = []
        running.dispatcher.register(2, lambda connection, _: held.append(connection))
        peer = await running.connect()
        await peer.send(RemotingCommand(2), RemotingCommand(1))
        await trio.testing.wait_all_tasks_blocked()
        (connection,) = held

        with capture_logs() as logs:
            for _ in range(20):
                connection.push(bytes(10_000))
            await trio.testing.wait_all_tasks_blocked()

        assert [entry["event"] for entry in logs] == ["unread_answers_limit_reached"]
        assert connection.closed
        assert not running.server.connections


async def test_the_largest_of_the_incomplete_frames_goes_when_they_are_too_many(network: Network, clock: Clock) -> None:
    """Not that of whoever comes next: what it held is given back, and the others go on."""
    whole = encode_frame(RemotingCommand(1, body=bytes(1000)))
    async with serving(network, clock, ServerLimits(partial_bytes_max=1000)) as running:
        holder, honest = await running.connect(), await running.connect()
        await holder.stream.send_all(whole[:800])
        await trio.testing.wait_all_tasks_blocked()

        with capture_logs() as logs:
            await honest.stream.send_all(whole[:600])
            await holder.wait_closed()

        assert [entry["event"] for entry in logs] == ["partial_frames_limit_reached"]
        await honest.stream.send_all(whole[600:])
        assert len((await honest.receive()).body) == 1000
        third = await running.connect()
        await third.stream.send_all(whole[:900])
        await trio.testing.wait_all_tasks_blocked()
        await third.stream.send_all(whole[900:])
        assert len((await third.receive()).body) == 1000


async def test_a_malformed_frame_gives_back_what_it_held(network: Network, clock: Clock) -> None:
    """Otherwise the frames of some thousand strangers would count for ever, and each honest one would be one too many."""
    whole = encode_frame(RemotingCommand(1, body=bytes(1000)))
    malformed = struct.pack(">ii", 900, 100) + bytes(896)
    async with serving(network, clock, ServerLimits(partial_bytes_max=1000)) as running:
        for _ in range(3):
            bad = await running.connect()
            await bad.stream.send_all(malformed[:700])
            await trio.testing.wait_all_tasks_blocked()
            await bad.stream.send_all(malformed[700:])
            await bad.wait_closed()

        honest = await running.connect()
        await honest.stream.send_all(whole[:900])
        await trio.testing.wait_all_tasks_blocked()
        await honest.stream.send_all(whole[900:])

        assert len((await honest.receive()).body) == 1000


async def test_a_batch_waits_until_its_first_answers_are_read(network: StallingNetwork, clock: Clock) -> None:
    """Three hundred requests for large messages in one packet: few are answered before the peer reads, then all, in order."""
    async with serving(network, clock) as running:
        asked: list[int] = []

        def large(_: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            asked.append(request.opaque)
            return request.response(body=bytes(TURN_BYTES // 2))

        running.dispatcher.register(2, large)
        network.stall()
        peer = await running.connect()
        await peer.send(*(RemotingCommand(2, opaque=n) for n in range(300)))
        await trio.testing.wait_all_tasks_blocked()
        unread = len(asked)
        (connection,) = running.server.connections

        assert unread <= 3
        assert connection.unsent_bytes <= 2 * TURN_BYTES


async def test_all_of_a_batch_is_answered_in_order(network: Network, clock: Clock) -> None:
    """Though it takes many turns."""
    async with serving(network, clock) as running:
        running.dispatcher.register(2, lambda _, request: request.response(body=bytes(TURN_BYTES // 2)))
        peer = await running.connect()
        await peer.send(*(RemotingCommand(2, opaque=n) for n in range(20)))

        answers = [await peer.receive() for _ in range(20)]

        assert [answer.opaque for answer in answers] == list(range(20))
        (connection,) = running.server.connections
        assert connection.unsent_bytes == 0


async def test_a_batch_ends_with_its_connection(network: StallingNetwork, clock: Clock) -> None:
    """Once the peer has been given up its other requests are not handled."""
    async with serving(network, clock, ServerLimits(unsent_bytes_max=1000)) as running:
        asked: list[int] = []

        def large(_: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            asked.append(request.opaque)
            return request.response(body=bytes(600))

        running.dispatcher.register(2, large)
        network.stall()
        peer = await running.connect()
        with capture_logs() as logs:
            await peer.send(*(RemotingCommand(2, opaque=n) for n in range(50)))
            await trio.testing.wait_all_tasks_blocked()

        assert asked == [0, 1]
        assert [entry["event"] for entry in logs] == ["unread_answers_limit_reached"]
        assert not running.server.connections


async def test_other_peers_are_served_between_the_requests_of_a_long_batch(network: Network) -> None:
    """A request that takes the whole time of a turn is the only one of its batch in that turn."""
    clock = SteppingClock()
    async with serving(network, clock) as running:
        handled: list[int] = []

        def slow(_: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            clock.seconds += 2 * TURN_SECONDS
            handled.append(request.opaque)
            return request.response()

        running.dispatcher.register(2, slow)
        busy, other = await running.connect(), await running.connect()
        await busy.send(*(RemotingCommand(2, opaque=n) for n in range(50)))
        await other.send(RemotingCommand(2, opaque=1000))
        for _ in range(50):
            await busy.receive()

        assert handled.index(1000) < 10
        assert [opaque for opaque in handled if opaque != 1000] == list(range(50))


async def test_answers_that_nobody_reads_are_bounded_over_all_peers(network: StallingNetwork, clock: Clock) -> None:
    """The peer that has left most unread is closed; the memory is free at once."""
    async with serving(network, clock, ServerLimits(all_unsent_bytes_max=100_000)) as running:
        held: list[ServerConnection] = []
        running.dispatcher.register(2, lambda connection, _: held.append(connection))
        for _ in range(4):
            peer = await running.connect()
            await peer.send(RemotingCommand(2))
            await trio.testing.wait_all_tasks_blocked()
        network.stall()

        with capture_logs() as logs:
            for size, connection in zip((10_000, 45_000, 20_000, 30_000), held, strict=True):
                connection.push(bytes(size))

        assert [entry["bytes"] for entry in logs] == [45_000]
        assert [connection.unsent_bytes for connection in held] == [10_000, 0, 20_000, 30_000]
        assert [connection.is_given_up for connection in held] == [False, True, False, False]


async def test_a_header_beyond_its_bound_ends_the_connection(network: Network, clock: Clock) -> None:
    """Before it is there: nobody waits for 15 MiB of it, or decodes them."""
    async with serving(network, clock) as running:
        peer = await running.connect()
        with capture_logs() as logs:
            await peer.stream.send_all(struct.pack(">iI", 15 << 20, HEADER_SIZE_MAX + 1))
            await peer.wait_closed()

        assert [entry["event"] for entry in logs] == ["malformed_frame_received"]


def test_connections_leave_descriptors_to_the_store() -> None:
    """At least half of those that this process may have."""
    assert ServerLimits().connections_max <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


async def test_the_server_asks_its_client(network: Network, clock: Clock, autojump_clock: trio.testing.MockClock) -> None:
    """A call of the server is paired with its answer, times out without one, and ends with the connection."""
    async with serving(network, clock) as running:
        seen: list[ServerConnection] = []

        def answer(connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
            seen.append(connection)
            return request.response()

        running.dispatcher.register(2, answer)
        peer = await running.connect()
        await peer.ask(2)
        (connection,) = seen
        answers: list[RemotingCommand] = []

        async def call() -> None:
            answers.append(await connection.call(RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO), 3))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            asked = await peer.receive()
            await peer.send(asked.response(body=b"running"))
        assert [answer.body for answer in answers] == [b"running"]

        with pytest.raises(CallTimeout):
            await connection.call(RemotingCommand(307), 3)

        with pytest.RaisesGroup(ConnectionLost):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                await peer.stream.aclose()
        with pytest.raises(ConnectionLost):
            await connection.call(RemotingCommand(307), 3)


async def test_cancelling_a_server_closes_every_connection(network: Network, clock: Clock) -> None:
    """Nothing stays open behind a server that has been stopped."""
    async with serving(network, clock) as running:
        peers = [await running.connect() for _ in range(3)]
        for peer in peers:
            await peer.ask(1)

    for peer in peers:
        await peer.wait_closed()
