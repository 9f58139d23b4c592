"""Roles of a node and the table of transitions between them, as data.

The diagram of `docs/raft.md` is drawn from this table. A transition that is not in the table is a bug and raises.
"""

from __future__ import annotations

import enum


class Role(enum.Enum):
    """The role of a node in its current term. A learner is a follower that has no vote by its configuration."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"

    # Members are singletons, so identity is equality; the default hash of an enum costs a Python call.
    __hash__ = object.__hash__


class Input(enum.Enum):
    """The causes of a change of role."""

    ELECTION_TIMEOUT = "nothing was heard from a leader for an election time-out"
    PRE_VOTE_WON = "a majority would vote for this node"
    PRE_VOTE_LOST = "a majority would not vote for this node"
    TIMEOUT_NOW = "the leader hands its leadership to this node"
    VOTE_WON = "a majority voted for this node, this node's durable vote included"
    VOTE_LOST = "a majority refused its vote"
    VOTE_GRANTED = "the node voted for another one"
    VOTE_TIMEOUT = "the vote was not decided in time"
    LEADER_SEEN = "a leader of the current term sent a message"
    HIGHER_TERM = "a message carried a higher term"
    QUORUM_LOST = "the leader did not hear a majority for an election time-out"
    REMOVED = "a committed configuration no longer has this node as a voter"

    __hash__ = object.__hash__


TRANSITIONS: dict[tuple[Role, Input], Role] = {
    (Role.FOLLOWER, Input.ELECTION_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.FOLLOWER, Input.TIMEOUT_NOW): Role.CANDIDATE,
    (Role.FOLLOWER, Input.LEADER_SEEN): Role.FOLLOWER,
    (Role.FOLLOWER, Input.HIGHER_TERM): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Input.ELECTION_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.PRE_CANDIDATE, Input.PRE_VOTE_WON): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, Input.PRE_VOTE_LOST): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Input.TIMEOUT_NOW): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, Input.VOTE_GRANTED): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Input.VOTE_WON): Role.LEADER,
    (Role.PRE_CANDIDATE, Input.LEADER_SEEN): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Input.HIGHER_TERM): Role.FOLLOWER,
    (Role.CANDIDATE, Input.VOTE_WON): Role.LEADER,
    (Role.CANDIDATE, Input.VOTE_LOST): Role.FOLLOWER,
    (Role.CANDIDATE, Input.VOTE_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.CANDIDATE, Input.LEADER_SEEN): Role.FOLLOWER,
    (Role.CANDIDATE, Input.HIGHER_TERM): Role.FOLLOWER,
    (Role.LEADER, Input.HIGHER_TERM): Role.FOLLOWER,
    (Role.LEADER, Input.QUORUM_LOST): Role.FOLLOWER,
    (Role.LEADER, Input.REMOVED): Role.FOLLOWER,
}
