"""Giving up the end of a log on purpose, offline: what the store's own errors name as the last way out.

The store is locked meanwhile. What is cut is moved aside first, never deleted. Queues and index are not touched: the next start
finds them ahead of the log and corrects them, since the recovery mark, which would vouch for what is cut, is forgotten too.
"""

from __future__ import annotations

import attrs

from ..message.layout import Check, check_record, span_of, topic_of
from ..world.disk import Disk, DiskLock
from .checkpoint import Checkpoint
from .errors import NoSuchOffset, StoreInUse
from .segments import Segments

COPY_BYTES = 1 << 20


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
    """Physical offsets; the bytes between them would be cut, zeros behind the last record included."""
    damaged: int = 0
    """Places at which no sound record begins: what is there cannot be told."""
    queues: dict[tuple[str, int], QueueLoss] = attrs.field(factory=dict[tuple[str, int], QueueLoss])


@attrs.frozen
class Cut:
    """What a cut has done."""

    dropped_bytes: int
    aside: str
    """The directory that has the files as they were."""


def commit_log_of(root: str, directory: str | None) -> str:
    """Where the log of a store is."""
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
                size = _count(segment.view, at, losses)
                if size == 0:
                    break
                at += size
        return losses
    finally:
        segments.close()


def _count(view: memoryview, at: int, losses: Losses) -> int:
    """Count the record at `at`; returns its size, 0 where the file has no further record that can be found."""
    check, span = check_record(view, at, len(view))
    if check is Check.NOTHING and any(view[at : at + 64]):
        losses.damaged += 1
        span = span_of(view, at, len(view))  # its sizes may still lead to the next one
        return span.size if span is not None else 0
    if span is None:
        return 0
    loss = losses.queues.setdefault((topic_of(view, span), span.queue_id), QueueLoss(span.queue_offset, span.queue_offset))
    loss.first_offset = min(loss.first_offset, span.queue_offset)
    loss.last_offset = max(loss.last_offset, span.queue_offset)
    loss.messages += 1
    return span.size


def cut_log(disk: Disk, root: str, offset: int, directory: str | None = None) -> Cut:
    """Drop everything from the physical offset `offset` on, after moving it aside.

    Args:
        directory: of the log, if it is not `commitlog` below the store.

    Raises:
        StoreInUse: a broker has the store open. Nothing was cut.
        NoSuchOffset: the log does not reach there. Nothing was cut.
        OSError: the disk refused; the cut may be repeated.
    Durability: on return the cut, and what was moved aside, are on the medium.
    """
    lock = _lock(disk, root)
    try:
        log_directory = commit_log_of(root, directory)
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
    """Let the next start take the log as it is, although files of it are missing at its beginning or its end.

    Raises:
        StoreInUse: a broker has the store open. Nothing was changed.
        OSError: the disk refused.
    """
    lock = _lock(disk, root)
    try:
        _forget_mark(disk, root)
    finally:
        lock.release()


def _lock(disk: Disk, root: str) -> DiskLock:
    try:
        return disk.lock(f"{root}/lock")
    except BlockingIOError:
        raise StoreInUse(root) from None


def _load(disk: Disk, directory: str, offset: int) -> Segments:
    names = [name for name in disk.list_directory(directory) if name.isdigit()]
    segments = Segments(disk, directory, disk.size(f"{directory}/{names[0]}") if names else 0)
    segments.load()
    # An offset in a gap is as good as the end of what is before it.
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
    for segment in segments.files:
        if segment.start + segment.size > offset:
            copy = disk.open(f"{aside}/{segment.start:020d}", create_size=segment.size)
            try:
                for at in range(0, segment.size, COPY_BYTES):
                    piece = segment.file.read(at, COPY_BYTES)
                    if piece.count(0) != len(piece):  # what is not written stays a hole
                        copy.write(piece, at)
                copy.sync()
            finally:
                copy.close()
    disk.sync_directory(aside)
    return aside
