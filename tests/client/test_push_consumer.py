"""What an application does with the queues of a consumer: pause, resume, move to another offset."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import Closed, InvalidArgument
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import MessageQueue

from .fake_cluster import NAMESRV, open_cluster, until
from .test_consumer import fill, numbers

FIRST = ConsumeFrom.FIRST


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_paused_queue_hands_out_nothing(autojump_clock: MockClock, orderly: bool) -> None:
    """What is in hand goes on, what was prefetched waits, and the other queue is read."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 3)
        async with open_consumer(NAMESRV, "g", "t", orderly=orderly, consume_from=FIRST, world=cluster.world) as consumer:
            first, second = MessageQueue("t", "b1", 0), MessageQueue("t", "b1", 1)
            message = await consumer.get_one()
            assert message is not None
            consumer.pause([first])
            broker.put("t", 1, b"7")

            async with consumer.take(10, 100) as messages:
                assert numbers(messages) == [7]
            assert consumer.paused == [first]
            await message.ack()
            await consumer.commit()
            assert broker.offsets["g", "t", 0] == 1
            assert await consumer.get_many(10, 100) == []
            consumer.pause([second])
            consumer.resume([first])
            assert numbers(await consumer.get_many(10, 100)) == [1, 2]


async def test_a_paused_consumer_takes_no_queue_that_is_not_paused(autojump_clock: MockClock) -> None:
    """A call that waits goes on waiting, and `resume` wakes it."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with (
            open_consumer(NAMESRV, "g", "t", consume_from=FIRST, world=cluster.world) as consumer,
            trio.open_nursery() as nursery,
        ):
            seen: list[int] = []

            async def take() -> None:
                seen.extend(numbers(await consumer.get_many(10)))

            nursery.start_soon(take)
            consumer.pause()
            cluster.create("t", 2)
            fill(broker, 2, queue_id=1)
            await until(lambda: len(consumer.queues) == 2)
            await trio.sleep(60)
            assert seen == []
            assert consumer.paused == consumer.queues
            consumer.resume()
            await trio.sleep(1)
            assert seen == [0, 1]
            assert consumer.paused == []


async def test_a_queue_that_is_not_read_is_neither_paused_nor_moved(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        other, own = MessageQueue("t", "b1", 5), MessageQueue("t", "b1", 0)
        async with open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            for refused in (lambda: consumer.pause([own, other]), lambda: consumer.resume([other])):
                with pytest.raises(InvalidArgument, match="does not read t@b1:5 now"):
                    refused()
            with pytest.raises(InvalidArgument, match="does not read t@b1:5 now"):
                await consumer.seek_to_end(other)
            with pytest.raises(InvalidArgument, match="offset must be a whole number"):
                await consumer.seek(own, -1)
            assert consumer.paused == []
        for closed in (consumer.pause, consumer.resume):
            with pytest.raises(Closed):
                closed()
        with pytest.raises(Closed):
            await consumer.seek(own, 0)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_queue_is_moved_to_another_offset(autojump_clock: MockClock, orderly: bool) -> None:
    """Back and forth; what was in hand does not count any more, and the group continues there."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 10)
        async with open_consumer(NAMESRV, "g", "t", orderly=orderly, consume_from=FIRST, world=cluster.world) as consumer:
            (queue,) = consumer.queues
            before = await consumer.get_many(4)
            await consumer.seek(queue, 8)
            await trio.sleep(0.1)
            assert broker.offsets["g", "t", 0] == 8
            for message in before:
                await message.ack()
            async with consumer.take(10, 100) as messages:
                assert numbers(messages) == [8, 9]
            await consumer.seek_to_beginning(queue)
            async with consumer.take(3) as messages:
                assert numbers(messages) == [0, 1, 2]
            consumer.pause()
            await consumer.seek_to_end(queue)
            fill(broker, 1)
            assert await consumer.get_many(1, 10) == []
            consumer.resume()
            async with consumer.take(3) as messages:
                assert numbers(messages) == [0]
                assert messages[0].queue_offset == 10
        assert broker.offsets["g", "t", 0] == 11
