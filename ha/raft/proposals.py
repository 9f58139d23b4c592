"""The index and term of a leader's next entries, and when it refuses them; all dialects use it."""

from __future__ import annotations

from typing import Protocol

import attrs

from .errors import LeaderNotReady, NotLeader, TermChanged, TransferInProgress
from .log import RaftLog
from .units import LogIndex, PeerId, Term


@attrs.frozen
class Assignment:
    """The first index and the term of this leader's next entries."""

    first_index: LogIndex
    term: Term


class _Leadership(Protocol):
    @property
    def transfer_to(self) -> PeerId | None: ...


class Proposing(Protocol):
    """The part of a node's state that decides whether it accepts entries."""

    @property
    def leadership(self) -> _Leadership | None:
        """The leadership, or None if the node is not the leader."""
        ...

    @property
    def leader(self) -> PeerId | None: ...

    @property
    def term(self) -> Term: ...

    @property
    def log(self) -> RaftLog: ...


def next_assignment(node: Proposing, expected_term: Term | None) -> Assignment:
    """Return the first index and the term that the next entries of `node` would get.

    Raises:
        NotLeader, TermChanged, TransferInProgress, LeaderNotReady: the node accepts no entries now.
    """
    if node.leadership is None:
        raise NotLeader(node.leader)
    if expected_term is not None and expected_term != node.term:
        raise TermChanged(expected_term, node.term)
    if node.leadership.transfer_to is not None:
        raise TransferInProgress(node.leadership.transfer_to)
    if node.log.written_index != node.log.last_index:
        raise LeaderNotReady(node.log.written_index, node.log.last_index)
    return Assignment(node.log.last_index + 1, node.term)
