"""The log of a classic master: a local log whose puts also wait for slaves under SYNC_MASTER.

Invariant: a put is answered PUT_OK only if both waits of its mode, for the flush and for slaves, succeeded. They run
concurrently, and a replication result other than PUT_OK replaces that of the flush (RocketMQ handleDiskFlushAndHA).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from ...message.fields import Buffer
from ...store.errors import NotWritable
from ...store.log.commitlog import Appended, Done, RawCommitLog
from ...store.log.expiry import Expiry
from ...store.log.wrapping_log import WrappingCommitLog
from ...store.statuses import PutStatus
from ...world.clock import Clock
from ..errors import InSyncReplicasNotEnough
from .acks import Acknowledgements
from .settings import HaSettings


def _nobody() -> None:
    """Nobody replicates yet."""


@attrs.define(eq=False, repr=False)
class ClassicCommitLog(WrappingCommitLog[RawCommitLog]):
    """Implements `RawCommitLog`; `inner` is the local log."""

    acks: Acknowledgements
    settings: HaSettings
    clock: Clock
    on_appended: Callable[[], None] = _nobody
    """Called after every append, because there is more to send; it must do no I/O."""
    on_awaited: Callable[[], None] = _nobody
    """Called when a put begins to wait for slaves, so that its bytes are sent now."""
    refusal: str | None = None
    """Why this master may not append anything now; None if it may."""
    _expiry: Expiry = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._expiry = Expiry(lambda: self.acks.waiting, self._expire, self.clock)

    @property
    def waits(self) -> bool:
        return self.settings.sync_master or self.inner.waits

    @property
    def may_answer_early(self) -> bool:
        return True

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:
        if self.refusal is not None:
            raise NotWritable(self.refusal)
        least = self.settings.min_in_sync_replicas
        if self.settings.sync_master and least > 1:
            found = self.acks.in_sync_replicas(self.inner.max_offset)
            if found < least:
                raise InSyncReplicasNotEnough(found, least)
        appended = self.inner.append(records, together=together)
        self.on_appended()
        return appended

    def _expire(self, now: float) -> None:
        self.acks.expire(now)

    def lead(self, settings: HaSettings, acks: Acknowledgements) -> None:
        """Begin with these acknowledgements, under these settings."""
        self.settings, self.acks, self.refusal = settings, acks, None

    def refuse(self, reason: str | None) -> None:
        """Refuse all appends from now on for this reason; None accepts them again."""
        self.refusal = reason

    def stop_leading(self) -> None:
        """Answer the puts that wait for slaves as stored here and not confirmed by enough slaves."""
        self.on_appended = self.on_awaited = _nobody
        self.acks.fail(PutStatus.FLUSH_SLAVE_TIMEOUT)

    def when_stored(self, end: int, done: Done) -> None:
        if not self.settings.sync_master:
            self.inner.when_stored(end, done)
            return
        # The time-out is the same for all, which keeps the waiting puts in order of deadline.
        replicated_by = self.clock.monotonic() + self.settings.slave_timeout_seconds
        if self.inner.waits:
            both = _Both(done)
            self.inner.when_stored(end, both.flushed)
            self.acks.wait(end, replicated_by, both.replicated)
        else:
            self.acks.wait(end, replicated_by, done)
        self._expiry.wake()
        self.on_awaited()

    def append_raw(self, offset: int, data: Buffer) -> None:
        self.inner.append_raw(offset, data)

    async def reserve(self, end: int) -> None:
        await self.inner.reserve(end)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.inner.run)
            task_status.started()
            try:
                await self._expiry.run()
            finally:
                self.stop_leading()


@attrs.define(eq=False)
class _Both:
    """The state of the two waits of one put."""

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
