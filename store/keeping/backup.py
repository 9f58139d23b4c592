"""Backing up a store while its broker runs, and checking and restoring what was backed up. Everything blocks.

A restored store is what a kill of the broker would have left at that moment, so a start recovers it in the same way: the small
files are read first and the end of the log afterwards, so that nothing in a table leads behind the end of the log. Queues and
index are not backed up, because a start derives them from the log. Files are opened read-only and no lock is taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import attrs

from ...message.errors import JsonError
from ...message.json import loads
from ...message.layout import Check
from ...world.disk import Disk
from ...world.files import PIECE_BYTES, read_file, replace_file
from ..errors import BackupRefused, DamagedBackup
from ..json_file import JsonFile
from ..log.segments import Segments
from ..offline import HEAD_BYTES_MAX, UNFINISHED, Advance, LogFile, LogReader, Look, Report, read_log, unfinished_copy
from .backup_plan import MANIFEST, Choice, Extent, Piece, Point, SmallFile, choose, decode_point, plan


class Keep(Protocol):
    """Where the objects of a backup are."""

    def points(self) -> list[str]:
        """The names of the points, oldest first."""
        ...

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Store an object.

        Raises:
            OSError, BackupRefused: it was not stored.
        Durability: on return it survives a power cut.
        """
        ...

    def link(self, name: str, path: str) -> bool:
        """Store an object by giving a file a second name; returns False if that is not possible."""
        ...

    def get(self, name: str) -> Iterator[bytes]:
        """The bytes of an object, in pieces.

        Raises:
            OSError, DamagedBackup: there is no such object, or it cannot be read.
        """
        ...


@attrs.frozen
class DirectoryKeep:
    """A backup in a directory. Implements `Keep`."""

    disk: Disk
    path: str

    def points(self) -> list[str]:
        names = self.disk.list_directory(f"{self.path}/points")
        return [name for name in names if self.disk.exists(f"{self.path}/points/{name}/{MANIFEST}")]

    def put(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        disk, path = self.disk, f"{self.path}/{name}"
        directory = self._directory_of(path)
        if disk.exists(fresh := f"{path}.tmp"):
            disk.remove(fresh)
        file, position = disk.open(fresh, create_size=0), 0
        try:
            for piece in pieces:
                file.write(piece, position)
                position += len(piece)
            file.sync()
        finally:
            file.close()
        disk.replace(fresh, path)
        disk.sync_directory(directory)

    def link(self, name: str, path: str) -> bool:
        disk, target = self.disk, f"{self.path}/{name}"
        directory = self._directory_of(target)
        try:
            if disk.exists(target):  # of a backup that did not end
                disk.remove(target)
            disk.link(path, target)
        except OSError:  # another file system, one without second names, or retention has removed the file
            return False
        file = disk.open(target, read_only=True)
        try:
            file.sync()
        finally:
            file.close()
        disk.sync_directory(directory)
        return True

    def has(self, name: str) -> bool:
        """Whether there is an object of this name."""
        return self.disk.exists(f"{self.path}/{name}")

    def _directory_of(self, path: str) -> str:
        """Create the directory of an object, and return it; its name survives a power cut."""
        directory = path.rpartition("/")[0]
        if not self.disk.is_directory(directory):
            self.disk.make_directories(directory)
            while directory not in ("", "/"):
                directory = directory.rpartition("/")[0]
                self.disk.sync_directory(directory or ("/" if path.startswith("/") else "."))
        return path.rpartition("/")[0]

    def get(self, name: str) -> Iterator[bytes]:
        file = self.disk.open(f"{self.path}/{name}", read_only=True)
        try:
            for at in range(0, file.size, PIECE_BYTES):
                yield file.read(at, PIECE_BYTES)
        finally:
            file.close()


@attrs.frozen
class LogPart:
    """The files of the log in one directory of a store, and the small files that belong to them."""

    directory: str
    """Below the root of the store, as it is restored."""
    files: Sequence[LogFile]
    small_files: Sequence[str] = ()
    """Below the root of the store."""


@attrs.frozen
class BackedUp:
    """The result of a backup."""

    point: Point
    copied_bytes: int
    """How many bytes of the log were copied."""
    linked_bytes: int
    """How many bytes of the log got a second name."""


def take_backup(
    disk: Disk,
    root: str,
    keep: Keep,
    log_parts: Callable[[], Sequence[LogPart]],
    wall_ms: Callable[[], int],
    advance: Advance = lambda _: None,
    pause: Callable[[], None] = lambda: None,
) -> BackedUp:
    """Add a point to a backup: the store as it is now. A broker may run in it.

    Args:
        root: the store (storePathRootDir).
        log_parts: opens the files of the log.
        wall_ms: the clock of the machine, whose broker stamps the records.
        advance: called with the number of bytes that were read since the last call.
        pause: blocks for as long as a broker may take to write a record whose beginning is in the log.

    Raises:
        BackupRefused: the store has no record or no sound tables, or its log is damaged before its end, or does not continue
            that of the backup.
        DamagedBackup: the newest point cannot be read.
        UnfinishedCopy: the store is itself a copy that was not finished.
        OSError: a disk failed. No point was added, as with the others.
    Durability: on return the point survives a power cut.
    """
    if (copy := unfinished_copy(disk, root)) is not None:
        raise copy
    files = _files_of(log_parts())  # open from now on, so that retention may remove them
    small = dict(_small_files(disk, root, log_parts()))
    files |= _files_of(log_parts())
    extents = sorted(files, key=lambda extent: extent.begin)
    end, taken_ms = _end_of([files[extent] for extent in extents], pause), wall_ms()
    names = keep.points()
    earlier = read_point(keep, names[-1]) if names else None
    if earlier is not None and earlier.taken_ms >= taken_ms:
        raise BackupRefused(f"the newest point was taken at {earlier.taken_ms} ms, and the clock says {taken_ms}")
    needed = plan(extents, end, earlier)
    sources = {extent.file_start: file for extent, file in files.items()}
    if needed.kept:
        last = needed.kept[-1]
        _check_continues(last, sources.get(last.extent.file_start))
    pieces, linked = list(needed.kept), 0
    for extent in needed.missing:
        source = sources[extent.file_start]
        is_linked = extent.is_whole and keep.link(extent.name, source.path)
        linked += is_linked * (extent.end - extent.begin)
        total = _Sum(_bytes_of(extent, source), advance)
        if is_linked:
            for _ in total:
                pass
        else:
            keep.put(extent.name, total)
        pieces.append(Piece(extent, total.crc))
    listed = tuple(SmallFile(path, len(content), zlib.crc32(content)) for path, content in small.items())
    point = Point(taken_ms, tuple(pieces), listed)
    for path, content in small.items():
        keep.put(point.object_of(path), [content])
    keep.put(point.object_of(MANIFEST), [point.encode()])
    return BackedUp(point, needed.missing_bytes - linked, linked)


@attrs.define
class _Sum:
    """Hands pieces on, and sums them up."""

    pieces: Iterable[bytes | memoryview]
    advance: Advance
    size: int = 0
    crc: int = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for piece in self.pieces:
            self.size, self.crc = self.size + len(piece), zlib.crc32(piece, self.crc)
            self.advance(len(piece))
            yield piece


def _files_of(parts: Sequence[LogPart]) -> dict[Extent, LogFile]:
    return {
        Extent(part.directory, file.start, file.size, file.start, file.start + file.size): file
        for part in parts
        for file in part.files
        if file.size
    }


def _bytes_of(extent: Extent, source: LogFile) -> Iterator[bytes]:
    at, end = extent.begin - source.start, extent.end - source.start
    while at < end:
        piece = source.read(at, min(PIECE_BYTES, end - at))
        yield piece
        at += len(piece)


def _small_files(disk: Disk, root: str, parts: Sequence[LogPart]) -> Iterator[tuple[str, bytes]]:
    """The tables' files and those that belong to the log, with their content."""
    names = {name.removesuffix(".bak") for name in disk.list_directory(f"{root}/config")}
    for path in (f"config/{name}" for name in sorted(names) if name.endswith(".json")):
        yield path, _table_of(disk, f"{root}/{path}")
    for path in (path for part in parts for path in part.small_files if disk.exists(f"{root}/{path}")):
        yield path, read_file(disk, f"{root}/{path}")


def _table_of(disk: Disk, path: str) -> bytes:
    """The content of a table's file; a broker that replaces it leaves only its `.bak` for a moment.

    Raises:
        BackupRefused: neither can be read.
    """
    for candidate in (path, JsonFile(disk, path).backup_path, path):
        with suppress(FileNotFoundError, JsonError):
            loads(content := read_file(disk, candidate))
            return content
    raise BackupRefused(f"{path} cannot be read; nothing was written")


def _end_of(files: Sequence[LogFile], pause: Callable[[], None]) -> int:
    """The physical offset behind the last sound record.

    Raises:
        BackupRefused: sound records may follow something that is none.
    """
    end, damaged = _look_at_end(files)
    if damaged is not None:
        pause()
        if _look_at_end(files)[1] == damaged:  # else a broker was writing there
            raise BackupRefused(
                f"there is no sound record at {damaged}, and the log goes on behind it. Nothing was written: `ledgermq store "
                "verify` says more"
            )
    return end


def _look_at_end(files: Sequence[LogFile]) -> tuple[int, int | None]:
    """The physical offset behind the last sound record, and that of something else before further bytes, if it is there.

    A record that is the last one is no such thing: a slave may have got the beginning of it, or a crash have torn it.
    """
    for file in reversed(files):
        if LogReader(file).look(0)[0] is Check.NOTHING and not any(file.read(0, HEAD_BYTES_MAX)):
            continue  # it was prepared for later records
        end, report = file.start, Report()
        for record in read_log([file], report=report):
            end = record.offset + record.span.size
        at = report.end - file.start
        if at == file.size or not any(file.read(at, HEAD_BYTES_MAX)):
            return end, None
        after = LogReader(file).look(at)[2]
        is_last = after == file.size or (at < after < file.size and not any(file.read(after, HEAD_BYTES_MAX)))
        return end, None if is_last else report.end
    return files[0].start if files else 0, None


def _check_continues(last: Piece, source: LogFile | None) -> None:
    """Check that the log still has the last piece of the newest point; as every record is in one place, it then has all.

    Raises:
        BackupRefused: it has not.
    """
    crc = None
    if source is not None and source.size == last.extent.file_size:
        total = _Sum(_bytes_of(last.extent, source), lambda _: None)
        for _ in total:
            pass
        crc = total.crc
    if crc != last.crc:
        raise BackupRefused(
            f"between {last.extent.begin} and {last.extent.end} the log has other bytes than the backup's newest point, so "
            "this is another log, or it was cut there. Nothing was written: begin a backup in a new directory"
        )


# ---------------------------------------------------------------------------------------------------------------- checking


def read_point(keep: Keep, name: str) -> Point:
    """Read the manifest of a point.

    Raises:
        DamagedBackup: it cannot be read.
    """
    manifest = f"points/{name}/{MANIFEST}"
    try:
        encoded = b"".join(keep.get(manifest))
    except OSError as error:
        raise DamagedBackup(manifest, error.strerror or str(error)) from error
    return decode_point(encoded, manifest)


def read_points(keep: Keep) -> tuple[list[Point], list[DamagedBackup]]:
    """The points of a backup whose manifests can be read, oldest first, and what is wrong with the others."""
    points, damaged = list[Point](), list[DamagedBackup]()
    for name in keep.points():
        try:
            points.append(read_point(keep, name))
        except DamagedBackup as error:
            damaged.append(error)
    return points, damaged


def choose_point(keep: Keep, until_ms: int | None) -> tuple[Choice, list[DamagedBackup]]:
    """Choose among the points that can be read; returns also what is wrong with the others, which are not taken.

    Raises:
        BackupRefused: as `choose`.
        DamagedBackup: there are points, and none can be read.
    """
    points, damaged = read_points(keep)
    if damaged and not points:
        raise damaged[0]
    try:
        return choose(points, until_ms), damaged
    except BackupRefused as error:
        raise BackupRefused("; ".join(map(str, (error, *damaged)))) from error


def verify_backup(keep: Keep, advance: Advance = lambda _: None) -> tuple[list[Point], list[str]]:
    """Read every object of a backup once, and compare it with the manifests.

    Returns:
        The points that can be read, and what is wrong.
    """
    points, damaged = read_points(keep)
    problems = list(map(str, damaged))
    objects = {
        piece.extent.name: (piece.extent.end - piece.extent.begin, piece.crc) for point in points for piece in point.pieces
    }
    objects |= {point.object_of(file.path): (file.size, file.crc) for point in points for file in point.files}
    for name, (size, crc) in objects.items():
        try:
            for _ in _checked(keep, name, size, crc, advance):
                pass
        except DamagedBackup as error:
            problems.append(str(error))
    return points, problems


def _checked(keep: Keep, name: str, size: int, crc: int, advance: Advance) -> Iterator[bytes | memoryview]:
    """The bytes of an object.

    Raises:
        DamagedBackup: behind the last piece, if they are not what was backed up.
    """
    total = _Sum(keep.get(name), advance)
    try:
        yield from total
    except OSError as error:
        raise DamagedBackup(name, error.strerror or str(error)) from error
    if (total.size, total.crc) != (size, crc):
        raise DamagedBackup(name, f"{total.size} bytes with CRC {total.crc:08x}, not {size} with {crc:08x}")


# ---------------------------------------------------------------------------------------------------------------- restoring


@attrs.frozen
class Restored:
    """The extent of a restored store."""

    choice: Choice
    end: int
    """The physical offset at which its log ends."""


def restore(
    disk: Disk,
    keep: Keep,
    target: str,
    look_of: Callable[[str], Look],
    *,
    finish: Callable[[], None] = lambda: None,
    until_ms: int | None = None,
    advance: Advance = lambda _: None,
) -> Restored:
    """Write the store of a point to a directory; a broker that opens it derives queues and index.

    Args:
        target: a directory that does not exist or is empty.
        look_of: how the log in a directory frames its records.
        finish: called when all files are there, and no broker opens them yet.
        until_ms: leave out the records that were stored later, in ms by the wall clock; None for the newest point.

    Raises:
        BackupRefused: `target` is not empty, or the backup has no points for that moment, and nothing was written; or damage
            hides which record is the last one, and no broker opens `target`.
        DamagedBackup: an object is not what was backed up. No broker opens `target`, which can be removed.
        OSError: a disk failed or is full; the same.
    Durability: on return the store survives a power cut.
    """
    if disk.list_directory(target):
        raise BackupRefused(f"{target} is not empty; nothing was written")
    choice, _ = choose_point(keep, until_ms)
    unfinished = f"{target}/{UNFINISHED}"
    disk.make_directories(unfinished)  # while it is there, no broker opens the store
    disk.sync_directory(target)
    for piece in choice.pieces:
        _write_piece(disk, keep, target, piece, advance)
    end = choice.log.end
    if choice.until_ms is not None:
        end = _cut_at(disk, target, choice, choice.until_ms, look_of)
    for file in choice.tables.files:
        if not (file.path.startswith("config/") or disk.is_directory(f"{target}/{_top_of(file.path)}")):
            continue  # of a ledger without entries
        content = b"".join(_checked(keep, choice.tables.object_of(file.path), file.size, file.crc, advance))
        replace_file(disk, f"{target}/{file.path}", content)
    for path in {piece.extent.directory for piece in choice.pieces if disk.is_directory(f"{target}/{piece.extent.directory}")}:
        disk.sync_directory(f"{target}/{path}")
    disk.sync_directory(target)
    finish()
    disk.remove_tree(unfinished)
    disk.sync_directory(target)
    disk.sync_directory(target.rpartition("/")[0] or ("/" if target.startswith("/") else "."))
    return Restored(choice, end)


def _write_piece(disk: Disk, keep: Keep, target: str, piece: Piece, advance: Advance) -> None:
    extent = piece.extent
    path = f"{target}/{extent.file}"
    disk.make_directories(f"{target}/{extent.directory}")
    file = disk.open(path) if disk.exists(path) else disk.open(path, create_size=extent.file_size)
    try:
        position = extent.begin - extent.file_start
        for content in _checked(keep, extent.name, extent.end - extent.begin, piece.crc, advance):
            file.write(content, position)
            position += len(content)
        file.sync()
    finally:
        file.close()


def _top_of(path: str) -> str:
    return path.partition("/")[0]


def _cut_at(disk: Disk, target: str, choice: Choice, until_ms: int, look_of: Callable[[str], Look]) -> int:
    """Cut the log behind the last record that was stored up to a moment; returns where it ends.

    Of a ledger that begins behind that record, nothing is left.

    Raises:
        BackupRefused: damage hides which record is the last one.
    """
    sizes = {piece.extent.directory: piece.extent.file_size for piece in choice.pieces}
    runs = {path: Segments(disk, f"{target}/{path}", size) for path, size in sizes.items()}
    last_ms = choice.tables.taken_ms
    try:
        for run in runs.values():
            run.load()
        files = [
            LogFile(disk, segment.path, segment.start, segment.size, look_of(path))
            for path, run in runs.items()
            for segment in run.files
        ]
        end, report = choice.tables.end, Report()
        for record in read_log(sorted(files, key=lambda file: file.start), end, report):
            if record.span.store_timestamp > until_ms:
                break
            end, last_ms = record.offset + record.span.size, record.span.store_timestamp
        else:
            if report.end < choice.log.end:
                raise BackupRefused(
                    f"the log has no sound record at {report.end}, and ends at {choice.log.end}, so records from before this "
                    f"moment may be hidden. Restore an earlier one, {last_ms - 1} ms at the latest, or a whole point"
                )
        for path, run in runs.items():
            if run.min_offset >= end:
                run.clear()
                disk.remove_tree(f"{target}/{_top_of(path)}")
            else:
                run.truncate(end)
        return end
    finally:
        for run in runs.values():
            run.close()
