"""Real files."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.world.disk import DiskFile, RealDisk

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DiskFile]:
    """A sparse file of 4 MiB with a few bytes at its beginning."""
    opened = RealDisk().open(str(tmp_path / "file"), create_size=4 * MIB)
    opened.write(b"first", 0)
    yield opened
    opened.close()


def taken(tmp_path: Path) -> int:
    """Bytes that the file takes on the medium."""
    return os.stat(tmp_path / "file").st_blocks * 512


def test_what_is_reserved_has_its_place_and_reads_as_before(tmp_path: Path, file: DiskFile) -> None:
    """Bytes that are there stay, all others are zero, and the file is as long as it was."""
    file.reserve(0, MIB)

    assert MIB <= taken(tmp_path) < 2 * MIB
    assert file.read(0, 4 * MIB) == b"first".ljust(4 * MIB, b"\0")
    assert file.size == os.stat(tmp_path / "file").st_size == 4 * MIB


def test_bytes_on_reserved_place_are_written_cleared_and_kept_like_others(tmp_path: Path, file: DiskFile) -> None:
    """It is only the place that is there already."""
    file.reserve(0, 2 * MIB)
    file.write(b"x" * MIB, MIB // 2)
    file.sync()
    before = taken(tmp_path)

    file.clear(MIB)

    assert file.read(0, 2 * MIB) == b"first".ljust(MIB // 2, b"\0") + b"x" * (MIB // 2) + bytes(MIB)
    assert taken(tmp_path) == before


@pytest.mark.parametrize(("number", "raised"), [(errno.EOPNOTSUPP, False), (errno.ENOSYS, False), (errno.ENOSPC, True)])
def test_only_a_file_system_that_can_reserve_may_refuse_to(
    file: DiskFile, monkeypatch: pytest.MonkeyPatch, number: int, raised: bool
) -> None:
    """Where it cannot, writes find their places as ever."""

    def refuse(*_: int) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr("ledgermq.world.disk._fallocate", refuse)
    try:
        file.reserve(0, MIB)
        refused = 0
    except OSError as error:
        refused = error.errno
    assert refused == (number if raised else 0)


def test_where_the_system_has_no_such_call_nothing_is_reserved(
    tmp_path: Path, file: DiskFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is written in its stead."""
    monkeypatch.setattr("ledgermq.world.disk._fallocate", None)
    file.sync()
    before = taken(tmp_path)

    file.reserve(0, MIB)

    assert taken(tmp_path) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_write_that_fails_names_its_file() -> None:
    """A descriptor knows no name, and a store may be on several disks: which one is full?"""
    file = RealDisk().open("/dev/full")
    try:
        with pytest.raises(OSError, match="/dev/full") as caught:
            file.write(b"x", 0)
    finally:
        file.close()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "/dev/full")


@pytest.mark.parametrize("name", ["file", "."])
def test_a_released_lock_is_free_though_a_forked_process_has_its_descriptor(tmp_path: Path, name: str) -> None:
    """A copy of the descriptor stands for the forked process."""
    path = os.path.realpath(tmp_path / name)
    lock = RealDisk().lock(path)
    (descriptor,) = (int(each.name) for each in Path("/proc/self/fd").iterdir() if os.path.realpath(each) == path)
    copy = os.dup(descriptor)
    try:
        lock.release()

        RealDisk().lock(path).release()
    finally:
        os.close(copy)
