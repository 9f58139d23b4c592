"""Reading queues up to their ends, against a scripted cluster on a mock clock."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgermq.cli.reading import STALL_SECONDS, BoundedReader, Stalled
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.client.received import ReceivedMessage
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode

from ..client.fake_cluster import NAMESRV, FakeBroker, open_cluster
from ..client.test_consumer import fill, numbers


async def _assigned(consumer: PullConsumer, expression: str = "*") -> list[MessageQueue]:
    queues = await consumer.queues("t")
    await consumer.assign(queues, expression)
    return queues


async def _rest(reader: BoundedReader) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    while batch := await reader.take():
        messages += batch
    return messages


async def _keep_sending(broker: FakeBroker) -> None:
    while True:
        fill(broker, 1)
        await trio.sleep(0.05)


async def test_messages_behind_the_ends_are_left_out(autojump_clock: MockClock) -> None:
    """Also those that came with the same pull, and none is waited for."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 500)
        fill(broker, 3, queue_id=1)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            one, two = await _assigned(consumer)
            began = trio.current_time()

            messages = await _rest(BoundedReader(consumer, {one: 300, two: 2}))

            assert sorted(numbers(messages)) == sorted([*range(300), 0, 1])
            assert trio.current_time() - began < 1


async def test_what_tags_leave_out_counts_as_read(autojump_clock: MockClock) -> None:
    """However long it takes: a match at the end of a queue is found after minutes without one."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 640, tag="other")
        fill(broker, 1, tag="rare")
        fill(broker, 40, tag="other")
        for _ in range(22):  # each pull is answered after 10 s
            broker.refuse(RequestCode.PULL_MESSAGE, ResponseCode.SYSTEM_ERROR, times=10)
            broker.script(RequestCode.PULL_MESSAGE, broker.answer_pull)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            (queue,) = await _assigned(consumer, "rare")
            began = trio.current_time()

            messages = await _rest(BoundedReader(consumer, {queue: 681}))

            assert [message.tag for message in messages] == ["rare"]
            assert trio.current_time() - began > 200


async def test_a_dead_broker_is_an_error_although_others_are_sent_to(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        busy, dead = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 1)
        fill(busy, 3)
        fill(dead, 3)
        dead.refuse(RequestCode.PULL_MESSAGE, ResponseCode.SYSTEM_ERROR)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            first, second = await _assigned(consumer)
            cluster.kill(dead)
            cluster.nursery.start_soon(_keep_sending, busy)
            reader = BoundedReader(consumer, {first: 3, second: 3})

            assert numbers(await reader.take()) == [0, 1, 2]
            with trio.fail_after(STALL_SECONDS + 5), pytest.raises(Stalled, match="30 s from t@b2:0, and not all was read"):
                await reader.take()


async def test_a_slow_reader_of_the_output_is_no_stall(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 600)
        fill(broker, 600, queue_id=1)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            reader = BoundedReader(consumer, dict.fromkeys(await _assigned(consumer), 600))
            count = 0
            while batch := await reader.take():
                count += len(batch)
                await trio.sleep(2 * STALL_SECONDS)

            assert count == 1200
