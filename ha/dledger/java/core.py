"""The core of a node in a group that speaks DLedger's dialect: the interface of the Raft core with other rules.

Its input is ticks, messages and proposals, its output a `Ready` with messages of `messages.py`. It does no I/O. One tick
is `TICK_MS` milliseconds. Members do not change while a group runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from ...raft.errors import ChangeRefused, NotLeader, TermTooHigh
from ...raft.proposals import Assignment, next_assignment
from ...raft.quorum import Configuration
from ...raft.ready import CommittedRange, HardState, Ready, SoftState, SyncPoint
from ...raft.roles import Role
from ...raft.units import LogIndex, PeerId, Term, highest_acceptable
from . import election, replication
from .messages import Answered, HeartBeat, Message, Push, Reply, VoteRequest
from .reading import request_read
from .state import JavaState

TICK_MS = 10
"""The length of a tick in milliseconds, which is the sleep of DLedger's loops."""


@attrs.define(eq=False)
class JavaCore(JavaState):
    """One member of a group."""

    _reported_hard: HardState = attrs.field(factory=HardState)
    _reported_soft: SoftState | None = None
    _outstanding: Ready[Message] | None = None

    def start(self, hard_state: HardState) -> None:
        """Start with the stored hard state.

        A node that has voted in its term may have led in it, and may since have lost entries that it had not synced. Unlike
        Java, it does not lead in that term again: it raises the term once a majority answers that there is no leader. It would
        depose one that is just silent, so it first lets the time of two heartbeats pass, of which the first may be lost with
        the old connection. A group of one node keeps its term.
        """
        self._reported_hard = hard_state
        self.probing = hard_state.vote is not None and len(self.configuration.voters) > 1
        self.next_vote_ms = self.draw(0, self.settings.vote_interval_min_ms)
        if self.probing:
            self.next_vote_ms += 2 * self.settings.heartbeat_ms

    # -------------------------------------------------------------------------------------------------------------------- time

    def tick(self, count: int = 1) -> None:
        """Let `count` ticks pass."""
        for _ in range(count):
            self.now_ms += TICK_MS
            election.tick_taking(self)
            if self.role is Role.LEADER:
                election.tick_heartbeats(self)
                election.tick_transfer(self)
            elif self.role is Role.FOLLOWER:
                election.tick_follower(self)
            else:
                election.tick_candidate(self)

    @property
    def ticks_until_due(self) -> int:
        """How many ticks may pass before one has something to do; the shell may sleep that long."""
        if self.role is Role.LEADER and self.leadership is not None:
            due = [self.leadership.beat_at_ms]
            due += [one.resume_at for one in self.leadership.group if one.resume_at > self.now_ms]
            due += [one.pushed_ms + self.settings.commit_ms for one in self.leadership.group if one.idle]
            if self.leadership.transfer_to is not None:
                due.append(self.now_ms + TICK_MS)
        elif self.role is Role.FOLLOWER:
            due = [self.heard_ms + self.settings.heartbeat_ms * self.settings.heartbeat_leak + TICK_MS]
            if self.asked_to_take is not None:
                due.append(self.now_ms + TICK_MS)
            if self.waiting:
                due.append(self.now_ms + self.settings.gap_ms // 4)
        else:
            due = [self.round_until_ms if self.round_until_ms is not None else self.next_vote_ms]
        return max((min(due) - self.now_ms) // TICK_MS, 1)

    # ---------------------------------------------------------------------------------------------------------------- messages

    def step(self, message: Message) -> None:
        """Handle a request of a peer, or the end of a request of this node.

        Raises:
            TermTooHigh: the term of the request or answer is too far ahead of this node's. Nothing was changed.
        """
        assert not isinstance(message, Reply), "replies only go out"
        if isinstance(message, Answered):
            if message.answer is not None:
                self._check_term(message.request.to, message.answer.term)
            self._answered(message)
            return
        self._check_term(message.sender, message.term)
        if isinstance(message, VoteRequest):
            election.on_vote(self, message)
        elif isinstance(message, HeartBeat):
            election.on_heartbeat(self, message)
        elif isinstance(message, Push):
            replication.on_push(self, message)
        else:
            election.on_transfer(self, message)

    def _check_term(self, peer: PeerId, term: Term) -> None:
        if term > highest_acceptable(self.term):
            raise TermTooHigh(peer, term, self.term)

    def _answered(self, message: Answered) -> None:
        request, answer = message.request, message.answer
        if isinstance(request, VoteRequest):
            election.on_vote_answer(self, request, answer)
        elif isinstance(request, HeartBeat):
            election.on_heartbeat_answer(self, request, answer)
        elif isinstance(request, Push):
            replication.on_push_answer(self, request, answer)
        else:
            election.on_transfer_answer(self, message)

    # --------------------------------------------------------------------------------------------------------------- proposals

    def admit(self, expected_term: Term | None = None) -> Assignment:
        """Return the index and term that the next entries would get; raise what `propose` would raise."""
        return next_assignment(self, expected_term)

    def propose(
        self, count: int = 1, *, expected_term: Term | None = None, configuration: Configuration | None = None
    ) -> Assignment:
        """Add `count` entries that the owner of this leader has written."""
        if configuration is not None:
            raise ChangeRefused("members of a group with raftDialect = java change only by a restart of all nodes")
        assignment = self.admit(expected_term)
        self.log.append_own(count, self.term, ())
        return assignment

    def plan_change(self, voters: Iterable[PeerId], learners: Iterable[PeerId] = ()) -> Configuration:
        """Raise ChangeRefused, because DLedger's dialect has no change of members."""
        del voters, learners
        raise ChangeRefused("members of a group with raftDialect = java change only by a restart of all nodes")

    def transfer_leadership(self, target: PeerId) -> None:
        """Begin to transfer leadership to `target`."""
        if self.leadership is None:
            raise NotLeader(self.leader)
        if target not in self.others or self.leadership.transfer_to is not None:
            raise ChangeRefused(f"leadership cannot be transferred to {target} now; nothing was transferred")
        election.start_transfer(self, target)

    def read_index(self, context: Any) -> None:
        """Ask for the index up to which the log must be applied before a read that begins now; only as leader."""
        request_read(self, context)

    def compact(self, boundary_index: LogIndex) -> None:
        """Drop the entries up to and including `boundary_index`, but only applied ones, because the storage removes them."""
        self.log.compact(min(boundary_index, self.applied_index))

    @property
    def forgetful(self) -> bool:
        """False: DLedger's nodes vote at once, whatever they have lost."""
        return False

    @property
    def barrier_wanted(self) -> bool:
        """Whether this leadership has no entry yet. A node may lead twice in a term; each leadership begins with a barrier."""
        return self.leadership is not None and self.log.last_index < self.leadership.term_start_index

    # ----------------------------------------------------------------------------------------------------------- the to-do list

    def ready(self) -> Ready[Message] | None:
        """Return the work that is due, or None."""
        if self._outstanding is not None:
            return None
        if self.leadership is not None:
            replication.feed_followers(self)
        else:
            replication.apply_pushes(self)
        hard, soft = HardState(self.term, self.vote), self._soft_state()
        snapshot, self.snapshot = self.snapshot, None
        truncate_from, appends = self.log.hand_out()
        last = min(self.commit_index, self.log.handed_index)
        committed = CommittedRange(self.applied_index + 1, last) if last > self.applied_index else None
        ready = Ready(
            hard_state=hard if hard != self._reported_hard else None,
            snapshot=snapshot,
            truncate_from=truncate_from,
            appends=appends,
            messages=tuple(self.messages),
            committed=committed,
            soft_state=soft if soft != self._reported_soft else None,
            read_states=tuple(self.read_states),
        )
        if ready == _NOTHING and not self.self_vote_due:
            return None
        self._reported_hard, self._reported_soft = hard, soft
        self.messages.clear()
        self.read_states.clear()
        if committed is not None:
            self.applied_index = committed.last_index
        self._outstanding = ready
        return ready

    def _soft_state(self) -> SoftState:
        transfer_to = self.leadership.transfer_to if self.leadership is not None else None
        return SoftState(self.role, self.term, self.leader, self.barrier_wanted, None, transfer_to)

    def advance(self, ready: Ready[Message]) -> None:
        """Note that all work of the Ready is done."""
        assert ready is self._outstanding, "advance takes the Ready that was given out last"
        self._outstanding = None
        self.log.mark_written()
        if self._reported_hard == HardState(self.term, self.vote):
            election.count_self_vote(self)

    def sync_point(self) -> SyncPoint:
        """Return how far the log is written now."""
        return self.log.sync_point()

    def persisted(self, point: SyncPoint) -> None:
        """Note that a sync which began at `point` has succeeded."""
        if self.log.mark_durable(point):
            replication.advance_commit(self)
        replication.answer_durable(self)


_NOTHING = Ready[Message]()
