"""The client's connection: calls in flight, their deadlines, and its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from ledgermq.remoting.channel import Channel, connected
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import CallTimeout, ConnectionLost
from ledgermq.world.network import Address

from .fake_cluster import FakeBroker, FakeCluster, open_cluster

ASK = RequestCode.GET_MIN_OFFSET


def silence(request: RemotingCommand) -> None:
    """Script: never answer."""


def later(cluster: FakeCluster, broker: FakeBroker, seconds: float) -> Callable[[RemotingCommand], None]:
    """Script: answer after a while."""

    async def answer(request: RemotingCommand) -> None:
        await trio.sleep(seconds)
        for connection in broker.server.connections:
            connection.answer(request, remark=f"after {seconds}")

    def script(request: RemotingCommand) -> None:
        cluster.nursery.start_soon(answer, request)

    return script


async def test_every_call_has_its_own_deadline(autojump_clock: MockClock) -> None:
    """Long and short timeouts on one connection end when they should, in any order of starting."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        broker.script(ASK, *[silence] * 10)
        ended: dict[float, float] = {}

        async def call(channel: Channel, seconds: float) -> None:
            started = trio.current_time()
            with pytest.raises(CallTimeout) as caught:
                await channel.call(RemotingCommand(ASK), seconds)
            assert caught.value.timeout_ms == round(seconds * 1000)
            ended[seconds] = trio.current_time() - started

        async with connected(broker.address, network=cluster.network) as channel, trio.open_nursery() as nursery:
            for seconds in (30, 3, 0.5, 10, 3.25):
                nursery.start_soon(call, channel, seconds)

        assert {seconds: pytest.approx(seconds) for seconds in ended} == ended
        assert len(ended) == 5


async def test_an_answer_in_time_ends_the_wait(autojump_clock: MockClock) -> None:
    """And one that comes too late is nobody's."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        broker.script(ASK, later(cluster, broker, 0.9), later(cluster, broker, 1.1))
        async with connected(broker.address, network=cluster.network) as channel:
            answer = await channel.call(RemotingCommand(ASK), 1)
            assert answer.remark == "after 0.9"

            with pytest.raises(CallTimeout, match="1000 ms"):
                await channel.call(RemotingCommand(ASK), 1)
            await trio.sleep(1)
            assert (await channel.call(RemotingCommand(ASK, {"topic": "t"}), 1)).ext == {"offset": "0"}


async def test_a_cancelled_call_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    """The answer that comes later wakes nobody."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        broker.script(ASK, later(cluster, broker, 2))
        async with connected(broker.address, network=cluster.network) as channel:
            with trio.move_on_after(1) as scope:
                await channel.call(RemotingCommand(ASK), 10)
            assert scope.cancelled_caught
            await trio.sleep(5)
            assert (await channel.call(RemotingCommand(ASK, {"topic": "t"}), 1)).code == 0


@pytest.mark.parametrize("who", ["server", "client"])
async def test_the_end_of_the_connection_ends_every_call(autojump_clock: MockClock, who: str) -> None:
    """At once, whoever closed it, and also calls that come later."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        broker.script(ASK, *[silence] * 3)
        lost: list[float] = []

        async def call(channel: Channel) -> None:
            with pytest.raises(ConnectionLost):
                await channel.call(RemotingCommand(ASK), 10)
            lost.append(trio.current_time())

        async with connected(broker.address, network=cluster.network) as channel:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(call, channel)
                await trio.sleep(1)
                if who == "server":
                    cluster.kill(broker)
                else:
                    channel.close()
            assert lost == pytest.approx([1, 1, 1])
            with pytest.raises(ConnectionLost):
                await channel.call(RemotingCommand(ASK), 10)
            with pytest.raises(ConnectionLost):
                await channel.send(RemotingCommand(ASK))


async def test_a_peer_that_reads_nothing_fills_up_and_times_out(autojump_clock: MockClock) -> None:
    """What may wait for one connection is bounded; who waits for room has a deadline too."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.network.stalled.add(broker.address)
        async with connected(broker.address, network=cluster.network) as channel:
            outcomes: list[type[Exception]] = []

            async def call() -> None:
                try:
                    await channel.call(RemotingCommand(ASK, body=bytes(1 << 20)), 5)
                except CallTimeout as error:
                    outcomes.append(type(error))

            async with trio.open_nursery() as nursery:
                for _ in range(30):
                    nursery.start_soon(call)
            assert outcomes == [CallTimeout] * 30
            assert trio.current_time() == pytest.approx(5)


async def test_a_refused_connection_raises(autojump_clock: MockClock) -> None:
    """With its address; nothing stays open."""
    async with open_cluster() as cluster:
        with pytest.raises(ConnectionLost, match=r"10\.9\.9\.9:1"):
            async with connected(Address("10.9.9.9", 1), network=cluster.network):
                pass
