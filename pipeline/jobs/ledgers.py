"""Examines the ledger of a node of a Raft group: its entries, their CRCs, its index, and how much of it is committed.

It reads only the files. A running node may append to them meanwhile; bytes after the end that was found are not examined.
"""

from __future__ import annotations

import attrs

from ...ha.dledger.ledger.checkpoint import CheckpointFile
from ...ha.dledger.ledger.layout import BLANK_SIZE, ENTRY, HEADER_SIZE, INDEX, INDEX_SIZE, MAGIC_BLANK, MAGIC_ENTRY
from ...ha.dledger.ledger.walk import Walked, is_message, walk_entries
from ...message.layout import span_of, topic_of
from ...world.disk import RealDisk
from ..log_files import LEDGER_HEADER_SIZE, SegmentFile, SegmentFiles

assert LEDGER_HEADER_SIZE == HEADER_SIZE

_unpack_entry = ENTRY.codec.unpack_from
_unpack_index = INDEX.codec.unpack_from


@attrs.define(eq=False)
class Ledgers:
    """The result for the ledgers of one store; a store has at most one, unless its node was renamed."""

    end: int | None = None
    """The physical offset of the end of the last committed entry; None if no entry is committed."""
    problems: list[str] = attrs.field(factory=list[str])


def examine_ledgers(root: str, *, check_bodies: bool) -> Ledgers:
    """Read all entries of a store's ledgers, and compare them with the index.

    Args:
        root: the store.
        check_bodies: whether to verify the CRC of each entry's body too.
    """
    log = SegmentFiles(root)
    log.refresh()
    found = Ledgers()
    for directory in sorted({file.path.rpartition("/data/")[0] for file in log.files if file.header_size}):
        files = [file for file in log.files if file.path.startswith(f"{directory}/data/")]
        _examine(log, directory, files, found, check_bodies=check_bodies)
    return found


def _examine(log: SegmentFiles, directory: str, files: list[SegmentFile], found: Ledgers, *, check_bodies: bool) -> None:
    committed = CheckpointFile(RealDisk(), directory).load().committed_index
    next_index, term = -1, 0
    for file in files:
        piece = log.piece(file)
        if piece is None:
            continue  # it has expired
        view = memoryview(piece.bytes)
        if next_index < 0:
            next_index = _unpack_entry(view)[2] if _unpack_entry(view)[0] == MAGIC_ENTRY else 0
        walked = walk_entries(
            view, 0, len(view), position=file.start, next_index=next_index, term=term, check_bodies=check_bodies
        )
        fault = None if _is_end(view, walked.at) else walked.fault
        if fault is not None and walked.next_index <= committed:
            found.problems.append(f"{file.path}, physical offset {walked.position}: {fault}")
        _compare_index(directory, walked, committed, found)
        if walked.first_index <= committed and walked.next_index > walked.first_index:
            last = min(committed, walked.next_index - 1) - walked.first_index
            _, place, size, _, _ = _unpack_index(walked.index_records, last * INDEX_SIZE)
            found.end = place + size
        if walked.next_index > committed or fault is not None:
            return
        next_index = walked.next_index
        term = walked.runs[-1][1] if walked.runs else term


def _is_end(view: memoryview, at: int) -> bool:
    """Whether a blank block or the unused rest of a file begins at this position."""
    if len(view) - at < HEADER_SIZE:
        return True
    return _unpack_entry(view, at)[0] == MAGIC_BLANK or not any(view[at : at + HEADER_SIZE + BLANK_SIZE])


def _compare_index(directory: str, walked: Walked, committed: int, found: Ledgers) -> None:
    """Compare the committed entries of one data file with their records in the index; report the first difference."""
    count = min(walked.next_index, committed + 1) - walked.first_index
    expected = bytes(walked.index_records[: max(count, 0) * INDEX_SIZE])
    at = walked.first_index * INDEX_SIZE
    index = SegmentFiles(directory)
    for file in index.in_directory(f"{directory}/index", 0):
        low, high = max(at, file.start), min(at + len(expected), file.end)
        piece = index.piece(file) if low < high else None
        if piece is None:
            continue
        have, wanted = bytes(piece.bytes[low - file.start : high - file.start]), expected[low - at : high - at]
        for place in range(0, len(wanted), INDEX_SIZE) if have != wanted else ():
            if have[place : place + INDEX_SIZE] != wanted[place : place + INDEX_SIZE]:
                there, entry = (_unpack_index(each, place) for each in (have, wanted))
                found.problems.append(
                    f"{file.path}: the record of entry {entry[3]} says index {there[3]}, position {there[1]}, size {there[2]}, "
                    f"term {there[4]}; the entry has position {entry[1]}, size {entry[2]}, term {entry[4]}"
                )
                return


def entry_at(view: memoryview, start: int, physical_offset: int) -> str:
    """Describe the entry of a data file that contains a byte.

    Args:
        view: the file.
        start: the physical offset of its first byte.
        physical_offset: the physical offset of the byte.
    """
    at = 0
    while at + HEADER_SIZE <= len(view):
        magic, size, index, term, *_ = _unpack_entry(view, at)
        if magic != MAGIC_ENTRY or size < HEADER_SIZE:
            break
        if start + at + size > physical_offset:
            body = view[at + HEADER_SIZE : at + size]
            span = span_of(body, 0, len(body)) if is_message(body) else None
            what = "a configuration of the group"
            if span is not None:
                what = f"topic {topic_of(body, span)}, queue {span.queue_id}, queue offset {span.queue_offset}"
            return f"entry {index} of term {term} at {start + at} ({what})"
        at += size
    return "no entry: behind the last one, or a filler"
