"""Reads the log of a store of any mode without a broker: classic segments, then the ledger if there is one."""

from __future__ import annotations

from ...message.layout import Check, RecordSpan, check_record
from ...store.offline import LogFile, files_in, log_files
from ...world.disk import Disk
from .checkpoint import CheckpointFile
from .layout import BLANK, BLANK_SIZE, ENTRY, HEADER_SIZE, MAGIC_BLANK, MAGIC_ENTRY
from .reset_peers import DIRECTORY_PREFIX
from .walk import body_is_sound, is_message


def all_log_files(disk: Disk, root: str) -> list[LogFile]:
    """Return all files of a store's log, in order; an empty list if there is no store.

    The files of a ledger are found where its checkpoint says they are (storePathDLedgerCommitLog).

    Raises:
        OSError: a file cannot be read.
    """
    found = log_files(disk, root)
    for name in disk.list_directory(root):
        if name.startswith(DIRECTORY_PREFIX):
            elsewhere = CheckpointFile(disk, f"{root}/{name}").load().data_directory
            found += files_in(disk, elsewhere or f"{root}/{name}/data", look_at_entry)
    return sorted(found, key=lambda file: file.start)


def look_at_entry(file: LogFile, position: int) -> tuple[Check, RecordSpan | None, int]:
    """Check what is at a position of a ledger's data file: a complete entry in its place, a blank block, or nothing."""
    view, left = file.view, len(file.view) - position
    if left >= BLANK_SIZE and BLANK.codec.unpack_from(view, position) == (MAGIC_BLANK, left):
        return Check.BLANK, None, position
    if left < HEADER_SIZE:
        return Check.NOTHING, None, position
    magic, size, _, _, place, _, _, crc, body_size = ENTRY.codec.unpack_from(view, position)
    if (
        magic != MAGIC_ENTRY
        or size != HEADER_SIZE + body_size
        or not HEADER_SIZE <= size <= left
        or place != file.start + position
    ):
        return Check.NOTHING, None, position
    at, after = position + HEADER_SIZE, position + size
    body = view[at:after]
    if not body_is_sound(body, crc):
        return Check.NOTHING, None, position
    if not is_message(body):
        return Check.RECORD, None, after
    found, span = check_record(view, at, after)
    return found, span, after
