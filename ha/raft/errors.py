"""Errors of the Raft core.

RaftError
├── Refused                  the request was not accepted; nothing was changed
│   ├── NotLeader            `leader` names the leader, if this node knows one
│   ├── TermChanged          the node leads, but in another term than the caller expected
│   ├── LeaderNotReady       the leader has not written its own log yet; processing the next Ready does
│   ├── TransferInProgress   the leader is transferring leadership to `target`
│   ├── ReadsNotReady        no entry of the current term is committed yet
│   ├── ChangeRefused        the change of membership is not allowed now; the text says why
│   └── TermTooHigh          the term of a message is so far ahead that no election can have led to it
├── Diverged                 committed entries would have to be removed: a disk or a peer lost durable state
└── TwoLeaders               another node leads the same term: two nodes share a name, or a vote was forgotten
"""

from __future__ import annotations

import attrs

from .units import LogIndex, PeerId, Term


class RaftError(Exception):
    """Base of all errors of the core."""


class Refused(RaftError):
    """The request was not accepted and nothing was changed."""


@attrs.define(eq=False)
class NotLeader(Refused):
    """Only a leader can do this, and this node is not the leader; `leader` is, if known."""

    leader: PeerId | None

    def __str__(self) -> str:
        return f"this node is not the leader; the leader is {self.leader or 'unknown'}. Nothing was proposed"


@attrs.define(eq=False)
class TermChanged(Refused):
    """The node leads in another term than the caller expected."""

    expected: Term
    current: Term

    def __str__(self) -> str:
        return f"the proposal was meant for term {self.expected}, the current term is {self.current}. Nothing was proposed"


@attrs.define(eq=False)
class LeaderNotReady(Refused):
    """The node has just been elected and has not yet written the entries that it received as a follower."""

    written_index: LogIndex
    last_index: LogIndex

    def __str__(self) -> str:
        return (
            f"the log is written up to {self.written_index} of {self.last_index}; process the Ready first. Nothing was proposed"
        )


@attrs.define(eq=False)
class TransferInProgress(Refused):
    """Leadership is being transferred to another node, so no entry may be added."""

    target: PeerId

    def __str__(self) -> str:
        return f"leadership is being transferred to {self.target}. Nothing was proposed"


@attrs.define(eq=False)
class ReadsNotReady(Refused):
    """The leader has not committed an entry of its term yet, so it does not know the group's commit index."""

    term: Term

    def __str__(self) -> str:
        return f"no entry of term {self.term} is committed yet, so a read could miss committed entries. Nothing was read"


class ChangeRefused(Refused):
    """The change of membership or leadership is not allowed in the current state."""


@attrs.define(eq=False)
class TermTooHigh(Refused):
    """The term of a peer's message is higher than `highest_acceptable` allows."""

    peer: PeerId
    term: Term
    own: Term

    def __str__(self) -> str:
        return (
            f"node {self.peer} is in term {self.term}, too far ahead of term {self.own} here for any number of elections: its "
            "message was ignored. If only that node has such a term, stop it, empty its store and start it again, with "
            "raftDialect=java under a new name. If only this node lacks it, do that here"
        )


@attrs.define(eq=False)
class Diverged(RaftError):
    """A message from the leader contradicts entries that are committed here."""

    first_index: LogIndex
    commit_index: LogIndex
    leader: PeerId

    def __str__(self) -> str:
        return (
            f"leader {self.leader} would remove entries from index {self.first_index} on, but entries up to "
            f"{self.commit_index} are committed here. Nothing was removed"
        )


@attrs.define(eq=False)
class TwoLeaders(RaftError):
    """Another node is leader in the same term as this node."""

    term: Term
    other: PeerId

    def __str__(self) -> str:
        return f"{self.other} leads term {self.term} too; two nodes have one name, or a vote was lost"
