"""What the local commit log trusts of its own bytes after a crash: which records belong to it, and where it ends.

Neither the size nor the CRC of a record proves it whole: the CRC covers the body only, and a power cut may lose any unsynced
sector, leave what an older log had written there, or bring a filler back. Blocking; used before anything else uses the log, and
`whole_until` after a failed write or sync, too.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from ...message.layout import (
    BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    RECORD_SIZE_MIN,
    Check,
    DerivedParts,
    body_size_of,
    check_record,
    is_part_of_record,
    span_of,
)
from ...world.events import get_logger
from ..errors import DamagedLog
from .commitlog import Evidence
from .segments import Segments

log = get_logger(__name__)

SECTOR = 512
"""How many bytes the medium writes atomically; for most media it is a multiple of this."""
LEFTOVER_BYTES = 64 * 1024
"""How far behind the end of the log recovery looks for bytes that are not zero."""


def start_below(segments: Segments, acceptable: Callable[[int, int], bool]) -> int:
    """See `CommitLog.start_below`."""
    for segment in reversed(segments.files):
        check, span = check_record(segment.view, 0, segment.size)
        if check is not Check.RECORD or span is None or span.store_timestamp == 0:
            continue
        if acceptable(span.physical_offset, span.store_timestamp):
            return segment.start
    return segments.min_offset


def belonging(
    segments: Segments, walk: Iterator[tuple[int, DerivedParts | None]], evidence: Evidence
) -> Iterator[tuple[int, DerivedParts | None]]:
    """The part of a walk that belongs to this log and is whole."""
    for position, parts in walk:
        if parts is None:
            # A filler counts only if a file follows it; otherwise the log ends where the filler begins.
            if segments.find(position) is None:
                return
        elif not _belongs(segments, parts, position, evidence):
            return
        yield position, parts


def _belongs(segments: Segments, parts: DerivedParts, position: int, evidence: Evidence) -> bool:
    size, offset = parts[0], parts[3]
    if offset != position - size:  # its physical offset is wrong: it is left over from another log
        return False
    if position <= evidence.verified_offset:
        return True
    if _ends_early(segments, offset, size):
        return False
    return evidence.page_cache_intact or not _lacks_a_sector(segments, offset, size)


def _record(segments: Segments, offset: int, size: int) -> memoryview | None:
    segment = segments.find(offset)
    if segment is None:
        return None
    at = offset - segment.start
    return segment.view[at : at + size] if at + size <= segment.wrote else None


def _ends_early(segments: Segments, offset: int, size: int) -> bool:
    """Whether the end of a record was never written: a slave's bytes may end anywhere, and the CRC covers the body only.

    What was not written reads as zeros, and neither a topic nor properties end with one.
    """
    view = _record(segments, offset, size)
    if view is not None and view[size - 1] != 0:
        return False
    span = span_of(view, 0, size) if view is not None else None
    if view is None or span is None or span.properties_at < span.end:
        return True
    return 0 in view[span.topic_at : span.properties_at - 2]


def _lacks_a_sector(segments: Segments, offset: int, size: int) -> bool:
    """Whether a sector of the record's end reads as zeros: a power cut lost it, and the CRC covers the body only."""
    segment, view = segments.find(offset), _record(segments, offset, size)
    span = span_of(view, 0, size) if view is not None else None
    if segment is None or view is None or span is None:
        return True
    at = span.body_at + body_size_of(view, span)
    at += -(offset - segment.start + at) % SECTOR
    # The length of empty properties is zero, and may be in a sector of its own.
    end = size if span.properties_at < span.end else span.properties_at - 2
    return any(not any(view[start : min(start + SECTOR, end)]) for start in range(at, end, SECTOR))


def check_heads(segments: Segments, evidence: Evidence) -> None:
    """Make sure that each segment that had been synced begins with a record of its own.

    Raises:
        DamagedLog: one does not. Nothing was changed.
    """
    for segment in segments.files:
        if segment.start + RECORD_SIZE_MIN > evidence.synced_offset:
            break
        size, magic = BLANK.codec.unpack_from(segment.view)
        offset = int.from_bytes(segment.view[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big")
        if magic == MAGIC_BLANK and size == segment.size:
            continue
        if magic not in (MAGIC_V1, MAGIC_V2) or offset != segment.start:
            raise DamagedLog(segments.directory, segment.start, evidence.synced_offset)


def truncate_torn_tail(segments: Segments, end: int, evidence: Evidence) -> bool:
    """Make everything from `end` on read as zeros; returns whether something other than zeros was there.

    Raises:
        DamagedLog: a record at `end` had been synced and is no longer whole. Nothing was truncated.
        OSError: the disk refused.
    """
    if end < evidence.synced_offset and _damaged_at(segments, end, evidence.synced_offset):
        raise DamagedLog(segments.directory, end, evidence.synced_offset)
    segment = segments.find(end)
    if segment is None:  # the log ends exactly where its last segment does
        return False
    at = end - segment.start
    leftover = any(segment.view[at : at + LEFTOVER_BYTES]) or segments.files[-1] is not segment
    if leftover:
        log.warning("torn_tail_truncated", physical_offset=end, segment=segment.path)
    if leftover or not evidence.clean_exit:
        segments.truncate(end)
    segment.wrote = at
    return leftover


def _damaged_at(segments: Segments, end: int, synced: int) -> bool:
    """Whether a synced record is no longer whole; the beginning of one that a slave was receiving does not count."""
    segment = segments.find(end)
    if synced - end < BLANK.size:
        return False
    if segment is None:
        return True
    size, magic = BLANK.codec.unpack_from(segment.view, end - segment.start)
    if magic == MAGIC_BLANK:  # a filler, whose next file was not created yet
        return bool(synced - end > size)
    return bool(magic not in (MAGIC_V1, MAGIC_V2) or size <= synced - end)


def whole_until(segments: Segments, start: int, end: int, *, raw: bool) -> int:
    """Read [start, end) back, which is the end of the log; returns the end of its last whole record.

    Args:
        raw: the log follows a master, so `start` may be inside a record, and the last record may be incomplete.

    Raises:
        OSError: a record is damaged.
    """
    # The nearest certain border of a record is the start of the segment.
    position = start - start % segments.segment_size if raw else start
    while position < end:
        segment = segments.find(position)
        if segment is None:  # a cut that failed afterwards has removed it
            return position
        at, stop = position - segment.start, min(segment.wrote, end - segment.start)
        check, span = check_record(segment.view, at, stop, check_crc=False)
        if span is not None and position + span.size > start:
            check, span = check_record(segment.view, at, stop)
        if check is Check.BLANK:
            position = segment.start + segment.size
        elif span is not None:
            position += span.size
        elif raw and segment.start + stop == end and is_part_of_record(segment.view[at:stop], position, segment.size - at):
            return position
        else:
            raise OSError(errno.EIO, f"unsynced record at {position} reads back damaged")
    return end
