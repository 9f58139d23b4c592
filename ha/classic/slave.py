"""A slave's side: connect to the master's HA port, append what comes, say how far the log is (RocketMQ HAClient).

Invariant: the own log is at every moment a prefix of what the master's log was when it was sent. What has to be cut for that is
cut only after it has been said, with what had been promised about it; a log that belongs to another history is never touched.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import trio

from ...store.commitlog import RawCommitLog
from ...store.errors import StoreError
from ...world.clock import Clock
from ...world.events import get_logger
from ...world.network import Address, Network, Stream
from ...world.randomness import Randomness
from ...world.workers import Workers
from ..errors import HaError, HaRefused, WrongDialect
from .authenticated import BATCH_MAX, AuthenticatedSlave
from .bare import BareSlave
from .epochs import EpochList
from .files import EpochFile
from .layout import DATA, FRAME_BODY_MAX, NONCE_SIZE, NodeIdentity
from .protocol import EpochBegun, JoinedMaster, LogAbandoned, LogReceived, SlaveCore, SlaveFact, TailDropped
from .rate import Rate
from .settings import OURS, HaSettings

log = get_logger(__name__)

CONNECT_SECONDS = 3.0
RETRY_SECONDS_MIN = 0.5
RETRY_SECONDS_MAX = 5.0
"""RocketMQ's pause after a failed connection; ours grows to it."""
TICK_SECONDS = 0.5
RECEIVE_BYTES = BATCH_MAX + 2 * DATA.size
"""Bytes of one receive: many small frames, or a long one with the header of the next; seldom a large part of a frame, which
would have to be kept elsewhere."""
RECEIVES_AT_ONCE = 3
"""In bulk, where the next bytes have often arrived when the last ones are taken: a turn of the loop is a millisecond or
two of it, then others get theirs."""
LONG_FRAME_BYTES = 128 * 1024
"""What is missing of one as long is received on its own, with the header of the next: it then lies in one piece at the
beginning of the buffer, in memory that is still in the processor's cache."""
BUFFER_BYTES = max(RECEIVE_BYTES, FRAME_BODY_MAX + 2 * DATA.size)
BULK_BYTES = 128 * 1024
"""So much at once has piled up because we are the slower ones."""
FAR_BEHIND_BYTES = 2 * 1024 * 1024
"""Who lacks more catches up: receiving then comes before all else."""
UNPROMISED_SECONDS_MAX = 60.0
"""A tail of more seconds is more than a crash takes from a master: its store is an older copy, or another one."""
REPORT_BYTES = 2 * 1024 * 1024
"""One report for so many is enough meanwhile: each costs master and slave a turn of their loops."""


class Follower(Protocol):
    """What of a store follows a master."""

    @property
    def log(self) -> RawCommitLog: ...

    def log_grew(self, *, more: bool) -> None:
        """Raw bytes were appended; queues and index can be derived from them.

        Args:
            more: the next ones are here already, and receiving them comes first.
        """
        ...

    def tail_seconds(self, start: int) -> float:
        """How much time lies between the first and the last record stored from `start` on, by their timestamps."""
        ...

    def may_show(self, readable: int) -> None:
        """The master lets consumers see what lies before `readable`."""
        ...

    async def cut(self, offset: int) -> None:
        """Drop everything from `offset` on, in the log and in what is derived from it.

        Raises:
            OSError: the disk refused.
        """
        ...

    async def clear(self) -> None:
        """Drop everything; the log is empty and begins where the next raw bytes do.

        Raises:
            OSError: the disk refused.
        """
        ...


@attrs.define
class Losses:
    """What a rejoin has cost so far, in bytes."""

    dropped: int = 0
    """Cut because the master did not have it."""
    promised: int = 0
    """Of these, written while puts waited for a slave: producers may have been told that they were replicated."""
    confirmed: int = 0
    """Of these, known to have been answered as replicated."""


@attrs.define(eq=False)
class HAClient:
    """Keeps one store equal to its master's."""

    follower: Follower
    network: Network
    clock: Clock
    workers: Workers
    secrets: Randomness
    """Unpredictable: nonces come from it."""
    settings: HaSettings
    identity: NodeIdentity
    epoch_file: EpochFile
    master: Address | None = None
    """The master's HA address; set through `follow`."""
    losses: Losses = attrs.field(factory=Losses)
    joined_at: float | None = None
    """When the present connection was agreed on, by the monotonic clock; None while there is none."""
    last_read: float = 0.0
    """When the master was heard last, by the monotonic clock."""
    last_write: float = 0.0
    """When the master was last told something, by the monotonic clock."""
    master_end: int = 0
    """End of the master's log, as far as it is known."""
    received: Rate = attrs.field(factory=Rate)
    """How fast the log grows while the present connection lasts."""
    refusal: str | None = None
    """Why the last connection ended, if a person has to act."""
    _unreachable: Address | None = None
    """What the log has been told about, until it can be reached again."""
    _epochs: EpochList | None = None
    _confirmed: int = 0
    _known: trio.Event = attrs.field(factory=trio.Event)
    _reported: int = 0
    """End of the log when the master was last told of it."""
    _taking: bool = False
    """Received bytes are on their way into the log."""
    _outgoing: bytearray = attrs.field(factory=bytearray)
    _sending: bool = False
    _sender: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)

    @property
    def lag_bytes(self) -> int:
        """How far the own log is behind what is known of the master's."""
        return max(self.master_end - self.follower.log.max_offset, 0)

    def follow(self, master: Address | None) -> None:
        """Set the master's HA address; a running connection stays until it ends (as RocketMQ's does)."""
        self.master = master
        if master is not None:
            self._known.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the master, over as many connections as it takes, until cancelled.

        Raises:
            CorruptEpochs, OSError: what is kept beside the log cannot be read, or not be brought up to date.
        """
        self._epochs = await self.workers.run(self.epoch_file.load)
        # Recovery may have cut the log since the list was saved; an epoch without bytes is none. It must not stay on the disk
        # either: once the log is longer again, bytes of an earlier epoch would count as its own.
        await self._keep(self._epochs.truncated(self.follower.log.max_offset))
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
        """Live through one connection; returns whether the master had agreed to send."""
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
            reason = self.refusal = f"the own log cannot be written: {group.exceptions[0]}"
        joined = self.joined_at is not None
        if self.refusal is not None:
            log.error("ha_connection_refused", master=str(master), reason=reason)
        else:
            log.warning("master_lost", master=str(master), reason=reason, joined=joined, end=self.follower.log.max_offset)
        return joined

    def _core(self) -> SlaveCore:
        settings, now = self.settings, self.clock.monotonic()
        if settings.protocol != OURS:
            return BareSlave(self.follower.log, settings.limits, now)
        assert self._epochs is not None
        return AuthenticatedSlave(
            self.follower.log,
            settings.limits,
            now,
            self.identity,
            settings.secret,
            self.secrets.getrandbits(8 * NONCE_SIZE).to_bytes(NONCE_SIZE, "big"),
            self._epochs,
            settings.from_first,
            self._confirmed,
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
        """Carry out what `received` means."""
        facts, answer = core.receive(received, self.last_read)
        self._taking, grown = True, False
        for fact in facts:
            if isinstance(fact, LogReceived):
                self._append(fact)
                grown = True
            else:
                await self._carry_out(fact)
        self._taking, readable = False, None
        self.master_end = end = self.follower.log.max_offset
        if isinstance(core, AuthenticatedSlave):
            self.master_end, self._confirmed, readable = core.master_end, core.confirmed, core.readable
        far_behind = grown and bulk and self.master_end - end >= FAR_BEHIND_BYTES
        if grown and not (far_behind and end - self._reported < REPORT_BYTES):
            self._reported = end
            answer += core.report(self.clock.monotonic())
        try:
            if answer:
                # At once, before anybody derives queues from what came, and before they are told: a producer waits for it.
                self._outgoing += answer
                await self._drain(stream)
        finally:
            if readable is not None:
                self.follower.may_show(readable)
            if grown:
                # A bare master does not say where its log ends. Ours does: one that is busy and followed closely sends in bulk
                # too.
                self.follower.log_grew(more=far_behind or (bulk and not isinstance(core, AuthenticatedSlave)))
        if far_behind:
            await self.follower.log.reserve(self.master_end)

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
            case EpochBegun(epochs):
                await self._keep(epochs)
            case TailDropped(start, end, confirmed_end, promised_end):
                self._refuse_loss(start, end, confirmed_end, promised_end)
                self._say_dropped(start, end, confirmed_end, promised_end)
                await self.follower.cut(start)
                self._confirmed = min(self._confirmed, start)
            case LogAbandoned():
                await self._abandon(fact)
            case LogReceived():
                raise AssertionError("appended by the caller")

    def _refuse_loss(self, start: int, end: int, confirmed_end: int, promised_end: int) -> None:
        """Keep what the master does not have, unless it is a short tail that nobody was promised.

        Raises:
            HaRefused: a person must settle it. Nothing was cut.
        """
        seconds = self.follower.tail_seconds(start)
        answered_end = confirmed_end if self.settings.sync_flush else max(confirmed_end, promised_end)
        if self.settings.accept_loss or (answered_end <= start and seconds <= UNPROMISED_SECONDS_MAX):
            return
        raise HaRefused(
            f"this slave's log goes to {end}, and its master's is another one from {start} on: {end - start} bytes, stored "
            f"within {seconds:.0f} s, are here only, and of {max(answered_end - start, 0)} of them producers may have been "
            "told that a slave holds them. Nothing was cut. Either start this node as the master and the other one as its "
            f"slave, or accept the loss: stop this slave and run `ledgermq store cut STORE --at {start}`, which moves those "
            "bytes aside"
        )

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
            self._say_dropped(common, fact.old_end, fact.confirmed_end, fact.promised_end)
        await self.follower.clear()
        self._confirmed = 0

    def _say_dropped(self, start: int, end: int, confirmed_end: int, promised_end: int) -> None:
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
        if epochs is not None and epochs != self._epochs:
            await self.workers.run(self.epoch_file.save, epochs)
            self._epochs = epochs

    async def _send(self, stream: Stream) -> None:
        while True:
            await self._drain(stream)
            await self._sender.park()

    async def _drain(self, stream: Stream) -> None:
        """Send what is to go out, unless another task is at it already, which then sends this too."""
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
            if self.joined_at is not None and own.max_offset > own.min_offset:  # an empty log will begin where it is told to
                self.received.look(now, own.max_offset)
            silence = core.silent_for(now)
            if silence is not None:
                log.warning("silent_master_closed", master=str(self.master), silence_seconds=round(silence, 1))
                scope.cancel()
            elif not self._taking and core.report_due(now) and not self._outgoing:
                # While bytes are being taken, the core counts some that are not in the log yet; their own report follows.
                self._outgoing += core.report(now)
                self._sender.unpark()


def _room(wanted: int, held: int) -> int:
    """Up to where the buffer is received into: so much is wanted from its beginning on, and held of the same frame."""
    # A long frame's short rest too: with it came a part of the next, to be copied, and that left a short rest again.
    return wanted + DATA.size if wanted and wanted + held >= LONG_FRAME_BYTES else RECEIVE_BYTES
