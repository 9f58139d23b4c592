"""A commit log of two spans: an older one in classic segments, and behind it the log that takes the puts now.

A store keeps its messages when its mode changes: below the divided offset the older segments are read, from there on the newer
log with its own framing. Physical offsets never overlap, so an offset names its span. Invariant: the newer log begins where the
last older file ends; the older log loses its files before the newer one loses any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from ..message.layout import DerivedParts
from .commitlog import Appended, CommitLog, Done, Evidence, LogFile
from .errors import DamagedLog
from .older_log import OlderLog


@attrs.define(eq=False)
class DividedCommitLog:
    """Implements `CommitLog`."""

    older: OlderLog
    newer: CommitLog
    continue_from: Callable[[int], None]
    """Lets the newer log, which has no record yet, begin at a position; blocks."""
    divided_offset: int
    """Where the newer log begins; until recovery has sealed the older log, where that ends at most."""
    sealed: bool
    """The newer log has had a record, so the older one takes nothing any more and its end is known."""

    @property
    def waits(self) -> bool:
        return self.newer.waits

    @property
    def may_answer_early(self) -> bool:
        return self.newer.may_answer_early

    @property
    def on_syncing(self) -> list[Callable[[], None]]:
        return self.newer.on_syncing

    @property
    def on_readable(self) -> list[Callable[[], None]]:
        return self.newer.on_readable

    @property
    def on_truncated(self) -> list[Callable[[int], None]]:
        return self.newer.on_truncated

    @property
    def directory(self) -> str:
        return self.newer.directory

    @property
    def failure(self) -> str | None:
        return self.newer.failure

    @property
    def empty(self) -> bool:
        return self.older.expired and self.newer.empty

    @property
    def min_offset(self) -> int:
        return self.newer.min_offset if self.older.expired else self.older.local.min_offset

    @property
    def max_offset(self) -> int:
        return max(self.newer.max_offset, self.divided_offset)

    @property
    def flushed_offset(self) -> int:
        return max(self.newer.flushed_offset, self.divided_offset)

    @property
    def committed_offset(self) -> int:
        return max(self.newer.committed_offset, self.divided_offset)

    @property
    def readable_offset(self) -> int:
        return max(self.newer.readable_offset, self.divided_offset)

    @property
    def readable_limit(self) -> int | None:
        limit = self.newer.readable_limit
        return None if limit is None else max(limit, self.divided_offset)

    def limit_readable(self, offset: int) -> None:
        self.newer.limit_readable(max(offset, self.divided_offset))

    # ---------------------------------------------------------------- puts go to the newer log

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        return self.newer.append(records, together=together)

    def when_stored(self, end: int, done: Done) -> None:
        self.newer.when_stored(end, done)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.newer.run(task_status=task_status)

    async def flush(self) -> None:
        await self.newer.flush()

    async def truncate(self, offset: int) -> None:
        await self.newer.truncate(offset)

    async def clear(self) -> None:
        await self.newer.clear()

    # ---------------------------------------------------------------- reading

    def _span(self, offset: int) -> CommitLog:
        return self.newer if offset >= self.divided_offset else self.older.local

    def record(self, offset: int, size: int) -> memoryview | None:
        return self._span(offset).record(offset, size)

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        return self._span(offset).slice_from(offset, size_max)

    def segment_end(self, offset: int) -> int:
        return self._span(offset).segment_end(offset)

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        position = start
        if start < self.divided_offset:
            for position, parts in self.older.records(start, min(end, self.divided_offset)):
                yield position, parts
        if self.divided_offset <= position < end:
            yield from self.newer.records(position, end)

    def files(self) -> list[LogFile]:
        return [*self.older.local.files(), *self.newer.files()]

    # ---------------------------------------------------------------- recovery

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        accepted = False

        def noted(physical_offset: int, store_timestamp: int) -> bool:
            nonlocal accepted
            accepted = acceptable(physical_offset, store_timestamp)
            return accepted

        start = self.newer.start_below(noted)
        return start if accepted or self.older.expired else self.older.start_below(acceptable)

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:
        position = start
        if start < self.divided_offset:
            for position, parts in self.older.read_back(start, evidence):
                if position == self.divided_offset and not self.sealed:
                    return  # nothing follows the filler yet: it is no part of the log
                yield position, parts
        if position >= self.divided_offset and self.sealed:
            yield from self.newer.read_back(position, evidence)

    def end_at(self, end: int, read_from: int, evidence: Evidence) -> bool:
        if not self.sealed:
            torn = self.older.recover_end(end, read_from, evidence)
            self.divided_offset = self.older.files_end
            self.continue_from(self.divided_offset)
            return torn
        if end < self.divided_offset:
            raise DamagedLog(self.older.local.directory, end, self.divided_offset)
        self.older.check_heads(evidence)
        return self.newer.end_at(end, read_from, evidence)

    # ---------------------------------------------------------------- retention

    def remove_oldest(self) -> None:
        if self.older.expired:
            self.newer.remove_oldest()
        else:
            self.older.remove_oldest()

    def close(self) -> None:
        self.older.close()
        self.newer.close()
