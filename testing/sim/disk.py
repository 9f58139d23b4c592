"""A disk in memory that loses what was not synced, tears and reorders writes, fails and fills up (satisfies `Disk`).

Every byte written is visible to readers at once (the page cache). A sector is certain to be on the medium only after a `sync`
that succeeded; until then a power cut leaves any of the versions it has had. After a sync that failed, the sectors it covered
count as clean, as in Linux: a later sync does not write them. Names follow a journal: a power cut keeps a prefix of it,
at least up to the last `sync_directory` of the directory concerned; lengths are entries of the same journal, and a file's
own `sync` secures its length too.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Generator
from contextlib import contextmanager

import attrs

from ...world.disk import Buffer, DiskUsage
from .medium import SECTOR, Change, Inode, Names


def no_time() -> int:
    """A clock that always returns 0."""
    return 0


@attrs.define
class DiskFaults:
    """The faults of a disk, which can be changed while it is in use. Probabilities are per call."""

    write_error: float = 0.0
    """The probability that a write ends in EIO, possibly after a prefix was written."""
    sync_error: float = 0.0
    """The probability that a sync ends in EIO; any part of the unsynced sectors may reach the medium."""
    read_error: float = 0.0
    """The probability that `read` ends in EIO; views never fail."""
    create_error: float = 0.0
    """The probability that creating, renaming or removing a file or syncing a directory ends in EIO; nothing was done then."""
    open_error: float = 0.0
    """The probability that opening a file, listing a directory or getting a size ends in EIO."""
    capacity: int | None = None
    """How many bytes of sectors may be allocated; further writes end in ENOSPC."""
    injected: dict[str, int] = attrs.field(factory=dict[str, int])
    """How often each fault happened."""

    def calm(self) -> None:
        """Let nothing fail any more."""
        self.write_error = self.sync_error = self.read_error = self.create_error = self.open_error = 0.0
        self.capacity = None

    def count(self, kind: str) -> None:
        self.injected[kind] = self.injected.get(kind, 0) + 1


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


@attrs.frozen(eq=False)
class DiskBackup:
    """The content of a disk at one moment."""

    names: Names


@attrs.define(eq=False)
class SimDiskFile:
    """An open file of a `SimDisk`."""

    disk: SimDisk
    path: str
    inode: Inode
    _read_only: bool = False
    _view: memoryview | None = None

    def _check_change(self) -> None:
        self.disk.check_power()
        if self._read_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    @property
    def size(self) -> int:
        return self.inode.size

    def write(self, buffer: Buffer, position: int) -> None:
        disk, size = self.disk, len(buffer)
        self._check_change()
        room = disk.room_for(self.inode, position, size)
        failing = disk.strikes(disk.faults.write_error)
        if room < size or failing:
            kept = disk.rng.randrange(min(room, size) + 1) if failing else room
            if kept:
                self.inode.put(memoryview(buffer)[:kept], position)
                disk.resized(self.inode)
            raise disk.error("write_enospc", errno.ENOSPC) if room < size else disk.error("write_eio", errno.EIO)
        if size:
            longer = position + size > self.inode.size
            self.inode.put(buffer, position)
            if longer:
                disk.resized(self.inode)
        self.inode.modified_ms = disk.wall_ms()

    def read(self, position: int, size: int) -> bytes:
        disk = self.disk
        disk.check_power()
        if disk.strikes(disk.faults.read_error):
            raise disk.error("read_eio", errno.EIO)
        size = min(size, self.inode.size - position)
        if size <= 0:
            return b""
        memory = self.inode.reserve(self.inode.size)
        return memory[position : position + size]

    def view(self) -> memoryview:
        if self._view is None:
            if self.inode.size == 0:
                return memoryview(b"")
            self._view = memoryview(self.inode.reserve(self.inode.size)).toreadonly()[: self.inode.size]
            self.inode.viewed = True
        return self._view

    def sync(self) -> None:
        disk = self.disk
        disk.check_power()
        if disk.strikes(disk.faults.sync_error):
            self.inode.sync_failed(disk.rng)
            raise disk.error("sync_eio", errno.EIO)
        self.inode.synced()
        disk.size_synced(self.inode)
        disk.syncs += 1

    def truncate(self, size: int) -> None:
        disk = self.disk
        self._check_change()
        if disk.strikes(disk.faults.write_error):
            raise disk.error("truncate_eio", errno.EIO)
        self.inode.resize(size)
        disk.resized(self.inode)
        self.inode.modified_ms = disk.wall_ms()

    def reserve(self, position: int, size: int) -> None:
        self._check_change()
        assert position + size <= self.inode.size, "place beyond the end of a file would never be given back"

    def clear(self, position: int) -> None:
        disk = self.disk
        self._check_change()
        if disk.strikes(disk.faults.write_error):
            raise disk.error("clear_eio", errno.EIO)
        self.inode.clear(position)
        self.inode.modified_ms = disk.wall_ms()

    def close(self) -> None:
        self._view = None


@attrs.define(eq=False)
class SimDiskLock:
    """A lock held on a `SimDisk`."""

    disk: SimDisk
    path: str

    def release(self) -> None:
        self.disk.locks.discard(self.path)


@attrs.define(eq=False)
class SimDisk:
    """The disk of one simulated machine while that machine is on; `power_cut` and `kill` return its successor."""

    rng: random.Random = attrs.field(factory=lambda: random.Random(0))  # noqa: S311 - never secrets
    wall_ms: Callable[[], int] = no_time
    faults: DiskFaults = attrs.field(factory=DiskFaults)
    syncs: int = 0
    locks: set[str] = attrs.field(factory=set[str])
    _names: Names = attrs.field(factory=Names, alias="names")
    _durable: Names = attrs.field(factory=Names, alias="durable")
    _journal: list[Change] = attrs.field(factory=list[Change], alias="journal")
    _boot: int = attrs.field(default=0, alias="boot")
    _off: bool = False

    # ---------------------------------------------------------------- faults

    def check_power(self) -> None:
        """Raise an error if the machine is off."""
        if self._off:
            raise OSError(errno.EIO, "the simulated machine is off")

    def strikes(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def error(self, kind: str, number: int) -> OSError:
        self.faults.count(kind)
        return OSError(number, os.strerror(number))

    def room_for(self, inode: Inode, position: int, size: int) -> int:
        """How many of `size` bytes at `position` fit before the disk is full."""
        if self.faults.capacity is None or not size:
            return size
        sectors = range(position // SECTOR, -(-(position + size) // SECTOR))
        free = (self.faults.capacity - self.allocated_bytes()) // SECTOR
        for number in sectors:
            if number not in inode.allocated:
                free -= 1
            if free < 0:
                return max(number * SECTOR - position, 0)
        return size

    def allocated_bytes(self) -> int:
        """How many bytes of the medium the files use."""
        return SECTOR * sum(len(inode.allocated) for inode in set(self._names.files.values()))

    def is_durable(self, path: str, position: int, size: int) -> bool:
        """Whether a power cut at this moment would surely leave these bytes of a file as they are."""
        inode = self._names.files.get(path)
        if inode is None or self._durable.files.get(path) is not inode or inode.memory is None:
            return False
        for number in range(position // SECTOR, -(-(position + size) // SECTOR)):
            first, end = max(position - number * SECTOR, 0), min(position + size - number * SECTOR, SECTOR)
            now = inode.sector(number)[first:end]
            if any(version[first:end] != now for version in inode.versions.get(number, ())):
                return False
        return True

    @contextmanager
    def no_faults(self) -> Generator[None]:
        """Let nothing fail by chance in the block; the capacity remains."""
        faults = self.faults
        self.faults = DiskFaults(capacity=faults.capacity, injected=faults.injected)
        try:
            yield
        finally:
            self.faults = faults

    def rot(self, path: str, position: int, bit: int = 0) -> None:
        """Flip a bit on the medium and in the page cache, as if the sector had been read back damaged."""
        inode = self._names.files[path]
        memory = inode.reserve(inode.size)
        memory[position] ^= 1 << bit
        number = position // SECTOR
        inode.versions.pop(number, None)
        inode.dirty.discard(number)
        inode.allocated.add(number)
        self.faults.count("bit_rot")

    def power_cut(self, seed: int, *, at_edges: bool = False) -> SimDisk:
        """End this disk and return the one that the machine has when it is switched on again.

        Args:
            at_edges: half of the files with unsynced writes lose only a part of one write.
        """
        rng = random.Random(seed)  # noqa: S311 - never secrets
        names = self._durable.copy()
        for change in self._journal[: rng.randrange(len(self._journal) + 1)]:
            change.apply(names)
        survivors: dict[int, Inode] = {}
        for path in sorted(names.files):
            inode = names.files[path]
            if id(inode) not in survivors:
                survivors[id(inode)] = inode.survivor(rng, names.sizes.get(inode, 0), self.faults.count, at_edges=at_edges)
            names.files[path] = survivors[id(inode)]
        names.sizes = {inode: inode.size for inode in survivors.values()}
        self._off = True
        self.faults.count("power_cut")
        return SimDisk(rng, self.wall_ms, self.faults, names=names, durable=names.copy(), boot=self._boot + 1)

    def kill(self) -> SimDisk:
        """End this disk as seen by one process; the next one finds every byte written, synced or not."""
        self._off = True
        self.faults.count("kill")
        return SimDisk(
            self.rng,
            self.wall_ms,
            self.faults,
            names=self._names,
            durable=self._durable,
            journal=self._journal,
            boot=self._boot,
        )

    def backup(self) -> DiskBackup:
        """A copy of all files as readers see them now, like a snapshot of the file system."""
        return DiskBackup(self._names.backup())

    def restored(self, backup: DiskBackup) -> SimDisk:
        """End this disk and return one with the content of a backup, all of it on the medium."""
        self._off = True
        self.faults.count("restored_backup")
        names = backup.names.backup()
        return SimDisk(self.rng, self.wall_ms, self.faults, names=names, durable=names.copy(), boot=self._boot + 1)

    # ---------------------------------------------------------------- names

    def _change(self, directories: tuple[str, ...], apply: Callable[[Names], None]) -> None:
        apply(self._names)
        self._journal.append(Change(directories, apply))

    def resized(self, inode: Inode) -> None:
        """Add the length of a file to the journal."""
        size = inode.size
        self._journal.append(Change((), lambda names: names.sizes.__setitem__(inode, size), inode))

    def size_synced(self, inode: Inode) -> None:
        """Make the length of a file durable, because the file was synced; earlier entries about it are dropped."""
        self._durable.sizes[inode] = inode.size
        self._journal[:] = [change for change in self._journal if change.resized is not inode]

    def _check_change(self, kind: str) -> None:
        self.check_power()
        if self.strikes(self.faults.create_error):
            raise self.error(kind, errno.EIO)

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> SimDiskFile:
        self.check_power()
        inode = self._names.files.get(path)
        if create_size is None:
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._check_look()
            return SimDiskFile(self, path, inode, read_only)
        if inode is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._check_directory(_parent(path), path)
        self._check_change("create_eio")
        made = Inode(modified_ms=self.wall_ms())
        self._change((_parent(path),), lambda names: names.files.__setitem__(path, made))
        made.size = create_size
        self.resized(made)
        return SimDiskFile(self, path, made)

    def _check_look(self) -> None:
        if self.strikes(self.faults.open_error):
            raise self.error("open_eio", errno.EIO)

    def _check_directory(self, directory: str, path: str) -> None:
        if directory and directory not in self._names.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def exists(self, path: str) -> bool:
        self.check_power()
        return path in self._names.files or path in self._names.directories

    def is_directory(self, path: str) -> bool:
        self.check_power()
        return path in self._names.directories

    def _inode(self, path: str) -> Inode:
        self.check_power()
        inode = self._names.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode

    def is_link(self, path: str) -> bool:
        """Return False, because this disk has no links."""
        del path
        return False

    def size(self, path: str) -> int:
        self._check_look()
        return self._inode(path).size

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def list_directory(self, path: str) -> list[str]:
        self.check_power()
        self._check_look()
        names = [*self._names.files, *self._names.directories]
        return sorted(name.rpartition("/")[2] for name in names if name and _parent(name) == path)

    def make_directories(self, path: str) -> None:
        self.check_power()
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            directory = "/".join(parts[:count])
            if directory and directory not in self._names.directories:
                if directory in self._names.files:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), directory)
                self._change((_parent(directory),), lambda names, made=directory: names.directories.add(made))  # type: ignore[misc]

    def remove(self, path: str) -> None:
        self._inode(path)
        self._check_change("remove_eio")
        self._change((_parent(path),), lambda names: names.files.__delitem__(path))

    def remove_tree(self, path: str) -> None:
        self.check_power()
        if path not in self._names.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for name in sorted(self._names.files):
            if name.startswith(f"{path}/"):
                self.remove(name)
        for name in sorted(self._names.directories, reverse=True):
            if name == path or name.startswith(f"{path}/"):
                self._change((_parent(name),), lambda names, gone=name: names.directories.discard(gone))  # type: ignore[misc]

    def replace(self, source: str, target: str) -> None:
        if source not in self._names.directories:
            self._inode(source)
        self._check_directory(_parent(target), target)
        self._check_change("rename_eio")
        self._change((_parent(source), _parent(target)), lambda names: names.rename(source, target))

    def link(self, source: str, target: str) -> None:
        inode = self._inode(source)
        if target in self._names.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        self._check_directory(_parent(target), target)
        self._check_change("link_eio")
        self._change((_parent(target),), lambda names: names.files.__setitem__(target, inode))

    def link_count(self, path: str) -> int:
        inode = self._inode(path)
        return sum(other is inode for other in self._names.files.values())

    def sync_directory(self, path: str) -> None:
        self.check_power()
        path = "" if path == "." else path
        if path and path not in self._names.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._check_change("sync_directory_eio")
        concerned = [at for at, change in enumerate(self._journal) if path in change.directories]
        if concerned:
            for change in self._journal[: concerned[-1] + 1]:
                change.apply(self._durable)
            del self._journal[: concerned[-1] + 1]

    def usage(self, path: str) -> DiskUsage:
        self._check_directory(path, path)
        self.check_power()
        total = self.faults.capacity or 1 << 40
        used = min(self.allocated_bytes(), total)
        return DiskUsage(total, used, total - used)

    def boot_id(self) -> str:
        return f"boot-{self._boot}"

    def lock(self, path: str) -> SimDiskLock:
        self.check_power()
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.locks.add(path)
        if not self.is_directory(path):
            if path not in self._names.files:
                self.open(path, create_size=0)
            self._names.files[path].put(b"lock", 0)
        return SimDiskLock(self, path)
