"""The interface of the replicated state machine, and its caller (SOFA-JRaft `StateMachine` and `FSMCaller`).

The caller guarantees that the machine gets every committed entry once and in order, or a snapshot that contains it. The machine
decides where its state is stored; a commit log is a state machine whose state is the log itself.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from ledgermq.ha.raft.batch import Batch, LogReader, Snapshot
from ledgermq.ha.raft.log import RaftLog
from ledgermq.ha.raft.messages import Message
from ledgermq.ha.raft.ready import CommittedRange, Ready
from ledgermq.ha.raft.units import LogIndex

APPLY_BYTES_MAX = 1 << 20
"""The most bytes of the log that one call of `apply` gets; a larger entry is applied alone."""


class StateMachine(Protocol):
    """The replicated machine. It must be deterministic: the same entries give the same state on every node."""

    def apply(self, batch: Batch) -> None:
        """Apply committed entries, which follow those applied before. Configurations and barriers are among them."""
        ...

    def save(self) -> Any:
        """Return the whole state as the payload of a snapshot."""
        ...

    def load(self, snapshot: Snapshot) -> None:
        """Replace the whole state by a snapshot."""
        ...


@attrs.define
class StateMachineCaller:
    """Applies the entries and snapshots of one core's Readies to one machine."""

    machine: StateMachine
    reader: LogReader
    applied_index: LogIndex
    """The last applied entry. It begins as the boundary of the log, or as the last entry in the machine's saved state."""

    def obey(self, ready: Ready[Message]) -> None:
        """Install the snapshot of a Ready and apply its committed entries; its `appends` must be written already."""
        if ready.snapshot is not None:
            self.machine.load(ready.snapshot)
            self.applied_index = ready.snapshot.last_index
        if ready.committed is not None:
            self.apply(ready.committed)

    def apply(self, committed: CommittedRange) -> None:
        """Apply a range that follows the last applied entry."""
        assert committed.first_index == self.applied_index + 1, (
            f"entries {committed.first_index} to {committed.last_index} do not follow the last applied {self.applied_index}"
        )
        while self.applied_index < committed.last_index:
            batch = self.reader.batch(self.applied_index + 1, committed.last_index, APPLY_BYTES_MAX)
            self.machine.apply(batch)
            self.applied_index = batch.last_index

    def take_snapshot(self, log: RaftLog) -> Snapshot:
        """Return a snapshot of the machine; the entries up to its `last_index` may be compacted once it is durable."""
        term = log.term_at(self.applied_index)
        assert term is not None, f"the log no longer knows entry {self.applied_index}"
        return Snapshot(self.applied_index, term, log.configuration_at(self.applied_index), self.machine.save())
