"""The interface that makes the commit log swappable: local, classic HA and DLedger logs all satisfy it.

Positions are known when `append` returns; completion (flush, slaves, a majority) comes later through `when_done`. Records may
be framed (`header_size` bytes before each), and readers see nothing at or beyond `readable_offset`. `append` is synchronous,
so that queue offsets given out just before it cannot be overtaken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio

from ..message.fields import Buffer
from .statuses import PutStatus


@attrs.define(eq=False)
class Appended:
    """Where an append put its records; not frozen, which takes thrice as long to make and is made for every put."""

    start: int
    """End of the log before the append; a filler may lie between it and the first record."""
    offsets: list[int]
    """Physical offset of each record."""
    end: int
    """End of the log after it: what a waiter waits for."""


class AppendLog(Protocol):
    """An endless log of message records."""

    @property
    def waits(self) -> bool:
        """Whether a put must wait for more than the append itself."""
        ...

    @property
    def header_size(self) -> int:
        """Bytes of framing before each record (DLedger 48, others 0); physical offsets point behind it."""
        ...

    @property
    def min_offset(self) -> int:
        """Where the oldest segment begins."""
        ...

    @property
    def max_offset(self) -> int:
        """End of what has been appended: where the next byte goes."""
        ...

    @property
    def flushed_offset(self) -> int:
        """End of what is known to be on the medium."""
        ...

    @property
    def readable_offset(self) -> int:
        """End of what consumers may see."""
        ...

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        """Append encoded records in order, patching each one's physical offset in.

        Args:
            records: made by `encode_record`; at least one.
            together: all in one segment, as a client's batch must be.

        Raises:
            NotWritable: see its text. Nothing was appended.
            OSError: the disk refused. Nothing was appended; bytes behind the end of the log do not count.
        Durability: see `when_done`.
        """
        ...

    def when_done(self, end: int, deadline: float, done: Callable[[PutStatus], None]) -> None:
        """Call `done` once, when everything before `end` is as safe as the mode promises, or at `deadline`.

        Args:
            deadline: by the monotonic clock, seconds.
        """
        ...

    def record(self, offset: int, size: int) -> memoryview | None:
        """Bytes of one record, or None if they are not in the log (any more)."""
        ...

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        """Raw bytes from `offset` on, of one segment, appended and not beyond `size_max`; empty when there are none."""
        ...

    def segment_end(self, offset: int) -> int:
        """Where the segment that holds `offset` ends and the next one begins."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush, replicate, complete waiters, until cancelled."""
        ...


class RawAppendLog(AppendLog, Protocol):
    """A log that can follow another one byte for byte."""

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of a master's log; an empty log begins at the segment that holds `offset`.

        Raises:
            OffsetGap: `offset` is not the end of this log, or the bytes cross a segment border.
            OSError: the disk refused. Nothing was appended.
        """
        ...

    async def reserve(self, end: int) -> None:
        """Reserve place on the medium, if there is none yet, for raw bytes that are known to come, up to `end` at most."""
        ...

    async def truncate(self, offset: int) -> None:
        """Drop everything from `offset` on; what is cut reads as zeros and is synced before this returns.

        Raises:
            OSError: the disk refused; the log takes nothing until it is reopened.
        """
        ...

    async def clear(self) -> None:
        """Drop everything: the log is empty and begins wherever the next raw bytes do.

        Raises:
            OSError: the disk refused; the log takes nothing until it is reopened.
        """
        ...
