"""The state of one node in a group that speaks DLedger's dialect, shared by the parts of the core; pure.

Names and rules are DLedger's (DLedgerLeaderElector, DLedgerEntryPusher of 0.3.1.2). Where its rules are unsafe and the wire
leaves room, ours are stricter: votes and entries are answered when they are on the medium, nothing is committed but through an
entry of the leader's own term, a follower counts only what it has compared with this leader, and committed entries are never
cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import attrs

from ..raft.batch import Snapshot
from ..raft.log import RaftLog
from ..raft.quorum import Configuration
from ..raft.ready import ReadState
from ..raft.roles import Role
from ..raft.state import PendingRead
from ..raft.units import NO_INDEX, LogIndex, PeerId, Term
from .java_messages import Code, Message, Push, Reply, Transfer


@attrs.frozen(kw_only=True)
class JavaSettings:
    """DLedger's time-outs in milliseconds, and limits."""

    heartbeat_ms: int = 2000
    """heartBeatTimeIntervalMs."""
    heartbeat_leak: int = 3
    """maxHeartBeatLeak."""
    vote_interval_min_ms: int = 300
    vote_interval_max_ms: int = 1000
    vote_round_ms: int = 2000
    """A round of votes lasts this long and up to half as long again."""
    push_bytes_max: int = 64 * 1024
    """Bytes of entries in one push (DLedger maxBatchPushSize, 4096)."""
    inflight_bytes_max: int = 4 * 1024 * 1024
    """Bytes of entries on the way to one follower."""
    inflight_max: int = 500
    """Pushes on the way to one follower; a Java node keeps 1000."""
    waiting_max: int = 1024
    """Pushes that wait at a follower for those before them."""
    gap_ms: int = 1000
    """A push that waits for so long for those before it is refused, and the leader compares again."""
    error_pause_ms: int = 500
    """Pause after a peer did not answer."""
    transfer_lag_max: int = 1000
    """maxLeadershipTransferWaitIndex."""
    transfer_ms: int = 3000
    """A transfer that has not succeeded after this long is given up."""
    take_wait_ms: int = 1000
    """How long a node that is to take over leadership waits for what it lacks (leadershipTransferWaitTimeout)."""
    batches: bool = True
    """Push several entries at once (isEnableBatchPush); 0.2.x does not know how."""


class EntryReader(Protocol):
    """What the core reads of entries that are written."""

    def entry(self, index: LogIndex) -> memoryview:
        """One entry with its header."""
        ...

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> Sequence[memoryview]:
        """Entries from `first` on, at most to `last`; more than one only while they stay within `bytes_max`."""
        ...

    def fits(self, position: int, size: int) -> bool:
        """Whether the next entry, of `size` bytes, belongs at `position`."""
        ...


@attrs.define(eq=False)
class Follower:
    """One follower as its leader sees it (EntryDispatcher)."""

    peer: PeerId
    state: str
    follows: bool = False
    """It has answered a heartbeat of this leadership; before that it would refuse whatever is pushed."""
    compare_index: LogIndex = NO_INDEX
    write_index: LogIndex = NO_INDEX
    match_index: LogIndex = NO_INDEX
    """It has everything up to here on its medium, or says so."""
    control_out: bool = False
    """A COMPARE, TRUNCATE or COMMIT is on the way."""
    commit_sent: LogIndex = NO_INDEX
    inflight: dict[LogIndex, int] = attrs.field(factory=dict[LogIndex, int])
    """First index and size of each push of entries that is on the way."""
    resume_at: int = 0
    """Nothing is sent before this moment."""
    contact_tick: int = -1
    confirmed_round: int = 0
    """The last round of heartbeats that it has answered with success."""
    session: int = 0
    """Answers to what was sent in an earlier session say nothing any more."""


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
    """What exists only while a node leads."""

    term_start_index: LogIndex
    group: FollowerGroup
    success_ms: int
    """When a majority answered a heartbeat last."""
    beat_at_ms: int = 0
    beat_ok: set[PeerId] = attrs.field(factory=set[PeerId])
    round: int = 0
    """Counts the rounds of heartbeats of all leaderships of this node."""
    reads: list[PendingRead] = attrs.field(factory=list[PendingRead])
    """Reads that wait until a majority has confirmed this leader."""
    transfer_to: PeerId | None = None
    transfer_until_ms: int = 0
    transfer_sent: bool = False
    configuration_wanted: Configuration | None = None


@attrs.define(eq=False)
class JavaState:
    """Everything one node knows."""

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
    """How far the log agrees with that of the leader of this term, as COMPARE and what followed it have shown."""
    # the election
    next_vote_ms: int = 0
    round_until_ms: int | None = None
    """While a round of votes is under way: until when."""
    results: dict[PeerId, tuple[str, Term]] = attrs.field(factory=dict[PeerId, "tuple[str, Term]"])
    raise_term: bool = False
    """The next round is held in a larger term (WAIT_TO_VOTE_NEXT)."""
    known_term: Term = -1
    self_vote_due: bool = False
    handing_over: Transfer | None = None
    """The client's request to hand over leadership that is to be answered, also when this node leads no more."""
    taking: Transfer | None = None
    """The request to take over leadership that is to be answered."""
    asked_to_take: tuple[Transfer, int] | None = None
    """Such a request while entries that it names are still missing here, and the moment when it is refused."""
    # pushes of the leader
    controls: list[Push] = attrs.field(factory=list[Push])
    waiting: dict[LogIndex, tuple[Push, int]] = attrs.field(factory=dict[LogIndex, "tuple[Push, int]"])
    """Pushes of entries by their first index, with the moment of their arrival."""
    unanswered: list[tuple[LogIndex, Reply]] = attrs.field(factory=list["tuple[LogIndex, Reply]"])
    """Replies that wait until entries up to an index are on the medium."""
    snapshot: Snapshot | None = None
    """The log begins anew."""
    messages: list[Message] = attrs.field(factory=list[Message])
    rounds: int = 0
    """Rounds of heartbeats of all earlier leaderships. The next one counts on: late answers must not confirm its reads, and
    it may be one of the same term."""
    read_states: list[ReadState] = attrs.field(factory=list[ReadState])
    """Answers to reads that the owner of the core has not been given yet."""

    @property
    def quorum(self) -> int:
        return len(self.configuration.voters) // 2 + 1

    @property
    def others(self) -> list[PeerId]:
        return [peer for peer in self.configuration.voters if peer != self.id]

    @property
    def begin_index(self) -> LogIndex:
        """As Java says it: -1 of an empty log."""
        return self.log.first_index if self.log.last_index >= self.log.first_index else NO_INDEX

    @property
    def end_index(self) -> LogIndex:
        """As Java says it: -1 of an empty log."""
        return self.log.last_index if self.log.last_index >= self.log.first_index else NO_INDEX

    @property
    def end_term(self) -> Term:
        return self.log.last_term

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def vote_interval(self) -> int:
        return self.draw(self.settings.vote_interval_min_ms, self.settings.vote_interval_max_ms)

    def become_candidate(self, term: Term) -> None:
        """Look for a leader in at least `term`, which is not raised here (changeRoleToCandidate)."""
        self.known_term = max(self.known_term, term)
        self._end_leadership()
        self.role, self.leader = Role.CANDIDATE, None
        self.round_until_ms = None
        self.forget_pushes()

    def adopt_term(self, term: Term) -> None:
        """A peer has shown a larger term: it is this node's term too, without a vote."""
        assert term > self.term
        self.become_candidate(term)
        self.term, self.vote = term, None
        self.next_vote_ms = self.now_ms + self.vote_interval()

    def become_follower(self, leader: PeerId) -> None:
        """Follow the leader of the present term."""
        if self.leader != leader or self.role is not Role.FOLLOWER:
            self.forget_pushes()
            self.verified_index = NO_INDEX
        self._end_leadership()
        self.role, self.leader = Role.FOLLOWER, leader
        self.round_until_ms, self.raise_term = None, False
        self.heard_ms = self.now_ms

    def _end_leadership(self) -> None:
        """Give up leadership, if this node has it, and answer the reads that nobody can confirm any more."""
        if self.leadership is not None:
            self.read_states += [ReadState(read.context, None) for read in self.leadership.reads]
            self.rounds = self.leadership.round
        self.leadership = None

    def forget_pushes(self) -> None:
        """Refuse whatever a leader has pushed and was not answered yet."""
        for push in [*self.controls, *(push for push, _ in self.waiting.values())]:
            self.send(self.reply(push, Code.INCONSISTENT_STATE))
        for _, reply in self.unanswered:
            self.send(attrs.evolve(reply, code=Code.INCONSISTENT_STATE))
        self.controls.clear()
        self.waiting.clear()
        self.unanswered.clear()

    def reply(self, push: Push, code: int) -> Reply:
        """The answer to a push, with the bounds of the log as they are now."""
        count = 0 if push.first_index == NO_INDEX else push.last_index - push.first_index + 1
        return Reply(
            request=push,
            code=code,
            term=push.term,
            index=push.first_index,
            count=count,
            begin_index=self.begin_index,
            end_index=self.end_index,
        )
