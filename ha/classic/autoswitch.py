"""RocketMQ's HA protocol of controller mode (AutoSwitchHAConnection, AutoSwitchHAClient).

Handshake: the slave sends its broker id, the master the epochs of its log, and the slave removes what the master does not have.
Then data frames go one way and reports the other. Every data frame carries its epoch, which the slave keeps, and the confirm
offset, up to which the slave lets consumers read. As in the bare protocol there is no proof of identity and no checksum, so a
report counts only up to what was sent, and only once the slave has checked by a frame that it continues the master's log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from ...message.fields import Buffer
from ..errors import CorruptEpochs, HaProtocolError, HaRefused, WrongDialect
from .bare import ECHO
from .epochs import EPOCHS_MAX, UNKNOWN_WRITER, Epoch, EpochList, common_point
from .layout import (
    AUTO_DATA,
    AUTO_EPOCH,
    AUTO_HANDSHAKE,
    AUTO_REPORT,
    AUTO_WELCOME,
    FRAME_BODY_MAX,
    STATE_HANDSHAKE,
    STATE_TRANSFER,
    TAG,
    decode_auto_epochs,
    encode_auto_welcome,
)
from .pieces import Pieces
from .protocol import (
    EpochBegun,
    JoinedMaster,
    LogAbandoned,
    LogBounds,
    LogReceived,
    MasterFact,
    SlaveFact,
    SlaveJoined,
    SlaveReported,
    TailDropped,
    TransferLimits,
)

_STATE = struct.Struct(">i")
_TAG_AS_STATE: int = _STATE.unpack(TAG[: _STATE.size])[0]


def _next_state(inbox: Pieces) -> int | None:
    """The state with which the next frame begins, or None while it is incomplete."""
    if inbox.size < _STATE.size:
        return None
    state: int = _STATE.unpack(inbox.peek(_STATE.size))[0]
    if state == _TAG_AS_STATE:
        raise WrongDialect("ledgermq")
    return state


@attrs.define(eq=False)
class AutoSwitchMaster:
    """The master's end (AutoSwitchHAConnection)."""

    log: LogBounds
    limits: TransferLimits
    fresh_start: Callable[[bool], int]
    """Where a slave with an empty log begins; the argument is whether the slave asks for the first segment."""
    opened_at: float
    epochs: EpochList
    next_offset: int = -1
    checksummed: bool = attrs.field(default=False, init=False)
    _slave: dict[str, int] | None = None
    """The fields of the slave's handshake."""
    _farewell: bytes = b""
    _inbox: Pieces = attrs.field(factory=Pieces)
    _sent_readable: int = -1
    """The confirm offset of the last frame; -1 if none was sent, so that reports do not count yet."""
    _last_read: float = attrs.field(init=False)
    _last_write: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._last_read = self._last_write = self.opened_at

    @property
    def ready(self) -> bool:
        return self.next_offset >= 0

    def receive(self, received: Buffer, now: float) -> tuple[list[MasterFact], bytes]:
        self._last_read = now
        inbox = self._inbox
        inbox.feed(received)
        facts: list[MasterFact] = []
        last: SlaveReported | None = None
        answer = b""
        while (state := self._state()) is not None:
            if state == STATE_HANDSHAKE and not self.ready:
                if inbox.size < AUTO_HANDSHAKE.size:
                    break
                answer += self._handshake(AUTO_HANDSHAKE.unpack(inbox.read(AUTO_HANDSHAKE.size)))
            elif state == STATE_TRANSFER and self._slave is not None:
                if inbox.size < AUTO_REPORT.size:
                    break
                offset = AUTO_REPORT.unpack(inbox.read(AUTO_REPORT.size))["offset"]
                if not self.ready:
                    facts.append(self._start(offset))
                    continue
                if not 0 <= offset <= self.next_offset:
                    raise HaProtocolError(f"a report of offset {offset}, but only bytes before {self.next_offset} were sent")
                # Many reports may arrive at once; each is checked, and only the last one is returned.
                last = SlaveReported(offset, offset) if self._sent_readable >= 0 else None
            else:
                raise HaProtocolError(
                    f"a frame of state {state}; this is the HA port of a broker in controller mode, whose slaves have "
                    "enableControllerMode set too"
                )
        inbox.settle()
        if last is not None:
            facts.append(last)
        return facts, answer

    def _state(self) -> int | None:
        try:
            return _next_state(self._inbox)
        except WrongDialect:
            self._farewell = ECHO
            raise

    def _handshake(self, slave: dict[str, int]) -> bytes:
        if slave["from_last"] not in (0, 1) or slave["learner"] not in (0, 1) or slave["broker_id"] < 1:
            raise HaProtocolError(
                f"a handshake with the flags {slave['from_last']} and {slave['learner']} and the broker id {slave['broker_id']}"
            )
        self._slave = slave
        return encode_auto_welcome(self.epochs, self.log.max_offset)

    def _start(self, offset: int) -> SlaveJoined:
        assert self._slave is not None
        fresh = offset == 0
        if fresh:
            offset = self.fresh_start(not self._slave["from_last"])
        elif not self.log.min_offset <= offset <= self.log.max_offset:
            raise HaRefused(
                f"the slave wants to go on at {offset}, the master's log reaches from {self.log.min_offset} to "
                f"{self.log.max_offset}: stop the slave, move its store away and let it begin empty"
            )
        self.next_offset = offset
        return SlaveJoined(None, self._slave["broker_id"], offset, fresh=fresh, learner=bool(self._slave["learner"]))

    def farewell(self) -> bytes:
        return self._farewell

    def next_size(self) -> int:
        if self.next_offset < self.log.min_offset:
            raise HaRefused(
                f"the slave needs offset {self.next_offset}, the master's log now begins at {self.log.min_offset}: "
                "stop the slave, move its store away and let it begin empty"
            )
        epoch_end = self.epochs.next_start(self.next_offset)
        return self.limits.batch_size if epoch_end is None else min(self.limits.batch_size, epoch_end - self.next_offset)

    def frame(self, size: int, body_crc: int, now: float) -> bytes:
        del body_crc  # the protocol has no checksums
        header = self._header(size, now)
        self.next_offset += size
        return header

    def _header(self, size: int, now: float) -> bytes:
        epoch = self.epochs.at(self.next_offset)
        number, start = (epoch.number, epoch.start) if epoch is not None else (0, 0)
        self._sent_readable, self._last_write = self.log.readable_offset, now
        return AUTO_DATA.codec.pack(STATE_TRANSFER, size, self.next_offset, number, start, self._sent_readable)

    def heartbeat(self, now: float) -> bytes:
        due = now - self._last_write >= self.limits.heartbeat_seconds or self._sent_readable != self.log.readable_offset
        return self._header(0, now) if self.ready and due else b""

    def silent_for(self, now: float) -> float | None:
        silence = now - self._last_read
        return silence if silence > self.limits.housekeeping_seconds else None


@attrs.define(eq=False)
class AutoSwitchSlave:
    """The slave's end (AutoSwitchHAClient). It reports at once after the handshake, which RocketMQ's master accepts."""

    log: LogBounds
    limits: TransferLimits
    opened_at: float
    broker_id: int
    """The id that the controller has given to this node."""
    epochs: EpochList
    """The epochs of the slave's log, updated as bytes are received."""
    from_first: bool = True
    learner: bool = False
    confirmed: int = 0
    """The confirm offset as the master sent it, on earlier connections too; at most the end of the slave's log."""
    master_end: int = 0
    """The end of the master's log when the connection was made, or of this log if that is longer now."""
    epoch_min: int = 0
    """The epoch for which a controller has elected the master; one of an earlier epoch was deposed, and is not followed."""
    readable: int | None = attrs.field(default=None, init=False)
    joined: bool = attrs.field(default=False, init=False)
    wanted: int = attrs.field(default=0, init=False)
    _end: int = attrs.field(init=False)
    """The end of the log once all facts so far are carried out; 0 while it is empty."""
    _master_epochs: EpochList = attrs.field(factory=EpochList)
    """The epochs of the handshake."""
    _inbox: Pieces = attrs.field(factory=Pieces)
    _last_read: float = attrs.field(init=False)
    _last_report: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._last_read = self._last_report = self.opened_at
        self._end = self.log.max_offset if self.log.max_offset > self.log.min_offset else 0

    @property
    def held(self) -> int:
        return self._inbox.size

    def opening(self) -> bytes:
        return AUTO_HANDSHAKE.pack(
            state=STATE_HANDSHAKE, from_last=not self.from_first, learner=self.learner, broker_id=self.broker_id
        )

    def receive(self, received: Buffer, now: float) -> tuple[list[SlaveFact], bytes]:
        if len(received):
            self.heard(now)
        inbox = self._inbox
        inbox.feed(received)
        facts: list[SlaveFact] = []
        answer = b""
        self.wanted = 0
        while not self.wanted and (state := _next_state(inbox)) is not None:
            if state != (STATE_TRANSFER if self.joined else STATE_HANDSHAKE):
                expected = "in the transfer" if self.joined else "instead of a handshake"
                raise HaProtocolError(f"a frame of state {state} {expected}: the master must be a broker in controller mode")
            head = AUTO_DATA if self.joined else AUTO_WELCOME
            if inbox.size < head.size:
                break
            fields = head.unpack(inbox.peek(head.size))
            size_max = FRAME_BODY_MAX if self.joined else EPOCHS_MAX * AUTO_EPOCH.size
            if not 0 <= fields["size"] <= size_max:
                raise HaProtocolError(f"a frame of {fields['size']} bytes, of which at most {size_max} are allowed")
            if inbox.size < head.size + fields["size"]:
                self.wanted = head.size + fields["size"] - inbox.size
            elif self.joined:
                inbox.take(head.size)
                self._take_data(fields, inbox.take(fields["size"]), facts)
            else:
                inbox.take(head.size)
                self._take_welcome(fields["max_offset"], decode_auto_epochs(inbox.read(fields["size"])), facts)
                answer = self.report(now)
        inbox.settle()
        return facts, answer

    def heard(self, now: float) -> None:
        self._last_read = now

    def _take_welcome(self, master_end: int, master: EpochList, facts: list[SlaveFact]) -> None:
        if master_end < 0:
            raise HaProtocolError(f"a master whose log ends at {master_end}")
        if (newest := master.last.number if master.last is not None else 0) < self.epoch_min:
            raise HaRefused(f"the master has epoch {newest}, and the master of epoch {self.epoch_min} is to be followed")
        end, point = self._end, 0
        if end:
            common = common_point(self.epochs, end, master, master_end)
            if common is None:
                raise HaRefused(
                    "this slave's log and its master's share no epoch, so one does not continue the other: stop the node that "
                    "is to be the slave, move its store away and let it begin empty"
                )
            point = common if common > self.log.min_offset else 0
            if not point:
                facts.append(LogAbandoned(0, self.log.min_offset, end, True, *self._promises(self.log.min_offset)))
            elif point < end:
                facts.append(TailDropped(point, end, *self._promises(point)))
        self._end, self._master_epochs = point, master
        self.epochs = master.with_writers_of(self.epochs).truncated(point)
        self.master_end = max(master_end, point)
        self.confirmed = min(self.confirmed, point)
        self.joined = True
        facts.append(JoinedMaster(point, self.epochs))

    def _promises(self, point: int) -> tuple[int, int]:
        """The ends of the confirmed and of the promised bytes that are removed from `point` on."""
        return max(point, min(self.confirmed, self._end)), self.epochs.promised_end(point, self._end)

    def _take_data(self, head: dict[str, int], body: list[memoryview], facts: list[SlaveFact]) -> None:
        offset, size = head["offset"], head["size"]
        # A master with an empty log sends heartbeats at -1, because it has no offset to begin at.
        if offset != self._end and not (self._end == 0 and offset >= (0 if size else -1)):
            raise HaProtocolError(f"a data frame for offset {offset}, this log ends at {self._end}")
        if size:
            self.limits.check_borders(offset, size, empty=self._end == 0)
            self._end = offset + size
            self.master_end = max(self.master_end, self._end)
            self._begin_epoch(head["epoch"], head["epoch_start"], facts)
            facts.append(LogReceived(offset, body))
        self.confirmed = max(self.confirmed, min(head["confirmed"], self._end))
        self.readable = self.confirmed

    def _begin_epoch(self, number: int, start: int, facts: list[SlaveFact]) -> None:
        """Add the epoch of a frame and those of the handshake before it.

        RocketMQ's master ends a frame where an epoch ends, and names the next one in it, so the epoch may begin there.
        """
        last = self.epochs.last
        if last is not None and (last.number, last.start) == (number, start):
            return
        if min(number, start) < 0 or start > self._end:
            raise HaProtocolError(f"a data frame up to {self._end} of epoch {number}, which begins at {start}")
        missing = (entry for entry in self._master_epochs if (last.number if last else -1) < entry.number < number)
        entries = (*self.epochs, *missing, Epoch(number, start, UNKNOWN_WRITER, 1))
        try:
            self.epochs = EpochList(entries[-EPOCHS_MAX:])
        except CorruptEpochs as error:
            raise HaProtocolError(f"a data frame up to {self._end}: {error}") from error
        facts.append(EpochBegun(self.epochs))

    def report(self, now: float) -> bytes:
        if not self.joined:
            return b""
        self._last_report = now
        return AUTO_REPORT.codec.pack(STATE_TRANSFER, self._end)

    def report_due(self, now: float) -> bool:
        return self.joined and now - self._last_report >= self.limits.heartbeat_seconds

    def silent_for(self, now: float) -> float | None:
        silence = now - self._last_read
        return silence if silence > self.limits.housekeeping_seconds else None
