"""What a node asks of the dialect of its group: of its core, of its connections, and of the little else that differs.

`native/dialect.py` and `java/dialect.py` implement it. `M` is the type of the messages that both the core and the connections
of a dialect know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import trio

from ...world.network import Address
from ..raft.log import RaftLog
from ..raft.proposals import Assignment
from ..raft.quorum import Configuration
from ..raft.ready import Ready, SyncPoint
from ..raft.units import LogIndex, PeerId, Term
from .ticking import Ticked

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)


class Progress(Protocol):
    """What a leader knows of one other member."""

    @property
    def peer(self) -> PeerId: ...
    @property
    def match_index(self) -> LogIndex: ...
    @property
    def contact_tick(self) -> int: ...


class ProgressOfAll(Protocol):
    """What a leader knows of all others."""

    def __iter__(self) -> Iterator[Progress]: ...
    def get(self, peer: PeerId) -> Progress | None: ...


class Leadership(Protocol):
    """What a core has while it leads."""

    @property
    def group(self) -> ProgressOfAll: ...
    @property
    def term_start_index(self) -> LogIndex: ...
    @property
    def transfer_to(self) -> PeerId | None: ...
    @property
    def configuration_wanted(self) -> Configuration | None: ...


class Core(Ticked, Protocol[M]):
    """The pure core of a node; `ha/raft/core.py` documents its methods."""

    messages: list[M]
    """What waits for the next `Ready` to be sent."""

    @property
    def term(self) -> Term: ...
    @property
    def vote(self) -> PeerId | None: ...
    @property
    def log(self) -> RaftLog: ...
    @property
    def commit_index(self) -> LogIndex: ...
    @property
    def configuration(self) -> Configuration: ...
    @property
    def leadership(self) -> Leadership | None: ...
    @property
    def barrier_wanted(self) -> bool: ...
    @property
    def forgetful(self) -> bool: ...
    def step(self, message: M, /) -> None: ...
    def admit(self, expected_term: Term | None = None) -> Assignment: ...
    def propose(
        self, count: int = 1, *, expected_term: Term | None = None, configuration: Configuration | None = None
    ) -> Assignment: ...
    def plan_change(self, voters: Iterable[PeerId], learners: Iterable[PeerId] = ()) -> Configuration: ...
    def transfer_leadership(self, target: PeerId) -> None: ...
    def read_index(self, context: Any) -> None: ...
    def compact(self, boundary_index: LogIndex) -> None: ...
    def ready(self) -> Ready[M] | None: ...
    def advance(self, ready: Ready[M]) -> None: ...
    def sync_point(self) -> SyncPoint: ...
    def persisted(self, point: SyncPoint) -> None: ...


class PeerLink(Protocol):
    """The outgoing connection to one peer."""

    @property
    def connected(self) -> bool: ...
    @property
    def refusal(self) -> str | None: ...


class PeerLinks(Protocol[M_contra]):
    """All connections of one node."""

    @property
    def outgoing(self) -> Mapping[tuple[PeerId, int], PeerLink]:
        """By peer and lane."""
        ...

    @property
    def serves(self) -> Mapping[PeerId, str]:
        """Where the brokers of peers serve clients, as far as they have said so."""
        ...

    def follow_members(self, addresses: dict[PeerId, Address]) -> None:
        """Keep connections to these peers, and close those to others."""
        ...

    def send(self, message: M_contra) -> None:
        """Send a message to its receiver, or drop it."""
        ...

    def refusals(self) -> tuple[str, ...]:
        """Why others are refused, if an operator has to act."""
        ...

    async def run(self, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen and keep the connections; reports the port."""
        ...


class Copies(Protocol):
    """Copies of damaged entries, which other nodes are asked for."""

    @property
    def without_copy(self) -> list[LogIndex]:
        """The damaged entries of which no node has sent a sound copy."""
        ...

    def look_at(self, index: LogIndex) -> None:
        """Ask the other nodes for a copy if this node's entry is damaged."""
        ...

    async def run(self) -> None:
        """Write the copies that arrive until cancelled."""
        ...


class Dialect(Protocol[M]):
    """One dialect, for one node; it also makes the connections of the node."""

    @property
    def core(self) -> Core[M]: ...

    @property
    def tick_seconds(self) -> float: ...

    @property
    def names_group(self) -> bool:
        """Whether the log says who the members are, in entries of the leader."""
        ...

    @property
    def copies(self) -> Copies | None:
        """Copies of damaged entries, once connected; None if the dialect has no messages for them."""
        ...

    def waits_for(self) -> Iterable[PeerId]:
        """The voters that have to answer before this node, whose store was empty, may vote."""
        ...

    def refusal_of(self, peer: PeerId) -> str | None:
        """Why a follower refuses this leader's entries, if an operator has to act."""
        ...
