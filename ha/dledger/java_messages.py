"""What nodes of DLedger 0.3.1.2 ask one another, as values; `java.py` turns them into JSON bodies.

Every request is answered. A request that came from a peer is answered by a `Reply` to it, one that this node has sent comes
back as an `Answered`, with nothing in it if the peer did not answer in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import attrs

from ..raft.units import NO_INDEX, NO_TERM, LogIndex, PeerId, Term


class Code(IntEnum):
    """DLedger's response codes, as far as they are sent here."""

    UNKNOWN = -1
    SUCCESS = 200
    NETWORK_ERROR = 302
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    PUSH_REQUEST_IS_FULL = 421
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    LEADER_TRANSFERRING = 506


class Vote:
    """DLedger's vote results; a Java node takes no other word."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


APPEND, COMMIT, COMPARE, TRUNCATE = "APPEND", "COMMIT", "COMPARE", "TRUNCATE"


@attrs.frozen(kw_only=True)
class VoteRequest:
    """VOTE: a candidate asks for a vote in `term`."""

    sender: PeerId
    to: PeerId
    term: Term
    end_index: LogIndex
    end_term: Term
    token: Any = None
    """How the transport finds the way back."""


@attrs.frozen(kw_only=True)
class HeartBeat:
    """HEART_BEAT: a leader holds its followers."""

    sender: PeerId
    to: PeerId
    term: Term
    round: int = 0
    """Which round of heartbeats of its leader it belongs to; not on the wire."""
    token: Any = None


@attrs.frozen(kw_only=True)
class Push:
    """PUSH: entries, or one entry to compare with or to truncate behind, or only the committed index."""

    sender: PeerId
    to: PeerId
    term: Term
    kind: str
    commit_index: LogIndex
    first_index: LogIndex = NO_INDEX
    last_index: LogIndex = NO_INDEX
    entries: Sequence[memoryview] = ()
    """Whole entries with their headers, one after the other."""
    token: Any = None


@attrs.frozen(kw_only=True)
class Transfer:
    """LEADERSHIP_TRANSFER: to a leader, hand over to `transferee`; to a transferee, take over once `index` is there."""

    sender: PeerId
    to: PeerId
    term: Term
    leader: PeerId
    transferee: PeerId
    index: LogIndex = NO_INDEX
    token: Any = None


Request: TypeAlias = VoteRequest | HeartBeat | Push | Transfer


@attrs.frozen(kw_only=True)
class Reply:
    """The answer to a request that a peer has sent."""

    request: Request
    code: int = Code.SUCCESS
    term: Term = NO_TERM
    result: str = Vote.UNKNOWN
    """Of a vote."""
    index: LogIndex = NO_INDEX
    count: int = 0
    begin_index: LogIndex = NO_INDEX
    end_index: LogIndex = NO_INDEX
    leader: PeerId | None = None

    @property
    def to(self) -> PeerId:
        return self.request.sender


@attrs.frozen(kw_only=True)
class Answer:
    """What a peer has answered."""

    code: int
    term: Term
    result: str = Vote.UNKNOWN
    index: LogIndex = NO_INDEX
    count: int = 0
    begin_index: LogIndex = NO_INDEX
    end_index: LogIndex = NO_INDEX


@attrs.frozen
class Answered:
    """A request of this node has come to an end; without an answer, the peer may have carried it out or not."""

    request: Request
    answer: Answer | None


Message: TypeAlias = Request | Reply | Answered
