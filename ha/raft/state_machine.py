"""What is replicated: the interface of a state machine, and its caller (SOFA-JRaft `StateMachine` and `FSMCaller`).

The caller owns one promise: the machine sees every committed entry once and in order, over snapshots too. Where the machine
keeps its state is its own business; a commit log is a state machine whose state is the log itself.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from .batch import Batch, LogReader, Snapshot
from .log import RaftLog
from .ready import CommittedRange, Ready
from .units import LogIndex

APPLY_BYTES_MAX = 1 << 20
"""How much of the log is handed to the machine in one call."""


class StateMachine(Protocol):
    """The replicated machine. It must be deterministic: the same entries give the same state on every node."""

    def apply(self, batch: Batch) -> None:
        """Take committed entries, which follow what was applied before. Configurations and barriers are among them."""
        ...

    def save(self) -> Any:
        """Return the whole state as the payload of a snapshot."""
        ...

    def load(self, snapshot: Snapshot) -> None:
        """Forget everything and continue from a snapshot."""
        ...


@attrs.define
class StateMachineCaller:
    """Feeds one machine from one core's Ready."""

    machine: StateMachine
    reader: LogReader
    applied_index: LogIndex
    """The machine has seen everything up to here. It starts at the boundary of the log, or at what the machine has saved."""

    def obey(self, ready: Ready) -> None:
        """Install the snapshot of a Ready and apply what it says is committed; its entries must be written already."""
        if ready.snapshot is not None:
            self.machine.load(ready.snapshot)
            self.applied_index = ready.snapshot.last_index
        if ready.committed is not None:
            self.apply(ready.committed)

    def apply(self, committed: CommittedRange) -> None:
        """Apply a range that continues what was applied."""
        assert committed.first_index == self.applied_index + 1, (
            f"entries {committed.first_index} to {committed.last_index} do not follow the last applied {self.applied_index}"
        )
        while self.applied_index < committed.last_index:
            batch = self.reader.batch(self.applied_index + 1, committed.last_index, APPLY_BYTES_MAX)
            self.machine.apply(batch)
            self.applied_index = batch.last_index

    def take_snapshot(self, log: RaftLog) -> Snapshot:
        """Save the machine; the entries up to `last_index` may be compacted once the snapshot is durable."""
        term = log.term_at(self.applied_index)
        assert term is not None, f"the log no longer knows entry {self.applied_index}"
        return Snapshot(self.applied_index, term, log.configuration_at(self.applied_index), self.machine.save())
