"""The tables' files."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
import trio
from trio.testing import MockClock

from ledgermq.broker.tables.offsets import ConsumerOffsets
from ledgermq.broker.tables.persistence import LOG_DERIVED, LOG_OFFSET_KEY, OFFSETS_FILE, Persistence, encoded, encoded_offsets
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.control import GROUPS_CHANGED, TOPICS_CHANGED
from ledgermq.message.json import loads
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.json_file import JsonFile
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.world import sim_world
from ledgermq.world.real import real_world

from ...turns import counted
from ..desk import open_desk, until


async def test_a_new_topic_is_written_at_once(tmp_path: Path) -> None:
    """Not only at the end: a crash must not lose what an administrator made."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T1", 3, 3))

        file = tmp_path / "config" / "topics.json"
        await until(lambda: file.exists() and "T1" in loads(file.read_bytes())["topicConfigTable"])


async def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk costs nothing but time: the change is written when there is room."""
    monkeypatch.setattr("ledgermq.broker.tables.persistence.RETRY_SECONDS", 0.01)
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
        assert table.failure

        (tmp_path / "config").unlink()
        await until(lambda: table.written == 1)
        nursery.cancel_scope.cancel()

    assert persistence.load("t.json", lambda stored: stored) == {"a": 1}


async def test_a_file_is_written_only_when_its_table_has_changed(autojump_clock: MockClock) -> None:
    """An idle broker leaves the disk alone."""
    world = sim_world(1)
    persistence = Persistence(world.disk, world.workers, "config")
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
            content = table.take()
            encoded(await content if isawaitable(content) else content)


def orjson_like(value: object) -> bytes:
    """A strict JSON body."""
    return orjson.dumps(value)


async def test_a_change_of_a_table_needs_the_log_and_no_file(tmp_path: Path) -> None:
    """On a full disk it is refused, and commits are taken: groups that go on make room. A file that fails loses no change."""
    disk = SimDisk()
    async with open_desk(tmp_path, attrs.evolve(real_world(), disk=disk)) as desk:
        broker, peer = desk.broker, desk.peer()
        topic = {"topic": "t", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG"}
        requests: list[tuple[int, dict[str, Any], Any]] = [
            (RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic, "topicSysFlag": 0, "order": "false"}, None),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, {"groupName": "g"}),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "h", "timestamp": 0, "isForce": "true"}, None),
        ]
        broker.topics.put(TopicConfig("T", 1, 1))
        desk.put("T")
        broker.offsets.commit("h", "T", 0, 0)
        assert await broker.persistence.write_all()

        async def refused(reason: str) -> bool:
            answers = [await peer.ask_waiting(code, ext, body) for code, ext, body in requests]
            return all(each.code == ResponseCode.SYSTEM_ERROR and reason in (each.remark or "") for each in answers)

        broker.store.writability.disk_full = True
        assert await refused("nothing was changed: the disk is full")
        broker.store.writability.disk_full = False
        disk.faults.create_error = 1.0
        broker.offsets.commit("h", "T", 0, 1)
        assert not await broker.persistence.write_all(always=True)
        commit = {"consumerGroup": "h", "topic": "T", "queueId": 0, "commitOffset": 0}
        assert peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == ResponseCode.SUCCESS
        assert broker.topics.get("t") is None
        assert broker.groups.get("g") is None
        answers = [await peer.ask_waiting(code, ext, body) for code, ext, body in requests[:2]]
        assert [each.code for each in answers] == [ResponseCode.SUCCESS] * 2
        logged = broker.table_log.events_between(0, broker.store.log.max_offset)
        assert {control.kind for _, control in logged} >= {TOPICS_CHANGED, GROUPS_CHANGED}
        disk.faults.calm()


async def test_offsets_are_encoded_in_several_turns_while_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry is as old as its turn, or newer than the first one; what was forgotten meanwhile does not come back."""
    monkeypatch.setattr("ledgermq.broker.tables.persistence.ROWS_PER_SLICE", 20)
    offsets, at = ConsumerOffsets(), 0
    for n in range(100):
        offsets.commit("g", f"T{n}", 0, 1000)

    async def change() -> None:
        nonlocal at
        while at < 100:
            offsets.commit("g", f"T{at}", 0, 1001)
            offsets.forget_topic(f"T{99 - at}")
            offsets.commit("g", f"T{99 - at}", 0, 2000)
            at += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        found = loads(await encoded_offsets(offsets))
        turns = at
        nursery.cancel_scope.cancel()

    assert turns >= 8, "two rows an entry with its name, so ten entries a turn"
    assert found.keys() <= {f"T{n}@g" for n in range(100)}
    assert all(queues in ({"0": 1000}, {"0": 1001}, {"0": 2000}) for queues in found.values())


async def test_no_turn_lists_the_groups_of_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing 400,000 at once takes a tenth of a second."""
    monkeypatch.setattr("ledgermq.broker.tables.persistence.ROWS_PER_SLICE", 20)
    offsets, listed = ConsumerOffsets(), 0

    class Groups(dict[str, dict[int, int]]):
        def __iter__(self) -> Iterator[str]:
            nonlocal listed
            listed += len(self)
            return super().__iter__()

        def items(self) -> Any:
            nonlocal listed
            listed += len(self)
            return super().items()

    for n in range(100):
        offsets.table.topics[f"T{n}"] = Groups({f"g{at}": {0: 5} for at in range(5)})
    with counted(lambda: listed) as turns:
        content = await encoded_offsets(offsets)

    assert len(loads(content)) == 500
    assert turns.most <= 15, "two rows a group with its name, so two topics a turn, and the third is begun"


async def test_files_that_lack_events_of_the_log_are_written_before_it_is_removed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Also those of tables that have not changed since; a file that has the events already is left alone."""
    offsets: dict[str, int] = dict.fromkeys(LOG_DERIVED, 100)
    world = sim_world(1)
    persistence = Persistence(world.disk, world.workers, "config")
    for name in LOG_DERIVED:
        persistence.keep(name, partial(_with_offset, offsets, name), lambda: 0)

    assert await persistence.write_until(100)
    offsets[OFFSETS_FILE] = 200
    assert await persistence.write_until(100)
    again = Persistence(world.disk, world.workers, "config")
    for name in LOG_DERIVED:
        again.load(name, lambda stored: stored)
    assert again.log_offsets == dict.fromkeys(LOG_DERIVED, 100)

    def fail(_file: JsonFile, _content: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(JsonFile, "save", fail)
    assert await persistence.write_until(100)
    assert not await persistence.write_until(101)


def _with_offset(offsets: Mapping[str, int], name: str) -> dict[str, int]:
    return {LOG_OFFSET_KEY: offsets[name]}


async def test_a_file_taken_in_several_turns_says_of_the_log_what_was_true_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start applies again all events that the table may lack; a commit during the turns is written by the next write."""
    async with open_desk(tmp_path, flush_consumer_offset_interval=3_600_000) as desk:
        broker = desk.broker

        async def commit(offset: int) -> None:
            broker.offsets.commit("g", "T0", 0, offset)
            await broker.table_log.append_gathered()
            broker.store.catch_up()

        await commit(0)
        before, path = broker.store.dispatcher.dispatched_offset, tmp_path / "config" / OFFSETS_FILE

        async def encoded_meanwhile(offsets: ConsumerOffsets, *, logged: bool) -> bytes:
            content = await encoded_offsets(offsets, logged=logged)
            desk.put("T0")
            await commit(1)
            return content

        with monkeypatch.context() as patch:
            patch.setattr("ledgermq.broker.tables.table_files.encoded_offsets", encoded_meanwhile)
            assert await broker.persistence.write(OFFSETS_FILE)
        first = loads(path.read_bytes())
        assert await broker.persistence.write(OFFSETS_FILE)

        assert (first[LOG_OFFSET_KEY], first["offsetTable"]) == (before, {"T0@g": {"0": 0}})
        assert loads(path.read_bytes())["offsetTable"]["T0@g"] == {"0": 1}
