"""What both dialects of the HA port share: the facts that a core reports, the limits it is given, the shape it has.

A core is one end of one connection: received bytes and the time go in, facts and bytes to send come out. It knows no socket,
no clock and no file; offsets of the log are asked of a `LogBounds`. Facts are to be carried out in order, and a `HaError`
raised by `receive` ends that connection and nothing else.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from ...message.fields import Buffer
from .epochs import EpochList


class LogBounds(Protocol):
    """The part of a log that a core looks at."""

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def readable_offset(self) -> int: ...


@attrs.frozen
class TransferLimits:
    """Times in seconds, sizes in bytes; RocketMQ's defaults."""

    heartbeat_seconds: float = 5.0
    """Longest silence of either side that is still healthy (haSendHeartbeatInterval)."""
    housekeeping_seconds: float = 20.0
    """A peer that was silent for longer is gone (haHousekeepingInterval)."""
    handshake_seconds: float = 10.0
    """From the connection to the end of the handshake; a bare slave may need 5 s for its first word."""
    batch_size: int = 32 * 1024
    """Log bytes of one frame: all of it in the bare dialect, what a frame starts with in ours (haTransferBatchSize)."""
    segment_size: int = 1 << 30
    """Log bytes of one segment; master and slave must agree."""


# --- facts a master learns ---


@attrs.frozen
class SlaveJoined:
    """A slave holds everything before `offset` and is sent what follows."""

    node: bytes | None
    """Who it is; None for a bare slave, which does not say."""
    broker_id: int | None
    offset: int
    fresh: bool
    """It begins there with nothing: the offset acknowledges no put."""


@attrs.define
class SlaveReported:
    """A slave holds everything before `appended`."""

    appended: int
    flushed: int


# --- facts a slave learns ---


@attrs.define
class LogReceived:
    """Bytes to append at `offset`, in pieces as they came."""

    offset: int
    pieces: list[memoryview]


@attrs.frozen
class JoinedMaster:
    """The master agreed to send from `offset` on; `epochs` are those of the log up to there."""

    offset: int
    epochs: EpochList | None
    """None in the bare dialect, which has none."""


@attrs.frozen
class TailDropped:
    """Everything from `start` on is not in the master's log and has to go before anything is appended."""

    start: int
    end: int
    confirmed_end: int
    """Up to here the master had told us that puts were answered as replicated; `start` when none of it was."""
    promised_end: int
    """Up to here puts waited for a slave and may have been answered as replicated; `start` when none of it did."""


@attrs.frozen
class LogAbandoned:
    """The log joins nothing that the master still has: all of it goes, the next byte comes at `start`."""

    start: int
    old_min: int
    old_end: int
    diverged: bool
    """It held bytes that the master never had; otherwise the master has merely expired what would follow."""
    confirmed_end: int
    promised_end: int


@attrs.frozen
class EpochBegun:
    """The next bytes belong to a new epoch; `epochs` is the whole list from now on."""

    epochs: EpochList


MasterFact = SlaveJoined | SlaveReported
SlaveFact = LogReceived | JoinedMaster | TailDropped | LogAbandoned | EpochBegun


class MasterCore(Protocol):
    """The master's end of one connection."""

    @property
    def checksummed(self) -> bool:
        """Whether frames carry a checksum of their log bytes."""
        ...

    @property
    def ready(self) -> bool:
        """Whether the slave has said from where on it needs the log."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next data frame begins."""
        ...

    def receive(self, received: Buffer, now: float) -> tuple[list[MasterFact], bytes]:
        """Take what the slave sent; return what it means and what to answer.

        Raises:
            HaError: close the connection, after sending `farewell`. No fact of these bytes holds.
        """
        ...

    def farewell(self) -> bytes:
        """What to send before closing after an error: a refusal that the slave can show, or nothing."""
        ...

    def next_size(self) -> int:
        """Log bytes that the next frame may carry.

        Raises:
            HaRefused: the log no longer has what this slave needs next.
        """
        ...

    def frame(self, size: int, body_crc: int, now: float) -> bytes:
        """The header of a frame with the next `size` log bytes; `next_offset` moves behind them.

        `body_crc` is their CRC-32; it is asked for because computing it is the one slow thing here, and may happen elsewhere.
        """
        ...

    def heartbeat(self, now: float) -> bytes:
        """A heartbeat if nothing was sent for the heartbeat interval or the slave must be told something, else nothing."""
        ...

    def silent_for(self, now: float) -> float | None:
        """Seconds of the peer's silence once they are too many, else None."""
        ...


class SlaveCore(Protocol):
    """The slave's end of one connection."""

    @property
    def joined(self) -> bool:
        """Whether the master has agreed to send."""
        ...

    @property
    def wanted(self) -> int:
        """Bytes that are missing of the frame that has begun; with fewer there is nothing to be done. 0 if none has begun."""
        ...

    @property
    def held(self) -> int:
        """Bytes kept of the frame that has begun."""
        ...

    def opening(self) -> bytes:
        """What to send as soon as the connection is open."""
        ...

    def receive(self, received: Buffer, now: float) -> tuple[list[SlaveFact], bytes]:
        """Take what the master sent; return what to do, and what to answer once that is done.

        Facts hold views of `received`; what the core keeps of it is a copy.

        Raises:
            HaError: close the connection. No fact of these bytes holds.
        """
        ...

    def heard(self, now: float) -> None:
        """Bytes have come that are not handed over yet, because more are wanted: the peer is not silent."""
        ...

    def report(self, now: float) -> bytes:
        """Say how far the log reaches; nothing while not joined."""
        ...

    def report_due(self, now: float) -> bool:
        """Whether nothing was reported for the heartbeat interval."""
        ...

    def silent_for(self, now: float) -> float | None:
        """Seconds of the peer's silence once they are too many, else None."""
        ...
