"""The pull consumer against a scripted cluster, on a mock clock."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from ledgermq.client.admin import open_admin
from ledgermq.client.errors import ClientError, Closed, InvalidArgument, NoPermission, Unreachable
from ledgermq.client.fetch import Fetcher
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.message.json import loads
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode

from .fake_cluster import NAMESRV, open_cluster, until
from .test_consumer import fill, numbers

QUEUE = MessageQueue("t", "b1", 0)


async def test_reading_starts_where_the_group_stands(autojump_clock: MockClock) -> None:
    """Or at the beginning; and what is committed is what was handed out, only when asked."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 5)
        fill(broker, 5, queue_id=1)
        broker.offsets["g", "t", 1] = 3
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            queues = await consumer.queues("t")
            await consumer.assign(queues)
            messages = [*await consumer.poll(100, 1), *await consumer.poll(100, 1)]
            await trio.sleep(60)

            assert sorted(numbers(messages)) == [0, 1, 2, 3, 3, 4, 4]
            assert broker.offsets == {("g", "t", 1): 3}
            await consumer.commit()
            assert broker.offsets == {("g", "t", 0): 5, ("g", "t", 1): 5}
            await consumer.commit(QUEUE, 2)
            assert broker.offsets["g", "t", 0] == 2
            with pytest.raises(InvalidArgument, match="one queue"):
                await consumer.commit(None, 2)


async def test_an_offset_that_only_a_slave_has_noted_is_not_committed(autojump_clock: MockClock) -> None:
    """The master may undo it, so whoever commits, or sets the offset of a group, must not believe otherwise."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        async with (
            open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer,
            open_admin(NAMESRV, world=cluster.world) as admin,
        ):
            await admin.topic_route("t")
            await consumer.commit(QUEUE, 1)
            await admin.set_offset("g", QUEUE, 1)
            cluster.kill(master)
            for commit in (partial(consumer.commit, QUEUE, 2), partial(admin.set_offset, "g", QUEUE, 3)):
                for _ in range(2):  # they notice that the master is gone
                    with pytest.raises(ClientError):
                        await commit()
                with pytest.raises(Unreachable, match="only a slave"):
                    await commit()
        assert slave.offsets["g", "t", 0] == 3


async def test_a_queue_that_cannot_be_committed_leaves_the_others_committed(autojump_clock: MockClock) -> None:
    """And its reason is raised."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 3)
        for queue_id in range(3):
            fill(broker, 5, queue_id=queue_id)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            await consumer.assign(await consumer.queues("t"))
            while await consumer.poll(100, 1):
                pass
            broker.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.NO_PERMISSION)

            with pytest.raises(NoPermission):
                await consumer.commit()

            assert len(broker.offsets) == 2
            await consumer.commit()
            assert broker.offsets == {("g", "t", queue_id): 5 for queue_id in range(3)}


async def test_a_seek_drops_what_was_fetched(autojump_clock: MockClock) -> None:
    """Also while a pull is held at the end of the queue."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 100)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            await consumer.assign([QUEUE])
            assert numbers(await consumer.poll(2)) == [0, 1]
            await consumer.seek(QUEUE, 50)
            assert consumer.position(QUEUE) == 50
            assert numbers(await consumer.poll(2)) == [50, 51]
            await consumer.seek_to_end(QUEUE)
            await until(lambda: bool(broker.held))
            assert await consumer.poll(2, 1) == []
            await consumer.seek(QUEUE, 98)
            assert numbers(await consumer.poll(5, 1)) == [98, 99]
            await consumer.seek(QUEUE, 1000)
            assert await consumer.poll(5, 1) == [], "outside the queue: put right to its end"
            assert consumer.position(QUEUE) == 100


async def test_a_paused_queue_keeps_what_it_has(autojump_clock: MockClock) -> None:
    """Nothing is handed out until it is resumed, and nothing is lost."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            await consumer.assign([QUEUE])
            consumer.pause([QUEUE])
            fill(broker, 3)
            assert await consumer.poll(10, 5) == []
            consumer.resume([QUEUE])
            assert numbers(await consumer.poll(10, 5)) == [0, 1, 2]


async def test_brokers_know_it_as_one_that_asks(autojump_clock: MockClock) -> None:
    """Its heartbeat says so, its pulls carry their filter."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            await consumer.assign([QUEUE], "a || b")
            await until(lambda: bool(broker.held))

        heartbeat = loads(broker.requests_of(RequestCode.HEART_BEAT)[-1].body)
        assert heartbeat["consumerDataSet"][0]["consumeType"] == "CONSUME_ACTIVELY"
        pull = broker.requests_of(RequestCode.PULL_MESSAGE)[0]
        assert (pull.ext["subscription"], pull.ext["sysFlag"], pull.ext["suspendTimeoutMillis"]) == ("a || b", "22", "20000")


async def test_cancelling_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    """No task, no connection, nothing committed."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 3)
        tasks = trio.lowlevel.current_statistics().tasks_living
        consumers: list[PullConsumer] = []
        with trio.move_on_after(5) as scope:
            async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
                consumers.append(consumer)
                await consumer.assign([QUEUE])
                while True:
                    await consumer.poll()

        assert scope.cancelled_caught
        await until(lambda: cluster.open_connections() == 0)
        await until(lambda: trio.lowlevel.current_statistics().tasks_living == tasks)
        assert broker.offsets == {}
        with pytest.raises(Closed):
            await consumers[0].poll()


async def test_a_poll_of_a_consumer_that_closes_raises(autojump_clock: MockClock) -> None:
    """At once, with `Closed`."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        raised_at: list[float] = []
        async with trio.open_nursery() as nursery, open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            await consumer.assign([QUEUE])

            async def wait() -> None:
                with pytest.raises(Closed):
                    await consumer.poll()
                raised_at.append(trio.current_time())

            nursery.start_soon(wait)
            await trio.sleep(1)

        assert raised_at == pytest.approx([1], abs=0.1)


async def test_all_assigned_queues_have_one_bound(autojump_clock: MockClock) -> None:
    """What is fetched ahead is bounded over all of them."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 8)
        for queue_id in range(8):
            for _ in range(320):
                broker.put("t", queue_id, bytes(1000))
        async with open_pull_consumer(NAMESRV, "g", bytes_max=300_000, world=cluster.world) as consumer:
            await consumer.assign(await consumer.queues("t"))
            await trio.sleep(5)
            assert len(broker.requests_of(RequestCode.PULL_MESSAGE)) < 25
            count = 0
            while messages := await consumer.poll(100, 1):
                count += len(messages)
            assert count == 8 * 320


async def test_assignments_that_overlap_follow_each_other(autojump_clock: MockClock) -> None:
    """The queues of the last one are read, each once."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        for queue_id in range(2):
            fill(broker, 3, queue_id=queue_id)
        other = MessageQueue("t", "b1", 1)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            async with trio.open_nursery() as nursery:
                for queues in ([other], [QUEUE], [QUEUE]):
                    nursery.start_soon(consumer.assign, queues)
                    await trio.lowlevel.checkpoint()

            assert consumer.assignment() == [QUEUE]
            seen: list[int] = []
            while messages := await consumer.poll(100, 1):
                assert {message.queue for message in messages} == {QUEUE}
                seen += numbers(messages)
            assert seen == [0, 1, 2]


async def test_an_assignment_that_fails_changes_nothing(autojump_clock: MockClock) -> None:
    """The queues that were read are read on, and none of the new ones is."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 3)
        fill(broker, 1)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            queues = await consumer.queues("t")
            await consumer.assign(queues[:1])
            broker.script(RequestCode.QUERY_CONSUMER_OFFSET, lambda request: request.response(ext={"offset": 0}))
            broker.refuse(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.NO_PERMISSION)
            with pytest.raises(NoPermission):
                await consumer.assign(queues[1:])
            assert consumer.assignment() == queues[:1]
            assert numbers(await consumer.poll(10, 1)) == [0]


@pytest.mark.parametrize("queues", [[], [QUEUE]])
async def test_a_closed_consumer_is_assigned_nothing(autojump_clock: MockClock, queues: list[MessageQueue]) -> None:
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            await consumer.assign([QUEUE])
        with pytest.raises(Closed):
            await consumer.assign(queues)


async def test_an_assignment_that_is_answered_after_the_end_raises(autojump_clock: MockClock, monkeypatch: Any) -> None:
    """It starts no task in a nursery that is closed."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        ended = trio.Event()

        async def answer_late(*_: object) -> int:
            await ended.wait()
            return 0

        async def assign(consumer: PullConsumer) -> None:
            with pytest.raises(Closed):
                await consumer.assign([QUEUE])

        monkeypatch.setattr(PullConsumer, "committed", answer_late)
        async with trio.open_nursery() as nursery:
            async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
                nursery.start_soon(assign, consumer)
                await trio.sleep(1)
            ended.set()


async def test_a_consumer_whose_own_task_has_failed_refuses_to_seek(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        failing, outcomes = trio.Event(), list[BaseException]()

        async def fail(_: Fetcher) -> None:
            await failing.wait()
            raise ZeroDivisionError

        async def seek_late(consumer: PullConsumer) -> None:
            try:
                await trio.sleep_forever()
            finally:
                try:
                    await consumer.seek(QUEUE, 0)
                except (Closed, RuntimeError) as error:
                    outcomes.append(error)

        monkeypatch.setattr(Fetcher, "run", fail)
        with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
            async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer, trio.open_nursery() as nursery:
                await consumer.assign([QUEUE])
                nursery.start_soon(seek_late, consumer)
                await trio.testing.wait_all_tasks_blocked()
                failing.set()
                await trio.sleep_forever()
        assert [type(each) for each in outcomes] == [Closed]
