"""The common part of all dialects of the HA port: the facts that a core reports, its limits and its interface.

A core is one end of one connection: it takes received bytes and the time, and returns facts and bytes to send. It uses no
socket, clock or file; it reads the offsets of the log from `LogBounds`. The shell carries facts out in order; a `HaError` that
`receive` raises closes that connection only.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from ...message.fields import Buffer
from ..errors import HaRefused
from .epochs import EpochList


class LogBounds(Protocol):
    """The offsets of a log that a core reads."""

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
    """Limits of a connection, with RocketMQ's defaults; times in seconds, sizes in bytes."""

    heartbeat_seconds: float = 5.0
    """How long either side may send nothing before it sends a heartbeat (haSendHeartbeatInterval)."""
    housekeeping_seconds: float = 20.0
    """A connection whose peer was silent for longer is closed (haHousekeepingInterval)."""
    handshake_seconds: float = 10.0
    """Time-out of the handshake, after which the connection is closed; a bare slave may need 5 s for its first report."""
    batch_size: int = 32 * 1024
    """The most log bytes of one frame in RocketMQ's dialects, and of the first frames in ours (haTransferBatchSize)."""
    segment_size: int = 1 << 30
    """The bytes of one segment of the log; master and slave must have the same value."""

    def check_borders(self, offset: int, size: int, *, empty: bool) -> None:
        """Check that a frame of one of RocketMQ's masters fits the segments of this slave's log.

        Raises:
            HaRefused: the master has segments of another size. Nothing may be appended.
        """
        if offset % self.segment_size + size > self.segment_size:
            raise HaRefused(
                f"{size} bytes at offset {offset} cross a segment border here: set mappedFileSizeCommitLog "
                f"(here {self.segment_size}) to the master's value, with an empty store"
            )
        if empty and offset % self.segment_size:
            # A slave with an empty log is filled from the beginning of one of the master's segments.
            raise HaRefused(
                f"the master's segment begins at offset {offset}, where none begins here: set mappedFileSizeCommitLog "
                f"(here {self.segment_size}) to the master's value"
            )


# --- facts for a master ---


@attrs.frozen
class SlaveJoined:
    """A slave holds everything before `offset` and needs what follows."""

    node: bytes | None
    """The identity of the slave; None for a slave of RocketMQ's protocols, which sends none."""
    broker_id: int | None
    """The broker id of the slave; None for a bare slave, which does not send it."""
    offset: int
    fresh: bool
    """Whether the slave begins at `offset` with an empty log, so that the offset acknowledges no put."""
    learner: bool = False
    """Whether the slave only copies the log: it acknowledges no put (asyncLearner)."""


@attrs.define
class SlaveReported:
    """A slave holds everything before `appended`."""

    appended: int
    flushed: int


# --- facts for a slave ---


@attrs.define
class LogReceived:
    """Bytes to append at `offset`, in the pieces in which they were received."""

    offset: int
    pieces: list[memoryview]


@attrs.frozen
class JoinedMaster:
    """The master sends from `offset` on; `epochs` are those of the log up to there."""

    offset: int
    epochs: EpochList | None
    """The epochs; None in the bare dialect, which has none."""


@attrs.frozen
class TailDropped:
    """The bytes from `start` on are not in the master's log and must be removed before anything is appended."""

    start: int
    end: int
    confirmed_end: int
    """The end of the removed bytes that the master had reported as confirmed; `start` if there are none. It is `end` if the
    master has never had the epoch of the last byte."""
    promised_end: int
    """The end of the removed bytes whose puts waited for a slave and may have been acknowledged; `start` if there are none."""


@attrs.frozen
class LogAbandoned:
    """The master cannot continue this log: all of it is removed, and the next byte comes at `start`."""

    start: int
    old_min: int
    old_end: int
    diverged: bool
    """Whether the log held bytes that the master never had; otherwise the master has only expired the bytes after it."""
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
        """Whether the slave has sent the offset from which on it needs the log."""
        ...

    @property
    def next_offset(self) -> int:
        """The physical offset of the next data frame."""
        ...

    def receive(self, received: Buffer, now: float) -> tuple[list[MasterFact], bytes]:
        """Decode bytes of the slave; returns facts and the bytes to answer.

        Raises:
            HaError: the caller sends `farewell` and closes the connection. These bytes gave no fact.
        """
        ...

    def farewell(self) -> bytes:
        """The bytes to send before closing after an error: a refusal that the slave can log, or nothing."""
        ...

    def next_size(self) -> int:
        """Log bytes that the next frame may carry.

        Raises:
            HaRefused: the log no longer has what this slave needs next.
        """
        ...

    def frame(self, size: int, body_crc: int, now: float) -> bytes:
        """The header of a frame with the next `size` log bytes; advances `next_offset` by them.

        `body_crc` is their CRC-32, which the caller computes because it is slow and may run in a thread.
        """
        ...

    def heartbeat(self, now: float) -> bytes:
        """A heartbeat if nothing was sent for the heartbeat interval or its content has changed, else nothing."""
        ...

    def silent_for(self, now: float) -> float | None:
        """How many seconds the peer has been silent, if that exceeds the limit, else None."""
        ...


class SlaveCore(Protocol):
    """The slave's end of one connection."""

    @property
    def joined(self) -> bool:
        """Whether the master has accepted this slave."""
        ...

    @property
    def confirmed(self) -> int:
        """The confirmed offset as the master sent it, at most the end of this log; 0 in the bare dialect, which has none."""
        ...

    @property
    def master_end(self) -> int | None:
        """The end of the master's log, as it was sent last; None in the bare dialect, which does not send it."""
        ...

    @property
    def readable(self) -> int | None:
        """The master's readable offset, once it was sent on this connection."""
        ...

    @property
    def wanted(self) -> int:
        """How many bytes of an incomplete frame are missing; 0 if there is no incomplete frame."""
        ...

    @property
    def held(self) -> int:
        """How many bytes of an incomplete frame have been received."""
        ...

    def opening(self) -> bytes:
        """The bytes to send as soon as the connection is open."""
        ...

    def receive(self, received: Buffer, now: float) -> tuple[list[SlaveFact], bytes]:
        """Decode bytes of the master; returns facts, and the bytes to answer once the facts are carried out.

        Facts hold views of `received`; the core itself keeps only copies.

        Raises:
            HaError: the caller closes the connection. These bytes gave no fact.
        """
        ...

    def heard(self, now: float) -> None:
        """Record that bytes were received which the caller does not pass on yet, so that the peer does not count as silent."""
        ...

    def report(self, now: float) -> bytes:
        """A report of the log's end; nothing while not joined."""
        ...

    def report_due(self, now: float) -> bool:
        """Whether nothing was reported for the heartbeat interval."""
        ...

    def silent_for(self, now: float) -> float | None:
        """How many seconds the master has been silent, if that exceeds the limit, else None."""
        ...
