from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.store.checkpoint import Checkpoint
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import RealDisk


def checkpoint_in(path: Path) -> Checkpoint:
    return Checkpoint(RealDisk(), str(path / "checkpoint"))


def test_file_is_rocketmqs(tmp_path: Path) -> None:
    checkpoint = checkpoint_in(tmp_path)
    checkpoint.physical_timestamp = 0x000001A1FBDDAFCB
    checkpoint.logical_timestamp = 0x000001A1FBDDAFCA
    checkpoint.master_flushed_offset = 7
    checkpoint.open()
    checkpoint.write_confirm_offset(8)

    checkpoint.save()
    checkpoint.close()

    content = (tmp_path / "checkpoint").read_bytes()
    assert len(content) == 4096
    assert content[:40].hex() == "000001a1fbddafcb000001a1fbddafca" + "00" * 8 + f"{7:016x}{8:016x}"
    assert not content[40:].strip(b"\0")


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    written = checkpoint_in(tmp_path)
    written.physical_timestamp, written.logical_timestamp, written.index_timestamp = 10_000, 9_000, 5_000
    written.save()

    read = checkpoint_in(tmp_path)
    read.load()

    assert (read.physical_timestamp, read.logical_timestamp, read.index_timestamp) == (10_000, 9_000, 5_000)
    assert read.recovery_time == 6_000


@pytest.mark.parametrize("content", [None, b"", b"\0" * 39, b"\xff" * 4096])
def test_without_a_sound_file_recovery_starts_at_the_beginning(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)

    checkpoint = checkpoint_in(tmp_path)
    checkpoint.load()

    assert (checkpoint.recovery_time, checkpoint.index_timestamp) == (0, 0)


def test_an_unchanged_checkpoint_is_not_written(tmp_path: Path) -> None:
    checkpoint = checkpoint_in(tmp_path)
    checkpoint.physical_timestamp = 5
    checkpoint.save()
    (tmp_path / "checkpoint").unlink()

    checkpoint.save()

    assert not (tmp_path / "checkpoint").exists()


def test_the_confirm_offset_is_in_the_file_at_once_and_no_save_puts_an_older_one_back() -> None:
    """A save that was packed before the offset was written, and syncs the file after that, leaves the newer offset."""
    disk = SimDisk()
    checkpoint = Checkpoint(disk, "checkpoint")
    checkpoint.open()
    checkpoint.write_confirm_offset(100)
    killed = Checkpoint(disk, "checkpoint")
    killed.load()
    assert killed.confirm_offset == 100
    assert not checkpoint.confirm_offset_synced

    late, late.physical_timestamp = killed, 5
    checkpoint.write_confirm_offset(200)
    late.save()
    checkpoint.save()
    assert checkpoint.confirm_offset_synced

    found = Checkpoint(disk.power_cut(1), "checkpoint")
    found.load()
    assert (found.confirm_offset, found.physical_timestamp) == (200, 0)


@pytest.mark.parametrize("saved", [False, True])
def test_a_power_cut_leaves_a_confirm_offset_that_was_saved(saved: bool) -> None:
    left: set[int] = set()
    for seed in range(20):
        disk = SimDisk()
        checkpoint = Checkpoint(disk, "checkpoint")
        checkpoint.open()
        checkpoint.write_confirm_offset(100)
        if saved:
            checkpoint.save()
        found = Checkpoint(disk.power_cut(seed), "checkpoint")
        found.load()
        left.add(found.confirm_offset)

    assert left == ({100} if saved else {0, 100})
