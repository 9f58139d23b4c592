"""A consumer whose broker has lost messages that it has read, and has given their offsets to others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.fetch import OffsetMoved
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.layout import decode_record
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, FakeBroker, FakeCluster, open_cluster
from .test_consumer import PULL, numbers
from .test_reading_elsewhere import behind


def consuming(cluster: FakeCluster, **options: Any) -> Any:
    return open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world, **options)


async def fill_slowly(*brokers: FakeBroker) -> None:
    """Store five messages, one every ten seconds."""
    for number in range(5):
        await trio.sleep(10)
        store(number, *brokers)


def store(number: int, *brokers: FakeBroker) -> None:
    for broker in brokers:
        broker.put("t", 0, b"%d" % number)


async def taken(consumer: Consumer, seconds: float = 20) -> list[int]:
    """All that comes until nothing does for a while, acknowledged."""
    found: list[int] = []
    while True:
        async with consumer.take(100, seconds) as messages:
            found += numbers(messages)
        if not messages:
            return found


def find_by_time(broker: FakeBroker) -> None:
    """Let a broker answer by the times at which its messages were stored."""

    def found(request: RemotingCommand) -> RemotingCommand:
        stored = [decode_record(record).store_timestamp for record in broker.queues["t", 0]]
        return request.response(ext={"offset": bisect_left(stored, int(request.ext["timestamp"]))})

    broker.script(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, *[found] * 10)


@asynccontextmanager
async def reading_from_a_broker_that_died() -> AsyncGenerator[tuple[FakeCluster, FakeBroker, Consumer]]:
    """A consumer that has read all five messages of the only broker, which has ended since."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        find_by_time(broker)
        async with consuming(cluster) as consumer:
            await fill_slowly(broker)
            assert await taken(consumer) == [0, 1, 2, 3, 4]
            cluster.kill(broker)
            yield cluster, broker, consumer


@pytest.mark.parametrize("answered", range(3))
@pytest.mark.parametrize("new", [1, 2, 6])
@pytest.mark.parametrize("lost", [1, 2, 5])
async def test_what_replaces_lost_messages_is_read(autojump_clock: MockClock, lost: int, new: int, answered: int) -> None:
    """At whichever request of the consumer that returns it is stored: before the first one, or after one was answered."""
    async with reading_from_a_broker_that_died() as (cluster, broker, consumer):
        del broker.queues["t", 0][5 - lost :]

        def store_new() -> None:
            for number in range(new):
                store(10 + number, broker)

        def answer_and_store(request: RemotingCommand) -> RemotingCommand | None:
            answer = broker.answer_pull(request)
            store_new()
            return answer

        if answered:
            broker.script(PULL, *[broker.answer_pull] * (answered - 1), answer_and_store)
        else:
            store_new()
        cluster.network.refusing.clear()
        await trio.sleep(10)
        store(99, broker)

        assert set(await taken(consumer)) >= {*range(10, 10 + new), 99}


async def test_a_slave_that_was_behind_and_becomes_master_hides_nothing(autojump_clock: MockClock) -> None:
    """It gives the offsets of the messages that it lacks to others, on the connection on which it said that it lacks them."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        find_by_time(slave)
        async with consuming(cluster) as consumer:
            await fill_slowly(master, slave)
            assert await taken(consumer) == [0, 1, 2, 3, 4]
            del slave.queues["t", 0][3:]
            slave.script(PULL, *[behind] * 100)
            cluster.kill(master)
            await trio.sleep(10)
            slave.scripts[PULL].clear()
            for number in range(10, 14):
                store(number, slave)

            assert set(await taken(consumer)) >= {10, 11, 12, 13}


@pytest.mark.parametrize("refused", range(3))
async def test_a_comparison_that_is_refused_is_repeated(autojump_clock: MockClock, refused: int) -> None:
    """A busy broker does not count as one that still has the message."""
    async with reading_from_a_broker_that_died() as (cluster, broker, consumer):
        del broker.queues["t", 0][3:]
        for number in range(10, 14):
            store(number, broker)
        broker.script(PULL, *[broker.answer_pull] * refused)
        broker.refuse(PULL, ResponseCode.SYSTEM_BUSY)
        cluster.network.refusing.clear()

        assert set(await taken(consumer)) >= {10, 11, 12, 13}


@pytest.mark.parametrize("offset", [1, 4, 8])
async def test_a_reset_that_waits_for_the_consumer_is_followed(autojump_clock: MockClock, offset: int) -> None:
    """RocketMQ's brokers return its offset to one request and forget it; no message has been lost."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        find_by_time(broker)
        moved: list[OffsetMoved] = []
        async with consuming(cluster, on_offset_moved=moved.append) as consumer:
            await fill_slowly(broker)
            assert await taken(consumer) == [0, 1, 2, 3, 4]
            cluster.kill(broker)
            for number in range(5, 10):
                store(number, broker)

            def reset(request: RemotingCommand) -> RemotingCommand:
                fields = {"nextBeginOffset": offset, "minOffset": 0, "maxOffset": 10, "suggestWhichBrokerId": 0}
                return request.response(ResponseCode.PULL_OFFSET_MOVED, fields)

            broker.script(PULL, reset)
            cluster.network.refusing.clear()

            assert await taken(consumer) == list(range(offset, 10))
            assert [(each.expected, each.actual) for each in moved] == [(5, offset)]


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "refused"])
async def test_a_message_that_was_read_and_has_rotted_since_holds_up_nothing(autojump_clock: MockClock, sent: bool) -> None:
    """It cannot be compared: RocketMQ's brokers send it as it is, ours refuse to."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with consuming(cluster) as consumer:
            await fill_slowly(broker)
            assert await taken(consumer) == [0, 1, 2, 3, 4]
            cluster.kill(broker)
            queue = broker.queues["t", 0]
            queue[4] = queue[4].replace(b"4\x01t", b"x\x01t")  # the body, and the topic with its length
            store(5, broker)

            def answer(request: RemotingCommand) -> RemotingCommand | None:
                if sent or request.ext["queueOffset"] != "4":
                    return broker.answer_pull(request)
                return request.response(ResponseCode.SYSTEM_ERROR, remark="MESSAGE_DAMAGED")

            broker.script(PULL, answer, answer)
            cluster.network.refusing.clear()
            with capture_logs() as events:
                assert await taken(consumer) == [5]

    assert "pull_answer_unusable" not in [event["event"] for event in events]
