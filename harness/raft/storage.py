"""A log in memory that loses unsynced operations in a crash, as a disk does.

An entry is a `(term, value)` pair; a value that is a `Configuration` changes the group. Operations since the last sync may
survive a crash up to any point, in order, because a disk may write them at any time.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from ledgermq.ha.raft.batch import Batch, Slice, Snapshot, TermRun
from ledgermq.ha.raft.log import LogState
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.ready import HardState
from ledgermq.ha.raft.units import NO_INDEX, NO_TERM, LogIndex, PeerId, Term

Entry: TypeAlias = tuple[Term, Any]
Operation: TypeAlias = tuple[int, tuple[Entry, ...]]
"""Truncate the log to this many entries, then append the given ones."""


def batch_of(first_index: LogIndex, entries: tuple[Entry, ...]) -> Batch:
    """A batch of these entries."""
    runs: list[TermRun] = []
    configurations: list[tuple[LogIndex, Configuration]] = []
    for index, (term, value) in enumerate(entries, first_index):
        if not runs or runs[-1].term != term:
            runs.append(TermRun(index, term))
        if isinstance(value, Configuration):
            configurations.append((index, value))
    last_index = first_index + len(entries) - 1
    return Batch(first_index, last_index, tuple(runs), len(entries), entries, tuple(configurations))


@attrs.define(eq=False)
class MemoryStorage:
    """The disk of one node: what was written, and what would survive a crash."""

    configuration: Configuration = attrs.field(factory=Configuration)
    """The configuration that is valid at the boundary."""
    boundary: tuple[LogIndex, Term] = (NO_INDEX, NO_TERM)
    entries: list[Entry] = attrs.field(factory=list[Entry])
    hard_state: HardState = attrs.field(factory=HardState)
    checkpoint: LogIndex = NO_INDEX
    """The commit index that the checkpoint holds."""
    synced: list[Entry] = attrs.field(factory=list[Entry])
    """The entries that are certainly on the medium."""
    unsynced: list[Operation] = attrs.field(factory=list[Operation])
    """Operations since the last sync began, in order."""
    syncing: list[Operation] = attrs.field(factory=list[Operation])
    """Operations that the running sync covers."""

    # ---------------------------------------------------------------- LogReader

    def batch(self, first_index: LogIndex, last_index: LogIndex, bytes_max: int) -> Batch:
        first = first_index - self.boundary[0] - 1
        last = min(last_index - self.boundary[0], first + max(bytes_max, 1))
        return batch_of(first_index, tuple(self.entries[first:last]))

    def snapshot(self, peer: PeerId) -> Snapshot | None:  # noqa: ARG002 - all peers get the same snapshot
        return Snapshot(*self.boundary, self.configuration)

    # ---------------------------------------------------------------- writing

    @property
    def last_index(self) -> LogIndex:
        return self.boundary[0] + len(self.entries)

    def append(self, entries: tuple[Entry, ...]) -> None:
        self.entries.extend(entries)
        self.unsynced.append((len(self.entries) - len(entries), entries))

    def truncate(self, first_index: LogIndex) -> None:
        length = first_index - self.boundary[0] - 1
        del self.entries[length:]
        self.unsynced.append((length, ()))

    def write(self, piece: Slice) -> None:
        """Append a slice of a received batch to the log."""
        assert piece.first_index == self.last_index + 1, f"{piece.first_index} does not follow {self.last_index}"
        first = piece.first_index - piece.batch.first_index
        self.append(piece.batch.payload[first : first + piece.last_index - piece.first_index + 1])

    def install(self, snapshot: Snapshot) -> None:
        """Replace the log by a snapshot, which is durable at once."""
        self.boundary, self.configuration = (snapshot.last_index, snapshot.last_term), snapshot.configuration
        self.entries.clear()
        self._all_synced()

    def compact(self, boundary_index: LogIndex) -> None:
        """Remove entries up to and including `boundary_index`, durably."""
        count = boundary_index - self.boundary[0]
        if count <= 0:
            return
        for _, value in self.entries[:count]:
            if isinstance(value, Configuration):
                self.configuration = value
        self.boundary = (boundary_index, self.entries[count - 1][0])
        del self.entries[:count]
        self._all_synced()

    # ---------------------------------------------------------------- syncing

    def begin_sync(self) -> None:
        """Begin to sync everything that is written now."""
        self.syncing += self.unsynced
        self.unsynced.clear()

    def finish_sync(self) -> None:
        """Record that what was written when the sync began is on the medium."""
        _replay(self.synced, self.syncing)
        self.syncing.clear()

    def sync(self) -> None:
        self.begin_sync()
        self.finish_sync()

    def crash(self, survive: int = 0) -> None:
        """Lose the unsynced operations except the first `survive` ones."""
        _replay(self.synced, (self.syncing + self.unsynced)[:survive])
        self.entries = list(self.synced)
        self._all_synced()

    def _all_synced(self) -> None:
        self.synced = list(self.entries)
        self.unsynced.clear()
        self.syncing.clear()

    # ---------------------------------------------------------------- starting

    def log_state(self) -> LogState:
        """The state of the log that a node finds here when it starts."""
        configurations: tuple[tuple[LogIndex, Configuration], ...] = ((self.boundary[0], self.configuration),)
        runs: tuple[TermRun, ...] = ()
        if self.entries:
            whole = batch_of(self.boundary[0] + 1, tuple(self.entries))
            configurations += whole.configurations
            runs = whole.runs
        return LogState(*self.boundary, self.last_index, runs, configurations)

    def entry(self, index: LogIndex) -> Entry:
        return self.entries[index - self.boundary[0] - 1]

    def synced_entry(self, index: LogIndex) -> Entry | None:
        """The entry at this index if it would certainly survive a crash, else None."""
        position = index - self.boundary[0] - 1
        return self.synced[position] if 0 <= position < len(self.synced) else None


def _replay(entries: list[Entry], operations: list[Operation]) -> None:
    for length, added in operations:
        del entries[length:]
        entries.extend(added)
