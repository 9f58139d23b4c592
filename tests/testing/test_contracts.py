from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.testing.contracts import DISK_CHECKS, check_disk
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import Disk, RealDisk
from ledgermq.world.memory_disk import MemoryDisk


def test_the_simulated_disk_keeps_the_contract() -> None:
    check_disk(SimDisk(), "root")


def test_the_disk_in_memory_keeps_the_contract() -> None:
    check_disk(MemoryDisk(), "root")


def test_the_real_disk_keeps_the_contract(tmp_path: Path) -> None:
    check_disk(RealDisk(), str(tmp_path))


@pytest.mark.parametrize("check", DISK_CHECKS, ids=lambda check: check.__name__)
def test_each_check_runs_alone_too(check: object, tmp_path: Path) -> None:
    disk: Disk = RealDisk()
    assert callable(check)
    check(disk, str(tmp_path))
