from __future__ import annotations

import errno

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.message.layout import encode_host, encode_record
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.log.segments import PREPARED_BYTES, Segment, Segments
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk, SimDiskFile
from ledgermq.testing.sim.medium import SECTOR
from ledgermq.testing.sim.workers import SimWorkers

SEGMENT = 4 * PREPARED_BYTES
HOST = encode_host("10.0.0.1", 10911)


def a_segment(disk: SimDisk, size: int = SEGMENT) -> Segment:
    """The first file of a run."""
    return Segments(disk, "log", size).last()


def test_what_is_appended_to_a_prepared_stretch_takes_no_new_place_on_the_medium() -> None:
    """Its sync then has nothing to wait for but the bytes."""
    disk = SimDisk()
    segment = a_segment(disk)
    segment.prepare(1000)
    segment.append(b"x" * 1000)
    before = disk.allocated_bytes()

    while segment.wrote + 1000 < PREPARED_BYTES:
        segment.prepare(1000)
        segment.append(b"y" * 1000)

    assert before == disk.allocated_bytes() == PREPARED_BYTES


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, PREPARED_BYTES + 5000), min_size=1, max_size=8))
def test_preparing_changes_nothing_of_what_is_read(sizes: list[int]) -> None:
    """Appended bytes stay, and everything behind them is zero, whatever the sizes."""
    segment = a_segment(SimDisk())
    appended = b""
    for number, size in enumerate(sizes):
        if segment.wrote + size > SEGMENT:
            break
        segment.prepare(size)
        segment.append(bytes([number + 1]) * size)
        appended += bytes([number + 1]) * size

    assert segment.file.read(0, SEGMENT) == appended + bytes(SEGMENT - len(appended))


def test_a_segment_is_not_prepared_beyond_its_end() -> None:
    """A file's size is fixed."""
    segment = a_segment(SimDisk(), size=8192)

    segment.prepare(100)

    assert segment.file.size == 8192


def test_a_disk_that_has_no_place_to_prepare_still_takes_what_fits() -> None:
    """Only the bytes themselves may fail."""
    disk = SimDisk()
    segment = a_segment(disk)
    disk.faults.capacity = 8 * SECTOR

    segment.prepare(5 * SECTOR)
    segment.append(b"x" * 5 * SECTOR)

    assert segment.file.read(0, 5 * SECTOR) == b"x" * 5 * SECTOR
    assert segment.wrote == 5 * SECTOR


def test_only_a_log_that_syncs_every_put_prepares_its_segments() -> None:
    """Elsewhere nobody waits for a sync, and zeros would be written for nothing."""
    for sync_flush, expected in ((True, PREPARED_BYTES), (False, SECTOR)):
        disk, clock = SimDisk(), SimClock()
        local = LocalCommitLog(Segments(disk, "log", SEGMENT), clock, SimWorkers(), sync_flush=sync_flush)

        local.append([encode_record(b"T", 0, 0, b"body", b"", 0, 0, 0, HOST, 0, HOST)])

        assert disk.allocated_bytes() == expected


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Position and size of every stretch that files are asked to reserve."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(SimDiskFile, "reserve", lambda _, position, size: asked.append((position, size)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    return asked


def test_what_is_known_to_come_is_reserved_once_and_not_beyond_the_file(reserved: list[tuple[int, int]]) -> None:
    """More only when that is used up; the next file is another one's place."""
    run = Segments(SimDisk(), "log", 1000)
    assert not run.reservable
    run.last().append(b"x" * 100)
    assert run.reservable

    run.reserve(700)
    assert reserved == [(100, 600)]
    run.last().append(b"x" * 599)
    assert not run.reservable
    run.last().append(b"x" * 1)
    assert run.reservable

    run.reserve(5000)
    assert reserved == [(100, 600), (700, 300)]
    run.last().append(b"x" * 300)
    assert not run.reservable

    run.last().append(b"x" * 1)
    run.reserve(5000)
    assert reserved[2:] == [(1, 999)]


def test_a_disk_that_refuses_to_reserve_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes themselves may find their place yet."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no place")

    monkeypatch.setattr(SimDiskFile, "reserve", refuse)
    run = Segments(SimDisk(), "log", 1000)
    run.last().append(b"x" * 100)

    run.reserve(700)

    assert not run.reservable
    run.last().append(b"x" * 100)
    assert run.last().file.read(0, 200) == b"x" * 200


@pytest.mark.parametrize(("free_sectors", "expected"), [(3, []), (4, [(SECTOR, 2 * SECTOR)])])
def test_a_nearly_full_disk_keeps_its_last_place_for_whoever_comes_first(
    reserved: list[tuple[int, int]], free_sectors: int, expected: list[tuple[int, int]]
) -> None:
    """Queues and checkpoints need some too."""
    disk = SimDisk()
    run = Segments(disk, "log", SEGMENT)
    run.last().append(b"x" * SECTOR)
    disk.faults.capacity = (1 + free_sectors) * SECTOR

    run.reserve(3 * SECTOR)

    assert reserved == expected


def test_a_log_without_files_reserves_nothing(reserved: list[tuple[int, int]]) -> None:
    """There is no file yet to do it for."""
    local = LocalCommitLog(Segments(SimDisk(), "log", SEGMENT), SimClock(), SimWorkers())

    trio.run(local.reserve, SEGMENT)

    assert reserved == []


def test_what_a_failed_append_has_left_is_measured_without_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full tmpfs, the process is killed when it reads a part of a map that was never written."""
    segment = a_segment(SimDisk())
    segment.file.write(b"kept", 0)
    segment.file.write(b"left\0", 4)

    def view(_: SimDiskFile) -> memoryview:
        raise AssertionError("the file was mapped")

    monkeypatch.setattr(SimDiskFile, "view", view)
    assert segment.nonzero_size(4, 100) == 4
    assert segment.nonzero_size(8, 100) == 0
    assert segment.nonzero_size(SEGMENT - 1, 100) == 0


def test_a_copy_for_which_there_is_no_room_leaves_nothing() -> None:
    """The file with the second name stays, and the disk is no fuller than before."""
    disk = SimDisk()
    segment = a_segment(disk)
    segment.file.write(b"x" * 600, 0)
    segments = Segments(disk, segment.path.rpartition("/")[0], SEGMENT, [segment])
    disk.link(segment.path, "backup")
    disk.faults.capacity = disk.allocated_bytes()

    with pytest.raises(OSError, match="No space"):
        segments.own(segment)

    assert not disk.exists(f"{segment.path}.tmp")
    assert segment.file.read(0, 600) == b"x" * 600


def test_what_cannot_be_read_back_after_a_failed_append_is_overwritten_as_a_whole() -> None:
    disk = SimDisk()
    segment = a_segment(disk)
    disk.faults.read_error = 1.0

    assert segment.nonzero_size(4, 100) == 100
    assert segment.nonzero_size(SEGMENT - 10, 100) == 10
