"""The messages between the members of a group. They are values; a dialect encodes them as bytes.

Every message names its sender, its receiver and a term: the sender's current term, except in the two pre-vote messages.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from .batch import Batch, Snapshot
from .units import LogIndex, PeerId, Term


@attrs.frozen
class PreVoteRequest:
    """Asks whether an election in `term` could be won, before any node raises its term (Ongaro's thesis §9.6)."""

    sender: PeerId
    to: PeerId
    term: Term
    """The term in which the sender would campaign: its own plus one."""
    last_index: LogIndex
    last_term: Term


@attrs.frozen
class PreVoteResponse:
    """Answers a PreVoteRequest. It binds the voter to nothing and changes no state there."""

    sender: PeerId
    to: PeerId
    term: Term
    """The requested term if granted, else the voter's own term."""
    granted: bool


@attrs.frozen
class TermQuery:
    """Asks for the receiver's term, which it does not change. A node sends it that has lost its disk or is new."""

    sender: PeerId
    to: PeerId
    term: Term
    context: int
    """A random number of each start. The answer repeats it, because an answer to an earlier start may be out of date."""
    durable_index: LogIndex
    """The last durable entry of the sender's log; it may be less than what it once acknowledged."""


@attrs.frozen
class TermAnswer:
    """Answers a `TermQuery`; term 0 means that the node has never taken part in an election."""

    sender: PeerId
    to: PeerId
    term: Term
    context: int


@attrs.frozen
class Regressed:
    """Tells a follower that it has less on its disk than it once acknowledged, so it may have forgotten votes as well."""

    sender: PeerId
    to: PeerId
    term: Term


@attrs.frozen
class VoteRequest:
    """RequestVote (Raft §5.2)."""

    sender: PeerId
    to: PeerId
    term: Term
    last_index: LogIndex
    last_term: Term
    transfer: bool = False
    """Whether the leader itself asked for this election. A voter then grants even if it still hears from the leader (thesis
    §4.2.3)."""


@attrs.frozen
class VoteResponse:
    """Answers RequestVote. A grant is sent only after the vote is durable."""

    sender: PeerId
    to: PeerId
    term: Term
    granted: bool


@attrs.frozen
class Append:
    """AppendEntries (Raft §5.3). Without entries it is a probe or carries the commit index."""

    sender: PeerId
    to: PeerId
    term: Term
    prev_index: LogIndex
    prev_term: Term
    commit_index: LogIndex
    """The leader's commit index. A follower adopts it only as far as its own log is verified to agree with this leader's."""
    batch: Batch | None = None


@attrs.frozen
class Rejection:
    """The rejection of an Append that does not follow the follower's log, and where the two logs may agree."""

    prev_index: LogIndex
    """The `prev_index` of the rejected Append, by which the leader recognises a stale rejection."""
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
    """Keeps followers from campaigning and asks them to confirm the leader. It has no entries and never waits behind them."""

    sender: PeerId
    to: PeerId
    term: Term
    commit_index: LogIndex
    round: int
    """Number of this round of heartbeats, counted within the term; the answer repeats it."""


@attrs.frozen
class HeartbeatResponse:
    """Confirms to the leader of `term` that the follower received this round."""

    sender: PeerId
    to: PeerId
    term: Term
    round: int
    durable_index: LogIndex
    """The last durable entry of the follower's log, whether or not the log agrees with the leader's. It is never less than what
    the follower acknowledged in this term, unless the disk was lost."""


@attrs.frozen
class InstallSnapshot:
    """Replaces the follower's log, because the leader no longer has the entries that the follower lacks."""

    sender: PeerId
    to: PeerId
    term: Term
    snapshot: Snapshot


@attrs.frozen
class TimeoutNow:
    """Asks the receiver to campaign at once, without a pre-vote (thesis §3.10)."""

    sender: PeerId
    to: PeerId
    term: Term


@attrs.frozen
class StaleTerm:
    """Answers a message of an older term with the current term.

    It is a separate message because an ordinary answer could be misread. Suppose node A leads term 1 and again term 3, and a
    delayed heartbeat of term 1 reaches B. An ordinary answer would carry B's term 3, and A would read it as the confirmation of
    a heartbeat of term 3 that B has never received.
    """

    sender: PeerId
    to: PeerId
    term: Term


@attrs.frozen
class ReadIndexRequest:
    """Asks the leader for the index up to which a follower must have applied the log before it may answer a read."""

    sender: PeerId
    to: PeerId
    term: Term
    context: Any
    """Opaque; the answer repeats it."""


@attrs.frozen
class ReadIndexResponse:
    """The leader's answer to ReadIndexRequest; `index` is None if the sender could not confirm it or no longer leads."""

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
    | Regressed
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
