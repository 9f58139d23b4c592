"""Putting and getting messages: every status, and what a failing disk does to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.message.layout import decode_record
from ledgermq.message.properties import encode_properties
from ledgermq.message.strings import string_hash
from ledgermq.store.derived.consumequeue import UNIT_SIZE
from ledgermq.store.statuses import GetStatus

from .stores import SetClock, derive_all, incoming, small_store


async def test_every_way_a_get_can_end(tmp_path: Path) -> None:
    """Statuses and next offsets of gets inside, before, behind and beside a queue."""
    async with small_store(tmp_path) as store:
        store.put([incoming(b"%d" % number) for number in range(5)])
        derive_all(store)

        def outcome(offset: int, *, topic: str = "TopicTest", tags: frozenset[int] | None = None) -> tuple[GetStatus, int]:
            result = store.get(topic, 1, offset, 3, tags=tags)
            return result.status, result.next_offset

        assert outcome(0) == (GetStatus.FOUND, 3)
        assert outcome(4) == (GetStatus.FOUND, 5)
        assert outcome(5) == (GetStatus.OFFSET_OVERFLOW_ONE, 5)
        assert outcome(9) == (GetStatus.OFFSET_OVERFLOW_BADLY, 5)
        assert outcome(-1) == (GetStatus.OFFSET_TOO_SMALL, 0)
        assert outcome(7, topic="Unknown") == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        assert outcome(0, tags=frozenset((1,))) == (GetStatus.NO_MATCHED_MESSAGE, 5)


async def test_an_entry_that_leads_nowhere_is_skipped_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its message is in the log, but no consumer gets it: an operator has to learn that, and which one it is."""
    async with small_store(tmp_path) as store:
        store.put([incoming(b"%d" % number) for number in range(5)])
        derive_all(store)
        (path,) = (tmp_path / "consumequeue" / "TopicTest" / "1").iterdir()
        with path.open("r+b") as file:
            file.seek(2 * UNIT_SIZE + 1)
            file.write(b"\xff")

        result = store.get("TopicTest", 1, 0, 32)
        assert [decode_record(record).body for record in result.slices] == [b"0", b"1", b"3", b"4"]
        assert "queue_entry_damaged topic='TopicTest' queue_id=1 queue_offset=2 " in caplog.text


async def test_a_reader_who_knows_more_than_the_queues_is_not_sent_back(tmp_path: Path) -> None:
    """A slave has shown it what is not derived here yet; only who is ahead of the log itself is wrong."""
    async with small_store(tmp_path) as store:
        store.put([incoming(b"%d" % number) for number in range(5)])
        assert store.max_offset("TopicTest", 1) == 0

        assert store.get("TopicTest", 1, 5, 3).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert store.get("TopicTest", 1, 7, 3).next_offset == 5


async def test_a_get_takes_what_its_tags_let_through(tmp_path: Path) -> None:
    """Tags are compared by hash; the next offset lies behind everything that was looked at."""
    async with small_store(tmp_path) as store:
        store.put([incoming(tag.encode(), properties=encode_properties({"TAGS": tag})) for tag in "ABABA"])
        derive_all(store)

        result = store.get("TopicTest", 1, 0, 32, tags=frozenset((string_hash("B"),)))

        assert [bytes(decode_record(record).body) for record in result.slices] == [b"B", b"B"]
        assert result.next_offset == 5


async def test_a_get_is_bounded_in_count_and_bytes_but_never_empty_handed(tmp_path: Path) -> None:
    """The first message comes however large it is; further ones only inside the limits."""
    async with small_store(tmp_path) as store:
        store.put([incoming(bytes(1000)) for _ in range(6)])
        derive_all(store)

        assert len(store.get("TopicTest", 1, 0, 32, max_bytes=1).slices) == 1
        assert len(store.get("TopicTest", 1, 0, 32, max_bytes=2500).slices) == 2
        assert len(store.get("TopicTest", 1, 0, 4).slices) == 4


async def test_old_messages_come_in_smaller_helpings_and_from_a_slave(tmp_path: Path) -> None:
    """Beyond the share of memory that counts as cached, gets shrink and suggest the slave."""
    async with small_store(tmp_path, memory_bytes=1000) as store:
        store.put([incoming(bytes(100)) for _ in range(40)])
        derive_all(store)

        old, young = store.get("TopicTest", 1, 0, 32), store.get("TopicTest", 1, 39, 32)

        assert (len(old.slices), old.suggest_slave) == (8, True)
        assert (len(young.slices), young.suggest_slave) == (1, False)


async def test_offsets_are_found_by_store_time(tmp_path: Path) -> None:
    """Lower bound: the first at or after the time; upper bound: the last at or before it."""
    clock = SetClock()
    async with small_store(tmp_path, clock) as store:
        for time in (1000, 2000, 2000, 3000):
            clock.wall = time
            store.put([incoming()])
        derive_all(store)

        lower = [store.offset_by_time("TopicTest", 1, time) for time in (500, 1000, 1500, 2000, 3001)]
        upper = [store.offset_by_time("TopicTest", 1, time, upper=True) for time in (500, 1000, 2000, 2500, 9999)]

        assert lower == [0, 0, 1, 1, 4]
        assert upper == [0, 0, 2, 2, 3]


async def test_a_made_up_physical_offset_finds_nothing(tmp_path: Path) -> None:
    """Bytes inside a body that look like a record are not one: a record says where it lies."""
    async with small_store(tmp_path) as store:
        store.put([incoming(b"inner")])
        inner = bytes(store.message_at(0) or b"")
        store.put([incoming(inner)])

        outer = store.put([incoming()]).physical_offsets[0]
        assert store.message_at(len(inner) + 88) is None
        assert store.message_at(outer) is not None
        assert store.message_at(outer + 1 << 40) is None
