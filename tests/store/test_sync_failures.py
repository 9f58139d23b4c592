from __future__ import annotations

import pytest

from ledgermq.store.consumequeue import ConsumeQueue
from ledgermq.store.segments import Segments
from ledgermq.testing.sim_disk import SimDisk


def test_units_are_written_again_after_a_sync_that_failed() -> None:
    """After a failed sync, a later one skips the pages it covered: only writing them again brings them to the medium."""
    for seed in range(30):
        disk = SimDisk()
        queue = ConsumeQueue("T", 0, Segments(disk, "q", 100))
        for n in range(8):
            queue.put(n, 100 * n, 100, 0)
        queue.write()
        disk.faults.sync_error = 1.0
        with pytest.raises(OSError, match="Input/output"):
            queue.sync()
        disk.faults.sync_error = 0.0

        queue.sync()

        segments = Segments(disk.power_cut(seed), "q", 100)
        segments.load()
        after = ConsumeQueue("T", 0, segments)
        after.recover(kept_all=False)
        assert after.max_offset == 8
        assert after.physical_end == 800


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
    after.recover(kept_all=False)

    assert (after.max_offset, after.physical_end) == (5, 500)
