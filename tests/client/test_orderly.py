"""Orderly consumption by several members: one owner of a queue at a time, and its order, whatever happens to locks."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import Unreachable
from ledgermq.client.membership import LOCK_RENEW_SECONDS
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, FakeBroker, FakeCluster, open_cluster, until
from .test_consumer import RETRY, fill, numbers, silence

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


def consuming(cluster: FakeCluster, name: str, **options: Any) -> Any:
    return open_consumer(
        NAMESRV, "g", "t", orderly=True, consume_from=ConsumeFrom.FIRST, instance_name=name, world=cluster.world, **options
    )


def members_changed(broker: FakeBroker) -> None:
    for connection in list(broker.members.values()):
        connection.notify(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}))


def join(broker: FakeBroker) -> None:
    """Let another member join, which gets the second half of the queues."""
    broker.extra_members.append("z")
    members_changed(broker)


class Handling:
    """Handlers of all members, and what they see."""

    def __init__(self, cluster: FakeCluster, slow: dict[bytes, float]) -> None:
        self.cluster = cluster
        self.slow = slow
        self.seen: list[tuple[str, int]] = []
        self.busy: set[int] = set()

    def by(self, name: str) -> Any:
        async def handle(message: ReceivedMessage) -> None:
            queue_id = message.queue.queue_id
            assert queue_id not in self.busy, f"two members have queue {queue_id}"
            self.busy.add(queue_id)
            self.seen.append((name, int(message.body)))
            try:
                await trio.sleep(self.slow.pop(message.body, 0.01))
            finally:
                self.busy.discard(queue_id)

        return handle


async def test_a_queue_is_given_away_when_nothing_of_it_is_in_work(autojump_clock: MockClock) -> None:
    """A handler that outlasts the rebalance by minutes keeps the lock renewed until it has finished."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        for queue_id in range(2):
            for number in range(5):
                broker.put("t", queue_id, b"%d" % (10 * queue_id + number))
        handling = Handling(cluster, {b"11": 100.0})
        async with consuming(cluster, "a") as one, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: one.process(handling.by("a"), tasks=2))
            await until(lambda: ("a", 11) in handling.seen)
            async with consuming(cluster, "b") as two:
                members_changed(broker)
                nursery.start_soon(lambda: two.process(handling.by("b")))
                await trio.sleep(95)
                assert [queue.queue_id for queue in two.queues if queue.topic == "t"] == []
                renewed = sum(b'"queueId":1' in request.body.replace(b" ", b"") for request in broker.requests_of(LOCK))
                assert renewed >= 5
                await until(lambda: ("b", 14) in handling.seen)
                nursery.cancel_scope.cancel()

        assert [number for _, number in handling.seen if number >= 10] == [10, 11, 12, 13, 14]
        assert {("a", 11), ("b", 12)} <= set(handling.seen)


@pytest.mark.parametrize("checkpoints", range(12))
async def test_a_handler_may_end_at_any_point_of_the_closing_of_its_consumer(
    autojump_clock: MockClock, checkpoints: int
) -> None:
    """The cancelled handler gives its message back while the consumer's own tasks end, or after they have ended."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"0")

        async def handle(message: ReceivedMessage) -> None:
            try:
                handled.set()
                await trio.sleep_forever()
            finally:
                for _ in range(checkpoints):
                    await trio.lowlevel.cancel_shielded_checkpoint()

        handled = trio.Event()
        async with trio.open_nursery() as nursery, consuming(cluster, "a") as consumer:
            nursery.start_soon(consumer.process, handle)
            await handled.wait()
            nursery.cancel_scope.cancel()

        assert broker.offsets["g", "t", 0] == 0


async def test_a_lock_that_was_lost_means_a_new_beginning(autojump_clock: MockClock) -> None:
    """Another member has read the queue meanwhile: nothing that was pulled before is handed out, and nothing committed."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        for number in range(10):
            broker.put("t", 0, b"%d" % number)
        async with consuming(cluster, "a", ack="explicit") as consumer:
            first = await consumer.get_one()
            assert first is not None
            (owner,) = {broker.locks["t", 0]}
            broker.locks["t", 0] = "another"
            broker.offsets["g", "t", 0] = 7
            await trio.sleep(25)
            await first.ack()
            assert await consumer.get_one(30) is None
            assert broker.offsets["g", "t", 0] == 7

            broker.locks["t", 0] = owner
            message = await consumer.get_one(30)
            assert message is not None
            assert message.body == b"7"


async def test_locks_that_cannot_be_renewed_are_given_up_before_others_may_have_them(autojump_clock: MockClock) -> None:
    """Thirty seconds after the last renewal was asked for, which was before the broker noted it."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with consuming(cluster, "a", ack="explicit") as consumer:
            broker.refuse(LOCK, ResponseCode.SYSTEM_ERROR, times=100)
            for number in range(3):
                broker.put("t", 0, b"%d" % number)
            message = await consumer.get_one(29)
            assert message is not None
            await trio.sleep(31)
            await message.ack()
            assert await consumer.get_one(60) is None
            with pytest.raises(Unreachable, match="the lock of t@b1:0 "):
                await consumer.commit()
            assert broker.offsets["g", "t", 0] == 0


@pytest.mark.parametrize("seed", range(6))
async def test_members_come_and_go(autojump_clock: MockClock, seed: int) -> None:
    """Handlers of all durations: never two in one queue, the order of each queue, and every message."""
    async with open_cluster(seed) as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)
        rng = cluster.world.randomness
        for number in range(60):
            for queue_id in range(4):
                broker.put("t", queue_id, b"%d" % (1000 * queue_id + number))
        slow = {
            b"%d" % (1000 * rng.randrange(4) + rng.randrange(60)): rng.choice((0.5, 5.0, 25.0, 45.0, 70.0)) for _ in range(12)
        }
        handling = Handling(cluster, slow)

        async def live(name: str, joins: float, seconds: float, opened: list[Consumer]) -> None:
            await trio.sleep(joins)
            async with consuming(cluster, name) as consumer:
                opened.append(consumer)
                members_changed(broker)
                with trio.move_on_after(seconds):
                    await consumer.process(handling.by(name), tasks=3)
            members_changed(broker)

        opened: list[Consumer] = []
        with trio.move_on_after(900):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(live, "a", 0, 900, opened)
                for name in "bcd":
                    nursery.start_soon(live, name, rng.random() * 100, 10 + rng.random() * 100, opened)

        for queue_id in range(4):
            numbers = [number - 1000 * queue_id for _, number in handling.seen if number // 1000 == queue_id]
            assert set(numbers) == set(range(60))
            first = list(dict.fromkeys(numbers))
            assert first == list(range(60)), "the first deliveries are in order"
        assert len(opened) == 4


async def test_orderly_consumption_hands_out_one_message_at_a_time(autojump_clock: MockClock) -> None:
    """Many tasks, four queues: within a queue the next message waits for the one before."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 4)
        for queue_id in range(4):
            fill(broker, 10, queue_id=queue_id)
        open_queues: set[MessageQueue] = set()
        seen: dict[MessageQueue, list[int]] = {}

        async def handle(message: ReceivedMessage) -> None:
            assert message.queue not in open_queues
            open_queues.add(message.queue)
            await trio.sleep(0.01 * (1 + message.queue_offset % 3))
            open_queues.discard(message.queue)
            seen.setdefault(message.queue, []).append(int(message.body))

        async with open_consumer(
            NAMESRV, "g", "t", orderly=True, consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as consumer:
            assert len(broker.locks) == 4
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: consumer.process(handle, tasks=8))
                await until(lambda: sum(map(len, seen.values())) == 40)
                nursery.cancel_scope.cancel()

        assert all(order == list(range(10)) for order in seen.values())
        assert broker.locks == {}, "given back at the end"


async def test_a_retried_message_holds_up_its_queue(autojump_clock: MockClock) -> None:
    """In orderly consumption the message is handed out again after a second, and nothing overtakes it."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 4)
        async with open_consumer(
            NAMESRV, "g", "t", orderly=True, ack="explicit", consume_from=ConsumeFrom.FIRST, world=cluster.world
        ) as consumer:
            first, second, *_ = await consumer.get_many(3)
            await first.ack()
            started = trio.current_time()
            await second.retry()
            again = await consumer.get_many(10)

            assert trio.current_time() - started == pytest.approx(1, abs=0.1)
            assert numbers(again) == [1, 2, 3]
            assert again[0].reconsume_times == 1


async def test_an_orderly_message_becomes_a_dead_letter_in_the_end(autojump_clock: MockClock) -> None:
    """After its last retry it is sent to the retry topic with more deliveries than are allowed, which the broker buries."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        cluster.create(RETRY, 1)
        fill(broker, 2)
        async with open_consumer(
            NAMESRV,
            "g",
            "t",
            orderly=True,
            ack="explicit",
            consume_from=ConsumeFrom.FIRST,
            reconsume_times_max=2,
            world=cluster.world,
        ) as consumer:
            for _ in range(3):
                message = await consumer.get_one()
                assert message is not None
                assert message.body == b"0"
                await message.retry()
            message = await consumer.get_one()

            assert message is not None
            assert message.body == b"1"
            (request,) = broker.requests_of(RequestCode.SEND_MESSAGE_V2)
            assert int(request.ext["j"]) > int(request.ext["l"]) == 2
            assert broker.bodies("%DLQ%g") == [b"0"]


async def test_a_queue_locked_by_another_member_is_left_alone(autojump_clock: MockClock) -> None:
    """It is taken as soon as the other lets go."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        broker.locks["t", 0] = "somebody"
        async with open_consumer(NAMESRV, "g", "t", orderly=True, world=cluster.world) as consumer:
            assert [queue.queue_id for queue in consumer.queues if queue.topic == "t"] == [1]
            del broker.locks["t", 0]
            await until(lambda: len(consumer.queues) == 2)


async def test_a_lost_lock_stops_a_queue_until_it_is_back(autojump_clock: MockClock) -> None:
    """A lock that could not be renewed for 30 s counts as lost, even if nobody says so."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_consumer(NAMESRV, "g", "t", orderly=True, ack="explicit", world=cluster.world) as consumer:
            broker.refuse(LOCK, ResponseCode.SYSTEM_ERROR, times=32)  # from 20 s on, each second
            await trio.sleep(45)
            broker.put("t", 0, b"0")
            assert await consumer.get_one(5) is None
            assert await consumer.get_one(10) is not None, "a renewal succeeds after 52 s"


async def test_a_queue_goes_on_when_its_master_has_changed(autojump_clock: MockClock) -> None:
    """A renewal that fails is repeated at the new master before the lock has expired."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with consuming(cluster, "a") as consumer:
            await trio.sleep(18)
            cluster.kill(broker)
            cluster.forget(broker)
            await trio.sleep(5)
            successor = await cluster.start_broker("b1")
            cluster.create("t", 1)
            for number in range(20):
                successor.put("t", 0, b"%d" % number)
            began = trio.current_time()
            for number in range(20):
                async with consumer.take(1, 30) as (message,):
                    assert int(message.body) == number
                await trio.sleep(1)
            assert trio.current_time() - began < 24, "the queue never waits for its lock"


async def test_an_opening_that_is_cancelled_leaves_no_lock(autojump_clock: MockClock) -> None:
    """Another member would wait for a minute until it has expired."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        broker.script(RequestCode.QUERY_CONSUMER_OFFSET, *[silence] * 4)
        with trio.move_on_after(1):
            async with consuming(cluster, "a"):
                raise AssertionError("no offset has come")

        assert len(broker.requests_of(LOCK)) == 2
        assert broker.locks == {}


async def test_a_queue_that_cannot_be_taken_is_unlocked(autojump_clock: MockClock) -> None:
    """Its lock is of no use to this member, and keeps the queue from others."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.refuse(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.SYSTEM_BUSY)
        async with consuming(cluster, "a") as consumer:
            assert len(broker.requests_of(LOCK)) == 1
            assert broker.locks == {}
            await until(lambda: len(consumer.queues) == 1)


async def test_what_is_acknowledged_during_the_commit_of_a_hand_over_does_not_come_again(autojump_clock: MockClock) -> None:
    """The queue is idle when the answer comes; the acknowledgement is committed before the queue is unlocked."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 3, queue_id=1)
        async with consuming(cluster, "a", ack="explicit") as consumer:
            first, second = await consumer.get_many(2)
            await first.ack()

            def acknowledge_and_answer(request: RemotingCommand) -> RemotingCommand:
                broker.offsets["g", "t", request.integer("queueId")] = request.integer("commitOffset")
                second.ack_now()
                return request.response()

            broker.script(COMMIT, acknowledge_and_answer)
            join(broker)
            await until(lambda: ("t", 1) not in broker.locks)

            assert broker.offsets["g", "t", 1] == 2


async def test_a_queue_that_is_being_unlocked_is_not_locked_again(autojump_clock: MockClock) -> None:
    """The renewal of all locks falls into the time in which the broker answers."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        async with consuming(cluster, "a"):
            await trio.sleep(LOCK_RENEW_SECONDS - 0.5)

            def unlock_late(request: RemotingCommand) -> None:
                del broker.locks["t", 1]

            broker.script(UNLOCK, unlock_late)
            before = len(broker.requests_of(LOCK))
            join(broker)
            await until(lambda: len(broker.requests_of(LOCK)) > before)

            assert len(broker.requests_of(UNLOCK)) == 1
            await trio.sleep(10)
            assert broker.locks.keys() == {("t", 0)}


async def test_a_consumer_that_closes_while_it_gives_a_queue_away_unlocks_it(autojump_clock: MockClock) -> None:
    """Nobody would read the queue before the lock has expired."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 3, queue_id=1)
        async with consuming(cluster, "a", ack="explicit") as consumer:
            for message in await consumer.get_many(3):
                await message.ack()
            broker.script(COMMIT, silence)
            join(broker)
            await until(lambda: not broker.scripts[COMMIT])

        assert broker.locks == {}
        assert broker.offsets["g", "t", 1] == 3


async def test_a_lock_is_renewed_in_time_however_long_the_opening_takes(autojump_clock: MockClock) -> None:
    """Callbacks of several topics take their time one after the other, and the queues of the first are ours meanwhile."""
    assigned: list[MessageQueue] = []

    async def slow(queues: list[MessageQueue]) -> None:
        assigned.extend(queues)
        await trio.sleep(9)

    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        topics = [f"t{number}" for number in range(4)]
        for topic in topics:
            cluster.create(topic, 1)
        with capture_logs() as events:
            async with open_consumer(NAMESRV, "g", topics, orderly=True, on_assigned=slow, world=cluster.world) as consumer:
                await trio.sleep(60)
                assert consumer.queues == assigned == [MessageQueue(topic, "b1", 0) for topic in topics]
        assert "queue_lock_lost" not in [event["event"] for event in events]


async def test_a_lock_that_was_lost_while_its_queue_is_handed_over_allows_no_commit(autojump_clock: MockClock) -> None:
    """Another member has the queue, and its commits would be undone."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 3, queue_id=1)
        async with consuming(cluster, "a", ack="explicit") as consumer:
            message = await consumer.get_one(1)
            join(broker)
            await until(lambda: len(consumer.queues) == 1)
            broker.locks["t", 1] = "another"
            broker.offsets["g", "t", 1] = 2
            await until(lambda: len(broker.requests_of(LOCK)) >= 3)
            await trio.sleep(1)
            await message.ack()
            await trio.sleep(5)
            assert broker.offsets["g", "t", 1] == 2


@pytest.mark.parametrize("body", [b"no JSON", b"[1]", b'{"lockOKMQSet":[1]}', b'{"lockOKMQSet":[{"topic":"t"}]}'])
async def test_an_answer_about_locks_that_cannot_be_read_is_one_that_failed(autojump_clock: MockClock, body: bytes) -> None:
    """The consumer goes on, and asks again, for a first lock as for a renewal."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)

        def malformed(request: RemotingCommand) -> RemotingCommand:
            return request.response(body=body)

        broker.script(LOCK, malformed)
        async with consuming(cluster, "a") as consumer:
            assert consumer.queues == []
            await until(lambda: len(consumer.queues) == 1)
            broker.script(LOCK, malformed)
            await trio.sleep(LOCK_RENEW_SECONDS + 15)
            assert len(consumer.queues) == 1
