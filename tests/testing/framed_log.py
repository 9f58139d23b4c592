"""A commit log in memory, with framing, a majority that confirms later, and entries without a message.

It implements `CommitLog` the way a replicated log has to, without disk or network: each record follows a header of 48 bytes, a
filler ends each segment, every seventh entry has no message, and consumers see nothing behind the committed position. It
proves that a store needs nothing beyond the interface.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from ledgermq.message.layout import PHYSICAL_OFFSET_AT, DerivedParts, derived_parts, put_physical_offset
from ledgermq.store.errors import NotWritable
from ledgermq.store.log.commitlog import Appended, Done, Evidence, LogFile
from ledgermq.store.log.pending import PendingPuts
from ledgermq.store.statuses import PutStatus

HEADER_SIZE = 48
COMMIT_SECONDS = 0.005
"""How long the majority takes to confirm what has been appended."""
TIMEOUT_SECONDS = 3.0
"""How long a put waits for the majority."""
_HEADER = struct.Struct(">II")
_MESSAGE, _NO_MESSAGE, _FILLER = 1, 2, 3
_FILLER_SIZE = _HEADER.size
_NO_MESSAGE_EVERY = 7


@attrs.define(eq=False)
class Medium:
    """The part of a `FramedLog` that survives it: the bytes of its segments, and how many of them count."""

    segment_size: int = 8192
    segments: dict[int, bytearray] = attrs.field(factory=dict[int, bytearray])
    end: int = 0
    committed: int = 0
    stalled: bool = False
    """Whether the majority confirms nothing."""

    def cut_power(self) -> None:
        """Lose what the majority has not confirmed."""
        self.end = self.committed
        for start, segment in list(self.segments.items()):
            if start >= self.end:
                del self.segments[start]
            elif self.end < start + self.segment_size:
                segment[self.end - start :] = bytes(start + self.segment_size - self.end)


@attrs.define(eq=False)
class FramedLog:
    """Implements `CommitLog`."""

    medium: Medium
    on_syncing: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    on_readable: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    on_truncated: list[Callable[[int], None]] = attrs.field(factory=list[Callable[[int], None]])
    _pending: PendingPuts[PutStatus] = attrs.field(factory=lambda: PendingPuts(PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT))
    _entries: int = 0

    directory = "memory"
    waits = True
    may_answer_early = False
    failure: str | None = None

    @property
    def empty(self) -> bool:
        return not self.medium.segments

    @property
    def min_offset(self) -> int:
        return min(self.medium.segments, default=0)

    @property
    def max_offset(self) -> int:
        return self.medium.end

    @property
    def flushed_offset(self) -> int:
        return self.medium.committed

    @property
    def committed_offset(self) -> int:
        return self.medium.committed

    @property
    def readable_offset(self) -> int:
        return self.medium.committed

    @property
    def readable_limit(self) -> int | None:
        return self.medium.committed

    def limit_readable(self, offset: int) -> None:
        """Do nothing: the committed position is the medium's own and does not depend on a checkpoint."""

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        room = self.medium.segment_size - _FILLER_SIZE
        sizes = [HEADER_SIZE + len(record) for record in records]
        if (sum(sizes) if together else max(sizes)) > room:
            raise NotWritable(f"{sum(sizes)} bytes do not fit a segment of {self.medium.segment_size}")
        start = self.medium.end
        if together:
            self._make_room(sum(sizes))
        offsets: list[int] = []
        for record in records:
            self._entries += 1
            if self._entries % _NO_MESSAGE_EVERY == 0 and not together:
                self._write(_NO_MESSAGE, b"an entry without a message")
            self._make_room(HEADER_SIZE + len(record))
            offset = self.medium.end + HEADER_SIZE
            patched = bytearray(record)
            put_physical_offset(patched, PHYSICAL_OFFSET_AT, offset)
            self._write(_MESSAGE, patched)
            offsets.append(offset)
        return Appended(start, offsets, self.medium.end)

    def _write(self, kind: int, body: bytes | bytearray) -> None:
        self._make_room(HEADER_SIZE + len(body))
        segment_start = self.medium.end - self.medium.end % self.medium.segment_size
        segment = self.medium.segments.setdefault(segment_start, bytearray(self.medium.segment_size))
        at = self.medium.end - segment_start
        entry = _HEADER.pack(len(body), kind).ljust(HEADER_SIZE, b"\0") + body
        segment[at : at + len(entry)] = entry
        self.medium.end += len(entry)

    def _make_room(self, size: int) -> None:
        at = self.medium.end % self.medium.segment_size
        if at and at + size > self.medium.segment_size - _FILLER_SIZE:
            segment = self.medium.segments[self.medium.end - at]
            segment[at : at + _FILLER_SIZE] = _HEADER.pack(self.medium.segment_size - at, _FILLER)
            self.medium.end += self.medium.segment_size - at

    def when_stored(self, end: int, done: Done) -> None:
        if end <= self.medium.committed:
            done(PutStatus.PUT_OK)
        else:
            self._pending.add(end, trio.current_time() + TIMEOUT_SECONDS, done)

    def record(self, offset: int, size: int) -> memoryview | None:
        view = self.slice_from(offset, size)
        return view if len(view) == size else None

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        start = offset - offset % self.medium.segment_size
        segment = self.medium.segments.get(start)
        if segment is None:
            return memoryview(b"")
        stop = min(self.medium.end - start, self.medium.segment_size, offset - start + size_max)
        return memoryview(bytes(segment[offset - start : stop]))

    def read(self, offset: int, size: int, more: int = 0) -> memoryview:
        return self.slice_from(offset, size)

    def segment_end(self, offset: int) -> int:
        return offset - offset % self.medium.segment_size + self.medium.segment_size

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        head = self.slice_from(start, _FILLER_SIZE)
        if len(head) == _FILLER_SIZE and _HEADER.unpack(head)[1] > _FILLER:  # the place of a record
            start -= HEADER_SIZE
        position = max(start, self.min_offset)
        while position + _FILLER_SIZE <= min(end, self.medium.end):
            view = self.slice_from(position, end - position)
            size, kind = _HEADER.unpack_from(view)
            if kind == _FILLER:
                position += size
                yield position, None
            elif kind == _NO_MESSAGE:
                position += HEADER_SIZE + size
                yield position, None
            else:
                parts = derived_parts(view, HEADER_SIZE, len(view))
                if kind != _MESSAGE or parts is None:
                    return
                position += HEADER_SIZE + size
                yield position, parts

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await trio.sleep(COMMIT_SECONDS)
            if not self.medium.stalled:
                await self.flush()
            self._pending.expire(trio.current_time())

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self.medium.stalled and self.medium.committed < self.medium.end:
            self.medium.committed = self.medium.end
            self._pending.reach(self.medium.committed)
            for listener in self.on_readable:
                listener()

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        return self.min_offset

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:
        return self.records(start, self.medium.end)

    def end_at(self, end: int, read_from: int, evidence: Evidence) -> bool:
        assert end == self.medium.end
        return False

    def files(self) -> list[LogFile]:
        size = self.medium.segment_size
        return [LogFile(f"{start:020d}", start, min(start + size, self.medium.end), size) for start in self.medium.segments]

    async def remove_oldest(self) -> None:
        await trio.lowlevel.checkpoint()
        del self.medium.segments[self.min_offset]

    async def truncate(self, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        self.medium.committed = min(self.medium.committed, offset)
        self.medium.cut_power() if offset == self.medium.committed else self._truncate_uncommitted(offset)
        self._pending.fail(PutStatus.UNKNOWN_ERROR)

    def _truncate_uncommitted(self, offset: int) -> None:
        committed, self.medium.committed = self.medium.committed, offset
        self.medium.cut_power()
        self.medium.committed = committed

    async def clear(self) -> None:
        await self.truncate(0)
        self.medium.segments.clear()
