"""Topics and groups that are deleted: on the broker that is asked, on its slave, and after crashes."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import trio

from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.control import deletion_of, group_deletion_of
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.derived.dispatch import ROUND_RECORDS_MAX, Derivable

from ...turns import counted
from ..desk import Desk, open_desk, until
from ..modes.test_replication import SLAVE, joined, open_group


async def delete_topic(desk: Desk, topic: str) -> None:
    answer = await desk.peer().ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def kept(store: Path, name: str) -> str:
    """What the file of a table holds now; it is replaced as a whole, so for a moment there is none."""
    with suppress(FileNotFoundError):
        return (store / "config" / name).read_text()
    return ""


def crash_of(store: Path, target: Path) -> Path:
    """What a process that is killed now leaves."""
    return Path(shutil.copytree(store, target))


async def test_a_slave_learns_of_deletions_by_the_log(tmp_path: Path) -> None:
    """Its master's deletion hides the same messages there, and the next ones are read under the same offsets."""
    async with open_group(tmp_path) as group, group.desk("m") as master, group.desk("s", **SLAVE) as slave:
        await until(lambda: joined(master))
        client = master.peer()
        await client.send_waiting("T", b"old")
        await client.send_waiting("U", b"other")
        await until(lambda: slave.broker.store.max_offset("T", 0) == 1)
        sync = slave.broker.replication.sync
        assert sync is not None
        await until(lambda: sync.master is not None)
        assert sync.master is not None
        await sync.round(sync.master)
        slave.broker.groups.find("g")

        await delete_topic(master, "T")
        await client.ask_waiting(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"})
        await until(lambda: slave.broker.store.min_offset("T", 0) == 1)
        await until(lambda: slave.broker.groups.get("g") is None)
        assert slave.broker.topics.get("T") is None
        await client.send_waiting("T", b"new")
        await until(lambda: slave.broker.store.max_offset("T", 0) == 2)
        await sync.round(sync.master)

        assert [message.body for message in slave.peer().pulled("T", 1)] == [b"new"]
        assert [message.body for message in slave.peer().pulled("U", 0)] == [b"other"]


async def test_what_was_answered_as_deleted_is_deleted_after_a_kill(tmp_path: Path) -> None:
    """Topic, messages and every group's offsets stay gone; a topic that was created again keeps its settings."""
    async with open_desk(tmp_path / "s") as desk:
        client = desk.peer()
        for topic in ("T", "U"):
            client.send(topic, b"old")
        client.send("again", b"old")
        await desk.settled()
        desk.broker.offsets.commit("g", "T", 0, 1)
        await until(lambda: kept(tmp_path / "s", "topics.json"))
        await delete_topic(desk, "T")
        await delete_topic(desk, "again")
        created = {"topic": "again", "readQueueNums": 7, "writeQueueNums": 7, "perm": 6}
        client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, created)
        await until(lambda: '"readQueueNums":7' in kept(tmp_path / "s", "topics.json"))
        crash_of(tmp_path / "s", tmp_path / "killed")

    async with open_desk(tmp_path / "killed") as desk:
        topics = desk.broker.topics
        assert (topics.get("T"), topics.get("U") is not None) == (None, True)
        again = topics.get("again")
        assert again is not None
        assert again.read_queue_nums == 7
        assert desk.broker.store.topics() == {"U"}
        assert desk.broker.offsets.query("g", "T", 0) is None


async def test_a_start_carries_out_the_events_that_a_kill_has_left_over(tmp_path: Path) -> None:
    """A slave that is killed between deriving an event and writing its tables has them right when it starts again."""
    async with open_desk(tmp_path / "s") as desk:
        broker = desk.broker
        desk.peer().send("T", b"old")
        broker.groups.find("leaving")
        broker.offsets.commit("leaving", "U", 0, 3)
        await desk.settled()
        await broker.persistence.write_all()
        broker.store.append_event(deletion_of("T", {0: 1}))
        await broker.store.event_done(broker.store.append_event(group_deletion_of("leaving", offsets=True)))
        crash_of(tmp_path / "s", tmp_path / "killed")

    async with open_desk(tmp_path / "killed") as desk:
        assert desk.broker.topics.get("T") is None
        assert desk.broker.groups.get("leaving") is None
        assert desk.broker.offsets.query("leaving", "U", 0) is None
        await until(lambda: (text := kept(tmp_path / "killed", "subscriptionGroup.json")) and "leaving" not in text)


async def test_files_name_the_log_offset_up_to_which_they_contain_deletions(tmp_path: Path) -> None:
    """RocketMQ passes over the key; a file without it, as RocketMQ writes it, contains everything."""
    async with open_desk(tmp_path) as desk:
        desk.peer().send("T", b"old")
        await desk.settled()
        await delete_topic(desk, "T")
        await desk.broker.persistence.write_all()
        end = desk.broker.store.log.max_offset
        for name in ("topics.json", "consumerOffset.json"):
            assert loads((tmp_path / "config" / name).read_bytes())["logOffset"] == end


async def test_a_log_that_takes_nothing_keeps_the_topic(tmp_path: Path) -> None:
    """A deletion is refused whole when its event cannot be written."""
    async with open_desk(tmp_path) as desk:
        desk.peer().send("T", b"old")
        await desk.settled()
        desk.broker.store.writability.disk_full = True
        answer = await desk.peer().ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "nothing was changed: the disk is full" in (answer.remark or "")
        assert desk.broker.topics.get("T") is not None
        assert desk.broker.store.topics() == {"T"}


async def test_of_many_topics_that_are_deleted_together_each_has_its_own_turn(tmp_path: Path) -> None:
    """Each deletion searches the tables; all of them in one turn would hold up everything else."""
    async with open_desk(tmp_path) as desk:
        topics = [f"T{n}" for n in range(100)]
        desk.broker.topics.put(*(TopicConfig(topic, 1, 1) for topic in topics))
        for topic in topics:
            desk.put(topic)
        await desk.settled()
        peer = desk.peer()

        with counted(lambda: sum(topic not in desk.broker.topics.topics for topic in topics)) as turns:
            opaques = [peer.post(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}) for topic in topics]
            await until(lambda: all(peer.answer(opaque) for opaque in opaques))

        assert turns.most == 1
        assert all(answer.code == ResponseCode.SUCCESS for opaque in opaques if (answer := peer.answer(opaque)))
        assert not desk.broker.store.topics() & set(topics)


async def test_an_unused_topic_that_is_created_while_others_are_deleted_is_kept(tmp_path: Path) -> None:
    """Its producer has been answered that the message is stored."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        store, administrator, producer = desk.broker.store, desk.peer(), desk.peer()
        for topic in ("a", "b"):
            desk.put(topic, b"old")
        await desk.settled()
        begin = store.log.max_offset

        asked = administrator.post(RequestCode.CLEAN_UNUSED_TOPIC)
        while store.log.max_offset == begin:  # until the deletion of the first one waits for the disk
            await trio.lowlevel.checkpoint()
        stored = await producer.send_waiting("b", b"new")
        await until(lambda: administrator.answer(asked) is not None)

        assert stored.code == ResponseCode.SUCCESS
        assert desk.broker.topics.get("b") is not None
        assert store.topics() == {"b"}
        assert [message.body for message in producer.pulled("b")] == [b"old", b"new"]


async def test_a_deletion_is_appended_in_one_turn_and_applied_in_another(tmp_path: Path) -> None:
    """Each of them takes some 20 to 60 ms for a topic with 16,384 queues."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T", 1, 1))
        desk.put("T")
        await desk.settled()
        store = desk.broker.store
        begin = store.log.max_offset

        with counted(lambda: (store.log.max_offset > begin) + (store.dispatcher.dispatched_offset > begin)) as turns:
            await delete_topic(desk, "T")
            assert store.dispatcher.dispatched_offset > begin
            await trio.lowlevel.checkpoint()

        assert turns.most == 1


async def test_what_was_stored_before_a_deletion_is_derived_in_several_turns(tmp_path: Path) -> None:
    """With thousands of records before it, a deletion waits for the rounds of the dispatcher."""
    derived = 0

    def note(arrived: list[Derivable]) -> None:
        nonlocal derived
        derived += len(arrived)

    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T", 1, 1), TopicConfig("U", 1, 1))
        desk.broker.store.dispatcher.on_arrival.append(note)
        for _ in range(6 * ROUND_RECORDS_MAX):
            desk.put("U")

        with counted(lambda: derived) as turns:
            await delete_topic(desk, "T")

        assert derived == 6 * ROUND_RECORDS_MAX
        assert turns.most <= 2 * ROUND_RECORDS_MAX, "one round may be that of the deletion"
