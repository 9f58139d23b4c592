"""Advance the commit index to what a majority has stored, by entries of the current term only (SOFA-JRaft `BallotBox`).

Invariant: the commit index never decreases, and a leader moves it only to an entry of its own term (Raft §5.4.2).
"""

from __future__ import annotations

from . import membership, quorum
from .progress import Mode
from .state import Leadership, State


def advance_commit(state: State, led: Leadership) -> None:
    """Commit what a majority has made durable; this node counts with its own durable index."""
    match = {replicator.peer: replicator.match_index for replicator in led.group if replicator.mode is not Mode.REGRESSED}
    match[state.id] = state.log.durable_index
    index = quorum.committed_index(match, state.configuration)
    # Raft §5.4.2: an entry of an earlier term may be on a majority and still be replaced (Figure 8).
    if index > state.commit_index and index >= led.term_start_index:
        state.commit_index = index
        state.verified_index = max(state.verified_index, index)
        membership.on_commit(state, led)


def follow_commit(state: State, leader_commit: int) -> None:
    """Adopt the leader's commit index, but only up to where this log is verified to agree with the leader's."""
    state.commit_index = max(state.commit_index, min(leader_commit, state.verified_index))
