"""Delayed messages that are damaged, or cannot be read or delivered: the others are delivered, and the broker goes on."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from ledgermq.broker import delay as delay_module
from ledgermq.broker.delay import RETRY_SECONDS, DelayDelivery
from ledgermq.broker.entries import TableFull
from ledgermq.broker.tables.topics import TopicConfig, TopicTable
from ledgermq.store.config import SCHEDULE_TOPIC
from ledgermq.store.derived.consumequeue import UNIT_SIZE, ConsumeQueue
from ledgermq.testing.logs import capture_logs
from ledgermq.world import supervision

from .desk import Desk, open_desk, until
from .test_delay import delivered, turned_by_hand


def damage(desk: Desk, body: bytes, part: str) -> int:
    """Damage a message of the first level, or its entry in the queue; return the physical offset that the entry names then."""
    store = desk.broker.store
    root = Path(store.config.store_path_root_dir)
    log, queue = root / "commitlog" / f"{0:020}", root / "consumequeue" / SCHEDULE_TOPIC / "0" / f"{0:020}"
    body_at = log.read_bytes().index(body)
    units = [unit for at in range(store.max_offset(SCHEDULE_TOPIC, 0)) for unit in store.units(SCHEDULE_TOPIC, 0, at, 1)]
    number, offset = max((number, offset) for number, (offset, _, _) in enumerate(units) if offset < body_at)
    places = {
        "magic": (log, offset + 4, bytes(4)),
        "body": (log, body_at, b"?"),
        "entry": (queue, number * UNIT_SIZE, struct.pack(">q", offset + 8)),
        "entry beyond the log": (queue, number * UNIT_SIZE, struct.pack(">q", 1 << 40)),
    }
    path, at, content = places[part]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)
    return store.units(SCHEDULE_TOPIC, 0, number, 1)[0][0]


@pytest.mark.parametrize("part", ["magic", "body", "entry", "entry beyond the log"])
async def test_a_damaged_message_is_reported_and_passed_over(tmp_path: Path, part: str) -> None:
    """Nobody could notice the damage in a copy, whose CRC would be valid. Those behind it are delivered."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        for body in (b"first", b"rotten", b"last"):
            desk.peer().send("T1", body, DELAY="1")
        await desk.settled()
        offset = damage(desk, b"rotten", part)
        clock.now_ms += 1000

        with capture_logs() as events:
            assert await delivered(desk) == [b"first", b"last"]

        found = [event["physical_offset"] for event in events if event["event"] == "delayed_message_damaged"]
        assert found == [offset]
        assert desk.broker.delay.offsets()[1] == 3


async def test_a_damaged_message_waits_for_the_copy_of_another_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is before it is delivered and other levels go on. Without a copy it is passed over in the end."""
    world, clock = turned_by_hand()
    async with open_desk(tmp_path, world) as desk:
        for body in (b"first", b"mended", b"lost", b"last"):
            desk.peer().send("T1", body, DELAY="1")
        await desk.settled()
        before = [damage(desk, b"mended", "magic"), damage(desk, b"lost", "magic")]
        asked: list[int] = []

        def mend(offset: int) -> bool:
            asked.append(offset)
            return True

        desk.broker.delay.mend = mend
        desk.peer().send("T1", b"other", DELAY="2")
        await desk.settled()
        clock.now_ms += 5000
        assert await delivered(desk) == [b"first", b"other"]
        assert set(asked) == {before[0]}

        (segment,) = (tmp_path / "commitlog").iterdir()
        magic = segment.read_bytes()[4:8]
        with segment.open("r+b") as file:
            file.seek(before[0] + 4)
            file.write(magic)
        assert await delivered(desk) == [b"first", b"other", b"mended"]
        assert set(asked) == set(before)
        monkeypatch.setattr(delay_module, "COPY_SECONDS_MAX", 0.0)
        assert await delivered(desk) == [b"first", b"other", b"mended", b"last"]


async def test_a_level_whose_queue_cannot_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other levels are delivered meanwhile."""
    world, clock = turned_by_hand()
    units = ConsumeQueue.units

    def failing(self: ConsumeQueue, offset: int, count: int) -> bytes:
        if (self.topic, self.queue_id) == (SCHEDULE_TOPIC, 0):
            raise OSError(errno.EIO, "Input/output error")
        return units(self, offset, count)

    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"a", DELAY="1")
        desk.peer().send("T1", b"b", DELAY="2")
        await desk.settled()
        monkeypatch.setattr(ConsumeQueue, "units", failing)
        clock.now_ms += 5000
        assert await delivered(desk) == [b"b"]
        assert desk.broker.delay.round() == RETRY_SECONDS

        monkeypatch.undo()

        assert await delivered(desk) == [b"b", b"a"]


async def test_a_message_whose_topic_cannot_be_created_is_delivered_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of topics is full. The message can be read once somebody creates the topic."""
    world, clock = turned_by_hand()

    def full(*_: object) -> None:
        raise TableFull("the table of topics", 1, 1)

    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"a", queue_id=0, DELAY="1")
        desk.broker.topics.delete("T1")
        await desk.settled()
        monkeypatch.setattr(TopicTable, "check_room", full)
        clock.now_ms += 1000

        with capture_logs() as events:
            while desk.broker.delay.round() == 0:
                pass
        await desk.settled()

        assert "delayed_topic_not_created" in [event["event"] for event in events]
        monkeypatch.undo()
        desk.broker.topics.put(TopicConfig("T1", 1, 1))
        assert await delivered(desk) == [b"a"]


async def test_a_fault_of_the_delivery_ends_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task begins again and delivers."""
    world, clock = turned_by_hand()
    deliver, failures = DelayDelivery.round, [ValueError("a fault of ours")]

    def failing_once(self: DelayDelivery) -> float:
        if failures:
            raise failures.pop()
        return deliver(self)

    monkeypatch.setattr(supervision, "RESTART_SECONDS", 0.01)
    monkeypatch.setattr(DelayDelivery, "round", failing_once)
    async with open_desk(tmp_path, world) as desk:
        desk.peer().send("T1", b"a", DELAY="1")
        await desk.settled()
        clock.now_ms += 1000

        await until(lambda: desk.broker.store.max_offset("T1", 0) == 1)
        assert not failures
