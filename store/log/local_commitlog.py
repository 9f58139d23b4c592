"""The commit log of one broker on one disk: segments, the records in them, and group commit (RocketMQ CommitLog).

Invariant: `flushed_offset <= max_offset`; a record never spans two segments and never touches the last 8 bytes of one, which
hold the filler. This module decides when fsync is called, in `run` (RocketMQ GroupCommitService). A write or sync that fails
stops the log: it accepts no appends until `heal` has read the unsynced bytes back, found them whole, written them again, and
synced them together with the zeros in place of what a failed append has left.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import attrs
import trio

from ...message.fields import Buffer
from ...message.layout import (
    BLANK,
    MAGIC_BLANK,
    PHYSICAL_OFFSET_AT,
    Check,
    DerivedParts,
    check_record,
    derived_parts,
    put_physical_offset,
)
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.real import World
from ...world.ticks import next_tick
from ...world.workers import Workers
from ..config import StoreConfig
from ..errors import AppendUnclear, MissingSegment, NotWritable, OffsetGap, RecordTooLarge
from ..statuses import PutStatus
from . import local_recovery
from .commitlog import Appended, Evidence, LogFile
from .expiry import Expiry
from .pending import PendingPuts
from .segments import Segment, Segments

log = get_logger(__name__)

HEAL_SECONDS = 1.0
"""Pause before each attempt to heal a log after a failed write or sync, in seconds."""


@attrs.define(eq=False, repr=False)
class LocalCommitLog:
    """Implements `RawCommitLog`."""

    segments: Segments
    _clock: Clock
    _workers: Workers
    sync_flush: bool = False
    flush_interval_seconds: float = 0.5
    flush_timeout_seconds: float = 5.0
    """How long a put waits for its sync before it is answered FLUSH_DISK_TIMEOUT."""
    flushed_offset: int = 0
    max_offset: int = 0
    failure: str | None = None
    """Why the log accepts no appends, after a failed write or sync."""
    on_syncing: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    on_readable: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    on_truncated: list[Callable[[int], None]] = attrs.field(factory=list[Callable[[int], None]])
    _pending: PendingPuts[PutStatus] = attrs.field(factory=lambda: PendingPuts(PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT))
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _expiry: Expiry = attrs.field(init=False)
    _sync_lock: trio.Lock = attrs.field(factory=trio.Lock)
    rewrite_below: int = 0
    """Unflushed bytes before this position were written by a process that was killed. A sync of theirs may have failed, so the
    next flush writes them again before it syncs."""
    readable_limit: int | None = None
    """On a slave: the offset up to which its master lets consumers read, at most `max_offset`. The master may still lose the
    bytes behind it in a power cut, and then reuse their offsets. None if no other node sets a limit."""
    _withdrawn_end: int | None = None
    """Failed appends and cuts have left bytes between the end of the log and this position; None if none, or once zeros in
    their place have been synced."""
    _withdrawn: list[Segment] = attrs.field(factory=list[Segment])
    """Segments that a failed append has created, until they are removed."""
    _removal_unsynced: bool = True
    """Whether the directory may not have been synced since a segment was last removed, by this process or an earlier one."""
    _raw: bool = False
    """Whether the log follows a master, so that appended bytes need not end with a record."""

    def __attrs_post_init__(self) -> None:
        self._expiry = Expiry(self._pending.__len__, self._pending.expire, self._clock)

    @property
    def waits(self) -> bool:
        return self.sync_flush

    @property
    def may_answer_early(self) -> bool:
        return True

    @property
    def directory(self) -> str:
        return self.segments.directory

    @property
    def empty(self) -> bool:
        return not self.segments.files

    @property
    def min_offset(self) -> int:
        return self.segments.min_offset

    @property
    def committed_offset(self) -> int:
        return self.flushed_offset

    @property
    def readable_offset(self) -> int:
        # A consumer that saw a record before its sync would, after a power cut, be ahead of the log.
        end = self.flushed_offset if self.sync_flush else self.max_offset
        return end if self.readable_limit is None else min(end, self.readable_limit)

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        if self.failure is not None:
            raise NotWritable(self.failure)
        start = self.max_offset
        sizes = list(map(len, records))
        total = sum(sizes)
        if total > self.segments.segment_size - BLANK.size:
            self._check_fit(total if together else max(sizes))
        try:
            segment = self.segments.last(self.max_offset)
            free = segment.size - segment.wrote - BLANK.size
            if total <= free:
                offsets = self._write_run(segment, records, sizes)
            elif together:
                offsets = self._write_run(self._roll(segment), records, sizes)
            else:
                offsets = self._write_over_segments(segment, records, sizes, free)
        except BaseException as error:
            self._withdraw(start, total + BLANK.size, error)
            raise
        self.max_offset = self.segments.max_offset
        if self.sync_flush:
            self._wake.set()
        return Appended(start, offsets, self.max_offset)

    def _check_fit(self, size: int) -> None:
        # Checked before anything is written: a withdrawn filler may return in a power cut and hide the records written over it.
        room = self.segments.segment_size - BLANK.size
        if size > room:
            raise RecordTooLarge(f"{size} bytes do not fit a segment of {self.segments.segment_size}")

    def _write_run(self, segment: Segment, records: Sequence[bytes], sizes: list[int]) -> list[int]:
        buffer = bytearray().join(records)
        first = segment.start + segment.wrote
        *offsets, _ = accumulate(sizes, initial=first)
        to_field = PHYSICAL_OFFSET_AT - first
        for offset in offsets:
            put_physical_offset(buffer, offset + to_field, offset)
        if self.sync_flush:
            segment.prepare(len(buffer))
        segment.append(buffer)
        return offsets

    def _write_over_segments(self, segment: Segment, records: Sequence[bytes], sizes: list[int], free: int) -> list[int]:
        offsets: list[int] = []
        first = 0
        for index, size in enumerate(sizes):
            if size > free:
                if index > first:
                    offsets += self._write_run(segment, records[first:index], sizes[first:index])
                segment = self._roll(segment)
                first, free = index, segment.size - BLANK.size
            free -= size
        return offsets + self._write_run(segment, records[first:], sizes[first:])

    def _roll(self, segment: Segment) -> Segment:
        remaining = segment.size - segment.wrote
        segment.file.write(BLANK.codec.pack(remaining, MAGIC_BLANK), segment.wrote)
        segment.wrote = segment.size
        return self.segments.last()

    def _withdraw(self, end: int, size_max: int, reason: BaseException) -> None:
        """Remove what a failed append has written, at most `size_max` bytes behind `end`, and accept no appends until `heal`.

        There may be whole records, which a restart would find, although their producer got the answer that nothing was stored.
        Until the removal is synced, a power cut may leave some of their sectors, and these must not get between the sectors of
        records that are written in their place.

        Raises:
            AppendUnclear: the disk refused to remove it; `heal` tries again.
        """
        files = self.segments.files
        while files and files[-1].start > end:
            self._withdrawn.append(files.pop())
        self._withdrawn_end = end
        holder = self.segments.find(end)
        if holder is not None:
            at = holder.wrote = end - holder.start
            self._withdrawn_end += holder.nonzero_size(at, size_max)
        self.failure = f"what a failed append has written behind {end} is being removed"
        self._wake.set()
        try:
            self._clear_withdrawn(self._withdrawn_end)
        except OSError as error:
            raise AppendUnclear(error.errno, error.strerror) from reason

    def _clear_withdrawn(self, until: int) -> None:
        while self._withdrawn:
            segment = self._withdrawn[-1]
            segment.file.clear(0)
            self.segments.disk.remove(segment.path)
            self._withdrawn.pop().close()
        holder = self.segments.find(self.max_offset)
        if holder is not None and holder.end < until <= holder.start + holder.size:  # else `heal` has removed its segment
            # Not `clear`: it passes over what reads as zeros, and after a failed sync these may be missing on the medium.
            holder.file.write(bytes(until - holder.end), holder.wrote)

    def append_raw(self, offset: int, data: Buffer) -> None:
        if self.failure is not None:
            raise NotWritable(self.failure)
        if self.segments.files and offset != self.max_offset:
            if self.max_offset > self.min_offset:
                raise OffsetGap(offset, self.max_offset)
            # The process ended before a record was received, and the master has deleted that segment since.
            self.segments.clear()
        self._raw = True
        empty = not self.segments.files
        segment = self.segments.last(offset)
        if empty:
            segment.wrote = offset - segment.start
        if segment.wrote + len(data) > segment.size:
            raise OffsetGap(offset + len(data), segment.start + segment.size)
        if self.sync_flush:
            segment.prepare(len(data))
        try:
            segment.append(data)
        except OSError as error:
            self._withdraw(segment.end, len(data), error)
            raise
        if empty:
            self.flushed_offset = offset
        self.max_offset = segment.end
        if self.sync_flush:
            self._wake.set()

    async def reserve(self, end: int) -> None:
        if self.segments.reservable:
            await self._workers.run(self.segments.reserve, end)

    async def truncate(self, offset: int) -> None:
        async with self._sync_lock:
            self._pending.fail(PutStatus.UNKNOWN_ERROR)
            self._cut(offset)

    def _cut(self, offset: int) -> None:
        """Drop what is at or behind `offset`.

        Raises:
            OSError: the disk refused. The log ends where its files do now, and accepts no appends until `heal`.
        """
        holder = self.segments.find(offset)
        room_end = holder.start + holder.size if holder is not None else offset
        cleared = min(max(self.max_offset, self._withdrawn_end or 0), room_end)
        try:
            self.segments.truncate(offset)
        except OSError:
            if self.segments.max_offset == offset:
                self._withdrawn_end = cleared
            self.failure = self.failure or f"what is being cut behind {offset} is not removed from the disk yet"
            self._wake.set()
            raise
        finally:
            self.max_offset = min(self.max_offset, self.segments.max_offset)
            self.flushed_offset = min(self.flushed_offset, self.max_offset)

    async def clear(self) -> None:
        async with self._sync_lock:
            self._pending.fail(PutStatus.UNKNOWN_ERROR)
            self.segments.clear()
            self.max_offset = self.flushed_offset = 0

    def when_stored(self, end: int, done: Callable[[PutStatus], None]) -> None:
        if not self.sync_flush or end <= self.flushed_offset:
            done(PutStatus.PUT_OK)
        else:
            self._pending.add(end, self._clock.monotonic() + self.flush_timeout_seconds, done)
            self._expiry.wake()

    def record(self, offset: int, size: int) -> memoryview | None:
        segments = self.segments
        files = segments.files
        if not files:
            return None
        index = (offset - files[0].start) // segments.segment_size
        if not 0 <= index < len(files):
            return None
        segment = files[index]
        at = offset - segment.start
        if at + size > segment.wrote:
            return None
        return segment.view[at : at + size]

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        segment = self.segments.find(offset)
        if segment is None:
            return memoryview(b"")
        at = offset - segment.start
        return segment.view[at : min(segment.wrote, at + size_max)]

    def read(self, offset: int, size: int, more: int = 0) -> memoryview:
        return self.segments.read(offset, size, more)

    def segment_end(self, offset: int) -> int:
        return offset - offset % self.segments.segment_size + self.segments.segment_size

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        return self._walk(start, end, check_crc=False)

    def _walk(self, start: int, end: int, *, check_crc: bool) -> Iterator[tuple[int, DerivedParts | None]]:
        position = start
        while position < end:
            view = self.slice_from(position, end - position)
            at, limit = 0, len(view)
            while at < limit:
                parts = derived_parts(view, at, limit)
                if parts is None or (check_crc and check_record(view, at, limit)[0] is not Check.RECORD):
                    segment_end = self.segment_end(position)
                    if check_record(view, at, limit)[0] is not Check.BLANK or segment_end > end:
                        return
                    at = segment_end - position
                    yield position + at, None
                    break
                at += parts[0]
                yield position + at, parts
            if at == 0:
                return
            position += at

    def files(self) -> list[LogFile]:
        return [LogFile(segment.path, segment.start, segment.end, segment.size) for segment in self.segments.files]

    async def remove_oldest(self) -> None:
        oldest = self.files()[0]
        # A power cut may bring back any file whose removal is not synced; one before the last of these would leave a gap.
        if self._removal_unsynced:
            await self._workers.run(self.segments.disk.sync_directory, self.segments.directory)
        await trio.lowlevel.checkpoint()
        if self.files()[:1] != [oldest]:
            raise OSError(errno.EBUSY, "the log was cut while its oldest segment was about to be removed", oldest.path)
        self._removal_unsynced = True
        self.segments.remove(self.segments.files[0])

    def close(self) -> None:
        self.segments.close()

    # ---------------------------------------------------------------- recovery

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        return local_recovery.start_below(self.segments, acceptable)

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:
        walk = self._walk(start, self.segments.max_offset, check_crc=evidence.check_crc)
        return local_recovery.belonging(self.segments, walk, evidence)

    def end_at(self, end: int, read_from: int, evidence: Evidence) -> bool:
        local_recovery.check_heads(self.segments, evidence)
        torn = local_recovery.truncate_torn_tail(self.segments, end, evidence)
        self.max_offset = self.flushed_offset = end
        if not evidence.clean_exit:
            self._make_durable(read_from, evidence)
        return torn

    def _make_durable(self, read_from: int, evidence: Evidence) -> None:
        """Sync what was read back, because a process that was killed may have left it in the page cache only.

        If a sync of that process had failed, another one would not help, so what is not known to be on the medium is written
        again. With asynchronous flush, and if the page cache is intact, that is left to the next flush.
        """
        end = self.max_offset
        if evidence.verified_offset < 0:
            self.segments.sync(self.min_offset, read_from)
            start = read_from
        else:
            start = min(max(evidence.verified_offset, self.min_offset), end)
        if evidence.page_cache_intact and not self.sync_flush:
            self.flushed_offset, self.rewrite_below = start, end
        else:
            self.rewrite(start, end)

    def limit_readable(self, offset: int) -> None:
        if self.readable_limit is not None:
            self.readable_limit = offset

    # ---------------------------------------------------------------- syncing

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expiry.run)
            task_status.started()
            while True:
                if self.sync_flush:
                    await self._wake.wait()
                    self._wake = trio.Event()
                else:
                    await next_tick(self.flush_interval_seconds)
                if self.failure is None:
                    await self.flush()
                else:
                    await trio.sleep(HEAL_SECONDS)
                    await self.heal()

    async def flush(self) -> None:
        async with self._sync_lock:
            start, target = self.flushed_offset, self.max_offset
            if start >= target or self.failure is not None:
                return
            for listener in self.on_syncing:
                listener()
            try:
                if start < self.rewrite_below:
                    await self._workers.run(self.rewrite, start, target)
                else:
                    await self._workers.run(self.segments.sync, start, target)
            except OSError as error:
                self._stop(f"the disk failed to sync [{start}, {target}): {error.strerror or error}")
                return
            self._reach(target)

    def _reach(self, target: int) -> None:
        assert self.flushed_offset <= target <= self.max_offset
        self.flushed_offset = target
        self._pending.reach(target)
        for listener in self.on_readable:
            listener()

    def _stop(self, reason: str) -> None:
        # What the failed sync covered may or may not be on the medium, and a second sync of the same pages can succeed
        # without having written them. So it is no reason to answer PUT_OK to waiting puts.
        log.error("log_sync_failed", reason=reason, flushed_offset=self.flushed_offset, max_offset=self.max_offset)
        self.failure = reason
        self._pending.fail(PutStatus.FLUSH_DISK_TIMEOUT)
        self._wake.set()

    async def heal(self) -> None:
        """Make the log writable again after a failed write or sync: verify the unsynced bytes, then write and sync them again.

        In a slave's log, an incomplete last record is dropped: whether it is damaged cannot be known, and the master sends it
        again.
        """
        async with self._sync_lock:
            start, end = self.flushed_offset, self.max_offset
            try:
                read_back = partial(local_recovery.whole_until, self.segments, start, end, raw=self._raw)
                whole = max(await self._workers.run(read_back), start)
                if whole < end:
                    self._cut(whole)
                    end = whole
                if self._withdrawn_end is not None:
                    self._clear_withdrawn(self._withdrawn_end)
                await self._workers.run(self.rewrite, start, end)
            except OSError as error:
                log.warning("log_still_failing", reason=str(error.strerror or error))
                self._wake.set()
                return
            log.info("log_healed", rewritten_bytes=end - start)
            self.failure = self._withdrawn_end = None
            self._reach(end)

    def rewrite(self, start: int, end: int) -> None:
        """Write [start, end) again and sync it, because after a failed sync another sync alone would not write it; blocks.

        The file that holds `end` is synced in any case.

        The caller has read these bytes back and found them whole.

        Raises:
            OSError: the disk refused.
        """
        self.segments.rewrite(start, end)
        self.segments.created = True
        self.segments.sync(start, end + 1)


def open_local_commit_log(world: World, config: StoreConfig) -> LocalCommitLog:
    """Load the segments of `config.commit_log_directory`; every byte counts as written until recovery has found the end.

    Raises:
        WrongSegmentSize: a file has another size. Nothing stays open.
    """
    segments = Segments(world.disk, config.commit_log_directory, config.mapped_file_size_commit_log)
    segments.load()
    if (gap := segments.gap) is not None:
        found = next(segment.start for segment in segments.files if segment.start > gap)
        segments.close()
        raise MissingSegment(segments.directory, gap, found)
    return LocalCommitLog(
        segments,
        world.clock,
        world.workers,
        sync_flush=config.sync_flush,
        flush_interval_seconds=config.flush_interval_commit_log / 1000,
        flush_timeout_seconds=config.sync_flush_timeout / 1000,
    )
