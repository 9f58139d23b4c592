from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.message.layout import encode_host, encode_record
from ledgermq.store.commitlog import open_local_log
from ledgermq.store.segments import PREPARED_BYTES, Segment, Segments
from ledgermq.testing.sim_clock import SimClock
from ledgermq.testing.sim_disk import SECTOR, SimDisk
from ledgermq.testing.sim_workers import SimWorkers

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
        local = open_local_log(disk, clock, SimWorkers(), directory="log", segment_size=SEGMENT, sync_flush=sync_flush)

        local.append([encode_record(b"T", 0, 0, b"body", b"", 0, 0, 0, HOST, 0, HOST)])

        assert disk.allocated_bytes() == expected
