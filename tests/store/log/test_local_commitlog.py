from __future__ import annotations

import errno
import random

import pytest

from ledgermq.message.layout import encode_host, encode_record
from ledgermq.store.derived.consumequeue import ConsumeQueue
from ledgermq.store.errors import NotWritable
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.log.segments import Segments
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers


def queue_whose_sync_failed(disk: SimDisk) -> ConsumeQueue:
    """A queue of eight units that were written, but may be missing from the medium."""
    queue = ConsumeQueue("T", 0, Segments(disk, "q", 100))
    for n in range(8):
        queue.put(n, 100 * n, 100, 0)
    queue.write()
    disk.faults.sync_error = 1.0
    with pytest.raises(OSError, match="Input/output"):
        queue.sync()
    disk.faults.sync_error = 0.0
    return queue


def test_units_are_written_again_after_a_sync_that_failed() -> None:
    """After a failed sync, a later one skips the pages it covered: only writing them again brings them to the medium."""
    for seed in range(30):
        disk = SimDisk()
        queue = queue_whose_sync_failed(disk)

        queue.sync()

        segments = Segments(disk.power_cut(seed), "q", 100)
        segments.load()
        after = ConsumeQueue("T", 0, segments)
        after.recover(page_cache_intact=False)
        assert after.max_offset == 8
        assert after.physical_end == 800


def test_units_of_a_process_that_was_killed_are_written_again_before_they_count_as_synced() -> None:
    """Its syncs may have failed, which the next process cannot know."""
    for seed in range(30):
        disk = SimDisk(random.Random(seed))
        queue_whose_sync_failed(disk)
        killed = disk.kill()
        next_process = ConsumeQueue("T", 0, Segments(killed, "q", 100))
        next_process.segments.load()
        next_process.recover(page_cache_intact=True)

        assert next_process.doubt_from(200)
        assert not next_process.doubt_from(800)
        assert next_process.doubt_from(0)
        next_process.sync()

        segments = Segments(killed.power_cut(seed), "q", 100)
        segments.load()
        after = ConsumeQueue("T", 0, segments)
        after.recover(page_cache_intact=False)
        assert after.max_offset == 8


def test_a_queue_that_lost_more_than_its_last_three_files_ends_before_them() -> None:
    disk = SimDisk()
    queue = ConsumeQueue("T", 0, Segments(disk, "q", 100))
    for n in range(25):
        queue.put(n, 100 * n, 100, 0)
    queue.write()
    for start in (100, 200, 300, 400):
        disk.open(f"q/{start:020}").clear(0)

    segments = Segments(disk, "q", 100)
    segments.load()
    after = ConsumeQueue("T", 0, segments)
    after.recover(page_cache_intact=False)

    assert (after.max_offset, after.physical_end) == (5, 500)


HOST = encode_host("10.0.0.1", 1)


def _log_of(disk: SimDisk) -> LocalCommitLog:
    clock, workers = SimClock(lambda: 0.0), SimWorkers(random.Random(1))
    return LocalCommitLog(Segments(disk, "log", 8192), clock, workers)


def _records_of_a_master(count: int) -> tuple[bytes, int]:
    """The bytes of a master's log, and the size of each record."""
    record = encode_record(b"T", 0, 0, b"x" * 300, b"", 0, 0, 1, HOST, 1, HOST, 0, 0)
    master = _log_of(SimDisk())
    master.append([record] * count)
    return b"".join(master.slice_from(at, 8192) for at in range(0, master.max_offset, 8192)), len(record)


@pytest.mark.parametrize("flushed_part", [0, 100])
@pytest.mark.parametrize("last_part", [3, 50, 200])
async def test_a_slave_whose_sync_failed_inside_a_record_goes_on(flushed_part: int, last_part: int) -> None:
    """What is whole is written anew; the record that has come in part is dropped, and taken from the master once more."""
    sent, size = _records_of_a_master(4)
    disk = SimDisk()
    slave = _log_of(disk)
    if flushed_part:
        slave.append_raw(0, sent[:flushed_part])
        await slave.flush()
    slave.append_raw(flushed_part, sent[flushed_part : 2 * size + last_part])
    disk.faults.sync_error = 1.0
    await slave.flush()
    assert slave.failure is not None
    disk.faults.sync_error = 0.0

    await slave.heal()

    assert slave.failure is None
    assert slave.max_offset == slave.flushed_offset == 2 * size
    slave.append_raw(2 * size, sent[2 * size :])
    await slave.flush()
    for seed in range(5):
        assert disk.power_cut(seed).open(f"log/{0:020}").read(0, len(sent)) == sent


async def test_a_slave_whose_last_file_was_removed_by_a_cut_that_failed_then_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cut removes the file that has a part of a record only, and fails in the directory; the next attempt finds no file."""
    sent, size = _records_of_a_master(30)
    disk = SimDisk()
    slave = _log_of(disk)
    slave.append_raw(0, sent[:8192])
    await slave.flush()
    slave.append_raw(8192, sent[8192 : 8192 + size // 2])
    disk.faults.sync_error = 1.0
    await slave.flush()
    disk.faults.calm()

    def fail(_disk: SimDisk, _directory: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(SimDisk, "sync_directory", fail)
        await slave.heal()
    assert slave.failure is not None

    await slave.heal()

    assert slave.failure is None
    assert slave.max_offset == slave.flushed_offset == 8192
    slave.append_raw(8192, sent[8192 : 8192 + 2 * size])
    assert slave.max_offset == 8192 + 2 * size


@pytest.mark.parametrize("fault", ["sync_error", "write_error"])
async def test_a_slave_goes_on_although_the_disk_failed_once_more_while_a_part_of_a_record_was_dropped(fault: str) -> None:
    """The cut has made zeros of some of the part, so it cannot be told from damage when the slave heals the next time."""
    sent, size = _records_of_a_master(4)
    disk = SimDisk()
    slave = _log_of(disk)
    slave.append_raw(0, sent[: size + size // 2])
    disk.faults.sync_error = 1.0
    await slave.flush()
    disk.faults.calm()
    setattr(disk.faults, fault, 1.0)
    await slave.heal()
    assert slave.failure is not None
    assert slave.max_offset == size
    disk.faults.calm()

    await slave.heal()

    assert slave.failure is None
    assert slave.max_offset == slave.flushed_offset == size
    slave.append_raw(size, sent[size : 2 * size])
    await slave.flush()
    for seed in range(20):
        assert disk.power_cut(seed).open(f"log/{0:020}").read(0, 8192) == sent[: 2 * size].ljust(8192, b"\0")


@pytest.mark.parametrize("fault", ["sync_error", "write_error"])
async def test_a_cut_that_the_disk_refused_half_way_is_finished_before_anything_is_appended(fault: str) -> None:
    """Otherwise a power cut could bring back what was cut, between the sectors of what was appended in its place."""
    sent, size = _records_of_a_master(30)
    disk = SimDisk()
    slave = _log_of(disk)
    slave.append_raw(0, sent[:8192])
    slave.append_raw(8192, sent[8192 : 8192 + 2 * size])
    await slave.flush()
    setattr(disk.faults, fault, 1.0)
    with pytest.raises(OSError, match="Input/output"):
        await slave.truncate(3 * size)
    assert slave.max_offset == slave.flushed_offset == 3 * size
    with pytest.raises(NotWritable, match="not removed"):
        slave.append_raw(3 * size, b"other bytes")
    disk.faults.calm()

    await slave.heal()

    slave.append_raw(3 * size, b"other bytes")
    await slave.flush()
    kept = sent[: 3 * size] + b"other bytes"
    for seed in range(20):
        assert disk.power_cut(seed).open(f"log/{0:020}").read(0, 8192) == kept.ljust(8192, b"\0")


async def test_a_slave_with_a_damaged_record_takes_nothing() -> None:
    """A record that is there in full and does not hold is no part of a record that is still to come."""
    sent, size = _records_of_a_master(2)
    disk = SimDisk()
    slave = _log_of(disk)
    slave.append_raw(0, sent[: size + 50])
    disk.faults.sync_error = 1.0
    await slave.flush()
    disk.faults.sync_error = 0.0
    disk.rot(f"log/{0:020}", size - 20)

    await slave.heal()

    assert slave.failure is not None


async def _append_when_accepted(log: LocalCommitLog, record: bytes) -> None:
    for _ in range(20):
        try:
            log.append([record])
        except NotWritable:
            await log.heal()
        else:
            return
    raise AssertionError("the log accepts no appends any more")


@pytest.mark.parametrize("sync_error", [0.0, 0.5])
async def test_a_power_cut_leaves_nothing_of_a_refused_record_among_the_bytes_of_its_successor(sync_error: float) -> None:
    """The removal of what a failed append has written is synced before the next append, even if syncs fail meanwhile."""
    refused = encode_record(b"T", 0, 0, b"r" * 2000, b"P\x01" + b"r" * 2000, 0, 0, 1, HOST, 1, HOST, 0, 0)
    successor = encode_record(b"T", 0, 0, b"s" * 2000, b"P\x01" + b"s" * 2000, 0, 0, 1, HOST, 1, HOST, 0, 0)
    torn = 0
    for seed in range(60):
        disk = SimDisk(random.Random(seed))
        log = _log_of(disk)
        log.append([_records_of_a_master(1)[0]])
        await log.flush()
        start = log.max_offset
        disk.faults.write_error = 1.0
        with pytest.raises(OSError, match="Input/output"):
            log.append([refused])
        disk.faults.write_error, disk.faults.sync_error = 0.0, sync_error
        await _append_when_accepted(log, successor)

        found = disk.power_cut(seed).open(f"log/{0:020}").read(start, len(successor))

        assert b"rrr" not in found
        torn += b"sss" in found and found != bytes(log.slice_from(start, len(successor)))
    assert torn, "no power cut has torn the successor, so this test shows nothing"


async def test_puts_that_wait_are_answered_when_what_a_later_append_has_left_is_removed() -> None:
    """The failed append concerns its own producer only."""
    disk = SimDisk()
    log = _log_of(disk)
    log.sync_flush = True
    record, size = _records_of_a_master(1)
    outcomes: list[PutStatus] = []
    log.when_stored(log.append([record]).end, outcomes.append)
    disk.faults.write_error = 1.0
    with pytest.raises(OSError, match="Input/output"):
        log.append([record])
    with pytest.raises(NotWritable, match="failed append"):
        log.append([record])
    disk.faults.write_error = 0.0

    await log.heal()

    assert outcomes == [PutStatus.PUT_OK]
    assert log.append([record]).offsets == [size]


@pytest.mark.parametrize("received", [0, 100, 700])
async def test_a_slave_whose_disk_refused_bytes_receives_them_again_later(received: int) -> None:
    """A full disk refuses a part of them; that part is removed although the disk is still full."""
    sent, size = _records_of_a_master(4)
    disk = SimDisk()
    slave = _log_of(disk)
    if received:
        slave.append_raw(0, sent[:received])
    disk.faults.capacity = disk.allocated_bytes() + 512
    with pytest.raises(OSError, match="No space left"):
        slave.append_raw(received, sent[received:])
    with pytest.raises(NotWritable, match="failed append"):
        slave.append_raw(received, sent[received:])

    await slave.heal()

    assert slave.failure is None, "removing what is there needs no space"
    kept = slave.max_offset
    assert kept == received - received % size, "an incomplete record is dropped, because the master sends it again"
    disk.faults.calm()
    slave.append_raw(kept, sent[kept:])
    await slave.flush()
    for seed in range(5):
        assert disk.power_cut(seed).open(f"log/{0:020}").read(0, len(sent)) == sent
