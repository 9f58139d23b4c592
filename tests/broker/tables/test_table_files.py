"""The files of a broker's tables across its starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.errors import BadTable
from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.persistence import IN_LOG_KEY, LOG_OFFSET_KEY, OFFSETS_FILE
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.client.producer import open_producer
from ledgermq.message.control import TOPICS_CHANGED
from ledgermq.message.json import dumps, loads
from ledgermq.store.json_file import JsonFile
from ledgermq.testing.history import End
from ledgermq.testing.logs import capture_logs

from ..desk import open_desk, until
from ..modes.test_dledger import Group, scenario


async def test_tables_survive_a_restart(tmp_path: Path) -> None:
    """Topics, groups and offsets are there again after a clean stop."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 3, 3))
        desk.broker.groups.put(GroupConfig("g", retry_max_times=2))
        desk.put("T1", queue_id=2)
        desk.broker.offsets.commit("g", "T1", 2, 1)
        topics_version, groups_version = desk.broker.topics.version, desk.broker.groups.version

    async with open_desk(tmp_path) as desk:
        assert desk.broker.topics.topics["T1"] == TopicConfig("T1", 3, 3)
        assert desk.broker.groups.groups["g"].retry_max_times == 2
        assert desk.broker.offsets.query("g", "T1", 2) == 1
        assert (desk.broker.topics.version, desk.broker.groups.version) == (topics_version, groups_version)


async def test_tables_of_a_master_survive_a_restart_although_their_versions_count_as_many_changes(tmp_path: Path) -> None:
    """Only the times of such versions differ. A slave that came back with its older topics would hide queues of theirs."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 2, 2))
        desk.broker.groups.put(GroupConfig("g", retry_max_times=2))
    async with open_desk(tmp_path) as desk:
        topics, groups = desk.broker.topics.version, desk.broker.groups.version
        await desk.broker.topics.load_in_slices(
            {
                "dataVersion": attrs.evolve(topics, timestamp=topics.timestamp + 1).to_json(),
                "topicConfigTable": {"T1": TopicConfig("T1", 4, 4).to_json()},
            }
        )
        desk.broker.groups.load(
            {
                "dataVersion": attrs.evolve(groups, timestamp=groups.timestamp + 1).to_json(),
                "subscriptionGroupTable": {"g": GroupConfig("g", retry_max_times=4).to_json()},
            }
        )

    async with open_desk(tmp_path) as desk:
        assert desk.broker.topics.topics["T1"] == TopicConfig("T1", 4, 4)
        assert desk.broker.groups.groups["g"].retry_max_times == 4


async def test_files_have_rocketmqs_shapes(tmp_path: Path) -> None:
    """An Apache broker reads them: names, keys and nesting are its own."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 3, 3))
        desk.broker.groups.put(GroupConfig("g"))
        desk.broker.offsets.commit("g", "T1", 2, 77)
        desk.broker.delay.changes += 1

    def content(name: str) -> dict[str, dict[str, object]]:
        value: dict[str, dict[str, object]] = loads((tmp_path / "config" / name).read_bytes())
        return value

    assert content("topics.json")["topicConfigTable"]["T1"] == TopicConfig("T1", 3, 3).to_json()
    assert content("subscriptionGroup.json")["subscriptionGroupTable"]["g"] == GroupConfig("g").to_stored()
    assert content("consumerOffset.json")["offsetTable"] == {"T1@g": {"2": 77}}
    assert content("delayOffset.json")["offsetTable"]["18"] == 0
    assert content("topics.json")["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("topics.json", '{"topicConfigTable":{"T1":{}}}'),
        ("topics.json", '{"topicConfigTable":{"T1":7}}'),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":{"g":{"groupName":"g","retryMaxTimes":"x"}}}'),
        ("consumerOffset.json", '{"offsetTable":{"T1@g":{"a":1}}}'),
        ("delayOffset.json", '{"offsetTable":{1:"x"}}'),
        ("consumerOffset.json", "[]"),
        ("consumerOffset.json", '{"offsetTable":[]}'),
        ("consumerOffset.json", '{"offsetTable":{"T1@g":[5,7]}}'),
        ("delayOffset.json", '{"offsetTable":"x"}'),
        ("topics.json", "0"),
        ("topics.json", '{"topicConfigTable":["T1"]}'),
        ("topics.json", '{"topicConfigTable":{"T1":"T1"}}'),
        ("subscriptionGroup.json", '{"subscriptionGroupTable":false}'),
        ("subscriptionGroup.json", '{"forbiddenTable":{"g":["T1"]}}'),
        ("consumerOffset.json", '{"offsetTable":{"T1@g":{0:5'),
        ("consumerOffset.json", "\x7fELF"),
    ],
)
async def test_a_damaged_table_is_named(tmp_path: Path, name: str, content: str) -> None:
    """A file that is no table stops the start, with its path in the error: an empty one of offsets would move every group."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_text(content)

    with pytest.RaisesGroup(BadTable, allow_unwrapped=True, flatten_subgroups=True) as caught:
        async with open_desk(tmp_path):
            pass

    assert name in str(caught.value.exceptions[0] if isinstance(caught.value, BaseExceptionGroup) else caught.value)
    async with open_desk(tmp_path / "other"):
        pass


async def test_topics_of_a_killed_broker_can_be_read(tmp_path: Path) -> None:
    """Messages are acknowledged before their new topic is in a file; after a kill they are not lost from sight."""
    async with open_desk(tmp_path) as desk:
        desk.peer().send("T1", b"kept", queue_id=2)
        await desk.settled()
    (tmp_path / "config" / "topics.json").unlink()
    (tmp_path / "config" / "topics.json.bak").unlink(missing_ok=True)

    async with open_desk(tmp_path) as desk:
        assert [message.body for message in desk.peer().pulled("T1", queueId=2)] == [b"kept"]


async def test_a_missing_table_is_read_from_the_log_although_another_table_was_copied(tmp_path: Path) -> None:
    """The log says what was in the lost file, whatever it does not say about the one that is there."""
    async with open_desk(tmp_path) as desk:
        desk.broker.table_log.put_topics(TopicConfig("T1", 3, 3))
        desk.broker.table_log.put_groups(GroupConfig("g", retry_max_times=2))
        await desk.settled()
    config = tmp_path / "config"
    for lost in config.glob("subscriptionGroup.json*"):
        lost.unlink()
    topics = loads((config / "topics.json").read_bytes())
    assert isinstance(topics, dict)
    (config / "topics.json").write_bytes(dumps({**topics, IN_LOG_KEY: False}))

    async with open_desk(tmp_path) as desk:
        group = desk.broker.groups.get("g")
        assert group is not None
        assert group.retry_max_times == 2


async def test_a_start_that_reads_the_whole_log_for_a_missing_table_says_so_before(tmp_path: Path) -> None:
    """It takes minutes for a large log, as after an upgrade to a version with a new table, and nothing else would be logged."""
    with capture_logs() as logs:
        async with open_desk(tmp_path) as desk:
            desk.put("T1")
            await desk.settled()
            end = desk.broker.store.log.max_offset
        async with open_desk(tmp_path):
            pass
    assert "table_files_missing" not in [entry["event"] for entry in logs]
    for lost in (tmp_path / "config").glob("queueLocks.json*"):
        lost.unlink()

    with capture_logs() as logs:
        async with open_desk(tmp_path):
            pass

    events = [entry["event"] for entry in logs]
    assert events.index("store_opened") < events.index("table_files_missing") < events.index("broker_started")
    (found,) = (entry for entry in logs if entry["event"] == "table_files_missing")
    assert (found["files"], found["log_bytes_to_read"]) == (["queueLocks.json"], end)


@pytest.mark.parametrize(("lost_bytes", "in_log"), [(1 << 19, True), (0, False)], ids=["ahead of the log", "copied"])
async def test_a_table_that_is_not_in_the_log_is_appended_whatever_an_earlier_statement_says(
    tmp_path: Path, lost_bytes: int, in_log: bool
) -> None:
    """Another file is older than the statement, and lacks it. That does not bring into the log what this one has besides."""
    async with open_desk(tmp_path) as desk:
        await until(lambda: desk.broker.tables.leads)
        await desk.broker.table_log.state(1)
        await desk.settled()
        end = desk.broker.store.log.max_offset

    def change(name: str, content: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        path = tmp_path / "config" / name
        changed = content(cast("dict[str, Any]", loads(path.read_bytes())))
        path.write_bytes(dumps(changed))
        return changed

    change("queueLocks.json", lambda stored: {**stored, LOG_OFFSET_KEY: 0})
    lost = {"Lost": TopicConfig("Lost").to_json()}
    about_log = {LOG_OFFSET_KEY: end + lost_bytes, IN_LOG_KEY: in_log}
    change("topics.json", lambda stored: {**stored, **about_log, "topicConfigTable": stored["topicConfigTable"] | lost})

    async with open_desk(tmp_path) as desk:
        await until(lambda: desk.broker.tables.in_log)
        log_end = desk.broker.store.log.max_offset
        events = [event for _, event in desk.broker.table_log.events_between(end, log_end)]
        topics = [topic for event in events if event.kind == TOPICS_CHANGED for topic in event.content["topics"]]
        assert "Lost" in [topic["topicName"] for topic in topics]
    assert change("topics.json", lambda stored: stored)[LOG_OFFSET_KEY] == log_end


async def test_a_file_that_was_ahead_of_its_log_lacks_what_the_log_got_in_the_place_of_its_lost_end(tmp_path: Path) -> None:
    """After a power cut the log grows beyond the file's log offset; a kill before the file is written again loses nothing."""
    async with open_desk(tmp_path / "b") as desk:
        desk.broker.table_log.put_topics(TopicConfig("T1", 1, 1))
        desk.put("T1")
        await desk.settled()
    path = tmp_path / "b" / "config" / OFFSETS_FILE
    offsets: Any = loads(path.read_bytes())
    ahead = offsets[LOG_OFFSET_KEY] + 10_000
    path.write_bytes(dumps({**offsets, LOG_OFFSET_KEY: ahead}))
    async with open_desk(tmp_path / "b") as desk:
        await until(lambda: desk.broker.tables.in_log)
        desk.broker.commits.commit("g", "T1", 0, 1)
        await desk.broker.table_log.append_gathered()
        assert desk.broker.store.log.max_offset < ahead
        while desk.broker.store.log.max_offset <= ahead:
            desk.put("T1", bytes(1000))
        await desk.settled()
        shutil.copytree(tmp_path / "b", tmp_path / "killed", ignore=shutil.ignore_patterns("*.tmp"))

    async with open_desk(tmp_path / "killed") as desk:
        assert desk.broker.offsets.query("g", "T1", 0) == 1


@pytest.mark.parametrize("content", [b"", bytes(100), b"{"], ids=["empty", "zeros", "cut off"])
async def test_lost_offsets_stop_the_start(tmp_path: Path, content: bytes) -> None:
    """A file that is empty has lost them as much as one that is cut off; a backup that can be read helps."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_bytes(content)

    with pytest.RaisesGroup(pytest.RaisesExc(BadTable, match="empty or not JSON"), flatten_subgroups=True):
        async with open_desk(tmp_path):
            pass

    (config / "consumerOffset.json.bak").write_bytes(b'{"offsetTable":{"T1@g":{0:0}}}')
    async with open_desk(tmp_path) as desk:
        assert desk.broker.offsets.query("g", "T1", 0) == 0


def test_the_log_offset_of_tables_that_do_not_change_follows_the_log_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads the log back from there, on leader and followers, so it must not be as old as the tables are."""
    refresh_bytes = 4096
    monkeypatch.setattr("ledgermq.broker.tables.table_files.REFRESH_BYTES", refresh_bytes)

    def log_offsets(node: Node) -> list[int]:
        directory = f"{node.config.store_path_root_dir}/config"
        tables = [
            JsonFile(node.machine.disk, f"{directory}/{name}").load() for name in ("topics.json", "subscriptionGroup.json")
        ]
        return [table[LOG_OFFSET_KEY] for table in tables if table is not None]

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.2")) as producer:
            await group.produce(producer, 100)
        master = await group.master()
        assert master.broker is not None
        await trio.sleep(25)
        end = master.broker.store.log.committed_offset
        for node in group.nodes:
            assert min(log_offsets(node)) > end - refresh_bytes > refresh_bytes
        await master.process.end(End.CLEAN)
        assert min(log_offsets(master)) >= end

    scenario(story)
