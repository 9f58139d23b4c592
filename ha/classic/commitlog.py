"""The log of a classic master: a local log whose puts also wait for slaves under SYNC_MASTER.

Invariant: a put is answered PUT_OK only if both waits of its mode, for the flush and for slaves, succeeded. They run
concurrently, and a replication result other than PUT_OK replaces that of the flush (RocketMQ handleDiskFlushAndHA).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from ...message.fields import Buffer
from ...message.layout import DerivedParts
from ...store.commitlog import Appended, Done, Evidence, LogFile, RawCommitLog
from ...store.expiry import Expiry
from ...store.statuses import PutStatus
from ...world.clock import Clock
from ..errors import InSyncReplicasNotEnough
from .acks import Acknowledgements
from .settings import HaSettings


def _nobody() -> None:
    """Nobody replicates yet."""


@attrs.define(eq=False)
class ClassicCommitLog:
    """Implements `RawCommitLog`."""

    local: RawCommitLog
    acks: Acknowledgements
    settings: HaSettings
    clock: Clock
    on_appended: Callable[[], None] = _nobody
    """Called after every append: there is more to send. Must do no I/O."""
    on_awaited: Callable[[], None] = _nobody
    """Called when a put begins to wait for slaves: what there is to send should leave now."""
    _expiry: Expiry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._expiry = Expiry(lambda: self.acks.waiting, self._expire, self.clock)

    @property
    def on_syncing(self) -> list[Callable[[], None]]:
        return self.local.on_syncing

    @property
    def on_readable(self) -> list[Callable[[], None]]:
        return self.local.on_readable

    @property
    def on_truncated(self) -> list[Callable[[int], None]]:
        return self.local.on_truncated

    @property
    def directory(self) -> str:
        return self.local.directory

    @property
    def waits(self) -> bool:
        return self.settings.sync_master or self.local.waits

    @property
    def may_answer_early(self) -> bool:
        return True

    @property
    def failure(self) -> str | None:
        return self.local.failure

    @property
    def empty(self) -> bool:
        return self.local.empty

    @property
    def min_offset(self) -> int:
        return self.local.min_offset

    @property
    def max_offset(self) -> int:
        return self.local.max_offset

    @property
    def flushed_offset(self) -> int:
        return self.local.flushed_offset

    @property
    def committed_offset(self) -> int:
        return self.local.committed_offset

    @property
    def readable_offset(self) -> int:
        return self.local.readable_offset

    @property
    def readable_limit(self) -> int | None:
        return self.local.readable_limit

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        least = self.settings.min_in_sync_replicas
        if self.settings.sync_master and least > 1:
            found = self.acks.in_sync_replicas(self.local.max_offset)
            if found < least:
                raise InSyncReplicasNotEnough(found, least)
        appended = self.local.append(records, together=together)
        self.on_appended()
        return appended

    def _expire(self, now: float) -> None:
        self.acks.expire(now)

    def lead(self, settings: HaSettings) -> None:
        """Begin with no acknowledgement, under these settings."""
        self.settings = settings
        self.acks = Acknowledgements(settings.replicas, settings.gap_max)

    def stop_leading(self) -> None:
        """Answer the puts that wait for slaves with what is known: they are stored here, and no slave has confirmed them."""
        self.on_appended = self.on_awaited = _nobody
        self.acks.fail(PutStatus.FLUSH_SLAVE_TIMEOUT)

    def when_stored(self, end: int, done: Done) -> None:
        if not self.settings.sync_master:
            self.local.when_stored(end, done)
            return
        # The time-out is the same for all, which keeps the waiting puts in order of deadline.
        replicated_by = self.clock.monotonic() + self.settings.slave_timeout_seconds
        if self.local.waits:
            both = _Both(done)
            self.local.when_stored(end, both.flushed)
            self.acks.wait(end, replicated_by, both.replicated)
        else:
            self.acks.wait(end, replicated_by, done)
        self._expiry.wake()
        self.on_awaited()

    def record(self, offset: int, size: int) -> memoryview | None:
        return self.local.record(offset, size)

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        return self.local.slice_from(offset, size_max)

    def segment_end(self, offset: int) -> int:
        return self.local.segment_end(offset)

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        return self.local.records(start, end)

    async def flush(self) -> None:
        await self.local.flush()

    def close(self) -> None:
        self.local.close()

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        return self.local.start_below(acceptable)

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:
        return self.local.read_back(start, evidence)

    def end_at(self, end: int, read_from: int, evidence: Evidence) -> bool:
        return self.local.end_at(end, read_from, evidence)

    def limit_readable(self, offset: int) -> None:
        self.local.limit_readable(offset)

    def files(self) -> list[LogFile]:
        return self.local.files()

    def remove_oldest(self) -> None:
        self.local.remove_oldest()

    async def truncate(self, offset: int) -> None:
        await self.local.truncate(offset)

    async def clear(self) -> None:
        await self.local.clear()

    def append_raw(self, offset: int, data: Buffer) -> None:
        self.local.append_raw(offset, data)

    async def reserve(self, end: int) -> None:
        await self.local.reserve(end)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.local.run)
            task_status.started()
            try:
                await self._expiry.run()
            finally:
                self.stop_leading()


@attrs.define(eq=False)
class _Both:
    """Two waits of one put."""

    done: Done
    _first: PutStatus | None = None

    def flushed(self, status: PutStatus) -> None:
        if self._first is None:
            self._first = status
        else:
            self.done(self._first if self._first is not PutStatus.PUT_OK else status)

    def replicated(self, status: PutStatus) -> None:
        if self._first is None:
            self._first = status
        else:
            self.done(status if status is not PutStatus.PUT_OK else self._first)


def classic_log(local: RawCommitLog, settings: HaSettings, clock: Clock) -> ClassicCommitLog:
    """A master's log around `local`, with no acknowledgement yet."""
    return ClassicCommitLog(local, Acknowledgements(settings.replicas, settings.gap_max), settings, clock)
