"""A disk in the memory of this process: everything is gone when the process ends (satisfies `Disk`).

It is for nodes that need no disk (DLedger's `storeType=MEMORY`). Files are anonymous maps, as sparse as files on a disk. As on
a disk, threads may work on different files at once, and on one file of which the size does not change.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import posixpath

import attrs

from .disk import Buffer, DiskUsage
from .memory import physical_memory

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""Pages of a private map read as zeros after they were given back; those of a shared map do not."""


@attrs.define(eq=False)
class _Content:
    """The bytes of one file, whatever its name is."""

    size: int
    memory: mmap.mmap | None = None

    def reserve(self, size: int) -> mmap.mmap:
        memory = self.memory
        if memory is None or len(memory) < size:
            self.memory = bigger = mmap.mmap(
                -1, max(size, 2 * len(memory) if memory is not None else mmap.PAGESIZE), flags=_PRIVATE
            )
            if memory is not None:
                bigger[: len(memory)] = memory[:]
            memory = bigger
        return memory


@attrs.define(eq=False)
class MemoryFile:
    """An open file."""

    _content: _Content
    _read_only: bool

    @property
    def size(self) -> int:
        return self._content.size

    def write(self, buffer: Buffer, position: int) -> None:
        self._check_writable()
        end = position + len(buffer)
        self._content.reserve(end)[position:end] = bytes(buffer)
        self._content.size = max(self._content.size, end)

    def read(self, position: int, size: int) -> bytes:
        size = min(size, self._content.size - position)
        return self._content.reserve(self._content.size)[position : position + size] if size > 0 else b""

    def view(self) -> memoryview:
        size = self._content.size
        return memoryview(self._content.reserve(size)).toreadonly()[:size]

    def sync(self) -> None:
        pass

    def truncate(self, size: int) -> None:
        self._check_writable()
        if size < self._content.size:
            self.clear(size)
        self._content.size = size

    def reserve(self, position: int, size: int) -> None:
        self._check_writable()
        assert position + size <= self._content.size

    def clear(self, position: int) -> None:
        self._check_writable()
        memory, size = self._content.reserve(self._content.size), self._content.size
        # Whole pages are given back, so that they take no memory and read as zeros.
        page = min(position + -position % mmap.PAGESIZE, size)
        memory[position:page] = bytes(page - position)
        if page < size:
            length = min(size - page + -(size - page) % mmap.PAGESIZE, len(memory) - page)
            memory.madvise(mmap.MADV_DONTNEED, page, length)

    def close(self) -> None:
        pass

    def _check_writable(self) -> None:
        if self._read_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))


@attrs.define(eq=False)
class MemoryLock:
    """A lock of this disk."""

    disk: MemoryDisk
    path: str

    def release(self) -> None:
        self.disk.locks.discard(self.path)


@attrs.define(eq=False)
class MemoryDisk:
    """Files by name."""

    files: dict[str, _Content] = attrs.field(factory=dict[str, _Content])
    directories: set[str] = attrs.field(factory=set[str])
    locks: set[str] = attrs.field(factory=set[str])

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> MemoryFile:
        content = self.files.get(path)
        if create_size is None:
            if content is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return MemoryFile(content, read_only)
        if content is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._check_directory(path)
        content = _Content(create_size)
        content.reserve(create_size)
        self.files[path] = content
        return MemoryFile(content, read_only)

    def _check_directory(self, path: str) -> None:
        directory = posixpath.dirname(path)
        if directory and directory not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def is_directory(self, path: str) -> bool:
        return path in self.directories

    def is_link(self, path: str) -> bool:
        del path
        return False

    def size(self, path: str) -> int:
        return self.open(path).size

    def modified_ms(self, path: str) -> int:
        self.open(path)
        return 0

    def list_directory(self, path: str) -> list[str]:
        return sorted(posixpath.basename(name) for name in (*self.files, *self.directories) if posixpath.dirname(name) == path)

    def make_directories(self, path: str) -> None:
        while path and path != "/":
            if path in self.files:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self.directories.add(path)
            path = posixpath.dirname(path)

    def remove(self, path: str) -> None:
        self.open(path)
        del self.files[path]

    def remove_tree(self, path: str) -> None:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for name in [name for name in list(self.files) if name.startswith(f"{path}/")]:
            del self.files[name]
        self.directories -= {name for name in list(self.directories) if name == path or name.startswith(f"{path}/")}

    def replace(self, source: str, target: str) -> None:
        self.open(source)
        self._check_directory(target)
        self.files[target] = self.files.pop(source)

    def link(self, source: str, target: str) -> None:
        self.open(source)
        if target in self.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._check_directory(target)
        self.files[target] = self.files[source]

    def link_count(self, path: str) -> int:
        self.open(path)
        return sum(content is self.files[path] for content in list(self.files.values()))

    def sync_directory(self, path: str) -> None:
        if path and path not in (".", "/") and path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def usage(self, path: str) -> DiskUsage:
        self._check_directory(f"{path}/file")
        total = physical_memory()
        used = min(sum(content.size for content in list(self.files.values())), total)
        return DiskUsage(total, used, total - used)

    def boot_id(self) -> str:
        return ""

    def lock(self, path: str) -> MemoryLock:
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.locks.add(path)
        if not self.is_directory(path):
            with contextlib.suppress(FileExistsError):
                self.open(path, create_size=0)
            self.open(path).write(b"lock", 0)
        return MemoryLock(self, path)
