"""A real disk whose files record what is written to them, and fail when the test says so."""

from __future__ import annotations

import errno
import os

import attrs

from ledgermq.world.disk import Buffer, DiskFile, RealDisk


@attrs.define(eq=False)
class WatchedFile:
    """Fails the write with the number `fail_at`, counted from now on."""

    file: DiskFile
    fail_at: int = -1
    writes: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    """Position and size of each."""
    read_sizes: list[int] = attrs.field(factory=list[int])
    """How many bytes each read asks for."""
    unreadable: range = range(0)
    """The positions that cannot be read, as of a sector that the medium has lost; as in Linux, a read ends before them."""

    @property
    def size(self) -> int:
        return self.file.size

    def write(self, buffer: Buffer, position: int) -> None:
        self.fail_at -= 1
        if self.fail_at == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.writes.append((position, len(buffer)))
        self.file.write(buffer, position)

    def read(self, position: int, size: int) -> bytes:
        self.read_sizes.append(size)
        if position in self.unreadable:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if position < self.unreadable.start:
            size = min(size, self.unreadable.start - position)
        return self.file.read(position, size)

    def view(self) -> memoryview:
        return self.file.view()

    def sync(self) -> None:
        self.file.sync()

    def truncate(self, size: int) -> None:
        self.file.truncate(size)

    def reserve(self, position: int, size: int) -> None:
        self.file.reserve(position, size)

    def clear(self, position: int) -> None:
        self.file.clear(position)

    def close(self) -> None:
        self.file.close()


@attrs.frozen
class WatchedDisk(RealDisk):
    """All files that were opened are there to be looked at."""

    opened: list[WatchedFile] = attrs.field(factory=list[WatchedFile])
    unreadable: dict[str, range] = attrs.field(factory=dict[str, range])
    """The positions of each file that cannot be read."""

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> DiskFile:
        file = super().open(path, create_size=create_size, read_only=read_only)
        self.opened.append(WatchedFile(file, unreadable=self.unreadable.get(path, range(0))))
        return self.opened[-1]
