"""Cutting off the end of a log on purpose, offline: the last resort that the store's error texts name.

The store is locked meanwhile. What is cut is first copied to another directory. Queues and index are not touched: the recovery
mark, which covers what is cut, is erased, so that the next start finds them ahead of the log and corrects them.
"""

from __future__ import annotations

from contextlib import suppress

import attrs

from ...message.layout import Check, check_record, span_of, topic_of
from ...message.numbers import is_digits
from ...world.disk import Disk
from ...world.files import PIECE_BYTES, copy_sparse
from ..checkpoint import Checkpoint
from ..errors import NoSuchOffset
from ..locking import lock_store
from ..log.segments import Segment, Segments


@attrs.define(eq=False)
class QueueLoss:
    """What one queue would lose."""

    first_offset: int
    last_offset: int
    messages: int = 0


@attrs.define(eq=False)
class Losses:
    """What a cut would lose."""

    begin: int
    end: int
    """Physical offsets: the bytes from `begin` to `end` would be cut, including the zeros behind the last record."""
    damaged: int = 0
    """How many places have no sound record, so that their content is unknown."""
    unknown_bytes: int = 0
    """How many bytes these places have; some hide the records behind them, up to the end of the file."""
    queues: dict[tuple[str, int], QueueLoss] = attrs.field(factory=dict[tuple[str, int], QueueLoss])


@attrs.frozen
class Cut:
    """The result of a cut."""

    dropped_bytes: int
    aside: str
    """The directory that has the files as they were."""


def commit_log_of(root: str, directory: str | None) -> str:
    """The directory of a store's log."""
    return directory or f"{root}/commitlog"


def losses_of(disk: Disk, root: str, offset: int, directory: str | None = None) -> Losses:
    """List what would be lost by cutting at the physical offset `offset`; changes nothing.

    Raises:
        NoSuchOffset: the log does not reach there.
        WrongSegmentSize, OSError: the log cannot be read.
    """
    segments = _load(disk, commit_log_of(root, directory), offset)
    try:
        losses = Losses(offset, segments.max_offset)
        for segment in segments.files:
            at = max(offset - segment.start, 0)
            while at < segment.size:
                size = _count(segment, at, losses)
                if size == 0:
                    break
                at += size
        return losses
    finally:
        segments.close()


def _count(segment: Segment, at: int, losses: Losses) -> int:
    """Count the record at `at`; returns its size, or 0 if no further record can be found in the file."""
    view = segment.view
    check, span = check_record(view, at, len(view))
    if check is Check.BLANK:
        return 0
    if check is Check.NOTHING or span is None:
        span = span_of(view, at, len(view))  # its sizes may still lead to the next one
        size = span.size if span is not None else _size_before_zeros(segment, at)
        losses.damaged += size > 0
        losses.unknown_bytes += size
        return span.size if span is not None else 0
    loss = losses.queues.setdefault((topic_of(view, span), span.queue_id), QueueLoss(span.queue_offset, span.queue_offset))
    loss.first_offset = min(loss.first_offset, span.queue_offset)
    loss.last_offset = max(loss.last_offset, span.queue_offset)
    loss.messages += 1
    return span.size


def _size_before_zeros(segment: Segment, at: int) -> int:
    """How many bytes the file has from `at` on before those that are zeros up to its end."""
    for low in reversed(range(at, segment.size, PIECE_BYTES)):
        if size := segment.nonzero_size(low, PIECE_BYTES):
            return low + size - at
    return 0


def cut_log(disk: Disk, root: str, offset: int, directory: str | None = None) -> Cut:
    """Drop everything from the physical offset `offset` on, after copying it to another directory.

    Args:
        directory: the directory of the log, if it is not `commitlog` below the store.

    Raises:
        StoreInUse: a broker has the store open. Nothing was cut.
        NoSuchOffset: the log does not reach there. Nothing was cut.
        OSError: the disk refused; the cut may be repeated.
    Durability: on return the cut and the copies are on the medium.
    """
    log_directory = commit_log_of(root, directory)
    lock = lock_store(disk, root, log_directory)
    try:
        segments = _load(disk, log_directory, offset)
        try:
            aside = _move_aside(disk, segments, offset)
            _forget_mark(disk, root)
            dropped = segments.max_offset - offset
            while segments.files and segments.files[-1].start >= offset and len(segments.files) > 1:
                segments.remove(segments.files[-1])
            segments.truncate(max(offset, segments.min_offset))
            return Cut(dropped, aside)
        finally:
            segments.close()
    finally:
        lock.release()


def accept_missing(disk: Disk, root: str) -> None:
    """Let the next start accept the log as it is, although files of it are missing at its beginning or its end.

    Raises:
        StoreInUse: a broker has the store open. Nothing was changed.
        OSError: the disk refused.
    """
    lock = lock_store(disk, root)
    try:
        _forget_mark(disk, root)
    finally:
        lock.release()


def _load(disk: Disk, directory: str, offset: int) -> Segments:
    names = [name for name in disk.list_directory(directory) if is_digits(name)]
    segments = Segments(disk, directory, disk.size(f"{directory}/{names[0]}") if names else 0)
    segments.load()
    # An offset in a gap is accepted: it cuts at the end of the file before the gap.
    if not segments.min_offset <= offset < segments.max_offset:
        low, high = segments.min_offset, segments.max_offset
        segments.close()
        raise NoSuchOffset(offset, low, high)
    return segments


def _forget_mark(disk: Disk, root: str) -> None:
    checkpoint = Checkpoint(disk, f"{root}/checkpoint")
    checkpoint.load()
    checkpoint.forget()


def _move_aside(disk: Disk, segments: Segments, offset: int) -> str:
    """Copy every file that has bytes from `offset` on; returns the directory of the copies."""
    base = aside = f"{segments.directory}-cut-at-{offset}"
    number = 1
    while disk.exists(aside):
        number += 1
        aside = f"{base}-{number}"
    disk.make_directories(aside)
    try:
        for segment in segments.files:
            if segment.start + segment.size > offset:
                copy_sparse(disk, segment.file, f"{aside}/{segment.start:020d}")
        disk.sync_directory(aside)
        disk.sync_directory(aside.rpartition("/")[0] or ("/" if aside.startswith("/") else "."))
    except OSError:
        with suppress(OSError):
            disk.remove_tree(aside)  # it would keep the full disk full, and the next attempt makes another one
        raise
    return aside
