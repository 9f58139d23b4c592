"""The counters of clients."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.client.statistics import ConsumerStatistics, ProducerStatistics
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode, ResponseCode

from .fake_cluster import NAMESRV, open_cluster
from .test_consumer import fill

SEND = RequestCode.SEND_MESSAGE_V2


async def test_a_producer_counts_its_messages_and_its_retries(autojump_clock: MockClock) -> None:
    """A batch counts as its messages, a retry as one."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            assert producer.statistics() == ProducerStatistics(0, 0, 0)
            broker.refuse(SEND, ResponseCode.SYSTEM_BUSY)
            await producer.send(Message("t", b"0"))
            await producer.send_batch([Message("t", b"1"), Message("t", b"2")])
            await producer.send_many([Message("t", b"%d" % number) for number in range(10)])
            broker.refuse(SEND, ResponseCode.MESSAGE_ILLEGAL)
            with pytest.raises(ClientError):
                await producer.send(Message("t", b"3"))
            assert producer.statistics() == ProducerStatistics(stored=13, failed=1, retries=1)


async def test_a_consumer_counts_what_became_of_its_messages(autojump_clock: MockClock) -> None:
    """And what it holds now."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 10)

        def decode(body: bytes) -> int:
            number = int(body)
            if number == 9:
                raise ValueError("no 9")
            return number

        async with open_consumer(
            NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, decode=decode, world=cluster.world
        ) as consumer:
            await trio.sleep(1)
            first, second, third = await consumer.get_many(3)
            await first.ack()
            await second.retry()
            found = consumer.statistics()
            assert attrs_without_bytes(found) == (10, 1, 1, 7, 1)
            assert found.held_bytes > 0
            await third.ack()
            async with consumer.take() as messages:
                assert len(messages) == 6
            await trio.sleep(1)
            assert attrs_without_bytes(consumer.statistics()) == (10, 8, 2, 0, 0)


def attrs_without_bytes(found: ConsumerStatistics) -> tuple[int, ...]:
    return found.received, found.acknowledged, found.failed, found.waiting, found.in_hand
