"""Small files and directories on a disk that loses power."""

from __future__ import annotations

import pytest

from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.files import make_directory, read_file, replace_file

SEEDS = range(20)


def test_a_directory_that_was_made_survives_a_power_cut() -> None:
    """With the one above it, which was new, too; files in it that were synced would otherwise be lost with it."""
    for seed in SEEDS:
        disk = SimDisk()
        disk.make_directories("root")
        disk.sync_directory(".")
        make_directory(disk, "root/ledger/data")
        make_directory(disk, "root/ledger/data")

        assert disk.power_cut(seed).is_directory("root/ledger/data")


def test_a_file_that_was_replaced_survives_a_power_cut() -> None:
    """Its previous content stays beside it."""
    for seed in SEEDS:
        disk = SimDisk()
        disk.make_directories("root")
        disk.sync_directory(".")
        replace_file(disk, "root/table", b"first")
        replace_file(disk, "root/table", b"second")

        after = disk.power_cut(seed)

        assert read_file(after, "root/table") == b"second"
        assert read_file(after, "root/table.bak") == b"first"


def test_a_file_that_cannot_be_replaced_stays() -> None:
    """Nothing of the new content is in its place, and a later attempt succeeds."""
    disk = SimDisk()
    replace_file(disk, "table", b"first")
    disk.faults.capacity = 10_000
    with pytest.raises(OSError, match="No space left"):
        replace_file(disk, "table", bytes(20_000))

    assert read_file(disk, "table") == b"first"
    replace_file(disk, "table", b"second")
    assert read_file(disk, "table") == b"second"
