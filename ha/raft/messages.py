"""What the members of a group say to each other. Messages are values; a dialect turns them into bytes.

Every message names its sender, its receiver and a term: the sender's current term, except in the two pre-vote messages.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from .batch import Batch, Snapshot
from .units import LogIndex, PeerId, Term


@attrs.frozen
class PreVoteRequest:
    """Asks whether an election in `term` could be won, before anybody raises a term (Ongaro's thesis §9.6)."""

    sender: PeerId
    to: PeerId
    term: Term
    """The term that the sender would campaign in: its own plus one."""
    last_index: LogIndex
    last_term: Term


@attrs.frozen
class PreVoteResponse:
    """Answers a pre-vote. It promises nothing and changes nothing at the voter."""

    sender: PeerId
    to: PeerId
    term: Term
    """The requested term if granted, else the voter's own term."""
    granted: bool


@attrs.frozen
class TermQuery:
    """A node that has lost its disk, or never had anything on it, asks for the receiver's term. It changes nothing there."""

    sender: PeerId
    to: PeerId
    term: Term
    context: int
    """Drawn anew by each start, and repeated by the answer: an answer to an earlier start may be too old."""
    durable_index: LogIndex
    """How far the sender's log is on its disk; it may be less than what it once acknowledged."""


@attrs.frozen
class TermAnswer:
    """Answers a `TermQuery`; term 0 means that the node has never taken part in an election."""

    sender: PeerId
    to: PeerId
    term: Term
    context: int


@attrs.frozen
class VoteRequest:
    """RequestVote (Raft §5.2)."""

    sender: PeerId
    to: PeerId
    term: Term
    last_index: LogIndex
    last_term: Term
    transfer: bool = False
    """The leader itself asked for this election, so a voter that hears its leader grants nevertheless (thesis §4.2.3)."""


@attrs.frozen
class VoteResponse:
    """Answers RequestVote. A grant leaves only after the vote is durable."""

    sender: PeerId
    to: PeerId
    term: Term
    granted: bool


@attrs.frozen
class Append:
    """AppendEntries with entries, or without as a probe or to spread the commit index (Raft §5.3)."""

    sender: PeerId
    to: PeerId
    term: Term
    prev_index: LogIndex
    prev_term: Term
    commit_index: LogIndex
    """What the leader has committed. A follower takes it only as far as its own log is verified with this leader."""
    batch: Batch | None = None


@attrs.frozen
class Rejection:
    """Why an Append did not fit, and where the logs may agree."""

    prev_index: LogIndex
    """`prev_index` of the rejected Append, so that the leader recognises a stale rejection."""
    hint_index: LogIndex
    """The largest index at which the logs can agree, as far as the follower can tell."""
    hint_term: Term
    """The follower's term at `hint_index`."""


@attrs.frozen
class AppendResponse:
    """Answers Append and InstallSnapshot."""

    sender: PeerId
    to: PeerId
    term: Term
    match_index: LogIndex
    """Entries up to here agree with the leader's log and are durable at the follower."""
    received_index: LogIndex
    """Entries up to here agree with the leader's log, durable or not; never less than `match_index`."""
    rejection: Rejection | None = None


@attrs.frozen
class Heartbeat:
    """Holds the followers and asks them to confirm the leader. It carries no entries and never waits behind them."""

    sender: PeerId
    to: PeerId
    term: Term
    commit_index: LogIndex
    round: int
    """Number of this round of heartbeats, counted within the term; the answer repeats it."""


@attrs.frozen
class HeartbeatResponse:
    """Confirms the leader of `term` for the round."""

    sender: PeerId
    to: PeerId
    term: Term
    round: int
    durable_index: LogIndex
    """How far the follower's log goes on its disk, whether or not it agrees with the leader's. It can never be less than what
    the follower acknowledged in this term, unless its disk was lost."""


@attrs.frozen
class InstallSnapshot:
    """Replaces the follower's log, because the leader no longer holds the entries that the follower lacks."""

    sender: PeerId
    to: PeerId
    term: Term
    snapshot: Snapshot


@attrs.frozen
class TimeoutNow:
    """Lets the receiver campaign at once, without a pre-vote (thesis §3.10)."""

    sender: PeerId
    to: PeerId
    term: Term


@attrs.frozen
class StaleTerm:
    """The receiver sent something in an older term than the sender's.

    It is a message of its own because nothing else may be said about such a request. Suppose node A leads term 1 and again term
    3, and a delayed heartbeat of term 1 reaches B. An ordinary answer would carry B's term 3, and A would take it for the
    confirmation of a heartbeat of term 3 that B has never seen.
    """

    sender: PeerId
    to: PeerId
    term: Term


@attrs.frozen
class ReadIndexRequest:
    """A follower asks its leader for an index up to which it must have applied before it may answer a read."""

    sender: PeerId
    to: PeerId
    term: Term
    context: Any
    """Opaque; the answer repeats it."""


@attrs.frozen
class ReadIndexResponse:
    """The leader's answer to ReadIndexRequest; `index` is None if it does not know or no longer leads."""

    sender: PeerId
    to: PeerId
    term: Term
    context: Any
    index: LogIndex | None


Message: TypeAlias = (
    PreVoteRequest
    | PreVoteResponse
    | TermQuery
    | TermAnswer
    | VoteRequest
    | VoteResponse
    | Append
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | InstallSnapshot
    | TimeoutNow
    | StaleTerm
    | ReadIndexRequest
    | ReadIndexResponse
)
