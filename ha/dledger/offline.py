"""Reads the log of a store of any mode without a broker: classic segments, then the ledger if there is one."""

from __future__ import annotations

from ...message.layout import Check, RecordSpan, check_record
from ...store.keeping.backup import LogPart
from ...store.keeping.scrub import Framing
from ...store.offline import LogFile, LogPiece, Look, files_in, log_files, look_at_record
from ...world.disk import Disk
from .ledger.checkpoint import Checkpoint, CheckpointFile
from .ledger.layout import BLANK, BLANK_SIZE, ENTRY, HEADER_SIZE, MAGIC_BLANK, MAGIC_ENTRY
from .ledger.walk import body_is_sound, is_message
from .reset_peers import DIRECTORY_PREFIX


def all_log_files(disk: Disk, root: str) -> list[LogFile]:
    """Return all files of a store's log, in order; an empty list if there is no store.

    The files of a ledger are found where its checkpoint says they are (storePathDLedgerCommitLog).

    Raises:
        OSError: a file cannot be read.
    """
    return sorted((file for part in log_parts(disk, root) for file in part.files), key=lambda file: file.start)


def log_parts(disk: Disk, root: str) -> list[LogPart]:
    """The same files by their directories, and the small files that a restored ledger needs.

    Raises:
        OSError: a file cannot be read.
    """
    parts = [LogPart("commitlog", log_files(disk, root))]
    for name in disk.list_directory(root):
        if name.startswith(DIRECTORY_PREFIX):
            elsewhere = CheckpointFile(disk, f"{root}/{name}").load().data_directory
            files = files_in(disk, elsewhere or f"{root}/{name}/data", look_at_entry)
            parts.append(LogPart(f"{name}/data", files, (f"{name}/checkpoint", f"{name}/currterm")))
    return parts


def has_ledger(disk: Disk, root: str) -> bool:
    """Whether a store has the ledger of a node."""
    return any(name.startswith(DIRECTORY_PREFIX) for name in disk.list_directory(root))


def look_of(directory: str) -> Look:
    """How the log in a directory of a store frames its records."""
    return look_at_entry if directory.startswith(DIRECTORY_PREFIX) else look_at_record


def forget_what_was_synced(disk: Disk, root: str) -> None:
    """Let a start read the whole ledger of a restored store, because its checkpoint may be newer than the log, or older.

    Raises:
        OSError: the disk refused.
    """
    for name in disk.list_directory(root):
        if name.startswith(DIRECTORY_PREFIX):
            file = CheckpointFile(disk, f"{root}/{name}")
            found = file.load()
            kept = ("begin_index", "begin_position", "before_term", "configurations")
            file.save(Checkpoint(**{key: getattr(found, key) for key in kept}))


def look_at_entry(piece: LogPiece, position: int) -> tuple[Check, RecordSpan | None, int]:
    """Check what is at a position of a ledger's data file: a complete entry in its place, a blank block, or nothing."""
    view, left = piece.view, len(piece.view) - position
    if left >= BLANK_SIZE:
        magic, size = BLANK.codec.unpack_from(view, position)
        if magic == MAGIC_BLANK and size >= left:
            return Check.BLANK if size == left else Check.NOTHING, None, position + size
    if left < HEADER_SIZE:
        return Check.NOTHING, None, position
    magic, size, _, _, place, _, _, crc, body_size = ENTRY.codec.unpack_from(view, position)
    if magic != MAGIC_ENTRY or size < HEADER_SIZE:
        return Check.NOTHING, None, position
    at, after = position + HEADER_SIZE, position + size
    if size != HEADER_SIZE + body_size or size > left or place != piece.start + position:
        return Check.NOTHING, None, after
    body = view[at:after]
    if not body_is_sound(body, crc):
        return Check.NOTHING, None, after
    if not is_message(body):
        return Check.RECORD, None, after
    found, span = check_record(view, at, after)
    return found, span, after


ENTRIES = Framing(look_at_entry, HEADER_SIZE)
