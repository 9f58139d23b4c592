"""Where a group begins in a queue: nothing that is sent while it is there is skipped, whatever happens to the queue."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import NoAnswer, OffsetsUnreadable
from ledgermq.client.producer import open_producer
from ledgermq.client.sending import SendResult
from ledgermq.client.subscription import ConsumeFrom, MessageModel
from ledgermq.message.message import Message, MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.embedded import open_virtual

from .fake_cluster import NAMESRV, FakeCluster, open_cluster, until
from .test_consumer import fill

RETRY = "%RETRY%g"


def consuming(cluster: FakeCluster, begin: ConsumeFrom = ConsumeFrom.LAST, **options: Any) -> Any:
    return open_consumer(NAMESRV, "g", "t", consume_from=begin, world=cluster.world, **options)


async def numbers(consumer: Consumer, seconds: float = 5) -> list[int]:
    """All that comes until nothing does for a while, acknowledged."""
    found: list[int] = []
    while True:
        async with consumer.take(1000, seconds) as messages:
            found += [int(message.body) for message in messages]
        if not messages:
            return found


@pytest.mark.parametrize("begin", ConsumeFrom)
@pytest.mark.parametrize("topic", ["t", RETRY])
async def test_a_group_that_was_there_has_begun(autojump_clock: MockClock, begin: ConsumeFrom, topic: str) -> None:
    """On a queue without messages, too: what comes after it has left waits for its return."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        cluster.create(RETRY, 1)
        async with consuming(cluster, begin):
            pass
        for number in range(3):
            broker.put(topic, 0, b"%d" % number)
        await trio.sleep(3600)
        async with consuming(cluster, begin) as consumer:
            assert await numbers(consumer) == [0, 1, 2]


@pytest.mark.parametrize("model", MessageModel)
@pytest.mark.parametrize("begin", ConsumeFrom)
async def test_queues_that_appear_later_are_read_from_their_beginning(
    autojump_clock: MockClock, model: MessageModel, begin: ConsumeFrom
) -> None:
    """More queues, and another broker: what is in them before the members hear of them is not skipped."""
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"100")
        async with consuming(cluster, begin, model=model) as consumer:
            before = await numbers(consumer)
            assert before == ([100] if begin is ConsumeFrom.FIRST else [])
            other = await cluster.start_broker("b2")
            cluster.create("t", 2)
            for number in range(3):
                broker.put("t", 1, b"%d" % number)
                other.put("t", 0, b"%d" % (10 + number))
            await trio.sleep(31)
            assert sorted(await numbers(consumer)) == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize("begin", [ConsumeFrom.LAST, ConsumeFrom.TIMESTAMP])
async def test_a_slave_does_not_know_that_a_group_is_new(autojump_clock: MockClock, begin: ConsumeFrom) -> None:
    """While the master is gone its queues wait, because beginning at the end would skip what the group has not read."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        for number in range(5):
            master.put("t", 0, b"%d" % number)
            slave.put("t", 0, b"%d" % number)
        master.offsets["g", "t", 0] = 2
        cluster.kill(master)
        async with consuming(cluster, begin) as consumer:
            assert await numbers(consumer, 30) == []
            cluster.network.refusing.clear()
            assert await numbers(consumer, 30) == [2, 3, 4]


async def test_what_the_master_knows_is_not_overwritten(autojump_clock: MockClock) -> None:
    """A group that reads from the first message may begin on the slave; the master's offset is not moved back by that."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        for number in range(50):
            master.put("t", 0, b"%d" % number)
            slave.put("t", 0, b"%d" % number)
        master.offsets["g", "t", 0] = 40
        cluster.kill(master)
        lowest = 40
        async with consuming(cluster, ConsumeFrom.FIRST) as consumer:
            async with consumer.take(10) as first:
                assert len(first) == 10
            second = await consumer.get_many(10)
            assert len(second) == 10
            with pytest.raises(NoAnswer, match="only its master knows"):
                await consumer.commit()
            cluster.network.refusing.clear()
            cluster.kill(slave)  # the next pull goes to the master, earlier than the next commit of all queues
            for _ in range(300):
                await trio.sleep(0.1)
                lowest = min(lowest, master.offsets["g", "t", 0])
            rest = await numbers(consumer)
        assert lowest == 40
        assert rest[-10:] == list(range(40, 50))
        assert master.offsets["g", "t", 0] == 50


@pytest.mark.parametrize("by", ["seek", "seek while the master is asked", "on_assigned"])
async def test_what_the_application_chooses_is_not_replaced_by_what_the_master_knows(
    autojump_clock: MockClock, by: str
) -> None:
    """A member that began on a slave has been moved by its application before the master is there."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        for number in range(50):
            master.put("t", 0, b"%d" % number)
            slave.put("t", 0, b"%d" % number)
        master.offsets["g", "t", 0] = 40
        cluster.kill(master)
        chosen = {MessageQueue("t", "b1", 0): 20} if by == "on_assigned" else None

        def assigned(_: Sequence[MessageQueue]) -> dict[MessageQueue, int] | None:
            return chosen

        async with consuming(cluster, ConsumeFrom.FIRST, on_assigned=assigned) as consumer:
            if by == "seek":
                await consumer.seek(consumer.queues[0], 20)
            elif by != "on_assigned":

                def answer_late(request: RemotingCommand) -> RemotingCommand:
                    consumer.reset(consumer.queues[0], 20)
                    return request.response(ext={"offset": 40})

                master.script(RequestCode.QUERY_CONSUMER_OFFSET, answer_late)
            cluster.network.refusing.clear()
            assert (await numbers(consumer, 30))[-30:] == list(range(20, 50))
        assert master.offsets["g", "t", 0] == 50


@pytest.mark.parametrize("reset_to", [0, 5])
async def test_a_reset_that_only_the_master_knows_is_followed(autojump_clock: MockClock, reset_to: int) -> None:
    """A member that began on a slave asks the master before it commits; with that it counts as one that follows the reset."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        for number in range(50):
            master.put("t", 0, b"%d" % number)
            slave.put("t", 0, b"%d" % number)
        master.offsets["g", "t", 0] = reset_to
        cluster.kill(master)
        async with consuming(cluster, ConsumeFrom.FIRST) as consumer:
            assert await numbers(consumer) == list(range(50))
            cluster.network.refusing.clear()
            assert await numbers(consumer, 30) == list(range(reset_to, 50))
        assert master.offsets["g", "t", 0] == 50


async def test_a_group_of_which_the_master_has_no_offset_goes_on(autojump_clock: MockClock) -> None:
    """Nothing comes again when the master is there, although the queue still has its first messages."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        for number in range(5):
            master.put("t", 0, b"%d" % number)
            slave.put("t", 0, b"%d" % number)
        cluster.kill(master)
        async with consuming(cluster, ConsumeFrom.FIRST) as consumer:
            assert await numbers(consumer) == list(range(5))

            def young(request: RemotingCommand) -> RemotingCommand:
                if request.boolean("setZeroIfNotFound", default=True):
                    return request.response(ext={"offset": 0})
                return request.response(ResponseCode.QUERY_NOT_FOUND)

            master.script(RequestCode.QUERY_CONSUMER_OFFSET, young)
            cluster.network.refusing.clear()
            assert await numbers(consumer, 30) == []
        assert master.offsets["g", "t", 0] == 5


async def test_a_member_that_leaves_does_not_move_the_masters_offset_back(autojump_clock: MockClock) -> None:
    """It has read on a slave that has no offset, and when it leaves, only the master is there."""
    async with open_cluster() as cluster:
        master, slave = await cluster.start_broker("b1"), await cluster.start_broker("b1", 1)
        cluster.create("t", 1)
        for number in range(50):
            master.put("t", 0, b"%d" % number)
            slave.put("t", 0, b"%d" % number)
        master.offsets["g", "t", 0] = 40
        cluster.kill(master)
        async with consuming(cluster, ConsumeFrom.FIRST) as consumer:
            assert len(await consumer.get_many(10)) == 10
            cluster.network.refusing.clear()
            cluster.kill(slave)
            await trio.sleep(2)  # the next commit of all queues would be later
        assert RequestCode.QUERY_CONSUMER_OFFSET in [request.code for request in master.requests]
        assert master.offsets["g", "t", 0] == 40


async def test_broadcasting_members_keep_where_they_began(autojump_clock: MockClock, tmp_path: Path) -> None:
    """In their own files, before the first message has come."""
    path = str(tmp_path / "offsets.json")
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        broker.put("t", 0, b"0")
        async with consuming(cluster, model=MessageModel.BROADCASTING, offsets_path=path):
            pass
        broker.put("t", 0, b"1")
        async with consuming(cluster, model=MessageModel.BROADCASTING, offsets_path=path) as consumer:
            assert await numbers(consumer) == [1]


async def test_two_broadcasting_members_cannot_share_a_file(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Each would write its own offsets over those of the other, which would then skip messages or repeat them."""
    path = str(tmp_path / "new" / "offsets.json")
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with consuming(cluster, model=MessageModel.BROADCASTING, offsets_path=path) as consumer:
            with pytest.raises(OffsetsUnreadable, match="another consumer uses the file"):
                async with consuming(cluster, model=MessageModel.BROADCASTING, offsets_path=path):
                    pass
            broker.put("t", 0, b"0")
            assert await numbers(consumer) == [0]
        async with consuming(cluster, model=MessageModel.BROADCASTING, offsets_path=path) as consumer:
            assert await numbers(consumer) == []


@pytest.mark.parametrize("seed", range(3))
async def test_a_topic_that_is_deleted_and_made_again(autojump_clock: MockClock, seed: int) -> None:
    """Under a living consumer, and with fewer or more queues: each message that is sent to the new one comes."""
    async with open_virtual(seed=seed) as embedded:
        namesrv, world = embedded.namesrv, embedded.world
        async with (
            open_admin(namesrv, world=world) as admin,
            open_producer(namesrv, world=world) as producer,
            open_consumer(namesrv, "g", "t", consume_from=ConsumeFrom.FIRST, world=world) as consumer,
        ):
            sent = 0
            for queues in (4, 2, 4):
                await admin.create_topic("t", queues=queues)
                results = await producer.send_many([Message("t", b"%d" % (sent + number)) for number in range(20)])
                assert [result for result in results if not isinstance(result, SendResult)] == []
                if queues != 2:
                    await until(lambda: len(consumer.queues) > 1, 120)
                first = sent
                sent += 20
                found: list[int] = []
                with trio.move_on_after(180):
                    while set(found) < set(range(first, sent)):
                        async with consumer.take(100) as batch:
                            found += [int(message.body) for message in batch]
                assert sorted(found) == list(range(first, sent))
                await consumer.commit()
                await admin.delete_topic("t")


async def test_a_send_right_after_a_topic_was_created_finds_all_its_queues(autojump_clock: MockClock) -> None:
    """Creating ends when the name servers know; and cloning offsets leaves alone what was never committed."""
    async with open_virtual() as embedded:
        namesrv, world = embedded.namesrv, embedded.world
        async with open_admin(namesrv, world=world) as admin, open_producer(namesrv, world=world) as producer:
            for queues in (2, 8):
                await admin.create_topic(f"t{queues}", queues=queues)
                results = [await producer.send(Message(f"t{queues}", b"")) for _ in range(16)]
                assert {result.queue.queue_id for result in results} == set(range(queues))

            broker_name = results[0].queue.broker_name
            await admin.create_group("source")
            await admin.create_group("target")
            await admin.set_offset("source", MessageQueue("t8", broker_name, 3), 1)
            await admin.clone_offsets("source", "target", "t8")
            offsets = [await admin.offset_of("target", MessageQueue("t8", broker_name, at)) for at in range(8)]
            assert offsets == [None, None, None, 1, None, None, None, None]


async def test_broadcasting_reads_everything_and_keeps_its_own_offsets(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Every member gets all messages; offsets live in a file; no broker is asked about the group."""
    path = str(tmp_path / "offsets" / "g.json")
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        fill(broker, 3, queue_id=0)
        fill(broker, 3, queue_id=1)

        async def read() -> int:
            async with open_consumer(
                NAMESRV,
                "g",
                "t",
                model=MessageModel.BROADCASTING,
                consume_from=ConsumeFrom.FIRST,
                offsets_path=path,
                world=cluster.world,
            ) as consumer:
                count = 0
                while True:
                    async with consumer.take(10, 1) as messages:
                        count += len(messages)
                    if not messages:
                        return count

        assert await read() == 6
        assert await read() == 0
        broker.put("t", 1, b"3")
        assert await read() == 1
        assert broker.offsets == {}
        assert broker.requests_of(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == []
        await trio.Path(path).write_text("not json")
        with pytest.raises(OffsetsUnreadable, match="repair the file"):
            await read()
        assert await trio.Path(path).read_text() == "not json", "it can still be repaired"
