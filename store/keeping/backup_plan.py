"""What a backup has and still needs: decisions only; nothing here touches a file.

A backup is a set of objects that never change: pieces of the log, each of them a part of one file, and the small files of its
points. A point is one moment to which the store can be restored. It lists the pieces of the log that it needs, in order, so
that a later point shares them with an earlier one and adds only what the log has got since.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import attrs

from ...message.errors import JsonError
from ...message.json import dumps, loads
from ..errors import BackupRefused, DamagedBackup

FORMAT = 1


@attrs.frozen
class Extent:
    """A part of one file of the log."""

    directory: str
    """The directory of the log below the root of the store, as it is restored."""
    file_start: int
    file_size: int
    begin: int
    """Physical offsets: the part is [begin, end)."""
    end: int

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole file, which is not written any more."""
        return (self.begin, self.end) == (self.file_start, self.file_start + self.file_size)

    @property
    def name(self) -> str:
        """The name of the object that has these bytes."""
        return f"{self.directory}/{self.begin:020d}-{self.end:020d}"

    @property
    def file(self) -> str:
        """The file of the store, below its root."""
        return f"{self.directory}/{self.file_start:020d}"


@attrs.frozen
class Piece:
    """An extent that a backup has, and the CRC-32 of its bytes."""

    extent: Extent
    crc: int


@attrs.frozen
class SmallFile:
    """A table's file or another small file, as it was when the point was taken."""

    path: str
    """Below the root of the store."""
    size: int
    crc: int


@attrs.frozen
class Point:
    """One moment to which a store can be restored."""

    taken_ms: int
    """All records before `end` are at most this old, in ms by the wall clock of the machine."""
    pieces: tuple[Piece, ...]
    files: tuple[SmallFile, ...]

    @property
    def name(self) -> str:
        return f"{self.taken_ms:015d}"

    @property
    def begin(self) -> int:
        return self.pieces[0].extent.begin

    @property
    def end(self) -> int:
        """The physical offset behind the last record of the log."""
        return self.pieces[-1].extent.end

    def object_of(self, path: str) -> str:
        """The name of the object that has a small file, or the manifest."""
        return f"points/{self.name}/{path}"

    def encode(self) -> bytes:
        """The manifest: the point, and its CRC-32."""
        content = {
            "format": FORMAT,
            "taken_ms": self.taken_ms,
            "pieces": [{**attrs.asdict(piece.extent), "crc": piece.crc} for piece in self.pieces],
            "files": [attrs.asdict(file) for file in self.files],
        }
        return dumps({"point": content, "crc": zlib.crc32(dumps(content))})


MANIFEST = "manifest.json"


def decode_point(encoded: bytes, name: str) -> Point:
    """Read a manifest.

    Raises:
        DamagedBackup: it is damaged, or of a newer version.
    """
    try:
        stored: Any = loads(encoded)
        content: Mapping[str, Any] = stored["point"]
        if content["format"] != FORMAT:
            raise DamagedBackup(name, f"its format is {content['format']}, this version reads {FORMAT}")
        if stored["crc"] != zlib.crc32(dumps(content)):
            raise DamagedBackup(name, "its manifest does not have its CRC")
        pieces = tuple(_piece_of(dict(row)) for row in content["pieces"])
        return Point(content["taken_ms"], pieces, tuple(SmallFile(**row) for row in content["files"]))
    except (JsonError, KeyError, TypeError, AttributeError) as error:
        raise DamagedBackup(name, f"its manifest cannot be read: {error}") from error


def _piece_of(row: dict[str, Any]) -> Piece:
    crc = row.pop("crc")
    return Piece(Extent(**row), crc)


@attrs.frozen
class Plan:
    """What a new point takes over, and what has to be copied for it."""

    kept: tuple[Piece, ...]
    missing: tuple[Extent, ...]

    @property
    def missing_bytes(self) -> int:
        return sum(extent.end - extent.begin for extent in self.missing)


def plan(files: Sequence[Extent], end: int, earlier: Point | None) -> Plan:
    """Which pieces of an earlier point a new one takes over, and which parts of the log it lacks.

    Args:
        files: the files of the log, in order, each as the extent of all its bytes.
        end: the physical offset behind the last record of the log.
        earlier: the newest point; None for the first one.

    Raises:
        BackupRefused: the log is shorter than the earlier point, or has no record, or lacks a file.
    """
    for before, after in pairwise(files):
        if before.end != after.begin:
            raise BackupRefused(f"the file of the log that begins at {before.end} is missing. Nothing was written")
    if not files or end <= files[0].begin:
        raise BackupRefused("the log has no record, so there is nothing to back up")
    begin = files[0].begin
    kept = tuple(piece for piece in earlier.pieces if piece.extent.end > begin) if earlier is not None else ()
    covered = max(kept[-1].extent.end, begin) if kept else begin
    if covered > end:
        raise BackupRefused(
            f"the log ends at {end}, and the newest point of the backup at {covered}, so this is another log, or it was cut. "
            "Nothing was written: begin a backup in a new directory"
        )
    rest = (attrs.evolve(file, begin=max(file.begin, covered), end=min(file.end, end)) for file in files)
    return Plan(kept, tuple(extent for extent in rest if extent.begin < extent.end))


@attrs.frozen
class Choice:
    """From which points a store is restored."""

    log: Point
    """The point whose pieces of the log are taken."""
    tables: Point
    """The point whose small files are taken; its end is not behind the last record that is kept."""
    until_ms: int | None
    """Records behind the end of `tables` that are newer are left out; None to keep all."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of the log, also those that had expired before the point `log` was taken."""
        expired = tuple(piece for piece in self.tables.pieces if piece.extent.end <= self.log.begin)
        return (*expired, *self.log.pieces)


def choose(points: Iterable[Point], until_ms: int | None) -> Choice:
    """Choose the newest point, or the points before and behind a moment.

    Tables are never newer than the log: offsets of groups and positions of delayed messages that lead behind its end would
    let messages be skipped. Older ones only let some messages be delivered again.

    Raises:
        BackupRefused: there is no point, or no point before or behind that moment, or the log has a gap between them.
    """
    ordered = sorted(points, key=lambda point: point.taken_ms)
    if not ordered:
        raise BackupRefused("the backup has no point; nothing was restored")
    if until_ms is None:
        return Choice(ordered[-1], ordered[-1], None)
    before = [point for point in ordered if point.taken_ms <= until_ms]
    behind = [point for point in ordered if point.taken_ms >= until_ms]
    if not before or not behind:
        first, last = (
            datetime.fromtimestamp(point.taken_ms / 1000).astimezone().isoformat(" ", "milliseconds")
            for point in (ordered[0], ordered[-1])
        )
        raise BackupRefused(
            f"no point of the backup was taken {'behind' if before else 'before'} this moment, so what the store was then is "
            f"not in it (points from {first} to {last}). Nothing was restored"
        )
    log, tables = behind[0], before[-1]
    if tables.end < log.begin:
        raise BackupRefused(
            f"the log from {tables.end} to {log.begin} had expired before the point behind this moment was taken, so it is not "
            "in the backup. Nothing was restored"
        )
    return Choice(log, tables, until_ms)
