"""The log files of one store: their names, the file with a given physical offset, and their bytes as memory maps.

Files are opened for reading only and no lock is taken. A broker may append to them, create and delete them meanwhile.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict

import attrs

from ..message.layout import span_of
from ..message.numbers import is_digits
from ..store.offline import NAME_DIGITS
from ..world.disk import Disk, RealDisk
from .batches import Piece

MAPS_KEPT = 16
"""How many segment files a worker keeps mapped between its tasks. Mapping a file again repeats its page faults."""
LEDGER_PREFIX = "dledger-"
LEDGER_HEADER_SIZE = 48
"""Bytes of the entry header before each record in the files of a Raft ledger."""

_maps: OrderedDict[tuple[str, int, int], Piece] = OrderedDict()


def _mapped(path: str) -> Piece:
    """Map a file. The map is kept by inode, because a new file may take the name of a deleted one."""
    status = os.stat(path)
    key = (path, status.st_ino, status.st_size)
    piece = _maps.get(key)
    if piece is None:
        file = RealDisk().open(path, read_only=True)
        try:
            piece = _maps[key] = Piece.of(file.view())
        finally:
            file.close()
        while len(_maps) > MAPS_KEPT:
            _maps.popitem(last=False)
    _maps.move_to_end(key)
    return piece


@attrs.frozen
class SegmentFile:
    """One file of the log."""

    path: str
    start: int
    """Physical offset of the first byte."""
    end: int
    header_size: int = 0
    """Bytes before each record."""


def numbered(disk: Disk, directory: str) -> list[str]:
    """Names of the files that are named by the offset of their first byte."""
    return [name for name in disk.list_directory(directory) if len(name) == NAME_DIGITS and is_digits(name)]


@attrs.define(eq=False)
class SegmentFiles:
    """The log of one store: plain segments, followed by those of a Raft ledger. Physical offsets never overlap.

    In ledger files a header precedes each record. Units of consume queues point to the record itself, so one reader reads both.
    """

    root: str
    disk: Disk = attrs.field(factory=RealDisk)
    files: list[SegmentFile] = attrs.field(factory=list[SegmentFile])

    def refresh(self) -> None:
        """List the files that exist now."""
        found: list[SegmentFile] = []
        for directory in self.directories():
            is_ledger = f"/{LEDGER_PREFIX}" in directory[len(self.root) :]
            found += self.in_directory(directory, LEDGER_HEADER_SIZE if is_ledger else 0)
        self.files = sorted(found, key=lambda file: file.start)

    def in_directory(self, directory: str, header_size: int) -> list[SegmentFile]:
        """List the numbered files of a directory."""
        found: list[SegmentFile] = []
        for name in numbered(self.disk, directory):
            path = f"{directory}/{name}"
            try:
                size = self.disk.size(path)
            except FileNotFoundError:
                continue  # expired between the two calls
            if size:
                found.append(SegmentFile(path, int(name), int(name) + size, header_size))
        return found

    def directories(self) -> list[str]:
        """Return the directories that hold files of the log."""
        ledgers = [name for name in self.disk.list_directory(self.root) if name.startswith(LEDGER_PREFIX)]
        return [f"{self.root}/commitlog", *(f"{self.root}/{name}/data" for name in ledgers)]

    @property
    def min_offset(self) -> int:
        return self.files[0].start if self.files else 0

    def find(self, physical_offset: int) -> SegmentFile | None:
        """Return the file that holds a physical offset, or None."""
        at = bisect_right(self.files, physical_offset, key=lambda file: file.start) - 1
        return self.files[at] if at >= 0 and physical_offset < self.files[at].end else None

    def piece(self, file: SegmentFile) -> Piece | None:
        """Return the bytes of a file; None if it has been deleted."""
        try:
            return _mapped(file.path)
        except FileNotFoundError:
            return None

    def store_timestamp(self, physical_offset: int) -> int | None:
        """Return the store time of the record at a physical offset in ms; None if no record is there."""
        file = self.find(physical_offset)
        piece = self.piece(file) if file is not None else None
        if file is None or piece is None:
            return None
        view = memoryview(piece.bytes)
        span = span_of(view, physical_offset - file.start, len(view))
        return None if span is None else span.store_timestamp

    def holds(self, queue_id: int, queue_offset: int, physical_offset: int, size: int) -> bool:
        """Return whether the record that a unit refers to is complete."""
        file = self.find(physical_offset)
        piece = self.piece(file) if file is not None else None
        if file is None or piece is None or physical_offset + size > file.end:
            return False
        position = physical_offset - file.start
        span = span_of(memoryview(piece.bytes), position, position + size)
        return span is not None and (span.size, span.queue_id, span.queue_offset, span.physical_offset) == (
            size,
            queue_id,
            queue_offset,
            physical_offset,
        )
