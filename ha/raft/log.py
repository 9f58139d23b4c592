"""The log as the core knows it: which term each entry has, how far it is written and durable, but no payload.

Invariant: boundary <= durable <= written <= handed out <= last. What lies behind handed out is the unstable tail: slices of
received batches that the next Ready hands out for writing. The storage keeps the bytes (etcd's raftLog and unstable, without
entries).
"""

from __future__ import annotations

from bisect import bisect_right

import attrs

from .batch import Batch, Slice, Snapshot, TermRun
from .quorum import Configuration
from .ready import SyncPoint
from .units import NO_INDEX, NO_TERM, LogIndex, Term


@attrs.frozen
class LogState:
    """What a node finds in its storage when it starts: everything here is durable."""

    boundary_index: LogIndex = NO_INDEX
    """The last entry that the log no longer holds, or `NO_INDEX`; the first entry is the next one."""
    boundary_term: Term = NO_TERM
    last_index: LogIndex = NO_INDEX
    runs: tuple[TermRun, ...] = ()
    """Term runs of the entries behind the boundary."""
    configurations: tuple[tuple[LogIndex, Configuration], ...] = ()
    """The newest configuration at or before the boundary, and all among the entries, in ascending order."""


@attrs.define
class RaftLog:
    """The one mutable log of a node; written and durable positions only move as its owner reports."""

    boundary_index: LogIndex
    boundary_term: Term
    last_index: LogIndex
    runs: list[TermRun]
    configurations: list[tuple[LogIndex, Configuration]]
    written_index: LogIndex
    durable_index: LogIndex
    handed_index: LogIndex
    """How far the entries are written or in the Ready that is being worked on."""
    epoch: int = 0
    """How often the log was truncated or replaced; see `SyncPoint`."""
    truncate_from: LogIndex | None = None
    """Entries from here on must be removed from the storage before the unstable tail is written."""
    unstable: list[Slice] = attrs.field(factory=list[Slice])

    @classmethod
    def of(cls, state: LogState) -> RaftLog:
        """The log of a node that starts."""
        return cls(
            state.boundary_index,
            state.boundary_term,
            state.last_index,
            list(state.runs),
            list(state.configurations) or [(NO_INDEX, Configuration())],
            written_index=state.last_index,
            durable_index=state.last_index,
            handed_index=state.last_index,
        )

    # ---------------------------------------------------------------- questions

    @property
    def first_index(self) -> LogIndex:
        """The first entry that the log still holds, if it holds any."""
        return self.boundary_index + 1

    @property
    def last_term(self) -> Term:
        return self.runs[-1].term if self.runs else self.boundary_term

    @property
    def configuration(self) -> Configuration:
        """The configuration in force: the newest one in the log, committed or not."""
        return self.configurations[-1][1]

    @property
    def configuration_index(self) -> LogIndex:
        return self.configurations[-1][0]

    def term_at(self, index: LogIndex) -> Term | None:
        """The term of an entry, or None if the log does not know it: beyond the end or before the boundary."""
        if index > self.last_index or index < self.boundary_index:
            return None
        if index == self.boundary_index:
            return self.boundary_term
        if index >= self.runs[-1].first_index:
            return self.runs[-1].term
        return self.runs[self._run_at(index)].term

    def matches(self, index: LogIndex, term: Term) -> bool:
        """Whether the log has an entry of this index and term."""
        return self.term_at(index) == term

    def configuration_at(self, index: LogIndex) -> Configuration:
        """The configuration that was in force when `index` was the last entry."""
        return next(
            (configuration for at, configuration in reversed(self.configurations) if at <= index), self.configurations[0][1]
        )

    def is_up_to_date(self, last_index: LogIndex, last_term: Term) -> bool:
        """Whether a log that ends so is at least as up-to-date as this one (Raft §5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def find_conflict(self, batch: Batch) -> LogIndex:
        """The first entry of the batch that the log lacks or has with another term; one behind the batch if there is none."""
        index = max(batch.first_index, self.first_index)
        for number, run in enumerate(batch.runs):
            end = batch.runs[number + 1].first_index - 1 if number + 1 < len(batch.runs) else batch.last_index
            while index <= end:
                if self.term_at(index) != run.term:
                    return index
                index = min(end, self._run_end(self._run_at(index))) + 1
        return batch.last_index + 1

    def last_index_at_most(self, index: LogIndex, term: Term) -> tuple[LogIndex, Term]:
        """The largest entry that is not behind `index` and not of a later term than `term`, and its term.

        Both sides use it to skip a whole term of disagreement in one round trip (Raft §5.3, the optimisation). The answer
        is the boundary if nothing behind it qualifies.
        """
        index = min(index, self.last_index)
        while index > self.boundary_index:
            number = self._run_at(index)
            if self.runs[number].term <= term:
                return index, self.runs[number].term
            index = self.runs[number].first_index - 1
        return self.boundary_index, self.boundary_term

    def sync_point(self) -> SyncPoint:
        """How far the log is written now."""
        return SyncPoint(self.written_index, self.epoch)

    # ---------------------------------------------------------------- changes

    def append_own(
        self, count: int, term: Term, configurations: tuple[tuple[LogIndex, Configuration], ...]
    ) -> tuple[LogIndex, LogIndex]:
        """Add entries of the leader itself, which its owner writes; returns their first and last index."""
        assert self.written_index == self.last_index, "a leader's own entries follow what it received, so that must be written"
        first_index = self.last_index + 1
        self._extend(first_index, first_index + count - 1, term)
        self.written_index = self.handed_index = self.last_index
        self.configurations.extend(configurations)
        return first_index, self.last_index

    def append_received(self, batch: Batch, first_index: LogIndex) -> None:
        """Add the entries of a received batch from `first_index` on, which follows the end of the log."""
        assert first_index == self.last_index + 1, (
            f"a gap: the log ends at {self.last_index}, the batch begins at {first_index}"
        )
        for number, run in enumerate(batch.runs):
            end = batch.runs[number + 1].first_index - 1 if number + 1 < len(batch.runs) else batch.last_index
            if end >= first_index:
                self._extend(max(run.first_index, first_index), end, run.term)
        self.unstable.append(Slice(batch, first_index, batch.last_index))
        self.configurations.extend(entry for entry in batch.configurations if entry[0] >= first_index)

    def truncate(self, first_index: LogIndex) -> None:
        """Remove `first_index` and everything behind it; configurations among them are no longer in force."""
        assert self.boundary_index < first_index <= self.last_index
        self.epoch += 1
        self.last_index = first_index - 1
        while self.runs and self.runs[-1].first_index >= first_index:
            self.runs.pop()
        while len(self.configurations) > 1 and self.configurations[-1][0] >= first_index:
            self.configurations.pop()
        kept = [piece for piece in self.unstable if piece.first_index < first_index]
        self.unstable = [attrs.evolve(piece, last_index=min(piece.last_index, first_index - 1)) for piece in kept]
        if first_index <= self.handed_index:
            self.truncate_from = first_index if self.truncate_from is None else min(self.truncate_from, first_index)
        self.handed_index = min(self.handed_index, first_index - 1)
        self.written_index = min(self.written_index, first_index - 1)
        self.durable_index = min(self.durable_index, first_index - 1)

    def restore(self, snapshot: Snapshot) -> None:
        """Begin anew behind a snapshot."""
        self.epoch += 1
        self.boundary_index = self.last_index = snapshot.last_index
        self.handed_index = self.written_index = self.durable_index = snapshot.last_index
        self.boundary_term = snapshot.last_term
        self.runs.clear()
        self.unstable.clear()
        self.truncate_from = None
        self.configurations = [(snapshot.last_index, snapshot.configuration)]

    def compact(self, boundary_index: LogIndex) -> None:
        """Forget entries up to and including `boundary_index`, which the storage has removed or will remove."""
        if boundary_index <= self.boundary_index:
            return
        term = self.term_at(boundary_index)
        assert term is not None, f"only entries of the log can be forgotten: {boundary_index} > {self.last_index}"
        configuration = [entry for entry in self.configurations if entry[0] <= boundary_index][-1:]
        self.configurations = [*configuration, *(entry for entry in self.configurations if entry[0] > boundary_index)]
        runs = [run for run in self.runs if run.first_index > boundary_index]
        if boundary_index < self.last_index and (not runs or runs[0].first_index > boundary_index + 1):
            following = self.term_at(boundary_index + 1)
            assert following is not None
            runs.insert(0, TermRun(boundary_index + 1, following))
        self.runs = runs
        self.boundary_index, self.boundary_term = boundary_index, term

    def hand_out(self) -> tuple[LogIndex | None, tuple[Slice, ...]]:
        """Give the owner what it has to do to the storage: where to truncate, and what to write behind that."""
        todo = self.truncate_from, tuple(self.unstable)
        self.truncate_from = None
        self.unstable.clear()
        self.handed_index = self.last_index
        return todo

    def mark_written(self) -> None:
        """What was handed out is written. A truncation in the meantime has lowered `handed_index` already."""
        self.written_index = self.handed_index

    def mark_durable(self, point: SyncPoint) -> bool:
        """A sync has ended. Returns whether more of the log is durable than before."""
        if point.epoch != self.epoch or point.index <= self.durable_index:
            return False
        self.durable_index = point.index
        return True

    # ---------------------------------------------------------------- term runs

    def _run_at(self, index: LogIndex) -> int:
        """The number of the run that holds `index`, which is behind the boundary."""
        return bisect_right(self.runs, index, key=lambda run: run.first_index) - 1

    def _run_end(self, number: int) -> LogIndex:
        return self.runs[number + 1].first_index - 1 if number + 1 < len(self.runs) else self.last_index

    def _extend(self, first_index: LogIndex, last_index: LogIndex, term: Term) -> None:
        assert term >= self.last_term, f"terms of a log never descend (got {term} behind {self.last_term})"
        if not self.runs or self.runs[-1].term != term:
            self.runs.append(TermRun(first_index, term))
        self.last_index = last_index
