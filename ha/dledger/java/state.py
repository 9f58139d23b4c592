"""The state of one node in a group that speaks DLedger's dialect, shared by the parts of the core; it does no I/O.

Names and rules are DLedger's (DLedgerLeaderElector, DLedgerEntryPusher of 0.3.1.2). Where its rules are unsafe and the protocol
allows it, ours are stricter: votes and entries are answered when they are durable, an entry is committed only by one of the
leader's own term, a follower relies only on entries that were compared with this leader, and committed entries are never
truncated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs

from ...raft.batch import Snapshot
from ...raft.log import RaftLog
from ...raft.quorum import Configuration
from ...raft.ready import ReadState
from ...raft.roles import Role
from ...raft.state import PendingRead
from ...raft.units import NO_INDEX, LogIndex, PeerId, Term
from .messages import APPEND, Code, Message, Push, Reply, Transfer


@attrs.frozen(kw_only=True)
class JavaSettings:
    """DLedger's time-outs, in milliseconds, and limits."""

    heartbeat_ms: int = 2000
    """Interval between two heartbeats of a leader (heartBeatTimeIntervalMs)."""
    heartbeat_leak: int = 3
    """After this many intervals without a heartbeat a follower campaigns, without answers a leader does (maxHeartBeatLeak)."""
    vote_interval_min_ms: int = 300
    vote_interval_max_ms: int = 1000
    vote_round_ms: int = 2000
    """The time-out of a round of votes is a random time from this to one and a half times this."""
    push_bytes_max: int = 64 * 1024
    """The most bytes of entries in one push; a larger entry is sent alone (DLedger maxBatchPushSize, 4096)."""
    inflight_bytes_max: int = 4 * 1024 * 1024
    """How many bytes of entries may be in flight to one follower; from there on the leader waits for answers."""
    inflight_max: int = 500
    """How many pushes may be in flight to one follower; from there on the leader waits. A Java node allows 1000."""
    waiting_max: int = 1024
    """How many pushes may wait at a follower for earlier ones; a further one is answered PUSH_REQUEST_IS_FULL."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """How many bytes of entries may wait at a follower, with one push more; a further one is answered PUSH_REQUEST_IS_FULL."""
    gap_ms: int = 1000
    """A push that waits longer for earlier ones is refused, and the leader compares again."""
    commit_ms: int = 1000
    """A follower to which nothing was pushed for this long is sent the committed index again, which may have been lost."""
    error_pause_ms: int = 500
    """Pause before the leader sends to a follower again that did not answer or refused."""
    transfer_lag_max: int = 1000
    """A transfer to a node that lacks this many entries or more is refused (maxLeadershipTransferWaitIndex)."""
    transfer_ms: int = 3000
    """A transfer that has not succeeded after this long is aborted."""
    take_wait_ms: int = 1000
    """A node that lacks entries after this long refuses to take over leadership (leadershipTransferWaitTimeout)."""
    batches: bool = True
    """Whether a push may have several entries (isEnableBatchPush); 0.2.x does not support that."""


class EntryReader(Protocol):
    """The interface by which the core reads written entries."""

    def entry(self, index: LogIndex) -> memoryview:
        """Return one entry with its header."""
        ...

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> Sequence[memoryview]:
        """Return entries from `first` on, at most to `last`; at least one, and more only within `bytes_max`."""
        ...

    def fits(self, position: int, size: int, end: int | None = None) -> bool:
        """Whether `position` is the right place for an entry of `size` bytes behind `end`, by default the end of the log."""
        ...


def refusal_of(index: LogIndex) -> str:
    """Describe a follower that refuses the entries from `index` on again and again."""
    return (
        f"the node refuses the entries from {index} on again and again, and its log says why; a node of Apache's does so for "
        "any failure, such as a full disk"
    )


@attrs.define(eq=False)
class Follower:
    """The leader's state for one follower (EntryDispatcher)."""

    peer: PeerId
    state: str
    follows: bool = False
    """Whether it has answered a heartbeat of this leadership; before that it would refuse every push."""
    compare_index: LogIndex = NO_INDEX
    write_index: LogIndex = NO_INDEX
    match_index: LogIndex = NO_INDEX
    """The last entry that it has acknowledged; a Java node may acknowledge entries that are not durable."""
    control_out: bool = False
    """Whether a COMPARE, TRUNCATE or COMMIT is in flight."""
    commit_sent: LogIndex = NO_INDEX
    pushed_ms: int = 0
    """The time of the last push to it."""
    inflight: dict[LogIndex, int] = attrs.field(factory=dict[LogIndex, int])
    """The size of each push of entries in flight, by its first index."""
    resume_at: int = 0
    """The time, as `now_ms`, before which nothing is sent to it."""
    contact_tick: int = -1
    confirmed_round: int = 0
    """The number of the last round of heartbeats that it has answered with success."""
    session: int = 0
    """Counts the restarts of replication to it; answers to pushes of an earlier session are ignored."""
    refusals: int = 0
    """How often in a row it has refused entries that follow an entry of its own, without acknowledging any in between."""

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight to it, and it lacks no entry that was sent."""
        return self.follows and self.state == APPEND and not self.inflight and not self.control_out

    @property
    def refused_index(self) -> LogIndex:
        """The first of the entries that it refuses again and again; NO_INDEX if it takes them."""
        return self.match_index + 1 if self.refusals > 1 else NO_INDEX

    @property
    def refusal(self) -> str | None:
        """Why it gets no further, if an operator has to act."""
        return None if self.refused_index == NO_INDEX else refusal_of(self.refused_index)


@attrs.define(eq=False)
class FollowerGroup:
    """All followers of one leadership."""

    followers: dict[PeerId, Follower]

    def __iter__(self) -> Iterator[Follower]:
        return iter(self.followers.values())

    def get(self, peer: PeerId) -> Follower | None:
        return self.followers.get(peer)


@attrs.define(eq=False)
class JavaLeadership:
    """The state that exists only while a node leads."""

    term_start_index: LogIndex
    group: FollowerGroup
    success_ms: int
    """The time when a majority last answered a heartbeat."""
    beat_at_ms: int = 0
    beat_ok: set[PeerId] = attrs.field(factory=set[PeerId])
    round: int = 0
    """Counts the rounds of heartbeats of all leaderships of this node."""
    reads: list[PendingRead] = attrs.field(factory=list[PendingRead])
    """Reads that wait until a majority has confirmed this leader."""
    transfer_to: PeerId | None = None
    transfer_until_ms: int = 0
    configuration_wanted: Configuration | None = None


@attrs.define(eq=False)
class JavaState:
    """The whole state of one node."""

    id: PeerId
    configuration: Configuration
    settings: JavaSettings
    reader: EntryReader
    draw: Callable[[int, int], int]
    log: RaftLog
    term: Term
    vote: PeerId | None
    commit_index: LogIndex
    applied_index: LogIndex
    role: Role = Role.CANDIDATE
    leader: PeerId | None = None
    leadership: JavaLeadership | None = None
    now_ms: int = 0
    heard_ms: int = 0
    verified_index: LogIndex = NO_INDEX
    """The last entry up to which the log is known, from COMPARE and later pushes, to agree with this term's leader."""
    # the election
    next_vote_ms: int = 0
    round_until_ms: int | None = None
    """The time when the current round of votes ends; None between rounds."""
    results: dict[PeerId, tuple[str, Term]] = attrs.field(factory=dict[PeerId, "tuple[str, Term]"])
    raise_term: bool = False
    """Whether the next round raises the term (WAIT_TO_VOTE_NEXT)."""
    probing: bool = False
    """Whether rounds in this term only find out whether there is a leader, and elect none."""
    known_term: Term = -1
    self_vote_due: bool = False
    handing_over: Transfer | None = None
    """The unanswered request of a client to transfer leadership; it is answered even if this node no longer leads."""
    transfer_asked: Transfer | None = None
    """The unanswered request of this node to the transferee."""
    taking: Transfer | None = None
    """The unanswered request of the leader to take over leadership."""
    asked_to_take: tuple[Transfer, int] | None = None
    """Such a request while this log lacks entries that it names, and the time when it is refused."""
    # pushes of the leader
    controls: list[Push] = attrs.field(factory=list[Push])
    waiting: dict[LogIndex, tuple[Push, int]] = attrs.field(factory=dict[LogIndex, "tuple[Push, int]"])
    """Queued pushes of entries by their first index, with the time of their arrival."""
    waiting_bytes: int = 0
    """The bytes of all entries in `waiting`."""
    unanswered: list[tuple[LogIndex, Reply]] = attrs.field(factory=list["tuple[LogIndex, Reply]"])
    """Replies that wait until the entries up to an index are durable."""
    snapshot: Snapshot | None = None
    """A new beginning of the log that the owner must install, or None."""
    messages: list[Message] = attrs.field(factory=list[Message])
    rounds: int = 0
    """The number of the last round of heartbeats of all earlier leaderships. The next leadership, which may be in the same
    term, continues from it, so that late answers cannot confirm its reads."""
    read_states: list[ReadState] = attrs.field(factory=list[ReadState])
    """Answers to reads that were not yet handed to the owner of the core."""

    @property
    def quorum(self) -> int:
        return len(self.configuration.voters) // 2 + 1

    @property
    def others(self) -> list[PeerId]:
        return [peer for peer in self.configuration.voters if peer != self.id]

    @property
    def relied_index(self) -> LogIndex:
        """The last entry up to which the log agrees with the leader's: it was compared, or is committed."""
        return max(self.commit_index, self.verified_index)

    @property
    def begin_index(self) -> LogIndex:
        """The first index of the log, or -1 if it is empty, as in Java."""
        return self.log.first_index if self.log.last_index >= self.log.first_index else NO_INDEX

    @property
    def end_index(self) -> LogIndex:
        """The last index of the log, or -1 if it is empty, as in Java."""
        return self.log.last_index if self.log.last_index >= self.log.first_index else NO_INDEX

    @property
    def end_term(self) -> Term:
        return self.log.last_term

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def vote_interval(self) -> int:
        return self.draw(self.settings.vote_interval_min_ms, self.settings.vote_interval_max_ms)

    def become_candidate(self, term: Term) -> None:
        """Become a candidate; the term is not raised here, but the next raise is to at least `term` (changeRoleToCandidate)."""
        self.known_term = max(self.known_term, term)
        self._end_leadership()
        self.role, self.leader = Role.CANDIDATE, None
        self.round_until_ms = None
        self.forget_pushes()

    def adopt_term(self, term: Term) -> None:
        """Adopt the higher term of a peer, without a vote in it."""
        assert term > self.term
        self.become_candidate(term)
        self.term, self.vote = term, None
        self.raise_term = self.probing = False
        self.next_vote_ms = self.now_ms + self.vote_interval()

    def become_follower(self, leader: PeerId) -> None:
        """Follow the leader of the current term."""
        if self.leader != leader or self.role is not Role.FOLLOWER:
            self.forget_pushes()
            self.verified_index = NO_INDEX
        self._end_leadership()
        self.role, self.leader = Role.FOLLOWER, leader
        self.round_until_ms = None
        self.raise_term = self.probing = False
        self.heard_ms = self.now_ms

    def _end_leadership(self) -> None:
        """End the leadership, if this node has it, and answer what waits for it and will get no other answer."""
        if self.leadership is not None:
            self.read_states += [ReadState(read.context, None) for read in self.leadership.reads]
            self.rounds = self.leadership.round
            if self.handing_over is not None and self.transfer_asked is None:
                code = Code.TAKE_LEADERSHIP_FAILED
                self.send(Reply(request=self.handing_over, code=code, term=self.term, leader=self.leader))
                self.handing_over = None
        self.leadership = None

    def forget_pushes(self) -> None:
        """Refuse all pushes that were not answered yet."""
        for push in [*self.controls, *(push for push, _ in self.waiting.values())]:
            self.send(self.reply(push, Code.INCONSISTENT_STATE))
        for _, reply in self.unanswered:
            self.send(attrs.evolve(reply, code=Code.INCONSISTENT_STATE))
        self.controls.clear()
        self.waiting.clear()
        self.waiting_bytes = 0
        self.unanswered.clear()

    def add_waiting(self, push: Push) -> None:
        """Queue a push of entries."""
        self.waiting[push.first_index] = (push, self.now_ms)
        self.waiting_bytes += sum(map(len, push.entries))

    def take_waiting(self, first_index: LogIndex) -> Push | None:
        """Take a push of entries out of the queue, if one begins with this index."""
        push, _ = self.waiting.pop(first_index, (None, 0))
        if push is not None:
            self.waiting_bytes -= sum(map(len, push.entries))
        return push

    def reply(self, push: Push, code: int, reason: str | None = None) -> Reply:
        """Build the answer to a push, with the current bounds of the log; `reason` is what an operator has to know."""
        count = 0 if push.first_index == NO_INDEX else push.last_index - push.first_index + 1
        return Reply(
            request=attrs.evolve(push, entries=()),
            code=code,
            term=push.term,
            index=push.first_index,
            count=count,
            begin_index=self.begin_index,
            end_index=self.end_index,
            reason=reason,
        )
