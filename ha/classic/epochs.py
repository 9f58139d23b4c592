"""Epochs: which master wrote which part of the log, and where two logs diverge.

An epoch begins each time a node becomes master, at the end of its log. Two logs hold the same bytes up to some point inside
the newest epoch that both have with the same number, start and writer (RocketMQ AutoSwitch, consistent point; the writer is our
addition and distinguishes two masters that began at the same offset, also when both are one node, first with its store and
later with an older copy of it). RocketMQ's brokers send no writer, so their epochs match by number and start alone.
Invariant: numbers ascend, starts never descend.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ..errors import CorruptEpochs, HaRefused

EPOCHS_MAX = 1000
"""How many epochs are kept and sent; a node that missed more changes of master is filled from the beginning."""

UNKNOWN_WRITER = bytes(16)
"""The writer of an epoch that was received from one of RocketMQ's brokers."""


@attrs.frozen
class Epoch:
    """The part of a log that one master wrote."""

    number: int
    start: int
    """The physical offset of its first byte."""
    writer: bytes
    """16 random bytes that the master chose when the epoch began; older versions wrote the identity of their node."""
    replicas: int
    """How many copies, including the master's, a put of this epoch waited for; 1 is the master's alone."""

    def is_same(self, other: Epoch) -> bool:
        """Whether both are one epoch; an unknown writer is taken for any."""
        writers = {self.writer, other.writer} - {UNKNOWN_WRITER}
        return (self.number, self.start) == (other.number, other.start) and len(writers) <= 1


@attrs.frozen
class EpochList:
    """All epochs of one log, oldest first."""

    entries: tuple[Epoch, ...] = ()

    def __attrs_post_init__(self) -> None:
        for earlier, later in zip(self.entries, self.entries[1:], strict=False):
            if later.number <= earlier.number or later.start < earlier.start:
                raise CorruptEpochs(
                    f"epoch {later.number} at {later.start} cannot follow epoch {earlier.number} at {earlier.start}"
                )

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def last(self) -> Epoch | None:
        return self.entries[-1] if self.entries else None

    def truncated(self, offset: int) -> EpochList:
        """The list of a log that ends at `offset`, without the epochs that begin there or later, which have no bytes."""
        return EpochList(tuple(entry for entry in self.entries if entry.start < offset))

    def begun(self, log_start: int, log_end: int, writer: bytes, replicas: int, number: int | None = None) -> EpochList:
        """The list after `writer` became master of a log with these bounds.

        A log without epochs, written before they existed, gets one for its bytes.

        Args:
            number: the epoch that a controller has given; None for the next one.

        Raises:
            HaRefused: the controller has forgotten epochs that this log has.
        """
        entries = self.truncated(log_end).entries
        if not entries and log_end > log_start:
            entries = (Epoch(0 if number is not None else 1, log_start, writer, replicas),)
        last = max(self.last.number if self.last else -1, entries[-1].number if entries else -1)
        if number is None:
            number = max(last, 0) + 1
        elif number == last and self.last is not None and self.last.start <= log_end:
            return self  # the same master goes on
        elif number <= last:
            raise HaRefused(
                f"the controller gives epoch {number}, and this log has epoch {last}: the controller has lost its state, or is "
                "another group's. This node does not lead; restore the controller's directory, or remove haEpochs.json"
            )
        return EpochList((*entries, Epoch(number, log_end, writer, replicas))[-EPOCHS_MAX:])

    def with_writers_of(self, other: EpochList) -> EpochList:
        """The same list, with the epochs that `other` has too taken from there, because it may know their writers."""
        others = {entry.number: entry for entry in other}
        return EpochList(
            tuple(twin if (twin := others.get(entry.number)) and twin.is_same(entry) else entry for entry in self.entries)
        )

    def at(self, offset: int) -> Epoch | None:
        """The epoch of the byte at `offset`."""
        return next((entry for entry in reversed(self.entries) if entry.start <= offset), None)

    def next_start(self, offset: int) -> int | None:
        """The start of the first epoch that begins behind `offset`; None if there is none."""
        return next((entry.start for entry in self.entries if entry.start > offset), None)

    def never_had(self, epoch: Epoch) -> bool:
        """Whether the log of this list certainly never had `epoch`: another epoch has its number, or none has reached it.

        A master numbers on from the epochs that it has begun, also from one whose bytes it has lost in a crash. So only a node
        whose store is an older copy, or one that did not follow the writer of `epoch`, falls behind that number.
        """
        twin = next((entry for entry in self.entries if entry.number == epoch.number), None)
        if twin is None:
            return not self.entries or self.entries[-1].number < epoch.number
        return not twin.is_same(epoch)

    def end_of(self, epoch: Epoch, log_end: int) -> int:
        """Where `epoch` ends: the start of the next one, or the end of the log."""
        position = self.entries.index(epoch)
        return self.entries[position + 1].start if position + 1 < len(self.entries) else log_end

    def promised_end(self, start: int, log_end: int) -> int:
        """The end of the last part of [start, log_end) whose puts waited for a slave; `start` if there is none."""
        promised = start
        for entry in self.entries:
            end = min(self.end_of(entry, log_end), log_end)
            if entry.replicas > 1 and end > start:
                promised = max(promised, end)
        return promised


def common_point(own: EpochList, own_end: int, other: EpochList, other_end: int) -> int | None:
    """The offset up to which two logs hold the same bytes, or None if they share no epoch."""
    others = {entry.number: entry for entry in other}
    for entry in reversed(own.entries):
        twin = others.get(entry.number)
        if twin is not None and twin.is_same(entry):
            return min(own.end_of(entry, own_end), other.end_of(twin, other_end))
    return None
