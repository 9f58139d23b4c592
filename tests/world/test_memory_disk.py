"""The disk in memory: what it adds to the contract of all disks (tests/testing/test_contracts.py)."""

from __future__ import annotations

import pytest

from ledgermq.world.memory_disk import MemoryDisk, MemoryFile

PAGE = 4096


@pytest.fixture
def disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directories("/a/b")
    return disk


@pytest.fixture
def file(disk: MemoryDisk) -> MemoryFile:
    return disk.open("/a/b/file", create_size=0)


def test_a_file_that_grows_keeps_its_bytes(file: MemoryFile) -> None:
    """Beyond the first page, and behind a gap that reads as zeros."""
    file.write(b"head", 0)
    file.write(b"tail", 5 * PAGE)

    assert file.size == 5 * PAGE + 4
    assert file.read(0, 5) == b"head\0"
    assert file.read(5 * PAGE - 1, 100) == b"\0tail"
    assert file.read(file.size, 1) == b""


@pytest.mark.parametrize("position", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1, 3 * PAGE])
def test_what_is_cleared_or_cut_reads_as_zeros(file: MemoryFile, position: int) -> None:
    """Whether it is whole pages, which are given back, or parts of them; what is before it stays."""
    content = bytes(range(1, 256)) * (3 * PAGE // 255 + 1)
    file.write(content[: 3 * PAGE], 0)

    file.clear(position)

    assert file.read(0, 3 * PAGE) == content[:position] + bytes(3 * PAGE - position)
    file.write(content[: 3 * PAGE], 0)
    file.truncate(position)
    file.truncate(3 * PAGE)
    assert file.read(0, 3 * PAGE) == content[:position] + bytes(3 * PAGE - position)


def test_a_view_shows_later_writes_and_cannot_be_written(file: MemoryFile) -> None:
    """As a mapped file does."""
    file.write(b"before", 0)
    view = file.view()

    file.write(b"after!", 0)

    assert bytes(view) == b"after!"
    with pytest.raises(TypeError):
        view[0] = 0


def test_a_file_that_is_open_for_reading_is_not_changed(disk: MemoryDisk, file: MemoryFile) -> None:
    file.write(b"x", 0)
    reader = disk.open("/a/b/file", read_only=True)

    for change in (lambda: reader.write(b"y", 0), lambda: reader.truncate(0), lambda: reader.clear(0)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            change()
    assert reader.read(0, 1) == b"x"


def test_an_open_file_outlives_its_name(disk: MemoryDisk, file: MemoryFile) -> None:
    """Another one of that name has other bytes."""
    file.write(b"old", 0)
    disk.remove("/a/b/file")
    disk.open("/a/b/file", create_size=3)

    assert file.read(0, 3) == b"old"
    assert disk.open("/a/b/file").read(0, 3) == b"\0\0\0"


def test_a_file_needs_its_directory(disk: MemoryDisk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("/a/c/file", create_size=0)
    disk.open("/a/b/file", create_size=0)
    with pytest.raises(FileExistsError):
        disk.make_directories("/a/b/file/below")


def test_removing_a_tree_leaves_what_is_beside_it(disk: MemoryDisk) -> None:
    """Also a name that begins like it."""
    disk.make_directories("/a/bc")
    for path in ("/a/b/x", "/a/bc/x"):
        disk.open(path, create_size=1)

    disk.remove_tree("/a/b")

    assert disk.list_directory("/a") == ["bc"]
    assert disk.list_directory("/a/bc") == ["x"]


def test_a_lock_is_held_once(disk: MemoryDisk) -> None:
    """Until it is released."""
    lock = disk.lock("/a/lock")
    with pytest.raises(BlockingIOError):
        disk.lock("/a/lock")
    lock.release()
    disk.lock("/a/lock").release()


def test_usage_is_what_the_files_take_of_the_memory_of_the_machine(disk: MemoryDisk) -> None:
    before = disk.usage("/a").used
    disk.open("/a/large", create_size=1 << 20)

    assert disk.usage("/a").used == before + (1 << 20)
