"""Where a leader's next entries go, and when it takes none: the same for every dialect."""

from __future__ import annotations

from typing import Protocol

import attrs

from .errors import LeaderNotReady, NotLeader, TermChanged, TransferInProgress
from .log import RaftLog
from .units import LogIndex, PeerId, Term


@attrs.frozen
class Assignment:
    """Where the next entries of this leader go."""

    first_index: LogIndex
    term: Term


class _Leadership(Protocol):
    @property
    def transfer_to(self) -> PeerId | None: ...


class Proposing(Protocol):
    """What of a node decides whether it takes entries."""

    @property
    def leadership(self) -> _Leadership | None:
        """None unless it leads."""
        ...

    @property
    def leader(self) -> PeerId | None: ...

    @property
    def term(self) -> Term: ...

    @property
    def log(self) -> RaftLog: ...


def next_assignment(node: Proposing, expected_term: Term | None) -> Assignment:
    """Where the next entries of `node` would go.

    Raises:
        NotLeader, TermChanged, TransferInProgress, LeaderNotReady: it takes none now.
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
