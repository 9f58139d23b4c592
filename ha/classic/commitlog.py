"""The log of a classic master: the local log, and puts that wait for slaves where the role promises it.

Invariant: a put is answered PUT_OK only if both waits that its mode asks for, flush and slaves, ended well; they run side by
side, and a replication result other than PUT_OK replaces the flush's (RocketMQ CommitLog handleDiskFlushAndHA).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from ...store.append_log import Appended, AppendLog
from ...store.expiry import Expiry
from ...store.statuses import PutStatus
from ...world.clock import Clock
from ..errors import InSyncReplicasNotEnough
from .acks import Acknowledgements
from .settings import HaSettings

Done = Callable[[PutStatus], None]


def _nobody() -> None:
    """Nobody replicates yet."""


@attrs.define(eq=False)
class ClassicLog:
    """A master's log; satisfies `AppendLog`."""

    local: AppendLog
    acks: Acknowledgements
    settings: HaSettings
    clock: Clock
    on_grown: Callable[[], None] = _nobody
    """Called after every append: there is more to send."""
    _expiry: Expiry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._expiry = Expiry(lambda: self.acks.waiting, self.acks.expire, self.clock)

    @property
    def waits(self) -> bool:
        return self.settings.sync_master or self.local.waits

    @property
    def header_size(self) -> int:
        return self.local.header_size

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
    def readable_offset(self) -> int:
        return self.local.readable_offset

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        least = self.settings.min_in_sync_replicas
        if self.settings.sync_master and least > 1:
            found = self.acks.in_sync_replicas(self.local.max_offset)
            if found < least:
                raise InSyncReplicasNotEnough(found, least)
        appended = self.local.append(records, together=together)
        self.on_grown()
        return appended

    def when_done(self, end: int, deadline: float, done: Done) -> None:
        if not self.settings.sync_master:
            self.local.when_done(end, deadline, done)
            return
        # slaveTimeout is shorter than the flush's, and the same for all, which keeps the waiting puts in order of deadline.
        replicated_by = self.clock.monotonic() + self.settings.slave_timeout_seconds
        if self.local.waits:
            both = _Both(done)
            self.local.when_done(end, deadline, both.flushed)
            self.acks.wait(end, replicated_by, both.replicated)
        else:
            self.acks.wait(end, replicated_by, done)
        self._expiry.wake()

    def record(self, offset: int, size: int) -> memoryview | None:
        return self.local.record(offset, size)

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        return self.local.slice_from(offset, size_max)

    def segment_end(self, offset: int) -> int:
        return self.local.segment_end(offset)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.local.run)
            task_status.started()
            try:
                await self._expiry.run()
            finally:
                # Whoever still waits is told what is known: it is stored here, and no slave has confirmed it.
                self.acks.fail(PutStatus.FLUSH_SLAVE_TIMEOUT)


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


def classic_log(local: AppendLog, settings: HaSettings, clock: Clock) -> ClassicLog:
    """A master's log around `local`, with empty books."""
    return ClassicLog(local, Acknowledgements(settings.replicas, settings.gap_max), settings, clock)
