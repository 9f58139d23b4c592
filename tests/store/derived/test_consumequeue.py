"""One consume queue on its files: gathering and writing units, gaps, ends, truncation, deletions, and what a crash leaves."""

from __future__ import annotations

import errno
import random

import pytest

from ledgermq.store.derived.consumequeue import GAP_UNITS_MAX, PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue, ConsumeQueues
from ledgermq.store.derived.deletions import Deletion, QueueEnd
from ledgermq.store.errors import BadQueueName, LinkInStore, WrongSegmentSize
from ledgermq.store.log.segments import Segments
from ledgermq.testing.logs import capture_logs
from ledgermq.world.memory_disk import MemoryDisk

UNITS_PER_FILE = 10
RECORD = 100


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directories("/queues")
    return disk


def opened(disk: MemoryDisk, *, intact: bool = True) -> ConsumeQueues:
    queues = ConsumeQueues(disk, "/queues", UNITS_PER_FILE * UNIT_SIZE + 7)
    queues.load(page_cache_intact=intact)
    return queues


def fill(queue: ConsumeQueue, begin: int, end: int) -> None:
    """Add the units of records of 100 bytes that follow one another in the log."""
    for number in range(begin, end):
        assert queue.put(number, number * RECORD, RECORD, number)
    queue.write()


def numbers_in(queue: ConsumeQueue) -> list[int]:
    """The tags codes of all readable units, which `fill` has set to their numbers."""
    units = [queue.unit(number) for number in range(queue.min_offset, queue.max_offset)]
    return [unit[2] for unit in units if unit is not None and unit[1] != PRE_BLANK_SIZE]


def test_units_are_readable_before_they_are_written_and_after(disk: MemoryDisk) -> None:
    """Across files, of which none is read beyond its end."""
    queue = opened(disk).of("T", 0)
    for number in range(25):
        assert queue.put(number, number * RECORD, RECORD, number)
    assert numbers_in(queue) == list(range(25))
    assert disk.list_directory("/queues/T/0") == []

    queue.write()

    assert numbers_in(queue) == list(range(25))
    assert len(queue.units(8, 100)) == 2 * UNIT_SIZE
    assert queue.units(25, 1) == b""
    assert [int(name) for name in disk.list_directory("/queues/T/0")] == [0, 200, 400]


def test_what_was_derived_before_is_dropped(disk: MemoryDisk) -> None:
    """A slice of the log that is derived again adds nothing twice."""
    queue = opened(disk).of("T", 0)
    fill(queue, 0, 5)

    assert not queue.put(4, 4 * RECORD, RECORD, 4)
    assert not queue.put(2, 9 * RECORD, RECORD, 2)
    assert numbers_in(queue) == list(range(5))


def test_a_queue_may_begin_anywhere_and_a_gap_is_filled(disk: MemoryDisk) -> None:
    """A fresh slave begins in the middle; the filler units count as none, also for the next process."""
    queue = opened(disk).of("T", 0)
    fill(queue, 13, 15)
    with capture_logs() as logs:
        fill(queue, 27, 29)

    assert [entry["event"] for entry in logs] == ["queue_offset_gap"]
    for each in (queue, opened(disk).of("T", 0)):
        each.correct_min_offset(0)
        assert (each.min_offset, each.max_offset) == (13, 29)
        assert numbers_in(each) == [13, 14, 27, 28]


@pytest.mark.parametrize("kept", range(30))
def test_searches_pass_over_a_gap(disk: MemoryDisk, kept: int) -> None:
    """Records 15 to 26 are missing: neither truncation nor expiry takes a filler for the first message or the last one."""
    queue = opened(disk).of("T", 0)
    fill(queue, 0, 15)
    with capture_logs():
        fill(queue, 27, 30)
    whole = [*range(15), *range(27, 30)]

    queue.correct_min_offset(kept * RECORD)
    assert numbers_in(queue) == [number for number in whole if number >= kept]
    last = queue.last_unit_before(kept * RECORD)
    assert last is None or last[2] == max((number for number in whole if number < kept), default=-1)
    queue.correct_min_offset(0)
    queue.truncate(kept * RECORD)

    assert numbers_in(queue) == [number for number in whole if number < kept]
    assert queue.physical_end == min(kept, max((number + 1 for number in whole if number < kept), default=0)) * RECORD


@pytest.mark.parametrize("written", [True, False], ids=["behind written units", "behind units in memory"])
@pytest.mark.parametrize("number", [1 + GAP_UNITS_MAX + 1, 1 << 60])
def test_an_offset_that_no_broker_assigned_gets_no_unit(disk: MemoryDisk, number: int, *, written: bool) -> None:
    """Filling such a gap would fill the disk."""
    queue = opened(disk).of("T", 0)
    assert queue.put(0, 0, RECORD, 0)
    if written:
        queue.write()

    with capture_logs() as logs:
        assert not queue.put(number, RECORD, RECORD, 0)

    assert [entry["event"] for entry in logs] == ["queue_offset_impossible"]
    assert queue.max_offset == 1


@pytest.mark.parametrize("written", [0, 3, 10, 25])
@pytest.mark.parametrize("kept", [0, 1, 9, 10, 11, 25, 30])
def test_truncation_drops_units_of_records_from_there_on(disk: MemoryDisk, written: int, kept: int) -> None:
    """Written ones and gathered ones; the queue continues, and the next process sees the same."""
    queue = opened(disk).of("T", 0)
    fill(queue, 0, written)

    queue.truncate(kept * RECORD)

    rest = min(written, kept)
    assert numbers_in(queue) == list(range(rest))
    assert queue.physical_end == rest * RECORD
    fill(queue, rest, rest + 2)
    assert numbers_in(opened(disk).of("T", 0)) == list(range(rest + 2))


@pytest.mark.parametrize("log_start", [0, 50, 100, 950, 1000, 1850, 10_000])
def test_units_of_expired_records_are_not_readable(disk: MemoryDisk, log_start: int) -> None:
    """Files without any other go, but never the last one."""
    queue = opened(disk).of("T", 0)
    fill(queue, 0, 25)

    deleted = queue.expire(log_start)

    assert queue.min_offset == min(-(-log_start // RECORD), 25)
    assert deleted == min(queue.min_offset // UNITS_PER_FILE, 2)
    assert numbers_in(queue) == list(range(queue.min_offset, 25))


@pytest.mark.parametrize("seed", range(5))
def test_after_a_power_cut_the_queue_ends_before_the_first_hole(disk: MemoryDisk, seed: int) -> None:
    """Sectors that did not reach the medium read as zeros, and what is behind them is gone for the next process too."""
    rng = random.Random(seed)
    fill(opened(disk).of("T", 0), 0, 28)
    hole = rng.randrange(10, 28)
    file = disk.open(f"/queues/T/0/{hole // UNITS_PER_FILE * 200:020d}")
    file.write(bytes(UNIT_SIZE * rng.randint(1, 3)), hole % UNITS_PER_FILE * UNIT_SIZE)

    queue = opened(disk, intact=False).of("T", 0)

    assert numbers_in(queue) == list(range(hole))
    fill(queue, hole, hole + 3)
    assert numbers_in(opened(disk, intact=False).of("T", 0)) == list(range(hole + 3))


def test_a_missing_file_empties_the_queue(disk: MemoryDisk) -> None:
    """Everything is derived again; a run of units with a hole would give away wrong messages."""
    fill(opened(disk).of("T", 0), 0, 25)
    disk.remove(f"/queues/T/0/{200:020d}")

    with capture_logs() as logs:
        queues = opened(disk)

    assert [entry["event"] for entry in logs] == ["queue_file_missing"]
    assert queues.damaged
    assert numbers_in(queues.of("T", 0)) == []


def test_a_deletion_hides_what_was_before_and_offsets_continue(disk: MemoryDisk) -> None:
    """Also if the queue has fewer units than the record says, as on a node whose log began later."""
    queue = opened(disk).of("T", 0)
    fill(queue, 0, 5)
    queue.restart(Deletion(physical_offset=500, size=60, queue_offset=7))

    assert (queue.min_offset, queue.max_offset) == (7, 7)
    assert queue.put(7, 600, RECORD, 7)
    queue.write()
    assert numbers_in(queue) == [7]
    assert queue.expire(0) == 0
    assert queue.min_offset == 7


def test_a_queue_without_messages_continues_at_its_last_end(disk: MemoryDisk) -> None:
    """Cutting the record that holds it off takes it back."""
    queue = opened(disk).of("T", 0)
    queue.go_on_at(QueueEnd(physical_offset=100, size=60, queue_offset=4))
    queue.go_on_at(QueueEnd(physical_offset=300, size=60, queue_offset=9))

    assert (queue.min_offset, queue.max_offset, queue.last_mention) == (9, 9, 360)
    queue.truncate(300)
    assert queue.end_before(300) == queue.max_offset == 4
    assert queue.end_before(150) == 0


def test_units_whose_sync_failed_are_written_again_by_the_next_one(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second sync alone would report success for pages that the first one has given up."""
    queue = opened(disk).of("T", 0)
    fill(queue, 0, 12)
    rewritten: list[tuple[int, int]] = []

    def rewrite(_: Segments, start: int, end: int) -> None:
        rewritten.append((start, end))

    monkeypatch.setattr(Segments, "rewrite", rewrite)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "no medium")

    with monkeypatch.context() as failing:
        failing.setattr(Segments, "sync", refuse)
        with pytest.raises(OSError, match="no medium"):
            queue.sync()
    queue.sync()
    queue.sync()

    assert rewritten == [(0, 12 * UNIT_SIZE)]


def test_queues_are_found_by_their_directories_and_nothing_else(disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stray file is ignored, a name that is no number too; a link is refused, because what it leads to is not the store's."""
    queues = opened(disk)
    for topic, queue_id in (("T", 0), ("T", 7), ("U", 1)):
        fill(queues.of(topic, queue_id), 0, 1)
    disk.open("/queues/stray", create_size=1)
    disk.make_directories("/queues/T/no number")

    with capture_logs() as logs:
        again = opened(disk)

    assert sorted(again.table) == [("T", 0), ("T", 7), ("U", 1)]
    assert again.ids("T") == [0, 7]
    assert [entry["event"] for entry in logs] == ["stray_file_ignored"]

    def is_link(_: MemoryDisk, path: str) -> bool:
        return path.endswith("/U")

    monkeypatch.setattr(MemoryDisk, "is_link", is_link)
    with pytest.raises(LinkInStore):
        opened(disk)


def test_removed_queues_leave_nothing_behind(disk: MemoryDisk) -> None:
    """One topic, or all of them."""
    queues = opened(disk)
    for topic, queue_id in (("T", 0), ("T", 7), ("U", 1)):
        fill(queues.of(topic, queue_id), 0, 1)

    assert [queue.queue_id for queue in queues.delete("T")] == [0, 7]
    assert sorted(opened(disk).table) == [("U", 1)]
    queues.clear()
    assert opened(disk).table == {}


def test_a_name_that_cannot_be_a_directory_gets_none(disk: MemoryDisk) -> None:
    with pytest.raises(BadQueueName):
        opened(disk).of("../T", 0)
    with pytest.raises(BadQueueName):
        opened(disk).of("T", -1)
    assert disk.list_directory("/queues") == []


def test_files_of_another_size_are_not_opened(disk: MemoryDisk) -> None:
    """They belong to another configuration."""
    fill(opened(disk).of("T", 0), 0, 1)

    with pytest.raises(WrongSegmentSize):
        ConsumeQueues(disk, "/queues", 400).load(page_cache_intact=True)


def test_the_layout_is_rocketmqs(disk: MemoryDisk) -> None:
    """20 bytes, big-endian: physical offset, size, tags code."""
    queue = opened(disk).of("T", 3)
    queue.put(0, 0x0102030405060708, 0x11121314, -1)
    queue.write()

    raw = disk.open("/queues/T/3/00000000000000000000").read(0, UNIT_SIZE)
    assert raw == bytes.fromhex("0102030405060708 11121314 ffffffffffffffff")
    assert UNIT.codec.unpack(raw) == queue.unit(0)
