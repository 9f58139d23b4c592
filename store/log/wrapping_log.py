"""A commit log around another one. A mode derives its log from this and writes only what it does differently."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import attrs
import trio

from ...message.layout import DerivedParts
from .commitlog import Appended, CommitLog, Done, Evidence, LogFile

Inner = TypeVar("Inner", bound=CommitLog)


@attrs.define(eq=False)
class WrappingCommitLog(Generic[Inner]):
    """Implements `CommitLog` by the log inside, member by member."""

    inner: Inner

    @property
    def on_syncing(self) -> list[Callable[[], None]]:
        return self.inner.on_syncing

    @property
    def on_readable(self) -> list[Callable[[], None]]:
        return self.inner.on_readable

    @property
    def on_truncated(self) -> list[Callable[[int], None]]:
        return self.inner.on_truncated

    @property
    def directory(self) -> str:
        return self.inner.directory

    @property
    def waits(self) -> bool:
        return self.inner.waits

    @property
    def may_answer_early(self) -> bool:
        return self.inner.may_answer_early

    @property
    def failure(self) -> str | None:
        return self.inner.failure

    @property
    def empty(self) -> bool:
        return self.inner.empty

    @property
    def min_offset(self) -> int:
        return self.inner.min_offset

    @property
    def max_offset(self) -> int:
        return self.inner.max_offset

    @property
    def flushed_offset(self) -> int:
        return self.inner.flushed_offset

    @property
    def committed_offset(self) -> int:
        return self.inner.committed_offset

    @property
    def readable_offset(self) -> int:
        return self.inner.readable_offset

    @property
    def readable_limit(self) -> int | None:
        return self.inner.readable_limit

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        return self.inner.append(records, together=together)

    def when_stored(self, end: int, done: Done) -> None:
        self.inner.when_stored(end, done)

    def record(self, offset: int, size: int) -> memoryview | None:
        return self.inner.record(offset, size)

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        return self.inner.slice_from(offset, size_max)

    def read(self, offset: int, size: int, more: int = 0) -> memoryview:
        return self.inner.read(offset, size, more)

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        return self.inner.records(start, end)

    def segment_end(self, offset: int) -> int:
        return self.inner.segment_end(offset)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.inner.run(task_status=task_status)

    async def flush(self) -> None:
        await self.inner.flush()

    def close(self) -> None:
        self.inner.close()

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        return self.inner.start_below(acceptable)

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:
        return self.inner.read_back(start, evidence)

    def end_at(self, end: int, read_from: int, evidence: Evidence) -> bool:
        return self.inner.end_at(end, read_from, evidence)

    def limit_readable(self, offset: int) -> None:
        self.inner.limit_readable(offset)

    def files(self) -> list[LogFile]:
        return self.inner.files()

    async def remove_oldest(self) -> None:
        await self.inner.remove_oldest()

    async def truncate(self, offset: int) -> None:
        await self.inner.truncate(offset)

    async def clear(self) -> None:
        await self.inner.clear()
