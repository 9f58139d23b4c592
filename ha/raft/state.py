"""The state of one node, and the few things that every part of the core does with it.

The parts (`election`, `replication`, `following`, `reading`, `membership`, `transfer`) are functions over this state; `core`
is the door through which ticks, messages and proposals come in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from .batch import LogReader, Snapshot
from .log import RaftLog
from .messages import Message
from .progress import ReplicatorGroup
from .quorum import Ballot, Configuration
from .ready import HardState, ReadState
from .roles import TRANSITIONS, Input, Role
from .settings import Settings
from .timers import Timers
from .units import FORGOTTEN, NO_INDEX, LogIndex, PeerId, Term

Draw = Callable[[int, int], int]
"""Draws a number between two bounds, both included. The only randomness of the core."""


@attrs.define
class PendingRead:
    """A read that waits for its leader to be confirmed by a majority."""

    context: Any
    reader: PeerId
    """Who asked: this node, or a follower that gets the answer as a message."""
    index: LogIndex | None = None
    """What was committed when the read came; None while no entry of the term is committed."""
    round: int = 0
    """The round of heartbeats that has to be confirmed: one that began after the read came."""


@attrs.define
class Leadership:
    """What exists only while a node leads; it begins anew with every term."""

    term_start_index: LogIndex
    """The first index that an entry of this term can have."""
    group: ReplicatorGroup = attrs.field(factory=ReplicatorGroup)
    round: int = 0
    round_ticks: deque[tuple[int, int]] = attrs.field(factory=deque[tuple[int, int]])
    """Rounds of heartbeats sent lately, and when."""
    round_due: bool = False
    """Reads wait for a round that has not begun."""
    reads: list[PendingRead] = attrs.field(factory=list[PendingRead])
    transfer_to: PeerId | None = None
    timeout_now_sent: bool = False
    """Somebody was asked to campaign against this leader and may do so late: no lease for the rest of the term."""
    configuration_wanted: Configuration | None = None
    settled_index: LogIndex | None = None
    """Index of the newest configuration that is known to be committed in this term."""


@attrs.define(eq=False)
class State:
    """Everything one node knows. Invariant: applied <= commit <= last, commit <= verified."""

    id: PeerId
    settings: Settings
    reader: LogReader
    draw: Draw
    log: RaftLog
    term: Term
    vote: PeerId | None
    commit_index: LogIndex
    applied_index: LogIndex
    """How far committed entries were handed to the state machine."""
    verified_index: LogIndex
    """How far this log is known to agree with that of the leader of this term. Committed entries always do (Raft §5.4)."""
    role: Role = Role.FOLLOWER
    leader: PeerId | None = None
    leadership: Leadership | None = None
    ballot: Ballot | None = None
    timers: Timers = attrs.field(factory=Timers)
    now: int = 0
    """Ticks since the node started."""
    heard_tick: int = 0
    """When a leader was last heard. Where leases are in use, a node that starts behaves as if it had just heard one: before it
    crashed it may have confirmed a lease."""
    acked_index: LogIndex = NO_INDEX
    """The largest `match_index` that was sent to the leader of this term."""
    ack_due: bool = False
    """The leader waits for an answer to an Append."""
    ack_at_once: bool = False
    """The answer need not wait for a sync."""
    snapshot: Snapshot | None = None
    """A received snapshot that is not installed yet."""
    messages: list[Message] = attrs.field(factory=list[Message])
    read_states: list[ReadState] = attrs.field(factory=list[ReadState])
    snapshot_due: bool = False
    life: int = 0
    """While the node is forgetful: the context of its queries."""
    heard_terms: dict[PeerId, Term] = attrs.field(factory=dict[PeerId, Term])
    """While the node is forgetful: the terms of other voters, as they answered its queries."""

    @property
    def configuration(self) -> Configuration:
        return self.log.configuration

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote)

    @property
    def forgetful(self) -> bool:
        """Whether this node has lost its disk and may have forgotten votes and acknowledged entries."""
        return self.vote == FORGOTTEN

    @property
    def promotable(self) -> bool:
        """Whether this node may campaign: it has a vote, it has forgotten nothing, and its log is whole."""
        return self.configuration.votes(self.id) and not self.forgetful and self.snapshot is None

    @property
    def bound_to_leader(self) -> bool:
        """Whether this node heard a leader so lately that it helps nobody else to be elected (thesis §4.2.3)."""
        return self.role is Role.LEADER or self.now - self.heard_tick < self.settings.election_ticks_min

    @property
    def barrier_wanted(self) -> bool:
        return self.leadership is not None and self.log.last_term != self.term

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def draw_election_ticks(self) -> int:
        return self.draw(self.settings.election_ticks_min, self.settings.election_ticks_max)

    def change_role(self, cause: Input) -> None:
        """Follow the table of transitions; a pair that is not in it is a mistake of ours."""
        self.role = TRANSITIONS[self.role, cause]
