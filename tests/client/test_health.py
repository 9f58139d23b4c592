"""What readiness probes learn of a consumer."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from ledgermq.client.consumer import open_consumer
from ledgermq.client.health import Health
from ledgermq.client.session import CALL_SECONDS, HEARTBEAT_SECONDS, HEARTBEATS_MISSED_MAX
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand

from .fake_cluster import NAMESRV, open_cluster, until
from .test_consumer import fill


async def test_a_consumer_is_healthy_while_it_reads_its_share(autojump_clock: MockClock) -> None:
    """And until it is stopped or closed, which is told rather than raised."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            for _ in range(5):
                assert await consumer.healthy() == Health()
                await trio.sleep(HEARTBEAT_SECONDS)
            consumer.stop()
            stopped = await consumer.healthy()
            assert not stopped
            assert stopped.problems == ("the consumer has been stopped",)
        assert (await consumer.healthy()).problems == ("the client is closed",)


async def test_a_member_that_waits_for_its_topic_or_has_no_share_is_healthy(autojump_clock: MockClock) -> None:
    """It knows that there is nothing to read; else no program could be deployed before its topic."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            assert await consumer.healthy()
            cluster.create("t", 1)
            await trio.sleep(2)
            assert consumer.queues
            assert await consumer.healthy()
            async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as second:
                await trio.sleep(60)
                assert min(consumer.queues, second.queues) == []
                assert await consumer.healthy()
                assert await second.healthy()


async def test_queues_that_cannot_be_taken_are_a_problem(autojump_clock: MockClock) -> None:
    """Until they are taken."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 3)
        broker.refuse(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR, times=100)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            assert (await consumer.healthy()).problems == ("3 of its queues of t are not read yet",)
            broker.scripts.clear()
            await trio.sleep(3)
            assert await consumer.healthy()


async def test_brokers_that_are_gone_or_silent_are_a_problem(autojump_clock: MockClock) -> None:
    """Silence counts when two heartbeats had no answer."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            broker.refuse(RequestCode.HEART_BEAT, ResponseCode.SYSTEM_ERROR, times=100)
            await trio.sleep(HEARTBEAT_SECONDS + CALL_SECONDS)
            assert await consumer.healthy()
            await trio.sleep(HEARTBEAT_SECONDS * HEARTBEATS_MISSED_MAX)
            (problem,) = (await consumer.healthy()).problems
            assert problem.startswith("no broker has answered a heartbeat for ")
            broker.scripts.clear()
            await trio.sleep(HEARTBEAT_SECONDS + CALL_SECONDS)
            assert await consumer.healthy()
            cluster.kill(broker)
            await trio.sleep(1)
            assert "no broker is connected" in (await consumer.healthy()).problems


async def test_queues_whose_pulls_are_refused_are_a_problem(autojump_clock: MockClock) -> None:
    """As those of a topic that was deleted, or that nobody may read any more, until a pull is answered again."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        broker.refuse(RequestCode.PULL_MESSAGE, ResponseCode.TOPIC_NOT_EXIST, times=20)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            await trio.sleep(5)
            (problem,) = (await consumer.healthy()).problems
            assert problem.startswith("queues of t are not read: ")
            assert "scripted" in problem
            await trio.sleep(15)
            fill(broker, 1)
            assert await consumer.get_one(5) is not None
            await until(lambda: len(broker.held) == 2)
            fill(broker, 1, queue_id=1)
            assert await consumer.get_one(5) is not None
            assert await consumer.healthy()


def no_record(request: RemotingCommand) -> RemotingCommand:
    fields = {"nextBeginOffset": 1, "minOffset": 0, "maxOffset": 1, "suggestWhichBrokerId": 0}
    return request.response(ext=fields, body=b"no record")


async def test_a_queue_whose_next_message_is_damaged_is_a_problem(autojump_clock: MockClock) -> None:
    """It stands still there, so that nothing is skipped."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            broker.script(RequestCode.PULL_MESSAGE, *[no_record] * 20)
            fill(broker, 1)
            await trio.sleep(5)
            (problem,) = (await consumer.healthy()).problems
            assert problem.startswith("queues of t are not read: ")
