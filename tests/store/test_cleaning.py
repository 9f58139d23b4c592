"""Retention carried out on a store."""

from __future__ import annotations

from pathlib import Path

from ledgermq.store.cleaning import Cleaner
from ledgermq.store.local_commitlog import LocalCommitLog
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk

from .stores import derive_all, incoming, small_store


async def test_files_that_go_before_their_time_are_told_as_a_warning(tmp_path: Path) -> None:
    """A disk that is nearly full is cleaned as RocketMQ cleans it; who runs the broker must be able to see what that took."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk) as store:
        assert isinstance(store.log, LocalCommitLog)
        for _ in range(8):
            store.put([incoming(b"x" * 1500)])
        derive_all(store)
        await store.log.flush()
        first = store.log.segments.files[0]
        disk.faults.capacity = disk.allocated_bytes() * 10 // 9

        with capture_logs() as told:
            await Cleaner(store).clean()

        assert store.log.min_offset > 0
        assert told[0] == {
            "event": "unexpired_segment_deleted",
            "log_level": "warning",
            "path": first.path,
            "used_ratio": told[0]["used_ratio"],
        }
        assert 0.85 < told[0]["used_ratio"] < 0.95
