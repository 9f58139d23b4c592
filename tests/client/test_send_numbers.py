"""The numbers of a producer's sends: kept through retries, and which older sends they let the broker forget."""

from __future__ import annotations

import random

import orjson
import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.errors import ProducerFenced, SendForgotten, SendTimeout
from ledgermq.client.producer import open_producer
from ledgermq.client.send_numbers import SendNumbers
from ledgermq.message.message import Message, MessageQueue
from ledgermq.message.send_number import SendNumber, parse_send_number
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand

from .fake_cluster import NAMESRV, FakeBroker, open_cluster
from .test_producer import SEND, sends, silence


def _number(numbers: SendNumbers, sequence: int) -> SendNumber:
    return parse_send_number(orjson.loads(b'{"a":1' + numbers.field(sequence) + b"}")["sendNumber"])


@pytest.mark.parametrize("seed", range(5))
def test_the_oldest_pending_send_is_named_in_whatever_order_they_end(seed: int) -> None:
    rng = random.Random(seed)
    numbers = SendNumbers.of(rng.getrandbits(128))
    pending: set[int] = set()
    for _ in range(300):
        if pending and rng.random() < 0.5:
            pending.remove(ended := rng.choice(sorted(pending)))
            numbers.end(ended)
        else:
            pending.add(sequence := numbers.begin(rng.randint(1, 3)))
            assert _number(numbers, sequence)[1:] == (0, sequence, min(pending))


def know_numbers(*brokers: FakeBroker) -> None:
    """Let fake brokers say that they recognise repeated sends."""

    def answer(request: RemotingCommand) -> RemotingCommand:
        return request.response(ext={"sendNumbers": "true"})

    for broker in brokers:
        broker.script(RequestCode.HEART_BEAT, *[answer] * 100)


async def test_a_send_that_may_be_stored_stays_at_its_broker(autojump_clock: MockClock) -> None:
    """With its number and its queue, however often; at another broker it could be stored a second time."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, retries=0) as producer:
        first, second = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        know_numbers(first, second)
        cluster.create("t", 1)
        await producer.send(Message("t", b""), queue=MessageQueue("t", "b1", 0))
        await producer.send(Message("t", b""), queue=MessageQueue("t", "b2", 0))
        await trio.sleep(1)
        first.refuse(SEND, ResponseCode.SYSTEM_ERROR, times=4)
        second.refuse(SEND, ResponseCode.SYSTEM_ERROR, times=4)

        result = await producer.send(Message("t", b"x"))

        chosen, other = (first, second) if result.queue.broker_name == "b1" else (second, first)
        requests = chosen.requests_of(SEND)[1:]
        assert len(requests) == 5
        assert len({request.ext["sendNumber"] for request in requests}) == 1
        assert len(other.requests_of(SEND)) == 1


async def test_a_send_that_stored_nothing_moves_on(autojump_clock: MockClock) -> None:
    """A refusal is certain; so is the number's use at the next broker."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2")]
        know_numbers(*brokers)
        cluster.create("t", 1)
        for broker in brokers:
            broker.refuse(SEND, ResponseCode.SYSTEM_BUSY)

        await producer.send(Message("t", b"x"))

        assert sorted(sends(*brokers)) == [1, 2]


async def test_a_silent_broker_that_may_have_stored_a_message_keeps_its_send(autojump_clock: MockClock) -> None:
    """Even if that takes the whole time: the caller is told, and the message is not stored elsewhere."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2")]
        know_numbers(*brokers)
        cluster.create("t", 1)
        for name, broker in zip(("b1", "b2"), brokers, strict=True):
            await producer.send(Message("t", b""), queue=MessageQueue("t", name, 0))
            await trio.sleep(1)
            broker.script(SEND, *[silence] * 100)

        with pytest.raises(SendTimeout) as caught:
            await producer.send(Message("t", b"x"))

        assert caught.value.may_have_been_stored
        assert 1 in sends(*brokers), "one of the two has only got the send before"
        assert max(sends(*brokers)) > 2


async def test_brokers_that_know_no_numbers_are_left_as_before(autojump_clock: MockClock) -> None:
    """Apache's ignore the field; a retry at another broker is better than none."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2")]
        cluster.create("t", 1)
        for broker in brokers:
            broker.refuse(SEND, ResponseCode.SYSTEM_ERROR)

        await producer.send(Message("t", b"x"))

        assert sorted(sends(*brokers)) == [1, 2]


async def test_a_producer_may_send_without_numbers(autojump_clock: MockClock) -> None:
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, idempotent=False) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)

        await producer.send(Message("t", b"x"))
        await producer.send_batch([Message("t", b"y")])

        assert all("sendNumber" not in request.ext for request in broker.requests)


@pytest.mark.parametrize(("code", "error"), [(60101, ProducerFenced), (60102, SendForgotten)])
async def test_refusals_of_numbers_have_errors_of_their_own(
    autojump_clock: MockClock, code: int, error: type[Exception]
) -> None:
    """They are not retried; whether the message is stored depends on the attempts before."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.refuse(SEND, code, times=2)

        with pytest.raises(error) as first:
            await producer.send(Message("t", b"x"))
        broker.scripts[SEND].appendleft(lambda request: request.response(ResponseCode.SYSTEM_ERROR))
        with pytest.raises(error) as second:
            await producer.send(Message("t", b"x"))

        assert not getattr(first.value, "may_have_been_stored", True)
        assert getattr(second.value, "may_have_been_stored", False)


async def test_a_repeated_send_says_where_the_first_is(autojump_clock: MockClock) -> None:
    """In another queue than the retry asked for, if that is where the broker has it."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)

        def repeated(request: RemotingCommand) -> RemotingCommand:
            ids = ",".join(["0A" * 16] * (2 if request.ext["m"] == "true" else 1))
            fields = {"msgId": ids, "queueId": 1, "queueOffset": 7, "repeated": "true"}
            return request.response(ext=fields | ({"queueOffsets": "7,9"} if request.ext["m"] == "true" else {}))

        broker.script(SEND, repeated)
        broker.script(RequestCode.SEND_BATCH_MESSAGE, repeated)

        one = await producer.send(Message("t", b"x"), queue=MessageQueue("t", "b1", 0))
        several = await producer.send_batch([Message("t", b"x")] * 2, queue=MessageQueue("t", "b1", 0))

        assert (one.queue.queue_id, one.queue_offset, one.repeated) == (1, 7, True)
        assert [(each.queue.queue_id, each.queue_offset, each.repeated) for each in several] == [(1, 7, True), (1, 9, True)]
