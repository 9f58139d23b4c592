"""Files of consume queues, which are open only while they are used: there may be more queues than descriptors.

A file that was written stays open until it has been synced: a sync through another descriptor could miss that a write-back has
failed. At most `OpenFiles.most` files stay open to be read; beyond that number each read opens and closes its file. Half as
many more may be open to be written; then records of other queues wait until files have been synced and closed.
Only the event loop closes files, and none while another thread syncs it; a store that is being opened has one thread alone.
"""

from __future__ import annotations

import attrs

from ...message.fields import Buffer
from ...world.descriptors import descriptors_max
from ...world.disk import Disk, DiskFile

QUEUES_DESCRIPTORS_SHARE = 4
"""Files of queues that are only read may use one in this many descriptors of the process. Connections may use half of them."""
NEW_FILES_PER_TURN_MAX = 32
"""How many files of queues are created in one turn of the event loop; each takes up to a millisecond. More sends of one receive
whose queues need files, and more records of such queues, wait for the next turn."""


@attrs.define(eq=False)
class OpenFiles:
    """Counts the open files of all queues of a store."""

    most: int = attrs.field(factory=lambda: descriptors_max() // QUEUES_DESCRIPTORS_SHARE)
    count: int = 0
    awaited: bool = False
    """Whether records wait until files have been synced and closed."""

    @property
    def is_full(self) -> bool:
        return self.count >= self.most

    @property
    def room(self) -> int:
        """How many more files may be opened to be written."""
        return self.most + self.most // 2 - self.count


@attrs.define(eq=False)
class QueueFile:
    """Implements `DiskFile`; opens the file when it is used, and again after `close`."""

    disk: Disk
    path: str
    size: int
    _all: OpenFiles
    _file: DiskFile | None = None

    def __attrs_post_init__(self) -> None:
        self._all.count += self._file is not None

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def _open(self) -> DiskFile:
        file = self._file
        if file is None:
            file = self._file = self.disk.open(self.path)
            self._all.count += 1
        return file

    def write(self, buffer: Buffer, position: int) -> None:
        self._open().write(buffer, position)

    def read(self, position: int, size: int) -> bytes:
        if self._file is not None or not self._all.is_full:
            return self._open().read(position, size)
        file = self.disk.open(self.path)
        try:
            return file.read(position, size)
        finally:
            file.close()

    def view(self) -> memoryview:
        return self._open().view()

    def sync(self) -> None:
        if self._file is not None:  # else nothing was written since the last sync
            self._file.sync()

    def truncate(self, size: int) -> None:
        self._open().truncate(size)
        self.size = size

    def reserve(self, position: int, size: int) -> None:
        self._open().reserve(position, size)

    def clear(self, position: int) -> None:
        self._open().clear(position)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._all.count -= 1
