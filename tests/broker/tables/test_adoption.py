"""Which topics and queues a broker serves although its table lacks them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from ledgermq.broker.tables import adoption
from ledgermq.broker.tables.adoption import adopt_stored
from ledgermq.broker.tables.persistence import TOPICS_FILE
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.data_version import DataVersion

from ...turns import counted
from ..desk import Desk, open_desk


async def desk_with_a_hidden_queue(desk: Desk) -> int:
    """A topic with two queues, of which a third one has a message; returns when that was stored, in ms."""
    desk.broker.topics.put(TopicConfig("T", 2, 2))
    for queue_id in (0, 2):
        desk.put("T", queue_id=queue_id)
    await desk.settled()
    return desk.broker.store.store_time("T", 2, 0)


async def test_a_queue_with_messages_that_are_newer_than_the_table_is_read(tmp_path: Path) -> None:
    """A slave that is promoted may not have copied the change yet that gave the topic more queues."""
    async with open_desk(tmp_path) as desk:
        stored_ms = await desk_with_a_hidden_queue(desk)
        topics = desk.broker.topics
        topics.version = DataVersion(7, stored_ms - 1)

        await adopt_stored(topics, desk.broker.store)

        config = topics.topics["T"]
        assert (config.read_queue_nums, config.write_queue_nums) == (3, 2)
        assert topics.version.counter == 8


async def test_a_queue_that_was_taken_away_stays_away(tmp_path: Path) -> None:
    """All of its messages are older than the table."""
    async with open_desk(tmp_path) as desk:
        stored_ms = await desk_with_a_hidden_queue(desk)
        topics = desk.broker.topics
        topics.version = before = DataVersion(7, stored_ms + 1)

        await adopt_stored(topics, desk.broker.store)

        assert topics.topics["T"].read_queue_nums == 2
        assert topics.version == before


async def test_a_killed_broker_reads_the_queues_of_a_change_that_it_had_not_written(tmp_path: Path) -> None:
    """The change was answered, and so was a message in a new queue; the log has both, the file neither."""
    async with open_desk(tmp_path / "s") as desk:
        broker = desk.broker
        broker.table_log.put_topics(TopicConfig("T", 2, 2))
        assert await broker.persistence.write_all()
        written = (tmp_path / "s" / "config" / TOPICS_FILE).read_bytes()
        broker.table_log.put_topics(TopicConfig("T", 3, 3))
        desk.put("T", queue_id=2)
        await desk.settled()
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
    (tmp_path / "killed" / "config" / TOPICS_FILE).write_bytes(written)

    async with open_desk(tmp_path / "killed") as desk:
        assert desk.broker.topics.topics["T"].read_queue_nums == 3
        assert len(desk.peer().pulled("T", queueId=2)) == 1


async def test_the_topics_of_many_queues_are_adopted_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is deleted meanwhile is not added again."""
    monkeypatch.setattr(adoption, "TOPICS_PER_TURN", 5)
    async with open_desk(tmp_path) as desk:
        topics, store = desk.broker.topics, desk.broker.store
        names = [f"adopted-{number:02}" for number in range(40)]
        for name in names:
            desk.put(name)
        await desk.settled()
        for name in names:
            topics.delete(name)

        async def delete_the_last() -> None:
            while names[0] not in topics.topics:
                await trio.lowlevel.checkpoint()
            store.drop_queues(names[-1])

        with counted(lambda: len(topics.topics)) as turns:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(delete_the_last)
                await adopt_stored(topics, store)

        assert turns.most == 5
        assert topics.topics.keys() >= set(names[:-1])
        assert names[-1] not in topics.topics
