"""The tables' files."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import trio

from ledgermq.broker.errors import BadTable
from ledgermq.broker.groups import GroupConfig
from ledgermq.broker.persistence import Persistence, encoded
from ledgermq.broker.topics import TopicConfig
from ledgermq.message.json import loads
from ledgermq.world.real import real_world

from .desk import open_desk, until


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
    assert content("subscriptionGroup.json")["subscriptionGroupTable"]["g"] == GroupConfig("g").to_json()
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


async def test_a_new_topic_is_written_at_once(tmp_path: Path) -> None:
    """Not only at the end: a crash must not lose what an administrator made."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 3, 3))

        file = tmp_path / "config" / "topics.json"
        await until(lambda: file.exists() and "T1" in loads(file.read_bytes())["topicConfigTable"])


async def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs nothing but time: the change is written when there is room."""
    monkeypatch.setattr("ledgermq.broker.persistence.RETRY_SECONDS", 0.01)
    world = real_world()
    (tmp_path / "config").write_text("in the way")
    persistence = Persistence(world.disk, world.workers, str(tmp_path / "config"))
    changes = 0
    table = persistence.keep("t.json", lambda: {"a": changes}, lambda: changes)
    async with trio.open_nursery() as nursery:
        persistence.start(nursery)
        changes = 1
        table.wake()
        await trio.sleep(0.05)
        assert table.written == 0

        (tmp_path / "config").unlink()
        await until(lambda: table.written == 1)
        nursery.cancel_scope.cancel()

    assert persistence.load("t.json", lambda stored: stored) == {"a": 1}


async def test_a_file_is_written_only_when_its_table_has_changed(tmp_path: Path) -> None:
    """An idle broker leaves the disk alone."""
    world = real_world()
    persistence = Persistence(world.disk, world.workers, str(tmp_path))
    taken: list[int] = []

    def take() -> dict[str, int]:
        taken.append(1)
        return {}

    changes = 0
    persistence.keep("t.json", take, lambda: changes, 0.01)
    async with trio.open_nursery() as nursery:
        persistence.start(nursery)
        await trio.sleep(0.05)
        assert taken == []
        changes = 1
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()

    assert taken == [1]


async def test_a_table_that_cannot_be_encoded_does_not_end_the_broker(tmp_path: Path) -> None:
    """Whatever got into it: the other tables are written, and this one once it can be."""
    async with open_desk(tmp_path, flush_consumer_offset_interval=1) as desk:
        desk.broker.offsets.commit("g", "T1", 0, 10**40)
        desk.broker.topics.put(TopicConfig("T2"))
        path = tmp_path / "config" / "topics.json"
        await until(lambda: path.exists() and b'"T2"' in path.read_bytes())
        await trio.sleep(0.05)
        assert desk.peer().send("T2").code == 0

        desk.broker.offsets.commit("g", "T1", 0, 1)


@pytest.mark.parametrize("number", [1 << 63, 1 << 64, -(1 << 63) - 1, 10**40])
async def test_no_request_brings_a_number_beyond_64_bits_into_a_table(tmp_path: Path, number: int) -> None:
    """Offsets, queue ids, fields of topics and groups: each request is refused, and the tables can be written."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        desk.broker.topics.put(TopicConfig("T1", 3, 3))
        commit = {"consumerGroup": "g", "topic": "T1", "queueId": 0, "commitOffset": 0}
        group: dict[str, object] = {"groupName": "g"}
        topic: dict[str, object] = {"topicName": "T3"}
        answers = [peer.ask(15, {**commit, name: number}) for name in ("queueId", "commitOffset")]
        answers += [
            peer.ask(200, None, orjson_like({**group, name: str(number)}))
            for name in ("retryQueueNums", "retryMaxTimes", "brokerId", "whichBrokerWhenConsumeSlowly")
        ]
        answers += [
            peer.ask(18, None, orjson_like({"topicConfigList": [{**topic, name: str(number)}]}))
            for name in ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")
        ]
        peer.answer(peer.pull("T1", sysFlag=5, commitOffset=number))
        peer.answer(peer.pull("T1", queueOffset=number))

        assert all(answer.code != 0 for answer in answers)
        for table in desk.broker.persistence.tables.values():
            encoded(table.take())


def orjson_like(value: object) -> bytes:
    """A strict JSON body."""
    return orjson.dumps(value)


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
