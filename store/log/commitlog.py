"""The interface that makes the commit log swappable: the local, the classic HA and the DLedger log all implement it.

Positions are known when `append` returns; completion (flush, slaves, a majority) comes later through `when_stored`. A log owns
its framing: readers walk `records` and never parse fillers, entry headers or entries that are no message. Readers see
nothing at or beyond `readable_offset`. `append` is synchronous, so that queue offsets assigned just before it cannot be
overtaken. The contract suite in `ledgermq.testing.commitlog_contract` checks what every implementation must do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs
import trio

from ...message.fields import Buffer
from ...message.layout import DerivedParts
from ...world.real import World
from ..config import StoreConfig
from ..statuses import PutStatus

Done = Callable[[PutStatus], None]
"""Receives the outcome of a put, once; must not raise."""


@attrs.define(eq=False)
class Appended:
    """Where an append put its records. It is not frozen, because one is made for every put, and freezing triples the cost."""

    start: int
    """End of the log before the append; a filler may separate it from the first record."""
    offsets: list[int]
    """Physical offset of each record."""
    end: int
    """End of the log after the append: the position that a waiter waits for."""


@attrs.frozen
class LogFile:
    """One file of a log, for retention."""

    path: str
    start: int
    end: int
    """The offset behind its last written byte."""
    size: int


@attrs.frozen
class Evidence:
    """What a start knows about the state in which the log was left."""

    clean_exit: bool
    page_cache_intact: bool
    """Whether no written byte can have been lost, and none can have returned to an older state."""
    synced_offset: int
    """Everything before this offset is on the medium, by the recovery mark; -1 without a mark."""
    verified_offset: int
    """The flushed offset of the mark, if the record that the mark names was found whole; -1 if the mark is not valid."""
    check_crc: bool
    """Whether bodies are checked against their CRC."""


class LogRecords(Protocol):
    """What is in the log: the side of whoever reads it, or derives from it."""

    @property
    def directory(self) -> str:
        """The directory of its files, for messages to the operator."""
        ...

    @property
    def min_offset(self) -> int:
        """The offset at which the oldest segment begins."""
        ...

    @property
    def max_offset(self) -> int:
        """End of what has been appended: the offset of the next byte."""
        ...

    @property
    def flushed_offset(self) -> int:
        """End of what is known to be on the medium."""
        ...

    @property
    def committed_offset(self) -> int:
        """End of what a crash of this node cannot lose: it is on the medium, in a replicated log on that of a majority."""
        ...

    @property
    def readable_offset(self) -> int:
        """End of what consumers may read."""
        ...

    @property
    def readable_limit(self) -> int | None:
        """The offset up to which other nodes let consumers read; None if this node alone decides.

        While there is a limit, bytes behind it may be truncated by another node.
        """
        ...

    def record(self, offset: int, size: int) -> memoryview | None:
        """Bytes of one record, or None if they are not in the log (any more)."""
        ...

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        """At most `size_max` appended bytes of one segment, from `offset` on; empty if there are none."""
        ...

    def read(self, offset: int, size: int, more: int = 0) -> memoryview:
        """Return `size` appended bytes of one segment, from `offset` on, or as many as there are.

        They are in memory when this returns. What may have left the page cache is read with this instead of `slice_from`,
        because a look at a sector that the disk does not give ends the process. It must be called on the event loop.

        Args:
            more: how many bytes behind them are wanted, too, as far as the disk gives them.

        Raises:
            UnreadableLog: the disk does not give one of the `size` bytes.
        """
        ...

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        """Walk over [start, end): yields the position behind each whole record and what queues and index need of it.

        Yields (position, None) behind a filler and behind an entry without a message. `start` is 0, a position that this
        walk or `append` has returned, or where a record begins. Stops at the first position without a whole, sound record.
        """
        ...

    def segment_end(self, offset: int) -> int:
        """The offset at which the segment that holds `offset` ends and the next one begins."""
        ...

    def files(self) -> list[LogFile]:
        """Its files, oldest first."""
        ...


class RecoveredLog(LogRecords, Protocol):
    """A log before anything else uses it: the side of recovery, whose methods block."""

    @property
    def empty(self) -> bool:
        """Whether no file of the log exists."""
        ...

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        """Find where to read back from if no mark is valid: the newest segment whose first record is sound and acceptable.

        Args:
            acceptable: judges physical offset and store timestamp of that record.

        Returns: the start of the segment, `min_offset` if there is none.
        """
        ...

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:
        """Walk as `records` does, from `start` to the end of the records that are whole and belong to this log."""
        ...

    def end_at(self, end: int, read_from: int, evidence: Evidence) -> bool:
        """End the log at `end`: truncate what follows, and sync what may not be on the medium.

        Args:
            read_from: everything from there to `end` was read back by `read_back` and found whole.

        Returns: whether something other than zeros followed.

        Raises:
            DamagedLog: a record that had been synced is no longer whole. Nothing was truncated.
            OSError: the disk refused.
        """
        ...

    def limit_readable(self, offset: int) -> None:
        """Let consumers read only what is before `offset`, if other nodes limit what they may read."""
        ...


class CommitLog(RecoveredLog, Protocol):
    """An endless log of message records: the side of whoever puts, keeps it and cuts it."""

    @property
    def on_syncing(self) -> list[Callable[[], None]]:
        """Called when a sync begins: until it ends, the event loop has time for work that is not urgent."""
        ...

    @property
    def waits(self) -> bool:
        """Whether a put must wait for more than the append itself."""
        ...

    @property
    def may_answer_early(self) -> bool:
        """Whether a message that asks for it (WAIT=false) may be answered as soon as it is appended.

        False if an appended record may still disappear without a crash of this node.
        """
        ...

    @property
    def failure(self) -> str | None:
        """Why the log accepts no appends now; None while it does."""
        ...

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        """Append encoded records in order, writing each one's physical offset into it; does no network I/O.

        Args:
            records: encoded by `encode_record`; at least one.
            together: all in one segment, as a client's batch must be.

        Raises:
            NotWritable: see its text. Nothing was appended.
            OSError: the disk refused. Nothing was appended; bytes behind the end of the log do not count.
        Durability: see `when_stored`.
        """
        ...

    def when_stored(self, end: int, done: Done) -> None:
        """Call `done` once: when everything before `end` is as safe as the mode promises, or at the mode's time-out."""
        ...

    @property
    def on_readable(self) -> list[Callable[[], None]]:
        """Called when `readable_offset` may have grown by something other than an append."""
        ...

    @property
    def on_truncated(self) -> list[Callable[[int], None]]:
        """Called with a position when another node may replace what was appended behind it."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Flush, replicate, complete waiters, until cancelled."""
        ...

    async def flush(self) -> None:
        """Sync what has been appended and complete its waiters.

        Durability: on return, everything appended before the call is on the medium, unless `failure` says otherwise.
        """
        ...

    async def remove_oldest(self) -> None:
        """Delete the oldest file.

        Raises:
            OSError: the disk refused, or the log was cut meanwhile; the call may be repeated.
        """
        ...

    async def truncate(self, offset: int) -> None:
        """Drop everything from `offset` on; what is truncated reads as zeros and is synced before this returns.

        Raises:
            NotWritable: other nodes decide what is truncated. Nothing was dropped.
            OSError: the disk refused. The log ends where the cut has come to, and accepts no appends until that is synced.
        """
        ...

    async def clear(self) -> None:
        """Drop everything; the empty log begins where the next raw bytes do.

        Raises:
            NotWritable: other nodes decide what is dropped. Nothing was dropped.
            OSError: the disk refused; the log accepts no appends until it is reopened.
        """
        ...

    def close(self) -> None:
        """Close the files; blocks, and syncs nothing."""
        ...


class RawCommitLog(CommitLog, Protocol):
    """A log that can follow another one byte for byte."""

    def append_raw(self, offset: int, data: Buffer) -> None:
        """Append bytes of a master's log; an empty log begins at the segment that holds `offset`.

        Raises:
            OffsetGap: `offset` is not the end of this log, or the bytes cross a segment border.
            OSError: the disk refused. Nothing was appended.
        """
        ...

    async def reserve(self, end: int) -> None:
        """Reserve space on the medium for raw bytes that will be appended, up to `end` at most, if none is reserved yet."""
        ...


OpenCommitLog = Callable[[World, StoreConfig], CommitLog]
"""Opens the log of a store, blocking, before recovery. If it raises, nothing stays open."""
