"""RocketMQ's HA protocol as it is: 8-byte reports one way, 12-byte headers and log bytes the other (HAConnection).

The protocol has no identities and no checksums, so everything that can be checked is: a report beyond what was sent, an offset
that the log does not have and a frame that does not continue the log are refused with what the operator has to do. A peer that
speaks our dialect is recognised by its tag, and both nodes log which key to set.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import attrs

from ...message.fields import Buffer
from ..errors import HaProtocolError, HaRefused, WrongDialect
from .layout import BARE_HEADER, BARE_REPORT, FRAME_BODY_MAX, TAG
from .pieces import Pieces
from .protocol import (
    JoinedMaster,
    LogBounds,
    LogReceived,
    MasterFact,
    SlaveFact,
    SlaveJoined,
    SlaveReported,
    TransferLimits,
)

TAG_AS_OFFSET: int = struct.unpack(">q", TAG)[0]
ECHO = BARE_HEADER.pack(offset=TAG_AS_OFFSET, size=0)
"""A heartbeat at the offset that a peer of our dialect seemed to report, by which that peer recognises a bare master."""


@attrs.define(eq=False)
class BareMaster:
    """The master's end (HAConnection)."""

    log: LogBounds
    limits: TransferLimits
    fresh_start: Callable[[bool], int]
    """Where a slave with an empty log begins; called with False, because a bare slave cannot choose."""
    sent_end: Callable[[], int]
    """The most that a slave can hold of this log: the end at the master's start, or what was sent since."""
    opened_at: float
    next_offset: int = -1
    checksummed: bool = attrs.field(default=False, init=False)
    _held: bytes = b""
    _sent: bool = False
    """Whether something was sent; the slave has then checked that it continues its log, so its reports count."""
    _farewell: bytes = b""
    _last_read: float = attrs.field(init=False)
    _last_write: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._last_read = self._last_write = self.opened_at

    @property
    def ready(self) -> bool:
        return self.next_offset >= 0

    def receive(self, received: Buffer, now: float) -> tuple[list[MasterFact], bytes]:
        """Read the last complete report and skip those before it, as RocketMQ's ReadSocketService does."""
        self._last_read = now
        held = self._held + received
        whole = len(held) & ~7
        self._held = held[whole:]
        if not whole:
            return [], b""
        offset = BARE_REPORT.unpack(held, whole - BARE_REPORT.size)["offset"]
        if held[:8] == TAG:
            self._farewell = ECHO
            raise WrongDialect("ledgermq")
        if offset < 0:
            raise HaProtocolError(f"a report of offset {offset}")
        if self.ready:
            if offset > self.next_offset:
                raise HaProtocolError(f"a report of offset {offset}, but only bytes before {self.next_offset} were sent")
            return ([SlaveReported(offset, offset)] if self._sent else []), b""
        return [self._start(offset)], b""

    def _start(self, offset: int) -> SlaveJoined:
        if offset == 0:
            self.next_offset = self.fresh_start(False)
            return SlaveJoined(None, None, self.next_offset, fresh=True)
        if not self.log.min_offset <= offset <= self.log.max_offset:
            raise HaRefused(
                f"the slave's log ends at {offset}, the master's reaches from {self.log.min_offset} to {self.log.max_offset}: "
                "the bare protocol cannot repair that; stop the slave, move its store away and let it begin empty, "
                "or set haProtocol = ledgermq on both nodes"
            )
        if offset > self.sent_end():
            # The master lost a tail that this slave still has and has written other bytes at the same offsets since.
            raise HaRefused(
                f"the slave's log ends at {offset}, but since its start this master has sent only bytes before "
                f"{self.sent_end()}: the slave's last bytes are not the master's; stop the slave, move its store away and let "
                "it begin empty, or set haProtocol = ledgermq on both nodes"
            )
        self.next_offset = offset
        return SlaveJoined(None, None, offset, fresh=False)

    def farewell(self) -> bytes:
        return self._farewell

    def next_size(self) -> int:
        if self.next_offset < self.log.min_offset:
            raise HaRefused(
                f"the slave needs offset {self.next_offset}, the master's log now begins at {self.log.min_offset}: "
                "stop the slave, move its store away and let it begin empty"
            )
        return self.limits.batch_size

    def frame(self, size: int, body_crc: int, now: float) -> bytes:
        del body_crc  # a bare frame has no checksum
        header = BARE_HEADER.codec.pack(self.next_offset, size)
        self.next_offset += size
        self._last_write, self._sent = now, True
        return header

    def heartbeat(self, now: float) -> bytes:
        if not self.ready or (self._sent and now - self._last_write < self.limits.heartbeat_seconds):
            return b""
        self._last_write, self._sent = now, True
        return BARE_HEADER.codec.pack(self.next_offset, 0)

    def silent_for(self, now: float) -> float | None:
        silence = now - self._last_read
        return silence if silence > self.limits.housekeeping_seconds else None


@attrs.define(eq=False)
class BareSlave:
    """The slave's end (HAClient). It reports at once after connecting, which every master of the protocol accepts."""

    log: LogBounds
    limits: TransferLimits
    opened_at: float
    joined: bool = False
    wanted: int = 0
    confirmed: int = attrs.field(default=0, init=False)
    master_end: int | None = attrs.field(default=None, init=False)
    readable: int | None = attrs.field(default=None, init=False)
    _end: int = attrs.field(init=False)
    """The end of the log once all facts so far are carried out."""
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
        return self.report(self.opened_at)

    def receive(self, received: Buffer, now: float) -> tuple[list[SlaveFact], bytes]:
        if len(received):
            self.heard(now)
        facts: list[SlaveFact] = []
        inbox = self._inbox
        inbox.feed(received)
        self.wanted = 0
        while inbox.size >= BARE_HEADER.size:
            offset, size = BARE_HEADER.codec.unpack(inbox.peek(BARE_HEADER.size))
            self._check(offset, size)
            if inbox.size < BARE_HEADER.size + size:
                self.wanted = BARE_HEADER.size + size - inbox.size
                break
            inbox.take(BARE_HEADER.size)
            if not self.joined:
                self.joined = True
                facts.append(JoinedMaster(offset, None))
            if size:
                facts.append(LogReceived(offset, inbox.take(size)))
                self._end = offset + size
        inbox.settle()
        return facts, b""

    def heard(self, now: float) -> None:
        self._last_read = now

    def _check(self, offset: int, size: int) -> None:
        if offset == TAG_AS_OFFSET:
            raise WrongDialect("ledgermq")
        if offset < 0 or not 0 <= size <= FRAME_BODY_MAX:
            raise HaProtocolError(f"a header with offset {offset} and size {size}")
        if self._end not in (0, offset):
            raise HaRefused(
                f"the master sends from offset {offset}, this log ends at {self._end}: the bare protocol cannot repair that; "
                "move this slave's store away and let it begin empty, or set haProtocol = ledgermq on both nodes"
            )
        self.limits.check_borders(offset, size, empty=self._end == 0)

    def report(self, now: float) -> bytes:
        self._last_report = now
        return BARE_REPORT.codec.pack(self._end)

    def report_due(self, now: float) -> bool:
        return now - self._last_report >= self.limits.heartbeat_seconds

    def silent_for(self, now: float) -> float | None:
        silence = now - self._last_read
        return silence if silence > self.limits.housekeeping_seconds else None
