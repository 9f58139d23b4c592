"""Files as the store sees them: writes by position, reads through a map, sync by name.

Writes go through `pwrite` so that a full or failing disk is an `OSError` that can be answered, never a signal;
reads go through a shared map, which sees every byte written before it. All calls block; slow ones (`sync`) belong on
`Workers`.

A store needs Linux or another POSIX system with the locks named below. A client needs only small whole files, which work on
macOS and Windows too, so importing this module needs nothing more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs

_ZEROS = bytes(1 << 20)
_MADV_POPULATE_READ = 22

_FALLOC_FL_KEEP_SIZE = 1  # of linux/falloc.h
# Not os.posix_fallocate: where a file system cannot reserve, that one writes a byte to every block instead.
_fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None) if sys.platform == "linux" else None
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

_sync_content: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
"""Syncs a file's bytes and its size, or all of its metadata where the system has no call that syncs less."""
_OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_AT_POSITIONS = hasattr(os, "pwrite")
"""Whether a file can be read and written at a position without moving a shared one, which Windows cannot."""

Buffer = bytes | bytearray | memoryview


@attrs.frozen
class DiskUsage:
    """Bytes of the file system that holds a path."""

    total: int
    used: int
    free: int

    @property
    def ratio(self) -> float:
        """Used share of what ordinary users may fill, 0..1 (RocketMQ counts reserved blocks as neither)."""
        reachable = self.used + self.free
        return self.used / reachable if reachable else 0.0


class DiskFile(Protocol):
    """One open file of the store."""

    @property
    def size(self) -> int:
        """Bytes in the file, holes included."""
        ...

    def write(self, buffer: Buffer, position: int) -> None:
        """Write all of `buffer` at `position`.

        Raises:
            OSError: ENOSPC, EIO, ...; any prefix of `buffer` may have been written.
        Durability: none before `sync` returns.
        """
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer at the end of the file."""
        ...

    def view(self) -> memoryview:
        """A read-only map of the file, as long as the file was at the first call; later writes are visible in it."""
        ...

    def sync(self) -> None:
        """Force written bytes to the medium.

        Raises:
            OSError: nothing may be assumed about bytes written since the last successful sync.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend the file; new bytes read as zero. Not on a file whose `view` is held."""
        ...

    def reserve(self, position: int, size: int) -> None:
        """Allocate blocks of the medium for [position, position + size), which must lie inside the file.

        The bytes read as before. Later writes become cheaper and do not wait for a `sync` that allocates for them. On a file
        system that cannot allocate beforehand this does nothing.

        Raises:
            OSError: ENOSPC, ...; any part may have been reserved.
        """
        ...

    def clear(self, position: int) -> None:
        """Make everything from `position` on read as zeros; the size stays, and so do views.

        Raises:
            OSError: some of it may read as zeros.
        Durability: none before `sync` returns.
        """
        ...

    def close(self) -> None:
        """Close the file; views that were handed out stay readable until they are released."""
        ...


class DiskLock(Protocol):
    """An exclusive lock, held until released or the process ends."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are absolute or relative strings with `/`."""

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> DiskFile:
        """Open an existing file, or with `create_size` make a new one of that many zero bytes (sparse).

        Args:
            path: the file.
            create_size: bytes of the new file.
            read_only: open an existing file without the right to write; whatever would change it raises OSError.

        Raises:
            FileNotFoundError: no such file, and `create_size` was not given.
            FileExistsError: `create_size` was given and the file exists.
        """
        ...

    def exists(self, path: str) -> bool: ...
    def is_directory(self, path: str) -> bool: ...
    def is_link(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When the file was last modified, wall clock milliseconds."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Sorted names in `path`; an absent directory has none."""
        ...

    def make_directories(self, path: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...

    def replace(self, source: str, target: str) -> None:
        """Rename `source` over `target`; a crash leaves one or the other, and the new one once `sync_directory` returned."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, which both name the same bytes until one of them is replaced.

        Raises:
            FileExistsError: there is a file `target`.
            OSError: the names are on different file systems, or this one knows no second names.
        """
        ...

    def link_count(self, path: str) -> int:
        """How many names a file has."""
        ...

    def sync_directory(self, path: str) -> None: ...
    def usage(self, path: str) -> DiskUsage: ...

    def boot_id(self) -> str:
        """An identifier of this start of the machine: while it stays the same, written bytes survive even without a sync.

        Empty where the system does not say.
        """
        ...

    def lock(self, path: str) -> DiskLock:
        """Lock byte 0 of `path`, or a whole directory, exclusively and without waiting (RocketMQ's store locks byte 0, too).

        Raises:
            BlockingIOError: another process holds it.
            OSError: the disk refused; some network file systems lock no directory.
        """
        ...


def is_given(view: memoryview, position: int, size: int) -> bool:
    """Read a part of a map into memory, and return whether the disk gives it; False also where that cannot be said.

    Looking at a part that the disk does not give ends the process with SIGBUS.
    """
    mapped = view.obj
    if not isinstance(mapped, mmap.mmap) or sys.platform != "linux":
        return False
    start = position - position % mmap.PAGESIZE
    try:
        mapped.madvise(_MADV_POPULATE_READ, start, position + size - start)
    except OSError:  # also that of a Linux before 5.14, which does not know it
        return False
    return True


@attrs.define(eq=False)
class RealDiskFile:
    """A file descriptor and, once asked for, its map."""

    path: str
    _fd: int
    size: int
    _map: mmap.mmap | None = None

    def write(self, buffer: Buffer, position: int) -> None:
        if not _AT_POSITIONS:
            os.lseek(self._fd, position, os.SEEK_SET)
            written = os.write(self._fd, buffer)
            if written < len(buffer):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            self.size = max(self.size, position + written)
            return
        try:
            written = os.pwrite(self._fd, buffer, position)
            while written < len(buffer):  # a signal or a full disk cut the write short; the next call raises if it is full
                written += os.pwrite(self._fd, memoryview(buffer)[written:], position + written)
        except OSError as error:
            error.filename = self.path  # which disk is full is not to be guessed
            raise
        self.size = max(self.size, position + written)

    def read(self, position: int, size: int) -> bytes:
        if not _AT_POSITIONS:
            os.lseek(self._fd, position, os.SEEK_SET)
            return os.read(self._fd, size)
        return os.pread(self._fd, size, position)

    def view(self) -> memoryview:
        if self._map is None:
            if self.size == 0:
                return memoryview(b"")
            self._map = mmap.mmap(self._fd, self.size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
        return memoryview(self._map)

    def sync(self) -> None:
        _sync_content(self._fd)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size = size

    def reserve(self, position: int, size: int) -> None:
        if _fallocate is not None and _fallocate(self._fd, _FALLOC_FL_KEEP_SIZE, position, size):
            number = ctypes.get_errno()
            if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(number, os.strerror(number), self.path)

    def clear(self, position: int) -> None:
        # Holes are skipped, so that a large sparse file costs what was written to it. Truncating and extending it again would
        # be cheaper, but a power cut in between leaves a file of the wrong size.
        while (found := self._next_data(position)) is not None:
            position, end = found
            while position < end:
                size = min(len(_ZEROS), end - position)
                if os.pread(self._fd, size, position).strip(b"\0"):
                    self.write(memoryview(_ZEROS)[:size], position)
                position += size

    def _next_data(self, position: int) -> tuple[int, int] | None:
        try:
            start = os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole remains up to the end
                return None
            raise
        return start, os.lseek(self._fd, start, os.SEEK_HOLE)

    def close(self) -> None:
        if self._fd < 0:
            return
        if self._map is not None:
            # A slice may still be on its way to a client: the map then lives until that slice is dropped.
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None
        os.close(self._fd)
        self._fd = -1


@attrs.define(eq=False)
class RealDiskLock:
    _fd: int
    _unlock: Callable[[], object]

    def release(self) -> None:
        if self._fd >= 0:
            self._unlock()  # closing is not enough if a process has been forked meanwhile
            os.close(self._fd)
            self._fd = -1


@attrs.frozen
class RealDisk:
    """The operating system's files."""

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> DiskFile:
        if create_size is None:
            fd = os.open(path, (os.O_RDONLY if read_only else os.O_RDWR) | _OPEN_FLAGS)
            return RealDiskFile(path, fd, os.fstat(fd).st_size)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS, 0o644)
        os.ftruncate(fd, create_size)
        return RealDiskFile(path, fd, create_size)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_link(self, path: str) -> bool:
        return os.path.islink(path)

    def size(self, path: str) -> int:
        return os.path.getsize(path)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list_directory(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def link_count(self, path: str) -> int:
        return os.stat(path).st_nlink

    def sync_directory(self, path: str) -> None:
        if not hasattr(os, "O_DIRECTORY"):  # Windows opens no directories
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> DiskUsage:
        usage = shutil.disk_usage(path)
        return DiskUsage(usage.total, usage.used, usage.free)

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def lock(self, path: str) -> DiskLock:
        try:
            import fcntl  # noqa: PLC0415 - Windows has none, and a client needs none
        except ImportError as error:
            raise OSError(errno.ENOSYS, "a store needs a POSIX system with open-file-description locks") from error
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise OSError(errno.ENOSYS, "a store needs a POSIX system with open-file-description locks")
        is_directory = os.path.isdir(path)
        # struct flock: write lock, from the start, byte 0, one byte. Open-file-description locks clash with the record locks of
        # other processes (as a Java broker takes) and, unlike those, also between two brokers inside one process.
        locked, unlocked = (struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 1, 0) for kind in (fcntl.F_WRLCK, fcntl.F_UNLCK))
        fd = os.open(path, (os.O_RDONLY if is_directory else os.O_RDWR | os.O_CREAT) | _OPEN_FLAGS, 0o644)
        try:
            if is_directory:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, locked)
                os.pwrite(fd, b"lock", 0)
        except OSError:
            os.close(fd)
            raise
        if is_directory:
            return RealDiskLock(fd, partial(fcntl.flock, fd, fcntl.LOCK_UN))
        return RealDiskLock(fd, partial(fcntl.fcntl, fd, fcntl.F_OFD_SETLK, unlocked))
