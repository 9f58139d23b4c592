"""Room that is kept for what has to be written before files can be deleted."""

from __future__ import annotations

import errno

import pytest

from ledgermq.store.log.reserve import Reserve
from ledgermq.testing.sim.disk import SECTOR, SimDisk

SIZE = 20 * SECTOR


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories("store")
    return disk


def test_what_is_kept_is_free_when_it_is_needed(disk: SimDisk) -> None:
    """Not before, and it is kept again when there is room."""
    reserve = Reserve(disk, "store", SIZE)
    reserve.hold()
    reserve.release()
    assert disk.usage("store").used == SIZE

    disk.faults.capacity = SIZE
    reserve.release()
    assert disk.usage("store").free == SIZE

    reserve.hold()
    assert not disk.exists(reserve.path), "half of what is free stays free"
    disk.faults.capacity = 2 * SIZE
    reserve.hold()
    assert disk.exists(reserve.path)


def test_a_file_that_could_not_be_written_is_not_left(disk: SimDisk) -> None:
    """It would count as room that is kept."""
    reserve = Reserve(disk, "store", SIZE)
    disk.faults.write_error = 1.0

    with pytest.raises(OSError, match="Input/output") as caught:
        reserve.hold()

    assert caught.value.errno == errno.EIO
    assert not disk.exists(reserve.path)
