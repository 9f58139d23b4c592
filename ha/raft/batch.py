"""Batches: entries that are sent and written together. The core never handles a single entry.

The leader's storage reads batches from its files and the follower's storage appends them unchanged. The core reads the indexes,
the terms and the configurations among the entries; the payload is opaque to it.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from .quorum import Configuration
from .units import LogIndex, PeerId, Term


@attrs.frozen
class TermRun:
    """Consecutive entries of one term. The run ends before the next run, or at the end of the batch or log."""

    first_index: LogIndex
    term: Term


@attrs.frozen
class Batch:
    """The entries `first_index` to `last_index`, at least one."""

    first_index: LogIndex
    last_index: LogIndex
    runs: tuple[TermRun, ...]
    """Terms of the entries: the first run begins at `first_index`; indexes and terms ascend strictly."""
    size_bytes: int
    """The size of the batch for the flow control of the leader."""
    payload: Any = None
    """The bytes of the entries, or another form of them that only the storage interprets."""
    configurations: tuple[tuple[LogIndex, Configuration], ...] = ()
    """The configurations among these entries, with their indexes, in ascending order."""

    def __attrs_post_init__(self) -> None:
        if self.last_index < self.first_index or not self.runs or self.runs[0].first_index != self.first_index:
            raise ValueError(
                f"a batch needs entries and their terms (got {self.first_index} to {self.last_index}, {self.runs})"
            )
        for run, follower in zip(self.runs, self.runs[1:], strict=False):
            if follower.first_index <= run.first_index or follower.term <= run.term:
                raise ValueError(f"term runs of a batch must ascend (got {self.runs})")
        if self.runs[-1].first_index > self.last_index:
            raise ValueError(f"the last term run begins behind the batch (got {self.runs[-1]}, last {self.last_index})")

    @property
    def count(self) -> int:
        return self.last_index - self.first_index + 1

    @property
    def last_term(self) -> Term:
        return self.runs[-1].term


@attrs.frozen
class Slice:
    """Part of a received batch that a follower has to write: the entries `first_index` to `last_index` of `batch`."""

    batch: Batch
    first_index: LogIndex
    last_index: LogIndex


@attrs.frozen
class Snapshot:
    """A state that replaces all entries up to and including `last_index`; the shell decides how to transfer it.

    A state machine whose state is the log itself (a commit log) uses it to mark the beginning: older entries have expired.
    """

    last_index: LogIndex
    last_term: Term
    configuration: Configuration
    """The configuration at `last_index`."""
    payload: Any = None


class LogReader(Protocol):
    """The interface by which the core reads from the storage. Both calls return written entries, durable or not."""

    def batch(self, first_index: LogIndex, last_index: LogIndex, bytes_max: int) -> Batch:
        """Return entries from `first_index` on, at most to `last_index`.

        The batch holds at least one entry, and more only while it stays within `bytes_max`. The core asks only for entries
        that were reported as written and are after the boundary of the log.
        """
        ...

    def snapshot(self, peer: PeerId) -> Snapshot | None:
        """Return a snapshot for a peer that lacks entries which this log no longer has; None if there is none now.

        Its `last_index` must be at least the boundary of the log and at most the commit index.
        """
        ...
