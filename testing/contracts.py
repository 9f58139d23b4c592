"""Checks of what every implementation of an interface must do, which a test runs on each of them.

Each check is a function that gets an empty directory; it raises AssertionError if something does not hold.
"""

from __future__ import annotations

from collections.abc import Callable

from ..world.disk import Disk


def check_disk(disk: Disk, root: str) -> None:
    """Run all checks of `Disk`, each in a directory of its own under `root`."""
    for check in DISK_CHECKS:
        directory = f"{root}/{check.__name__}"
        disk.make_directories(directory)
        check(disk, directory)


def created_file_is_zero_and_sized(disk: Disk, directory: str) -> None:
    """A new file has the asked size and reads as zeros."""
    file = disk.open(f"{directory}/a", create_size=10_000)
    assert file.size == disk.size(f"{directory}/a") == 10_000
    assert file.read(0, 20_000) == bytes(10_000)
    file.close()


def create_refuses_what_exists(disk: Disk, directory: str) -> None:
    """Creating a file that exists and opening one that does not exist raise their own errors."""
    disk.open(f"{directory}/a", create_size=1).close()
    _raises(FileExistsError, lambda: disk.open(f"{directory}/a", create_size=1))
    _raises(FileNotFoundError, lambda: disk.open(f"{directory}/b"))
    _raises(FileNotFoundError, lambda: disk.open(f"{directory}/none/b", create_size=1))
    _raises(FileNotFoundError, lambda: disk.size(f"{directory}/b"))


def written_bytes_show_at_once(disk: Disk, directory: str) -> None:
    """A write is visible at once in `read`, in an earlier view, and through another opening of the file."""
    file = disk.open(f"{directory}/a", create_size=2000)
    view = file.view()
    other = disk.open(f"{directory}/a")
    file.write(b"hello", 509)
    file.write(memoryview(bytearray(b"world")), 1995)
    assert bytes(view[509:514]) == b"hello"
    assert other.read(507, 9) == b"\0\0hello\0\0"
    assert other.read(1990, 100) == b"\0\0\0\0\0world"
    assert view.readonly
    assert len(view) == 2000
    view.release()
    file.close()
    other.close()


def what_is_opened_read_only_cannot_be_changed(disk: Disk, directory: str) -> None:
    """A file opened read-only is read like any other, and writes through another opening are visible in it."""
    file = disk.open(f"{directory}/a", create_size=1000)
    looked_at = disk.open(f"{directory}/a", read_only=True)
    view = looked_at.view()
    file.write(b"hello", 10)
    assert looked_at.read(10, 5) == bytes(view[10:15]) == b"hello"
    assert looked_at.size == 1000
    _raises(OSError, lambda: looked_at.write(b"x", 10))
    _raises(OSError, lambda: looked_at.truncate(10))
    _raises(OSError, lambda: looked_at.clear(10))
    assert file.read(10, 5) == b"hello"
    assert disk.size(f"{directory}/a") == 1000
    view.release()
    looked_at.close()
    file.close()
    _raises(FileNotFoundError, lambda: disk.open(f"{directory}/b", read_only=True))


def writing_past_the_end_makes_a_file_longer(disk: Disk, directory: str) -> None:
    """A write past the end makes a file longer, and the gap reads as zeros."""
    file = disk.open(f"{directory}/a", create_size=0)
    file.write(b"x", 700)
    assert file.size == disk.size(f"{directory}/a") == 701
    assert file.read(0, 1000) == bytes(700) + b"x"
    file.close()


def truncate_cuts_and_extends_with_zeros(disk: Disk, directory: str) -> None:
    """A file that was cut and extended again reads as zeros there; what was cut does not return."""
    file = disk.open(f"{directory}/a", create_size=3000)
    file.write(b"\xff" * 3000, 0)
    file.truncate(600)
    assert file.size == 600
    file.truncate(3000)
    file.sync()
    assert file.read(0, 3000) == b"\xff" * 600 + bytes(2400)
    file.close()


def clear_zeroes_the_rest_in_place(disk: Disk, directory: str) -> None:
    """Clearing writes zeros up to the end; the size does not change, and an open view stays valid."""
    file = disk.open(f"{directory}/a", create_size=100_000)
    view = file.view()
    file.write(b"\xff" * 3000, 0)
    file.write(b"\xff" * 10_000, 70_000)
    file.clear(600)
    file.clear(99_999)
    assert file.size == disk.size(f"{directory}/a") == 100_000
    assert file.read(0, 100_000) == bytes(view) == b"\xff" * 600 + bytes(99_400)
    view.release()
    file.close()


def views_outlive_close_and_removal(disk: Disk, directory: str) -> None:
    """A slice stays readable after the file was closed and removed, because it may still be sent to a client."""
    file = disk.open(f"{directory}/a", create_size=1000)
    file.write(b"kept", 0)
    part = file.view()[:4]
    file.close()
    file.close()
    disk.remove(f"{directory}/a")
    assert bytes(part) == b"kept"
    assert not disk.exists(f"{directory}/a")


def names_are_listed_sorted(disk: Disk, directory: str) -> None:
    """Files and directories are listed together, sorted; an absent directory has none."""
    disk.make_directories(f"{directory}/b/inner")
    disk.make_directories(f"{directory}/b")
    for name in ("c", "a"):
        disk.open(f"{directory}/{name}", create_size=0).close()
    assert disk.list_directory(directory) == ["a", "b", "c"]
    assert disk.list_directory(f"{directory}/absent") == []
    assert disk.is_directory(f"{directory}/b")
    assert not disk.is_directory(f"{directory}/a")
    assert not disk.is_directory(f"{directory}/absent")


def replace_takes_the_place_of_the_target(disk: Disk, directory: str) -> None:
    """The target has the source's bytes, the source's name is gone, and open files keep their bytes."""
    for name in ("old", "new"):
        file = disk.open(f"{directory}/{name}", create_size=0)
        file.write(name.encode(), 0)
        file.close()
    open_old = disk.open(f"{directory}/old")
    disk.replace(f"{directory}/new", f"{directory}/old")
    disk.sync_directory(directory)
    assert disk.list_directory(directory) == ["old"]
    reopened = disk.open(f"{directory}/old")
    assert (reopened.read(0, 9), open_old.read(0, 9)) == (b"new", b"old")
    reopened.close()
    open_old.close()
    _raises(FileNotFoundError, lambda: disk.replace(f"{directory}/new", f"{directory}/old"))


def trees_are_removed_whole(disk: Disk, directory: str) -> None:
    """A directory is removed together with the files and directories inside."""
    disk.make_directories(f"{directory}/a/b")
    disk.open(f"{directory}/a/b/c", create_size=1).close()
    disk.remove_tree(f"{directory}/a")
    assert disk.list_directory(directory) == []
    _raises(FileNotFoundError, lambda: disk.remove_tree(f"{directory}/a"))
    _raises(FileNotFoundError, lambda: disk.remove(f"{directory}/a/b/c"))


def a_lock_is_held_once(disk: Disk, directory: str) -> None:
    """A second attempt to lock fails without waiting; after the release it succeeds."""
    lock = disk.lock(f"{directory}/lock")
    _raises(BlockingIOError, lambda: disk.lock(f"{directory}/lock"))
    lock.release()
    disk.lock(f"{directory}/lock").release()
    file = disk.open(f"{directory}/lock")
    assert file.read(0, 4) == b"lock"
    file.close()
    disk.make_directories(f"{directory}/log")
    lock = disk.lock(f"{directory}/log")
    _raises(BlockingIOError, lambda: disk.lock(f"{directory}/log"))
    lock.release()
    disk.lock(f"{directory}/log").release()
    assert disk.list_directory(f"{directory}/log") == []


def usage_adds_up(disk: Disk, directory: str) -> None:
    """Used and free are parts of the total."""
    usage = disk.usage(directory)
    assert 0 <= usage.ratio <= 1
    assert usage.used + usage.free <= usage.total
    assert disk.boot_id() == disk.boot_id()


DISK_CHECKS: tuple[Callable[[Disk, str], None], ...] = (
    created_file_is_zero_and_sized,
    create_refuses_what_exists,
    written_bytes_show_at_once,
    what_is_opened_read_only_cannot_be_changed,
    writing_past_the_end_makes_a_file_longer,
    truncate_cuts_and_extends_with_zeros,
    clear_zeroes_the_rest_in_place,
    views_outlive_close_and_removal,
    names_are_listed_sorted,
    replace_takes_the_place_of_the_target,
    trees_are_removed_whole,
    a_lock_is_held_once,
    usage_adds_up,
)


def _raises(kind: type[Exception], function: Callable[[], object]) -> None:
    try:
        function()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, and nothing was raised")
