"""The log as the core sees it: the term of each entry and how far the log is written and durable, without payloads.

Invariant: boundary <= durable <= written <= handed out <= last. The entries after handed out are the unstable tail: slices of
received batches that the next Ready hands out for writing. The storage holds the bytes (etcd's raftLog and unstable, without
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
    """The log that a node finds in its storage when it starts; all of it is durable."""

    boundary_index: LogIndex = NO_INDEX
    """The last entry before the log begins, or `NO_INDEX`; the first entry of the log is the next one."""
    boundary_term: Term = NO_TERM
    last_index: LogIndex = NO_INDEX
    runs: tuple[TermRun, ...] = ()
    """The term runs of the entries after the boundary."""
    configurations: tuple[tuple[LogIndex, Configuration], ...] = ()
    """The newest configuration at or before the boundary, and all later ones, in ascending order of index."""


@attrs.define
class RaftLog:
    """The mutable log of a node; the written and durable positions advance only when its owner reports it."""

    boundary_index: LogIndex
    boundary_term: Term
    last_index: LogIndex
    runs: list[TermRun]
    configurations: list[tuple[LogIndex, Configuration]]
    written_index: LogIndex
    durable_index: LogIndex
    handed_index: LogIndex
    """The last entry that is written or is in the Ready that the owner is processing."""
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
        """The index of the first entry, if the log has any."""
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
        """The term of an entry, or None if the entry is after the end or before the boundary."""
        if index > self.last_index or index < self.boundary_index:
            return None
        if index == self.boundary_index:
            return self.boundary_term
        if index >= self.runs[-1].first_index:
            return self.runs[-1].term
        return self.runs[self._run_at(index)].term

    def matches(self, index: LogIndex, term: Term) -> bool:
        """Whether the log has an entry with this index and term."""
        return self.term_at(index) == term

    def configuration_at(self, index: LogIndex) -> Configuration:
        """The configuration that was in force when `index` was the last entry."""
        return next(
            (configuration for at, configuration in reversed(self.configurations) if at <= index), self.configurations[0][1]
        )

    def is_up_to_date(self, last_index: LogIndex, last_term: Term) -> bool:
        """Whether a log with this last entry is at least as up-to-date as this one (Raft §5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def find_conflict(self, batch: Batch) -> LogIndex:
        """The first entry of the batch that the log lacks or has with another term, or the index after the batch if none is."""
        index = max(batch.first_index, self.first_index)
        for number, run in enumerate(batch.runs):
            end = batch.runs[number + 1].first_index - 1 if number + 1 < len(batch.runs) else batch.last_index
            while index <= end:
                if self.term_at(index) != run.term:
                    return index
                index = min(end, self._run_end(self._run_at(index))) + 1
        return batch.last_index + 1

    def last_index_at_most(self, index: LogIndex, term: Term) -> tuple[LogIndex, Term]:
        """The last entry whose index is at most `index` and whose term is at most `term`, with its term.

        Both sides use it to skip a whole term of disagreement in one round trip (Raft §5.3, the optimisation). The result
        is the boundary if no entry after it qualifies.
        """
        index = min(index, self.last_index)
        while index > self.boundary_index:
            number = self._run_at(index)
            if self.runs[number].term <= term:
                return index, self.runs[number].term
            index = self.runs[number].first_index - 1
        return self.boundary_index, self.boundary_term

    def sync_point(self) -> SyncPoint:
        """Return how far the log is written now."""
        return SyncPoint(self.written_index, self.epoch)

    # ---------------------------------------------------------------- changes

    def append_own(
        self, count: int, term: Term, configurations: tuple[tuple[LogIndex, Configuration], ...]
    ) -> tuple[LogIndex, LogIndex]:
        """Add entries of the leader itself, which its owner has written; return their first and last index."""
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
        """Remove `first_index` and everything after it; removed configurations are no longer in force."""
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
        """Discard the log and start an empty one after a snapshot."""
        self.epoch += 1
        self.boundary_index = self.last_index = snapshot.last_index
        self.handed_index = self.written_index = self.durable_index = snapshot.last_index
        self.boundary_term = snapshot.last_term
        self.runs.clear()
        self.unstable.clear()
        self.truncate_from = None
        self.configurations = [(snapshot.last_index, snapshot.configuration)]

    def compact(self, boundary_index: LogIndex) -> None:
        """Drop the entries up to and including `boundary_index`, which the storage has removed or will remove."""
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
        """Return the index from which the owner has to truncate the storage, if any, and the slices to write after it."""
        todo = self.truncate_from, tuple(self.unstable)
        self.truncate_from = None
        self.unstable.clear()
        self.handed_index = self.last_index
        return todo

    def mark_written(self) -> None:
        """Note that what was handed out is written. A truncation in the meantime has already lowered `handed_index`."""
        self.written_index = self.handed_index

    def mark_durable(self, point: SyncPoint) -> bool:
        """Note that a sync has ended; return whether more of the log is durable than before."""
        if point.epoch != self.epoch or point.index <= self.durable_index:
            return False
        self.durable_index = point.index
        return True

    # ---------------------------------------------------------------- term runs

    def _run_at(self, index: LogIndex) -> int:
        """The position in `runs` of the run that contains `index`, which is after the boundary."""
        return bisect_right(self.runs, index, key=lambda run: run.first_index) - 1

    def _run_end(self, number: int) -> LogIndex:
        return self.runs[number + 1].first_index - 1 if number + 1 < len(self.runs) else self.last_index

    def _extend(self, first_index: LogIndex, last_index: LogIndex, term: Term) -> None:
        assert term >= self.last_term, f"terms of a log never descend (got {term} behind {self.last_term})"
        if not self.runs or self.runs[-1].term != term:
            self.runs.append(TermRun(first_index, term))
        self.last_index = last_index
