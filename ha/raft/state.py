"""The state of one node, and the few operations on it that every part of the core uses.

The parts (`election`, `replication`, `following`, `reading`, `membership`, `transfer`) are functions over this state; `core`
is the interface that receives ticks, messages and proposals.
"""

from __future__ import annotations

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
"""Returns a random number between two bounds, both included. The core has no other source of randomness."""


@attrs.define
class PendingRead:
    """A read that waits until a majority has confirmed the leader."""

    context: Any
    reader: PeerId
    """The node that asked: this node, or a follower, which gets the answer as a message."""
    index: LogIndex | None = None
    """The commit index when the read arrived; None while no entry of the term is committed."""
    round: int = 0
    """The round of heartbeats that has to be confirmed; it began after the read arrived."""


@attrs.define
class Leadership:
    """The state that exists only while a node leads; every term begins with a new one."""

    term_start_index: LogIndex
    """The first index that an entry of this term can have."""
    group: ReplicatorGroup = attrs.field(factory=ReplicatorGroup)
    round: int = 0
    commit_due: bool = False
    """Whether the commit index is sent now, also to followers for which there are no entries."""
    round_due: bool = False
    """Whether reads wait for a round that has not begun."""
    reads: list[PendingRead] = attrs.field(factory=list[PendingRead])
    transfer_to: PeerId | None = None
    preferred_tick: int | None = None
    """The tick of the last transfer to a preferred node, which has failed if this node still leads."""
    preferred_wait: int = 0
    """How many ticks after it the next one may begin."""
    configuration_wanted: Configuration | None = None
    settled_index: LogIndex | None = None
    """Index of the newest configuration that is known to be committed in this term."""


@attrs.define(eq=False)
class State:
    """The whole state of one node. Invariant: applied <= commit <= last, commit <= verified."""

    id: PeerId
    settings: Settings
    reader: LogReader
    draw: Draw
    log: RaftLog
    term: Term
    vote: PeerId | None
    commit_index: LogIndex
    applied_index: LogIndex
    """The last committed entry that was handed to the state machine."""
    verified_index: LogIndex
    """The last entry up to which this log is known to agree with that of this term's leader. Committed entries always agree
    (Raft §5.4)."""
    role: Role = Role.FOLLOWER
    leader: PeerId | None = None
    leadership: Leadership | None = None
    pre_ballot: Ballot | None = None
    """The answers to the pre-vote of a pre-candidate."""
    ballot: Ballot | None = None
    """The votes of this term, if this node has campaigned in it. A pre-candidate keeps those of a vote that has timed out."""
    timers: Timers = attrs.field(factory=Timers)
    now: int = 0
    """Ticks since the node started."""
    heard_tick: int = 0
    """The tick of the last message from a leader. A node starts as if it had just received one: its leader may be alive, and
    its restart must help nobody to depose it."""
    acked_index: LogIndex = NO_INDEX
    """The largest `match_index` that was sent to the leader of this term."""
    ack_due: bool = False
    """Whether the leader waits for an answer to an Append."""
    ack_at_once: bool = False
    """Whether the answer is sent without waiting for a sync."""
    snapshot: Snapshot | None = None
    """A received snapshot that is not installed yet."""
    messages: list[Message] = attrs.field(factory=list[Message])
    read_states: list[ReadState] = attrs.field(factory=list[ReadState])
    acknowledged: dict[PeerId, LogIndex] = attrs.field(factory=dict[PeerId, LogIndex])
    """Up to where others acknowledged committed entries as durable while this node led earlier; they never have less."""
    life: int = 0
    """While the node is forgetful, the context of its queries: a random number that differs from start to start."""
    heard_terms: dict[PeerId, Term] = attrs.field(factory=dict[PeerId, Term])
    """While the node is forgetful, the terms of the other voters from their answers to its queries."""
    refill: tuple[Term, LogIndex] | None = None
    """While the node is forgetful, a leader's term and its commit index in a heartbeat after its answer: up to there the log
    has to be filled again."""

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
        """Whether this node may campaign: it is a voter, it is not forgetful, and no snapshot waits to be installed.

        Thesis §4.2.2: A node that the newest configuration removes campaigns until that is committed, without a vote of its
        own. If that entry is on this disk alone, the others still need a majority of the old voters, perhaps with this node,
        which refuses them its vote because their logs are behind.
        """
        log = self.log
        votes = self.configuration.votes(self.id) or (
            log.configuration_index > self.commit_index
            and len(log.configurations) > 1
            and log.configurations[-2][1].votes(self.id)
        )
        return votes and not self.forgetful and self.snapshot is None

    @property
    def bound_to_leader(self) -> bool:
        """Whether this node heard from a leader so recently that it grants no vote to any other node (thesis §4.2.3)."""
        return self.role is Role.LEADER or self.now - self.heard_tick < self.settings.election_ticks_min

    @property
    def barrier_wanted(self) -> bool:
        return self.leadership is not None and self.log.last_term != self.term

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def draw_election_ticks(self) -> int:
        return self.draw(self.settings.election_ticks_min, self.settings.election_ticks_max)

    def change_role(self, cause: Input) -> None:
        """Change the role by the table of transitions; a pair that is not in the table is a bug and raises KeyError."""
        self.role = TRANSITIONS[self.role, cause]
