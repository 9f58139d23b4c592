"""A commit log of two spans: an older log in classic segments, and behind it the newer log, which receives the puts.

A store keeps its messages when its mode changes: below the divided offset the older segments are read, from there on the newer
log with its own framing. Physical offsets never overlap, so an offset names its span. Invariant: the newer log begins where the
last older file ends; all files of the older log expire before any of the newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from ...message.layout import DerivedParts
from ..errors import DamagedLog, MissingLog
from .commitlog import CommitLog, Evidence, LogFile
from .older_log import OlderLog
from .wrapping_log import WrappingCommitLog


@attrs.define(eq=False, repr=False)
class DividedCommitLog(WrappingCommitLog[CommitLog]):
    """Implements `CommitLog`; `inner` is the newer log, which receives the puts."""

    older: OlderLog
    continue_from: Callable[[int], None]
    """Lets the newer log, which has no record yet, begin at a position; blocks."""
    divided_offset: int
    """The offset at which the newer log begins. Until recovery has sealed the older log, its end may be before this."""
    sealed: bool
    """Whether the newer log has had a record: then nothing is appended to the older one, and its end is known."""

    @property
    def empty(self) -> bool:
        return self.older.expired and self.inner.empty

    @property
    def min_offset(self) -> int:
        return self.inner.min_offset if self.older.expired else self.older.local.min_offset

    @property
    def max_offset(self) -> int:
        return max(self.inner.max_offset, self.divided_offset)

    @property
    def flushed_offset(self) -> int:
        return max(self.inner.flushed_offset, self.divided_offset)

    @property
    def committed_offset(self) -> int:
        return max(self.inner.committed_offset, self.divided_offset)

    @property
    def readable_offset(self) -> int:
        return max(self.inner.readable_offset, self.divided_offset)

    @property
    def readable_limit(self) -> int | None:
        limit = self.inner.readable_limit
        return None if limit is None else max(limit, self.divided_offset)

    def limit_readable(self, offset: int) -> None:
        self.inner.limit_readable(max(offset, self.divided_offset))

    # ---------------------------------------------------------------- reading

    def _span(self, offset: int) -> CommitLog:
        return self.inner if offset >= self.divided_offset else self.older.local

    def record(self, offset: int, size: int) -> memoryview | None:
        return self._span(offset).record(offset, size)

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        return self._span(offset).slice_from(offset, size_max)

    def read(self, offset: int, size: int, more: int = 0) -> memoryview:
        return self._span(offset).read(offset, size, more)

    def segment_end(self, offset: int) -> int:
        return self._span(offset).segment_end(offset)

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        position = start
        if start < self.divided_offset:
            for position, parts in self.older.records(start, min(end, self.divided_offset)):
                yield position, parts
        if self.divided_offset <= position < end:
            yield from self.inner.records(position, end)

    def files(self) -> list[LogFile]:
        return [*self.older.local.files(), *self.inner.files()]

    # ---------------------------------------------------------------- recovery

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        accepted = False

        def noted(physical_offset: int, store_timestamp: int) -> bool:
            nonlocal accepted
            accepted = acceptable(physical_offset, store_timestamp)
            return accepted

        start = self.inner.start_below(noted)
        return start if accepted or self.older.expired else self.older.start_below(acceptable)

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:
        position = start
        if start < self.divided_offset:
            for position, parts in self.older.read_back(start, evidence):
                if position == self.divided_offset and not self.sealed:
                    return  # nothing follows the filler yet: it is no part of the log
                yield position, parts
        if position >= self.divided_offset and self.sealed:
            yield from self.inner.read_back(position, evidence)

    def end_at(self, end: int, read_from: int, evidence: Evidence) -> bool:
        if not self.sealed:
            if (known := max(end, evidence.synced_offset)) > self.older.files_end:
                raise MissingLog(self.inner.directory, known)
            torn = self.older.recover_end(end, read_from, evidence)
            self.divided_offset = self.older.files_end
            self.continue_from(self.divided_offset)
            return torn
        if end < self.divided_offset:
            raise DamagedLog(self.older.local.directory, end, self.divided_offset)
        self.older.check_heads(evidence)
        return self.inner.end_at(end, read_from, evidence)

    # ---------------------------------------------------------------- retention

    async def remove_oldest(self) -> None:
        if self.older.expired:
            await self.inner.remove_oldest()
        else:
            await self.older.remove_oldest()

    def close(self) -> None:
        self.older.close()
        self.inner.close()
