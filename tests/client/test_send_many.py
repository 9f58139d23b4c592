"""The order of messages in a queue is that in which their sends were begun; `send_many` keeps it when sends are repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledgermq.client import send_many
from ledgermq.client.admin import open_admin
from ledgermq.client.errors import (
    ClientError,
    InvalidArgument,
    MessageIllegal,
    MessageTooLarge,
    NoAnswer,
    NoPermission,
    SendTimeout,
)
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.send_many import Item
from ledgermq.client.sending import SendResult
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message, MessageQueue
from ledgermq.message.properties import SHARDING_KEY
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import open_virtual

from .fake_cluster import NAMESRV, FakeBroker, open_cluster

SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE


def silence(request: RemotingCommand) -> None:
    """Script: never answer."""


def numbered(count: int, topic: str = "t") -> list[Message]:
    return [Message(topic, b"%d" % number) for number in range(count)]


def key_of(message: Message) -> str:
    return f"k{message.body!r}"


def stored(broker: FakeBroker, queue_id: int = 0, topic: str = "t") -> list[int]:
    return [int(decode_record(record).body) for record in broker.queues.get((topic, queue_id), [])]


async def send_at_once(producer: Producer, count: int, pause: float = 0.0) -> list[int]:
    """Start many sends in a nursery; returns the order in which they began, which is trio's affair."""
    begun: list[int] = []

    async def send(number: int) -> None:
        begun.append(number)
        await producer.send(Message("t", b"%d" % number))

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(send, number)
            if pause and number % 7 == 0:
                await trio.sleep(pause)
    return begun


@pytest.mark.parametrize("seed", range(4))
async def test_sends_are_stored_in_the_order_in_which_they_began(autojump_clock: MockClock, seed: int) -> None:
    """Also the first ones, which wait for the route and for the connection, and those that begin while these wait."""
    pause = random.Random(seed).choice([0.0, 1e-6, 1e-3])
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)

        assert stored(broker) == []
        begun = await send_at_once(producer, 200, pause)
        assert stored(broker) == begun

        cluster.kill(broker)
        cluster.network.refusing.clear()
        await trio.sleep(0.1)
        begun += await send_at_once(producer, 50)
        assert stored(broker) == begun, "and over a new connection"


async def test_many_sends_to_a_topic_that_is_unknown_share_one_search(autojump_clock: MockClock) -> None:
    """A hundred senders hear of it together, and not each after a search of its own."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        await cluster.start_broker("b1")
        failures: list[ClientError] = []

        async def send() -> None:
            try:
                await producer.send(Message("nowhere", b""))
            except ClientError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(send)

        assert [type(error).__name__ for error in failures] == ["NoRoute"] * 100
        assert len(cluster.requests) == 2, "for the topic, and for the template of new topics"


async def test_send_many_keeps_the_order_though_requests_are_sent_again(autojump_clock: MockClock) -> None:
    """A broker that is busy now and then, that loses an answer, and whose connection breaks."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, send_timeout_seconds=8) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        busy = 0

        def often_busy(request: RemotingCommand) -> RemotingCommand | None:
            nonlocal busy
            busy += 1
            return request.response(ResponseCode.SYSTEM_BUSY, remark="scripted")

        broker.script(BATCH, often_busy, often_busy)
        results = await producer.send_many(numbered(1000))

        assert stored(broker) == list(range(1000))
        assert all(isinstance(result, SendResult) for result in results)
        assert [result.queue_offset for result in results if isinstance(result, SendResult)] == list(range(1000))
        assert busy == 2
        assert len(broker.requests_of(BATCH)) < 10, "in batches"
        assert broker.requests_of(SEND) == []


async def test_send_many_keeps_the_order_of_each_key(autojump_clock: MockClock) -> None:
    """Keys choose queues as in `send`, and carry their sharding property."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        brokers = [await cluster.start_broker(name) for name in ("b1", "b2")]
        cluster.create("t", 3)

        await producer.send_many(numbered(600), key=lambda message: f"key{int(message.body) % 5}")
        alone = await producer.send(Message("t", b"1000"), key="key3")

        queues = {MessageQueue("t", broker.name, at): stored(broker, at) for broker in brokers for at in range(3)}
        assert sorted(number for queue in queues.values() for number in queue) == [*range(600), 1000]
        assert all(queue == sorted(queue) for queue in queues.values())
        assert isinstance(alone, SendResult)
        assert [number for number in queues[alone.queue] if number % 5 == 3] == list(range(3, 600, 5))


async def test_send_many_says_of_each_message_what_became_of_it(autojump_clock: MockClock) -> None:
    """One that is no message, one that is too large, one that the broker refuses: the others are stored."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, message_bytes_max=1000) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        messages = numbered(6)
        messages[1] = Message("t", b"x" * 2000)
        messages[3] = Message("t", b"", tag="a\x01b")
        messages[4] = Message("bad topic", b"")

        results = await producer.send_many(messages)

        assert [type(result) for result in results] == [
            SendResult,
            MessageTooLarge,
            SendResult,
            InvalidArgument,
            InvalidArgument,
            SendResult,
        ]
        assert stored(broker) == [0, 2, 5]
        assert await producer.send_many([]) == []
        with pytest.raises(InvalidArgument, match="at most one"):
            await producer.send_many(messages, key="k", queue=MessageQueue("t", "b1", 0))


async def test_a_message_that_the_broker_refuses_does_not_take_its_batch_with_it(autojump_clock: MockClock) -> None:
    """The batch is refused whole, so its messages are sent one by one."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.refuse(BATCH, ResponseCode.MESSAGE_ILLEGAL)
        broker.refuse(SEND, ResponseCode.MESSAGE_ILLEGAL)

        results = await producer.send_many(numbered(4))

        assert [type(result) for result in results] == [MessageIllegal, SendResult, SendResult, SendResult]
        assert stored(broker) == [1, 2, 3]


async def test_send_many_gives_each_message_the_failure_of_its_request(autojump_clock: MockClock) -> None:
    """A broker that never answers leaves it open whether they are stored."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, retries=0) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.script(BATCH, silence)

        results = await producer.send_many(numbered(300))

        failed = [result for result in results if isinstance(result, NoAnswer)]
        assert len(failed) == 256
        assert all(error.may_have_been_stored for error in failed)
        assert stored(broker) == list(range(256, 300))


@pytest.mark.parametrize("way", ["send", "key", "many", "many keys"])
async def test_sends_follow_a_topic_that_has_fewer_queues_now(autojump_clock: MockClock, way: str) -> None:
    """The broker refuses what goes to a queue that is gone; the newest route is asked for, and nothing fails."""
    async with open_virtual() as embedded:
        namesrv, world = embedded.namesrv, embedded.world
        async with open_admin(namesrv, world=world) as admin, open_producer(namesrv, world=world) as producer:
            await admin.create_topic("t", queues=8)
            await producer.send(Message("t", b""))
            await admin.update_topic("t", queues=2, force=True)

            results: list[SendResult | ClientError] = []
            if way == "send":
                results += [await producer.send(message) for message in numbered(20)]
            elif way == "key":
                results += [await producer.send(message, key=key_of(message)) for message in numbered(20)]
            else:
                results += await producer.send_many(numbered(200), key=None if way == "many" else key_of)

            assert {result.queue.queue_id for result in results if isinstance(result, SendResult)} == {0, 1}
            assert [result for result in results if not isinstance(result, SendResult)] == []
            with pytest.raises(NoPermission, match="not stored") as refused:
                await producer.send(Message("t", b""), queue=MessageQueue("t", "broker-a", 77))
            assert (refused.value.retriable, refused.value.may_have_been_stored) == (False, False)


async def test_a_selector_chooses_the_queue_of_each_message(autojump_clock: MockClock) -> None:
    """One that fails for a message fails that message alone."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 3)

        def by_remainder(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
            if message.body == b"4":
                raise LookupError("no queue for 4")
            return queues[int(message.body) % 3]

        async with open_producer(NAMESRV, world=cluster.world) as producer:
            results = await producer.send_many(numbered(30), selector=by_remainder)
            with pytest.raises(InvalidArgument, match="at most one of key, queue and selector"):
                await producer.send_many(numbered(1), key="k", selector=by_remainder)
            with pytest.raises(InvalidArgument, match="selector must be None or a function"):
                await producer.send_many([], selector=cast("Any", "first"))

    failed = results.pop(4)
    assert isinstance(failed, InvalidArgument)
    assert "no queue for 4" in str(failed)
    assert all(isinstance(result, SendResult) for result in results)
    assert [stored(broker, queue_id) for queue_id in range(3)] == [
        [number for number in range(30) if number % 3 == queue_id and number != 4] for queue_id in range(3)
    ]
    assert len(broker.requests_of(BATCH)) == 3


async def test_a_batch_goes_where_its_key_or_its_selector_says(autojump_clock: MockClock) -> None:
    """To the queue of a single send with that key, which the messages name too."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            alone = await producer.send(Message("t", b"0"), key="customer")
            together = await producer.send_batch([Message("t", b"1"), Message("t", b"2")], key="customer")
            chosen = await producer.send_batch(numbered(2), selector=lambda queues, _: queues[3])
            with pytest.raises(InvalidArgument, match="at most one of key, queue and selector"):
                await producer.send_batch(numbered(1), key="k", queue=alone.queue)

        assert {result.queue for result in together} == {alone.queue}
        assert {result.queue.queue_id for result in chosen} == {3}
        properties = [decode_record(record).properties for record in broker.queues["t", alone.queue.queue_id]]
        assert [each.get(SHARDING_KEY) for each in properties[:3]] == ["customer"] * 3


class Spawned(trio.abc.Instrument):
    """Counts the tasks that are started."""

    count = 0

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_a_send_of_a_lane_starts_no_task_if_one_is_idle(autojump_clock: MockClock) -> None:
    """The second lane at the same time needs a task of its own, which ends with it."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        await cluster.start_broker("b1")
        cluster.create("t", 2)
        queues = [MessageQueue("t", "b1", at) for at in range(2)]

        def both(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
            return queues[int(message.body) % 2]

        await producer.send_many(numbered(1))
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        for number in range(10):
            await producer.send_many(numbered(1), queue=queues[number % 2])
        alone, spawned.count = spawned.count, 0
        for _ in range(10):
            await producer.send_many(numbered(2), selector=both)
        trio.lowlevel.remove_instrument(spawned)

        assert (alone, spawned.count) == (0, 10)


async def test_several_calls_of_send_many_keep_their_order(autojump_clock: MockClock) -> None:
    """The later calls wait behind the requests of the earlier one, also while the queues are searched for."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world, send_timeout_seconds=8) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.refuse(BATCH, ResponseCode.SYSTEM_BUSY)
        messages = numbered(900)

        async with trio.open_nursery() as nursery:
            for at in range(0, 900, 300):
                nursery.start_soon(producer.send_many, messages[at : at + 300])
                await trio.testing.wait_all_tasks_blocked()

        assert stored(broker) == list(range(900))


async def test_a_cancelled_send_many_stops_no_other(autojump_clock: MockClock) -> None:
    """Its pending request is given up, what waits is not sent, and what others have added goes on."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        await producer.send(Message("t", b"-1"))
        broker.script(BATCH, silence)
        messages = numbered(900)

        results: list[SendResult | ClientError] = []

        async def later() -> None:
            await trio.sleep(0.1)
            results.extend(await producer.send_many(messages[600:]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            with trio.move_on_after(0.2):
                await producer.send_many(messages[:600])

        assert [type(result) for result in results] == [SendResult] * 300
        assert stored(broker) == [-1, *range(600, 900)]


async def test_every_message_has_an_outcome_whenever_its_time_ends(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between two looks at the clock: while messages are taken for a request, and before that is sent."""
    outcomes: list[SendResult | BaseException] = []
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        await producer.send(Message("t", b""))
        time_of = autojump_clock.current_time

        def look() -> float:
            autojump_clock.jump(1e-6)
            return time_of()

        monkeypatch.setattr(autojump_clock, "current_time", look)
        monkeypatch.setattr(send_many, "BATCH_MESSAGES_MAX", 2)
        for looks in range(100):
            deadline = trio.current_time() + (looks + 0.5) * 1e-6
            for message in numbered(4):
                producer.lanes.add(Item(message, None, None, None, 1.0, outcomes.append, deadline))
            await trio.sleep(0.1)

    assert len(outcomes) == 400
    assert {type(outcome) for outcome in outcomes} == {SendTimeout, SendResult}
