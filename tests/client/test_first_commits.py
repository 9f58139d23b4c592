"""The first commits of a group, to a broker that forgets those that come at the same moment."""

from __future__ import annotations

from collections import deque

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.consumer import open_consumer
from ledgermq.client.pull import open_pull_consumer
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.logs import capture_logs

from .fake_cluster import NAMESRV, FakeBroker, open_cluster
from .test_consumer import fill, silence

COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


def commits(broker: FakeBroker) -> int:
    return sum(request.code == COMMIT for request in broker.requests)


@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_other_queues_are_committed_when_the_first_has_been(autojump_clock: MockClock, kind: str) -> None:
    """Apache's broker makes the table of a group and topic by the first commit, and those that come meanwhile are lost."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 3)
        for queue_id in range(3):
            fill(broker, 5, queue_id=queue_id)
        broker.scripts[COMMIT] = deque([lambda _: None])
        if kind == "pull":
            async with open_pull_consumer(NAMESRV, "g", world=cluster.world) as puller:
                await puller.assign(await puller.queues("t"))
                while await puller.poll(100, 1):
                    pass
                with trio.move_on_after(0.5):
                    await puller.commit()
                assert commits(broker) == 1

                await puller.commit()
                assert len(broker.offsets) == 3
        else:
            async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as consumer:
                assert commits(broker) == 1, "where the group begins"
                taken = 0
                while taken < 15:
                    async with consumer.take(100, 1) as batch:
                        taken += len(batch)

                await consumer.commit()
                assert broker.offsets == {("g", "t", queue_id): 5 for queue_id in range(3)}


async def test_a_queue_that_is_reset_while_another_is_committed_is_committed_where_it_is_then(
    autojump_clock: MockClock,
) -> None:
    """The master would take the old offset for progress of a member that has followed the reset."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 3)
        for queue_id in range(3):
            fill(broker, 5, queue_id=queue_id)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, ack="explicit", world=cluster.world) as one:
            taken: list[ReceivedMessage] = []
            while len(taken) < 15:
                taken += await one.get_many(100, 1)
            for message in taken:
                await message.ack()
            reset = list[int]()

            def reset_others(request: RemotingCommand) -> RemotingCommand:
                for source in one.sources.values():
                    if source.queue.queue_id not in {request.integer("queueId"), *reset}:
                        reset.append(source.queue.queue_id)
                        source.assigned.reset(2)
                return request.response()

            broker.requests.clear()
            broker.script(COMMIT, reset_others)
            await one.commit()

            assert len(reset) == 2
            assert [broker.offsets["g", "t", queue_id] for queue_id in reset] == [2, 2]


@pytest.mark.parametrize("at_close", [False, True], ids=["commit", "close"])
async def test_a_broker_that_hangs_holds_up_no_commit_of_another(autojump_clock: MockClock, at_close: bool) -> None:
    """All queues of the broker that answers are committed at once, and so when the consumer closes, which takes two seconds."""
    async with open_cluster() as cluster:
        hanging, other = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 3)
        for queue_id in range(3):
            for broker in (hanging, other):
                fill(broker, 5, queue_id=queue_id)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, ack="explicit", world=cluster.world) as one:
            taken = 0
            while taken < 30:
                for message in await one.get_many(100, 1):
                    await message.ack()
                    taken += 1
            hanging.script(COMMIT, *[silence] * 100)
            if not at_close:
                with trio.move_on_after(0.5):
                    await one.commit()
                assert [other.offsets["g", "t", queue_id] for queue_id in range(3)] == [5, 5, 5]
        assert [other.offsets["g", "t", queue_id] for queue_id in range(3)] == [5, 5, 5]


async def test_a_queue_that_is_given_away_while_another_is_committed_is_left_to_its_next_reader(
    autojump_clock: MockClock,
) -> None:
    """Who may have committed more by then."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 3)
        for queue_id in range(3):
            fill(broker, 5, queue_id=queue_id)
        async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, ack="explicit", world=cluster.world) as one:
            taken = 0
            while taken < 15:
                for message in await one.get_many(100, 1):
                    await message.ack()
                    taken += 1
            given: list[int] = []

            def give_others(request: RemotingCommand) -> RemotingCommand:
                for source in one.sources.values():
                    if source.queue.queue_id != request.integer("queueId"):
                        given.append(source.queue.queue_id)
                        source.drop()
                        broker.offsets["g", "t", source.queue.queue_id] = 200
                return request.response()

            broker.script(COMMIT, give_others)
            await one.commit()

            assert len(given) == 2
            assert [broker.offsets["g", "t", queue_id] for queue_id in given] == [200, 200]


@pytest.mark.parametrize("fault", ["hangs", "killed"])
async def test_what_could_not_be_committed_at_the_end_is_logged_once(autojump_clock: MockClock, fault: str) -> None:
    """Every queue with its position and the reason, those that waited for the first one too; no failure comes twice."""
    async with open_cluster() as cluster:
        broker, other = await cluster.start_broker("b1"), await cluster.start_broker("b2")
        cluster.create("t", 3)
        for queue_id in range(3):
            for each in (broker, other):
                fill(each, 5, queue_id=queue_id)
        with capture_logs() as events:
            async with open_consumer(NAMESRV, "g", "t", consume_from=ConsumeFrom.FIRST, world=cluster.world) as one:
                taken = 0
                while taken < 30:
                    async with one.take(100, 1) as batch:
                        taken += len(batch)
                if fault == "hangs":
                    broker.script(COMMIT, *[silence] * 100)
                else:
                    cluster.kill(broker)
                ended_at = trio.current_time()
        assert trio.current_time() - ended_at < 2.1
        (final,) = (event for event in events if event["event"] == "offsets_not_committed")
        assert final["queues"] == {"t@b1:0": 5, "t@b1:1": 5, "t@b1:2": 5}
        assert ("did not answer" if fault == "hangs" else "refused") in final["reason"]
        failures = [event for event in events if event["event"] == "offset_not_committed"]
        assert len(failures) == len({(event["queue"], event["offset"], event["reason"]) for event in failures})
