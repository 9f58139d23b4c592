"""The requests and answers between nodes of DLedger 0.3.1.2, as values; `java.py` encodes them as JSON.

Every request is answered. The answer to a peer's request is a `Reply`. The end of a request of this node is an `Answered`,
whose answer is None if the peer did not answer in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import attrs

from ...raft.units import NO_INDEX, NO_TERM, LogIndex, PeerId, Term


class Code(IntEnum):
    """DLedger's response codes."""

    SUCCESS = 200
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
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    PUSH_REQUEST_IS_FULL = 421
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    LEADER_TRANSFERRING = 506


class Vote:
    """DLedger's vote results; a Java node accepts no other text."""

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
    """The transport's data for sending the reply."""


@attrs.frozen(kw_only=True)
class HeartBeat:
    """HEART_BEAT: a leader keeps its followers from campaigning."""

    sender: PeerId
    to: PeerId
    term: Term
    round: int = 0
    """The number of the leader's round of heartbeats; it is not sent."""
    token: Any = None


@attrs.frozen(kw_only=True)
class Push:
    """PUSH: entries, or one entry to compare with or to truncate after, or only the committed index."""

    sender: PeerId
    to: PeerId
    term: Term
    kind: str
    commit_index: LogIndex
    first_index: LogIndex = NO_INDEX
    last_index: LogIndex = NO_INDEX
    entries: Sequence[memoryview] = ()
    """Complete, consecutive entries with their headers."""
    refused_index: LogIndex = NO_INDEX
    """The first of the entries that the receiver refuses again and again; it is not sent."""
    token: Any = None


@attrs.frozen(kw_only=True)
class Transfer:
    """LEADERSHIP_TRANSFER: asks a leader to transfer to `transferee`, or the transferee to take over once it has `index`."""

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
    """The answer of this node to a request of a peer."""

    request: Request
    code: int = Code.SUCCESS
    term: Term = NO_TERM
    result: str = Vote.UNKNOWN
    """The result of a vote; only used in answers to a VoteRequest."""
    index: LogIndex = NO_INDEX
    count: int = 0
    begin_index: LogIndex = NO_INDEX
    end_index: LogIndex = NO_INDEX
    leader: PeerId | None = None
    reason: str | None = None
    """Why a push is refused until an operator acts; it is not sent."""

    @property
    def to(self) -> PeerId:
        return self.request.sender


@attrs.frozen(kw_only=True)
class Answer:
    """The answer of a peer to a request of this node."""

    code: int
    term: Term
    result: str = Vote.UNKNOWN
    begin_index: LogIndex = NO_INDEX
    end_index: LogIndex = NO_INDEX


@attrs.frozen
class Answered:
    """The end of a request of this node; if the answer is None, the peer may or may not have carried it out."""

    request: Request
    answer: Answer | None


Message: TypeAlias = Request | Reply | Answered
