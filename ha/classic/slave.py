"""The slave's side: connect to the master's HA port, append what it sends, report the log's end (RocketMQ HAClient).

Invariant: the slave's log is always a prefix of the master's log at the time of sending. Bytes that the master does not have
are removed only after logging what was promised about them; a log of another history is never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from ...store.errors import StoreError
from ...store.log.commitlog import RawCommitLog
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.network import Address, Network, Stream
from ...world.randomness import Randomness
from ...world.workers import Workers
from ..envelopes import NONCE_SIZE
from ..errors import HaError, HaRefused, WrongDialect
from .authenticated import BATCH_MAX, AuthenticatedSlave
from .autoswitch import AutoSwitchSlave
from .bare import BareSlave
from .epochs import EpochList
from .files import EpochFile
from .layout import DATA, FRAME_BODY_MAX, NodeIdentity
from .protocol import EpochBegun, JoinedMaster, LogAbandoned, LogReceived, SlaveCore, SlaveFact, TailDropped
from .rate import Rate
from .settings import HaSettings

log = get_logger(__name__)

CONNECT_SECONDS = 3.0
"""Time-out for connecting to the master, in seconds; then the attempt counts as failed."""
RETRY_SECONDS_MIN = 0.5
RETRY_SECONDS_MAX = 5.0
"""The longest pause after a failed connection, which is RocketMQ's; ours doubles up to it."""
TICK_SECONDS = 0.5
"""Polling interval for a silent master and for due reports, in seconds."""
RECEIVE_BYTES = BATCH_MAX + 2 * DATA.size
"""The most bytes of one receive: many small frames, or a long one with the header of the next. A receive then rarely ends
in the middle of a frame, whose bytes would have to be copied."""
RECEIVES_AT_ONCE = 3
"""How many receives one turn of the event loop makes during bulk transfer, when more bytes have often arrived already. They
take a millisecond or two; then other tasks run."""
LONG_FRAME_BYTES = 128 * 1024
"""The rest of a frame of at least this size is received alone, with the header of the next: it is then in one piece at the
beginning of the buffer, in memory that is still in the processor's cache."""
BUFFER_BYTES = max(RECEIVE_BYTES, FRAME_BODY_MAX + 2 * DATA.size)
BULK_BYTES = 128 * 1024
"""A receive of this size means a backlog: the master sends faster than this slave appends."""
FAR_BEHIND_BYTES = 2 * 1024 * 1024
"""A slave that is more bytes behind is catching up: receiving then has priority over deriving and reporting."""
UNPROMISED_SECONDS_MAX = 60.0
"""A slave refuses to remove a tail of more seconds: a crashed master loses less, so its store is an older copy or another."""
REPORT_BYTES = 2 * 1024 * 1024
"""A slave that catches up reports once per this many bytes, because each report costs both nodes a turn of their loops."""


class Follower(Protocol):
    """The part of a store that follows a master."""

    @property
    def log(self) -> RawCommitLog: ...

    def log_grew(self, *, more: bool) -> None:
        """Raw bytes were appended; queues and index can be derived from them.

        Args:
            more: whether more bytes have arrived already; receiving them has priority.
        """
        ...

    def tail_seconds(self, start: int) -> float:
        """Seconds between the timestamps of the first and the last record from `start` on."""
        ...

    def limit_readable(self, readable: int) -> None:
        """Let consumers read what is before `readable`, as the master does."""
        ...

    async def cut(self, offset: int) -> None:
        """Remove everything from `offset` on, from the log and from what is derived from it.

        Raises:
            OSError: the disk failed.
        """
        ...

    async def clear(self) -> None:
        """Remove everything; the empty log begins where the next raw bytes do.

        Raises:
            OSError: the disk failed.
        """
        ...


@attrs.define
class Losses:
    """How many bytes rejoins have removed so far."""

    dropped: int = 0
    """How many bytes were removed because the master did not have them."""
    promised: int = 0
    """How many of these had puts that waited for a slave, so that producers may have got an acknowledgement."""
    confirmed: int = 0
    """How many of these the master had reported as confirmed."""


@attrs.define(eq=False, repr=False)
class HAClient:
    """Keeps one store equal to its master's."""

    follower: Follower
    network: Network
    clock: Clock
    workers: Workers
    secrets: Randomness
    """Unpredictable randomness, for nonces."""
    settings: HaSettings
    identity: NodeIdentity
    epoch_file: EpochFile
    epoch_min: int = 0
    """The epoch for which a controller has elected the master that is to be followed; 0 where none elects."""
    master: Address | None = None
    """The master's HA address; set through `follow`."""
    on_joined: Callable[[], None] = lambda: None
    """Called when the master's log was found to continue this slave's log; it must do no I/O."""
    losses: Losses = attrs.field(factory=Losses)
    joined_at: float | None = None
    """When the master accepted the current connection, by the monotonic clock; None while there is none."""
    last_read: float = 0.0
    """When bytes of the master were last received, by the monotonic clock."""
    last_write: float = 0.0
    """When bytes were last sent to the master, by the monotonic clock."""
    master_end: int = 0
    """The last known end of the master's log."""
    received: Rate = attrs.field(factory=Rate)
    """The rate at which the log has grown on the current connection."""
    refusal: str | None = None
    """Why the last connection ended, if an operator must act."""
    _unreachable: Address | None = None
    """The master that was logged as unreachable, until it can be reached again."""
    epochs: EpochList | None = None
    """The epochs of this slave's log, once they have been read."""
    _confirmed: int = 0
    _known: trio.Event = attrs.field(factory=trio.Event)
    _reported: int = 0
    """The end of the log in the last report."""
    _taking: bool = False
    """Whether received bytes are being appended, and synced if the next report needs that."""
    _outgoing: bytearray = attrs.field(factory=bytearray)
    _sending: bool = False
    _sender: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    @property
    def lag_bytes(self) -> int:
        """How many bytes the log is behind the last known end of the master's."""
        return max(self.master_end - self.follower.log.max_offset, 0)

    def follow(self, master: Address | None) -> None:
        """Set the master's HA address; a running connection stays until it ends (as RocketMQ's does)."""
        self.master = master
        if master is not None:
            self._known.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the master, connecting again whenever a connection ends, until cancelled.

        Raises:
            CorruptEpochs, OSError: the file of epochs cannot be read or written.
        """
        self.epochs = await self.workers.run(self.epoch_file.load)
        # Recovery may have truncated the log since the list was saved, so epochs without bytes are removed, on the disk too:
        # once the log is longer again, bytes of an earlier epoch would count as theirs.
        await self._keep(self.epochs.truncated(self.follower.log.max_offset))
        task_status.started()
        pause = RETRY_SECONDS_MIN
        while True:
            if self.master is None:
                self._known = trio.Event()
                await self._known.wait()
            joined = await self._connect_and_follow()
            pause = RETRY_SECONDS_MIN if joined and self.refusal is None else min(pause * 2, RETRY_SECONDS_MAX)
            await trio.sleep(pause)

    async def _connect_and_follow(self) -> bool:
        """Run one connection until it ends; returns whether the master had accepted this slave."""
        master = self.master
        assert master is not None
        try:
            with trio.fail_after(CONNECT_SECONDS):
                stream = await self.network.open_stream(master)
        except (OSError, trio.TooSlowError) as error:
            self.refusal = None
            if self._unreachable != master:
                self._unreachable = master
                log.warning("master_unreachable", master=str(master), reason=str(error) or f"not within {CONNECT_SECONDS} s")
            return False
        self._unreachable = None
        try:
            return await self._converse(stream, master)
        finally:
            self.joined_at, self.received = None, Rate()
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: Stream, master: Address) -> bool:
        core = self._core()
        self._outgoing, self._reported, self._taking = bytearray(core.opening()), 0, False
        reason = "closed by the master"
        self.refusal = None
        try:
            await self._sync_reported()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, stream)
                nursery.start_soon(self._tick, core, nursery.cancel_scope)
                await self._receive(stream, core)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            reason = str(group.exceptions[0].__cause__ or group.exceptions[0])
        except* HaError as group:
            reason = self.refusal = str(group.exceptions[0])
            if isinstance(group.exceptions[0], WrongDialect):
                log.error("ha_peer_speaks_other_protocol", master=str(master), set_ha_protocol=group.exceptions[0].dialect)
        except* (OSError, StoreError) as group:
            reason = self.refusal = f"the slave's log cannot be written: {group.exceptions[0]}"
        joined = self.joined_at is not None
        if self.refusal is not None:
            log.error("ha_connection_refused", master=str(master), reason=reason)
        else:
            log.warning("master_lost", master=str(master), reason=reason, joined=joined, end=self.follower.log.max_offset)
        return joined

    def _core(self) -> SlaveCore:
        settings, now = self.settings, self.clock.monotonic()
        assert self.epochs is not None
        if settings.autoswitch:
            return AutoSwitchSlave(
                self.follower.log,
                settings.limits,
                now,
                self.identity.broker_id,
                self.epochs,
                settings.from_first,
                settings.async_learner,
                self._confirmed,
                epoch_min=self.epoch_min,
            )
        if settings.bare:
            return BareSlave(self.follower.log, settings.limits, now)
        return AuthenticatedSlave(
            self.follower.log,
            settings.limits,
            now,
            self.identity,
            settings.secret,
            self.secrets.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE, "big"),
            self.epochs,
            settings.from_first,
            self._confirmed,
            epoch_min=self.epoch_min,
            learner=settings.async_learner,
        )

    async def _receive(self, stream: Stream, core: SlaveCore) -> None:
        buffer, filled, bulk = memoryview(bytearray(BUFFER_BYTES)), 0, False
        in_turn = 0
        while True:
            room = buffer[filled : _room(core.wanted, core.held)]
            count = stream.receive_now(room) if 0 < in_turn < RECEIVES_AT_ONCE else None
            if count is None:
                in_turn, count = 0, await stream.receive_into(room)
            if count == 0:
                return
            self.last_read = self.clock.monotonic()
            filled += count
            in_turn = in_turn + 1 if count >= BULK_BYTES else 0
            bulk = bulk or count >= BULK_BYTES
            if filled < core.wanted:
                core.heard(self.last_read)
                continue
            await self._take(stream, core, buffer[:filled], bulk=bulk)
            filled, bulk = 0, False

    async def _take(self, stream: Stream, core: SlaveCore, received: memoryview, *, bulk: bool) -> None:
        """Decode received bytes, carry out their facts and answer them."""
        facts, answer = core.receive(received, self.last_read)
        self._taking, grown = True, False
        for fact in facts:
            if isinstance(fact, LogReceived):
                self._append(fact)
                grown = True
            else:
                await self._carry_out(fact)
        if grown:
            await self._sync_reported()
        self._taking = False
        end, readable = self.follower.log.max_offset, core.readable
        self.master_end, self._confirmed = end if core.master_end is None else core.master_end, core.confirmed
        far_behind = grown and bulk and self.master_end - end >= FAR_BEHIND_BYTES
        if grown and not (far_behind and end - self._reported < REPORT_BYTES):
            self._reported = end
            answer += core.report(self.clock.monotonic())
        try:
            if answer:
                # The report is sent before queues are derived from the new bytes, because a producer waits for it.
                self._outgoing += answer
                await self._drain(stream)
        finally:
            if readable is not None:
                self.follower.limit_readable(readable)
            if grown:
                # A bare master does not send the end of its log. Ours does; a receive in bulk alone does not mean a backlog,
                # because a busy master that is followed closely sends in bulk too.
                self.follower.log_grew(more=far_behind or (bulk and core.master_end is None))
        if far_behind:
            await self.follower.log.reserve(self.master_end)

    async def _sync_reported(self) -> None:
        """Sync what the next report will count, where that may not be lost with power.

        A controller may elect any replica in sync, so with SYNC_FLUSH each of them has on its disk what it has acknowledged.

        Raises:
            OSError: the disk failed. Nothing is reported.
        """
        own = self.follower.log
        if self.settings.elected and self.settings.sync_flush:
            await own.flush()
            if own.flushed_offset < own.max_offset:
                raise OSError(f"{own.max_offset - own.flushed_offset} bytes could not be synced")

    def _append(self, fact: LogReceived) -> None:
        append_raw, offset = self.follower.log.append_raw, fact.offset
        for piece in fact.pieces:
            append_raw(offset, piece)
            offset += len(piece)

    async def _carry_out(self, fact: SlaveFact) -> None:
        match fact:
            case JoinedMaster(offset, epochs):
                self.joined_at = self.clock.monotonic()
                log.info("master_joined", master=str(self.master), physical_offset=offset)
                await self._keep(epochs)
                self.on_joined()
            case EpochBegun(epochs):
                await self._keep(epochs)
            case TailDropped(start, end, confirmed_end, promised_end):
                self._refuse_loss(start, end, confirmed_end, promised_end)
                self._log_dropped(start, end, confirmed_end, promised_end)
                await self.follower.cut(start)
                self._confirmed = min(self._confirmed, start)
            case LogAbandoned():
                await self._abandon(fact)
            case LogReceived():
                raise AssertionError("appended by the caller")

    def _refuse_loss(self, start: int, end: int, confirmed_end: int, promised_end: int) -> None:
        """Refuse to remove bytes that the master does not have, unless they are a short tail without acknowledged puts.

        Raises:
            HaRefused: an operator must decide. Nothing was removed.
        """
        seconds = self.follower.tail_seconds(start)
        shown_end = self._shown_end(confirmed_end)
        # An elected master lets consumers see what all nodes hold that count, and answers nothing else.
        if self.settings.elected and not self._holds_record(start, shown_end):
            return
        answered_end = shown_end if self.settings.sync_flush else max(confirmed_end, promised_end)
        if self.settings.accept_loss or (not self._holds_record(start, answered_end) and seconds <= UNPROMISED_SECONDS_MAX):
            return
        cure = (
            "stop all brokers of the name, run `ledgermq controller forget` for it, and start this node first"
            if self.settings.elected
            else "start this node as the master and the other one as its slave"
        )
        raise HaRefused(
            f"this slave's log goes to {end}, and its master's is another one from {start} on: {end - start} bytes, stored "
            f"within {seconds:.0f} s, are here only, and of {max(answered_end - start, 0)} of them producers may have been "
            f"told that a slave holds them. Nothing was cut. Either {cure}, or accept the loss: stop this slave and run "
            f"`ledgermq store cut STORE --at {start}`, which moves those bytes aside"
        )

    def _shown_end(self, confirmed_end: int) -> int:
        """Up to where consumers may have seen the log. With SYNC_FLUSH a master that has lost power still has that."""
        return max(confirmed_end, self.follower.log.readable_limit or 0)  # the limit outlives a start of the slave

    def _holds_record(self, start: int, end: int) -> bool:
        """Whether the log has a whole record between two offsets; what is confirmed and shown may end inside of one."""
        return next(iter(self.follower.log.records(start, end)), None) is not None

    async def _abandon(self, fact: LogAbandoned) -> None:
        if fact.diverged:
            common = min(fact.confirmed_end, fact.promised_end)
            self._refuse_loss(common, fact.old_end, fact.confirmed_end, fact.promised_end)
        log.warning(
            "log_abandoned",
            old_min=fact.old_min,
            old_end=fact.old_end,
            new_start=fact.start,
            reason="the master has deleted what would follow"
            if not fact.diverged
            else "it parts from the master's at its start",
        )
        if fact.diverged:
            common = min(fact.confirmed_end, fact.promised_end)
            self._log_dropped(common, fact.old_end, fact.confirmed_end, fact.promised_end)
        await self.follower.clear()
        self._confirmed = 0

    def _log_dropped(self, start: int, end: int, confirmed_end: int, promised_end: int) -> None:
        settings = self.settings
        if settings.elected and settings.all_acknowledge and not self._holds_record(start, self._shown_end(confirmed_end)):
            confirmed_end = promised_end = start  # as long as a master cannot show a record, it tells no producer of it
        self.losses.dropped += end - start
        self.losses.promised += promised_end - start
        self.losses.confirmed += confirmed_end - start
        if max(promised_end, confirmed_end) > start:
            log.error(
                "acknowledged_bytes_dropped",
                start=start,
                end=end,
                confirmed_bytes=confirmed_end - start,
                promised_bytes=promised_end - start,
                reason="the master came back without bytes for which producers may have been told that a slave held them",
            )
        else:
            log.warning("unacknowledged_bytes_dropped", start=start, end=end, dropped_bytes=end - start)

    async def _keep(self, epochs: EpochList | None) -> None:
        if epochs is not None and epochs != self.epochs:
            await self.workers.run(self.epoch_file.save, epochs)
            self.epochs = epochs

    async def _send(self, stream: Stream) -> None:
        while True:
            await self._drain(stream)
            await self._sender.park()

    async def _drain(self, stream: Stream) -> None:
        """Send the outgoing bytes, unless another task is sending; that task then sends them too."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._outgoing:
                outgoing, self._outgoing = self._outgoing, bytearray()
                await stream.send_all(outgoing)
                self.last_write = self.clock.monotonic()
        finally:
            self._sending = False

    async def _tick(self, core: SlaveCore, scope: trio.CancelScope) -> None:
        while True:
            await trio.sleep(TICK_SECONDS)
            now, own = self.clock.monotonic(), self.follower.log
            if self.joined_at is not None and own.max_offset > own.min_offset:  # an empty log has no end yet
                self.received.sample(now, own.max_offset)
            silence = core.silent_for(now)
            if silence is not None:
                log.warning("silent_master_closed", master=str(self.master), silence_seconds=round(silence, 1))
                scope.cancel()
            elif not self._taking and core.report_due(now) and not self._outgoing:
                # While bytes are being appended, the core counts some that are not in the log yet; their report follows.
                self._outgoing += core.report(now)
                self._sender.unpark()


def _room(wanted: int, held: int) -> int:
    """Return the end of the buffer's part to receive into, if `held` bytes of a frame are kept and `wanted` are missing."""
    # This holds for the short rest of a long frame too: otherwise a part of the next frame would be received with it and
    # copied, which would leave a short rest again.
    return wanted + DATA.size if wanted and wanted + held >= LONG_FRAME_BYTES else RECEIVE_BYTES
