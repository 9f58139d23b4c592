"""The interface of the Raft core: its input is ticks, messages and proposals, its output a `Ready` (SOFA-JRaft `Node`).

`Raft` is one member of one group and owns all its state. It does no I/O, reads no clock, and gets random numbers only from the
function `draw`, so the same inputs always give the same outputs. Several groups in one process are several `Raft` objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import attrs

from . import ballot_box, election, following, forgetting, membership, reading, replication, transfer
from .batch import LogReader
from .errors import NotLeader, TermTooHigh, TwoLeaders
from .log import LogState, RaftLog
from .messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    Regressed,
    StaleTerm,
    TermAnswer,
    TermQuery,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from .proposals import Assignment, next_assignment
from .quorum import Configuration, quorum_value
from .ready import CommittedRange, HardState, Ready, SoftState, SyncPoint
from .roles import Input, Role
from .settings import Settings
from .state import Draw, Leadership, State
from .terms import become_follower
from .units import NO_INDEX, LogIndex, PeerId, Term, highest_acceptable

_NO_HARD_STATE = HardState()

_REPLICATION = (Append, AppendResponse, Heartbeat, HeartbeatResponse)
_FROM_LEADER = (Append, Heartbeat, InstallSnapshot)

_Soft: TypeAlias = tuple[Role, Term, PeerId | None, bool, Configuration | None, PeerId | None]
"""The fields of a `SoftState`, in their order; every call of `ready` compares them with the last ones."""


@attrs.define(eq=False)
class Raft(State):
    """One member of a group. See `Ready` for what its owner must do, and in which order."""

    _reported_hard: tuple[Term, PeerId | None] = attrs.field(default=(0, None), init=False)
    _reported_soft: _Soft | None = attrs.field(default=None, init=False)
    _outstanding: Ready[Message] | None = attrs.field(default=None, init=False)

    @classmethod
    def start(
        cls,
        peer: PeerId,
        *,
        settings: Settings,
        reader: LogReader,
        draw: Draw,
        log: LogState | None = None,
        hard_state: HardState = _NO_HARD_STATE,
        commit_index: LogIndex = NO_INDEX,
        applied_index: LogIndex = NO_INDEX,
    ) -> Raft:
        """Start a node with the state that its storage holds.

        Args:
            draw: returns a random number between two bounds, both included; election time-outs come from it.
            hard_state: the stored one; its vote is `FORGOTTEN` if this node is a voter whose storage has none.
            log: everything in it must be durable. A new group begins with the same configuration at `NO_INDEX` on every node.
            commit_index: a stored value of `checkpoint_index`, if there is one.
            applied_index: the last entry in the saved state machine; later entries are handed out, some of them again.
        """
        raft_log = RaftLog.of(log if log is not None else LogState())
        commit_index = max(min(commit_index, raft_log.last_index), raft_log.boundary_index)
        node = cls(
            peer,
            settings,
            reader,
            draw,
            raft_log,
            hard_state.term,
            hard_state.vote,
            commit_index,
            max(min(applied_index, commit_index), raft_log.boundary_index),
            commit_index,
        )
        node._reported_hard = (hard_state.term, hard_state.vote)
        if raft_log.last_term > node.term:
            node.term, node.vote = raft_log.last_term, node.vote if node.forgetful else None
        node.timers.election.start(node.draw_election_ticks())
        forgetting.start(node)
        return node

    # ---------------------------------------------------------------- time

    def tick(self, count: int = 1) -> None:
        """Let `count` ticks pass."""
        eventless = min(count, self.ticks_until_due) - 1
        if eventless > 0:
            self._skip(eventless)
            count -= eventless
        for _ in range(count):
            self._tick()

    def _skip(self, ticks: int) -> None:
        """Let ticks pass at once, in which no timer expires."""
        self.now += ticks
        self.timers.skip(ticks)
        if self.leadership is not None:
            replication.tick_replicators(self.leadership, ticks)

    def _tick(self) -> None:
        self.now += 1
        timers = self.timers
        if self.leadership is not None:
            self._tick_leader(self.leadership)
        elif self._outstanding is not None and self._outstanding.hard_state is not None:
            pass  # no request of an election leaves this node before its term and vote are durable
        elif timers.vote.tick():
            election.on_vote_timeout(self)
        elif timers.election.tick():
            election.on_election_timeout(self)

    def _tick_leader(self, led: Leadership) -> None:
        timers, settings = self.timers, self.settings
        if timers.step_down.tick():
            # The next check is due together with the next heartbeat, so that an idle leader does not wake for it alone.
            timers.step_down.start(timers.heartbeat.ticks_left - 1 or settings.heartbeat_ticks)
            contacts = {replicator.peer: replicator.contact_tick for replicator in led.group}
            contacts[self.id] = self.now
            if self.now - quorum_value(contacts, self.configuration) > settings.election_ticks_max:
                become_follower(self, Input.QUORUM_LOST, self.term, None)
                return
        if timers.commit.tick():
            led.commit_due = True
        if timers.transfer.tick():
            transfer.abort(led)
        if timers.preferred.tick():
            timers.preferred.start(settings.preferred_check_ticks)
            transfer.look_for_preferred(self, led)
        if timers.heartbeat.tick():
            self._start_round(led)
        replication.tick_replicators(led)

    def _start_round(self, led: Leadership) -> None:
        replication.start_round(self, led)
        reading.confirm_reads(self, led)  # without other voters this node is its own majority, and nobody answers the round

    @property
    def ticks_until_due(self) -> int:
        """How many ticks may pass before a timer expires; the shell may sleep that long."""
        return self.timers.ticks_until_due or self.settings.election_ticks_max

    # ---------------------------------------------------------------- messages

    def step(self, message: Message) -> None:
        """Handle a message from a peer. One from a stale or unknown peer is ignored or answered.

        Raises:
            TermTooHigh: the term of the message is too far ahead of this node's. Nothing was changed.
            Diverged: the leader contradicts committed entries. No entry was removed; the node must not go on.
            TwoLeaders: another node leads this node's own term. Nothing was changed; the node must not go on.
        """
        if isinstance(message, _REPLICATION) and message.term == self.term:
            self._dispatch(message)
            return
        if message.term > highest_acceptable(self.term):
            raise TermTooHigh(message.sender, message.term, self.term)
        if isinstance(message, PreVoteRequest):
            election.on_pre_vote_request(self, message)
            return
        if isinstance(message, TermQuery):
            forgetting.on_term_query(self, message)
            return
        if isinstance(message, TermAnswer):
            forgetting.on_term_answer(self, message)
            return
        if isinstance(message, PreVoteResponse) and message.granted:
            election.on_pre_vote_response(self, message)
            return
        if message.term > self.term:
            if isinstance(message, VoteRequest) and self.bound_to_leader and not message.transfer:
                # Thesis §4.2.3: a removed or returning node must not depose a leader that is alive.
                return
            from_leader = isinstance(message, Append | Heartbeat | InstallSnapshot | TimeoutNow)
            become_follower(self, Input.HIGHER_TERM, message.term, message.sender if from_leader else None)
        elif message.term < self.term:
            self._answer_stale(message)
            return
        if not isinstance(message, StaleTerm):
            self._dispatch(message)

    def _answer_stale(self, message: Message) -> None:
        """Send the current term to the sender of an older one, so that an old leader or candidate steps down."""
        if isinstance(message, Append | Heartbeat | InstallSnapshot | VoteRequest):
            self.send(StaleTerm(self.id, message.sender, self.term))

    def _dispatch(self, message: Message) -> None:
        """Handle a message of the current term."""
        if isinstance(message, _FROM_LEADER):
            self._from_leader(message)
        elif isinstance(message, VoteRequest):
            election.on_vote_request(self, message)
        elif isinstance(message, VoteResponse):
            election.on_vote_response(self, message)
        elif isinstance(message, PreVoteResponse):
            election.on_pre_vote_response(self, message)
        elif isinstance(message, TimeoutNow):
            election.on_timeout_now(self, message)
        elif isinstance(message, Regressed):
            forgetting.on_regressed(self, message)
        elif isinstance(message, ReadIndexRequest):
            reading.on_read_index_request(self, message)
        elif isinstance(message, ReadIndexResponse):
            reading.on_read_index_response(self, message)
        elif self.leadership is not None:
            if isinstance(message, AppendResponse):
                replication.on_append_response(self, self.leadership, message)
            elif isinstance(message, HeartbeatResponse):
                replication.on_heartbeat_response(self, self.leadership, message)
                reading.confirm_reads(self, self.leadership)

    def _from_leader(self, message: Append | Heartbeat | InstallSnapshot) -> None:
        if self.role is Role.LEADER:
            raise TwoLeaders(self.term, message.sender)
        if isinstance(message, Append) and not following.is_well_formed(message):
            return
        self.heard_tick = self.now
        if self.role is not Role.FOLLOWER or self.leader != message.sender:
            become_follower(self, Input.LEADER_SEEN, self.term, message.sender)
        else:
            self.timers.election.start(self.draw_election_ticks())
        if isinstance(message, Append):
            following.on_append(self, message)
        elif isinstance(message, Heartbeat):
            following.on_heartbeat(self, message)
        else:
            following.on_install_snapshot(self, message)

    # ---------------------------------------------------------------- proposals

    def admit(self, expected_term: Term | None = None) -> Assignment:
        """Return the index and term that the next entries would get, without adding any; raise what `propose` would raise.

        The owner writes the entries there, then calls `propose`, so a failed write changes nothing in the core.
        """
        return next_assignment(self, expected_term)

    def propose(
        self, count: int = 1, *, expected_term: Term | None = None, configuration: Configuration | None = None
    ) -> Assignment:
        """Add `count` entries that the owner of this leader has written, and return their first index and their term.

        Args:
            expected_term: the proposal is refused in any other term; None accepts every term.
            configuration: the entry (exactly one) is this configuration, which takes effect at once. It comes from
                `plan_change` or from `SoftState.configuration_wanted`.

        Raises:
            NotLeader, TermChanged, TransferInProgress, LeaderNotReady, ChangeRefused: nothing was added.
        """
        assignment = self.admit(expected_term)
        led = self.leadership
        assert led is not None
        configurations: tuple[tuple[LogIndex, Configuration], ...] = ()
        if configuration is not None:
            assert count == 1, "a configuration is one entry"
            membership.check_change(self, led, configuration)
            configurations = ((assignment.first_index, configuration),)
        self.log.append_own(count, self.term, configurations)
        self.verified_index = self.log.last_index
        if configuration is not None:
            led.configuration_wanted = None
            membership.follow_configuration(self, led)
        return assignment

    def plan_change(self, voters: Iterable[PeerId], learners: Iterable[PeerId] = ()) -> Configuration:
        """Return the configuration to write and propose so that the group becomes `voters` and `learners`.

        Raises:
            NotLeader, ChangeRefused: nothing was changed.
        """
        if self.leadership is None:
            raise NotLeader(self.leader)
        return membership.plan_change(self, self.leadership, voters, learners)

    def transfer_leadership(self, target: PeerId) -> None:
        """Transfer leadership to `target`; until that succeeds or is aborted, proposals are refused.

        Raises:
            NotLeader, ChangeRefused: nothing was changed.
        """
        if self.leadership is None:
            raise NotLeader(self.leader)
        transfer.start(self, self.leadership, target)

    def read_index(self, context: Any) -> None:
        """Ask for an index up to which the log must be applied before a read that begins now may be answered.

        The answer is a `ReadState` with this context in a later Ready. A follower asks its leader; that answer may get lost.

        Raises:
            NotLeader: no leader is known.
        """
        reading.request_read(self, context)

    def reconnected(self, peer: PeerId) -> None:
        """Handle a new connection to a peer: messages in flight may be lost, and the peer may have restarted."""
        if self.leadership is not None:
            replication.probe_reconnected(self.leadership, peer)
        elif self.forgetful:
            forgetting.ask(self)

    def disconnected(self, peer: PeerId) -> None:
        """Handle the end of a connection from a peer: if the peer was the leader, its process has most likely ended.

        Each voter campaigns as soon as the others may grant a vote, at a different time each so that the votes are not split.
        If the leader is alive, its next heartbeat prevents the election.
        """
        if self.role is Role.FOLLOWER and peer == self.leader and self.promotable:
            voters = sorted(voter for voter in self.configuration.voters if voter != peer)
            ticks_left = self.settings.election_ticks_min - (self.now - self.heard_tick)
            turn = voters.index(self.id) if self.id in voters else len(voters)
            self.timers.election.start(max(ticks_left, 0) + 1 + turn * self.settings.turn_ticks)

    def compact(self, boundary_index: LogIndex) -> None:
        """Drop the entries up to and including `boundary_index`, but only applied ones, because the storage removes them."""
        self.log.compact(min(boundary_index, self.applied_index))

    # ---------------------------------------------------------------- the to-do list

    def ready(self) -> Ready[Message] | None:
        """Return the work that is due, or None. The owner does it and calls `advance` before the next call."""
        if self._outstanding is not None:
            return None
        if self.leadership is not None:
            if self.leadership.round_due:
                self._start_round(self.leadership)
            replication.send_entries(self, self.leadership)
        else:
            following.acknowledge(self)
        log = self.log
        last = min(self.commit_index, log.last_index)
        hard = self.hard_state if (self.term, self.vote) != self._reported_hard else None
        present = self._soft_state()
        soft = present if present != self._reported_soft else None
        if not (
            self.messages
            or last > self.applied_index
            or log.unstable
            or hard is not None
            or soft is not None
            or self.read_states
            or log.truncate_from is not None
            or self.snapshot is not None
        ):
            return None
        return self._hand_out(hard, soft, last)

    def _hand_out(self, hard: HardState | None, soft: _Soft | None, last: LogIndex) -> Ready[Message]:
        truncate_from, appends = self.log.hand_out()
        self._outstanding = ready = Ready(
            hard_state=hard,
            snapshot=self.snapshot,
            truncate_from=truncate_from,
            appends=appends,
            messages=tuple(self.messages),
            committed=CommittedRange(self.applied_index + 1, last) if last > self.applied_index else None,
            soft_state=SoftState(*soft) if soft is not None else None,
            read_states=tuple(self.read_states),
        )
        if hard is not None:
            self._reported_hard = (hard.term, hard.vote)
        if soft is not None:
            self._reported_soft = soft
        self.messages.clear()
        self.read_states.clear()
        self.applied_index = max(self.applied_index, last)
        return ready

    def _soft_state(self) -> _Soft:
        led = self.leadership
        if led is None:
            return self.role, self.term, self.leader, False, None, None
        return self.role, self.term, self.leader, self.barrier_wanted, led.configuration_wanted, led.transfer_to

    def advance(self, ready: Ready[Message]) -> None:
        """Note that all work of the Ready is done: its hard state and snapshot are durable, its entries are written."""
        assert ready is self._outstanding, "advance takes the Ready that was given out last"
        self._outstanding = None
        self.log.mark_written()
        if ready.snapshot is not None and ready.snapshot is self.snapshot:
            self.snapshot = None
            self.ack_due = self.ack_at_once = True
        hard = ready.hard_state
        if hard is not None and hard.term == self.term and hard.vote == self.id:
            election.count_vote(self, self.id, granted=True)

    def sync_point(self) -> SyncPoint:
        """Return how far the log is written. The owner calls this before a sync and passes the result to `persisted` after."""
        return self.log.sync_point()

    def persisted(self, point: SyncPoint) -> None:
        """Note that a sync which began at `point` has succeeded."""
        if self.log.mark_durable(point) and self.leadership is not None:
            ballot_box.advance_commit(self, self.leadership)
        forgetting.remember(self)

    @property
    def checkpoint_index(self) -> LogIndex:
        """The commit index that may be stored for the next start: it is durable here, so a restart finds the same entries.

        `NO_INDEX` while a snapshot waits to be installed: until then the disk holds another log.
        """
        return min(self.commit_index, self.log.durable_index) if self.snapshot is None else NO_INDEX
