"""What an application is told of the queues that its consumer takes and gives up, and what its callbacks cannot spoil."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.membership import LOCK_RENEW_SECONDS
from ledgermq.client.producer import open_producer
from ledgermq.client.rebalance_callbacks import CALLBACK_SECONDS
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message, MessageQueue
from ledgermq.testing.embedded import open_virtual
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, open_cluster, until
from .test_consumer import fill, numbers, silence
from .test_orderly import COMMIT, LOCK, join, members_changed

FIRST = ConsumeFrom.FIRST


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("t", "b1", queue_id)


async def test_queues_are_announced_before_their_first_message_and_after_their_last(autojump_clock: MockClock) -> None:
    """Those of the first share before the block begins, and all that are left when it ends."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 2)
        events: list[object] = []

        async def assigned(queues: list[MessageQueue]) -> None:
            await trio.sleep(3)
            events.append(("assigned", queues))

        async with open_consumer(
            NAMESRV,
            "g",
            "t",
            consume_from=FIRST,
            on_assigned=assigned,
            on_revoked=lambda queues: events.append(("revoked", queues)),
            world=cluster.world,
        ) as consumer:
            events.append("begun")
            events.append(numbers(await consumer.get_many(2)))
            cluster.create("t", 2)
            fill(broker, 1, queue_id=1)
            events.append(numbers(await consumer.get_many(2)))
        assert events == [
            ("assigned", [queue(0)]),
            "begun",
            [0, 1],
            ("assigned", [queue(1)]),
            [0],
            ("revoked", [queue(0), queue(1)]),
        ]


async def test_the_queues_of_all_topics_are_announced_together(autojump_clock: MockClock) -> None:
    """Those of the group's retries too: a slow callback delays the start once."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 2)
        cluster.create("%RETRY%g", 1)
        announced: list[list[MessageQueue]] = []

        async def assigned(queues: list[MessageQueue]) -> None:
            announced.append(queues)
            await trio.sleep(9)

        started = trio.current_time()
        async with open_consumer(NAMESRV, "g", "t", on_assigned=assigned, world=cluster.world) as consumer:
            assert trio.current_time() - started < CALLBACK_SECONDS
            assert announced == [consumer.queues]
            assert consumer.queues == [MessageQueue("%RETRY%g", "b1", 0), queue(0), queue(1)]


async def test_queues_are_revoked_before_others_are_assigned_whatever_their_topics(autojump_clock: MockClock) -> None:
    """A member that exchanges queues of two topics for one of a third first loses both, in one call."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        for topic in ("a", "b", "c"):
            cluster.create(topic, 1)
        share, events = {"b", "c"}, list[tuple[str, list[str]]]()

        def notify(name: str, queues: list[MessageQueue]) -> None:
            events.append((name, [each.topic for each in queues]))

        async with open_consumer(
            NAMESRV,
            "g",
            ["a", "b", "c"],
            strategy=lambda _, queues, __: [each for each in queues if each.topic in share],
            on_assigned=partial(notify, "assigned"),
            on_revoked=partial(notify, "revoked"),
            world=cluster.world,
        ):
            share = {"a"}
            members_changed(broker)
            await until(lambda: len(events) == 3)
        assert events == [("assigned", ["b", "c"]), ("revoked", ["b", "c"]), ("assigned", ["a"]), ("revoked", ["a"])]


@pytest.mark.parametrize("during", ["on_assigned", "the first commit"])
async def test_a_queue_that_is_lost_while_it_is_taken_is_revoked_if_it_was_assigned(
    autojump_clock: MockClock, during: str
) -> None:
    """Its lock is found to be lost while `on_assigned` is at work, whose end is waited for, or before it has been called."""
    events: list[tuple[str, list[MessageQueue]]] = []

    async def assigned(queues: list[MessageQueue]) -> None:
        events.append(("begins", queues))
        await trio.sleep(9)
        events.append(("ends", queues))

    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        join(broker)
        async with open_consumer(
            NAMESRV,
            "g",
            "t",
            orderly=True,
            on_assigned=assigned,
            on_revoked=lambda queues: events.append(("revoked", queues)),
            world=cluster.world,
        ) as consumer:
            renewed = len(broker.requests_of(LOCK))
            await until(lambda: len(broker.requests_of(LOCK)) > renewed)
            await trio.sleep(LOCK_RENEW_SECONDS - 2)
            if during == "the first commit":
                broker.script(COMMIT, silence)
            del events[:]
            broker.extra_members.clear()
            members_changed(broker)
            await until(lambda: queue(1) in consumer.queues)
            broker.locks["t", 1] = "another"
            await trio.sleep(LOCK_RENEW_SECONDS - 5)
            assert consumer.queues == [queue(0)]
        found = [("begins", [queue(1)]), ("ends", [queue(1)]), ("revoked", [queue(1)])] if during == "on_assigned" else []
        assert events == [*found, ("revoked", [queue(0)])]


async def test_offsets_that_the_application_keeps_replace_those_of_the_group(autojump_clock: MockClock) -> None:
    """From the first message on; wrong ones are refused and logged."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        for queue_id in range(2):
            fill(broker, 9, queue_id=queue_id)
        async with (
            open_consumer(
                NAMESRV, "g", "t", consume_from=FIRST, on_assigned=lambda _: {queue(1): 7, queue(5): 1}, world=cluster.world
            ) as consumer,
            consumer.take(30, 1) as messages,
        ):
            assert sorted(numbers(messages)) == sorted([*range(9), 7, 8])
        with capture_logs() as events:
            async with open_consumer(
                NAMESRV, "g2", "t", consume_from=FIRST, on_assigned=lambda _: {queue(1): -7}, world=cluster.world
            ) as consumer:
                assert len(await consumer.get_many(30, 1)) == 18
        (failed,) = (event for event in events if event["event"] == "rebalance_callback_failed")
        assert failed["queues"] == ["t@b1:0", "t@b1:1"]


def failing(_: object) -> None:
    raise LookupError("no table")


async def hanging(_: object) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize(("callback", "event"), [(failing, "rebalance_callback_failed"), (hanging, "rebalance_callback_late")])
async def test_a_callback_that_fails_or_hangs_holds_up_nothing(
    autojump_clock: MockClock, callback: Callable[[object], Any], event: str
) -> None:
    """It is logged, and no message is lost."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 2)
        with capture_logs() as events:
            async with open_consumer(
                NAMESRV, "g", "t", consume_from=FIRST, on_assigned=callback, on_revoked=callback, world=cluster.world
            ) as consumer:
                async with consumer.take(10) as messages:
                    assert numbers(messages) == [0, 1]
                ended = trio.current_time()
        assert trio.current_time() - ended <= CALLBACK_SECONDS + 1
        assert [each["event"] for each in events].count(event) == 2
        assert broker.offsets["g", "t", 0] == 2


@pytest.mark.parametrize("orderly", [False, True])
async def test_what_is_acknowledged_in_the_callback_counts_for_the_next_member(
    autojump_clock: MockClock, orderly: bool
) -> None:
    """A queue is handed over with 10 messages in hand, and their offset is committed; an ordered one when none is in hand."""
    handled: list[int] = []
    taken: list[ReceivedMessage] = []
    in_hand_at_callback: list[int] = []

    async def finish(queues: Collection[MessageQueue]) -> None:
        for message in taken:
            if message.queue in queues and message.in_hand:
                handled.append(int(message.body))
                await message.ack()

    async def revoked(queues: list[MessageQueue]) -> None:
        if "t" in {queue.topic for queue in queues}:
            in_hand_at_callback.append(sum(message.queue in queues and message.in_hand for message in taken))
        await finish(queues)

    async with open_virtual(settings={"defaultTopicQueueNums": "2"}) as cluster:
        async with open_producer(cluster.namesrv, world=cluster.world) as producer:
            for number in range(20):
                await producer.send(Message("t", b"%d" % number))
        options: dict[str, Any] = {"orderly": orderly, "consume_from": FIRST, "world": cluster.world}
        async with open_consumer(cluster.namesrv, "g", "t", on_revoked=revoked, **options) as first:
            while len(taken) < 20:
                taken += await first.get_many(30, 1)
            async with open_consumer(cluster.namesrv, "g", "t", **options) as second:
                if orderly:
                    await trio.sleep(60)
                    assert in_hand_at_callback == []
                    await finish({message.queue for message in taken})
                await until(lambda: "t" in {each.topic for each in second.queues} and bool(in_hand_at_callback), 300)
                await trio.sleep(1)
                assert in_hand_at_callback == [0 if orderly else 10]
                assert cluster.brokers[0].offsets.of("g", "t")[handed_over(second)] == 10
                if orderly:
                    assert await second.get_many(50, 30) == []
                await finish(first.queues)
    assert sorted(handled) == list(range(20))


def handed_over(second: Consumer) -> int:
    (queue_id,) = (each.queue_id for each in second.queues if each.topic == "t")
    return queue_id


@pytest.mark.parametrize("moment", ["callback", "commit"])
async def test_a_consumer_that_closes_while_it_gives_a_queue_away_finishes_that(autojump_clock: MockClock, moment: str) -> None:
    """A callback that was cut off is called again, one that has ended is not; what was acknowledged is committed."""
    revoked: list[MessageQueue] = []
    begun = trio.Event()

    async def note(queues: list[MessageQueue]) -> None:
        if moment == "callback" and not begun.is_set():
            begun.set()
            await trio.sleep(5)
        revoked.extend(queues)

    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 3, queue_id=1)
        async with open_consumer(
            NAMESRV, "g", "t", consume_from=FIRST, ack="explicit", on_revoked=note, world=cluster.world
        ) as consumer:
            for message in await consumer.get_many(3):
                await message.ack()
            if moment == "commit":
                broker.script(COMMIT, silence)
            join(broker)
            await until(lambda: begun.is_set() or (moment == "commit" and not broker.scripts[COMMIT]))

        assert sorted(revoked) == [queue(0), queue(1)]
        assert broker.offsets["g", "t", 1] == 3


async def test_a_late_callback_whose_child_fails_as_it_is_cancelled_is_logged(autojump_clock: MockClock) -> None:
    """What is left of the group of exceptions, when its cancellation has been taken out, does not end the consumer."""

    async def fails_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError("no table")

    async def assigned(_: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fails_at_the_end)
            nursery.start_soon(trio.sleep_forever)

    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 2)
        with capture_logs() as events:
            async with open_consumer(
                NAMESRV, "g", "t", consume_from=FIRST, on_assigned=assigned, world=cluster.world
            ) as consumer:
                assert len(await consumer.get_many(2, 1)) == 2
        assert "rebalance_callback_failed" in [event["event"] for event in events]


async def test_what_was_acknowledged_before_is_committed_before_the_callback(autojump_clock: MockClock) -> None:
    """Without locks the next member reads the queue while the callback is still at work."""
    committed: list[int | None] = []

    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 3, queue_id=1)
        async with open_consumer(
            NAMESRV,
            "g",
            "t",
            consume_from=FIRST,
            on_revoked=lambda _: committed.append(broker.offsets.get(("g", "t", 1))),
            world=cluster.world,
        ) as consumer:
            async with consumer.take(3):
                pass
            join(broker)
            await until(lambda: committed != [])
            assert committed == [3]


async def test_a_slow_callback_at_the_end_of_an_ordered_consumer_costs_no_commit(autojump_clock: MockClock) -> None:
    """The lock, which nobody renews any more, expires meanwhile; and nobody else gets the queue before the callback ends."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 3)
        locked: list[bool] = []

        async def slow(_: object) -> None:
            await trio.sleep(CALLBACK_SECONDS - 0.1)
            locked.append(("t", 0) in broker.locks)

        async with open_consumer(
            NAMESRV, "g", "t", consume_from=FIRST, orderly=True, on_revoked=slow, world=cluster.world
        ) as consumer:
            await trio.sleep(LOCK_RENEW_SECONDS + 0.5)
            async with consumer.take(1):
                pass
        assert broker.offsets["g", "t", 0] == 1
        assert (locked, broker.locks) == ([True], {})
