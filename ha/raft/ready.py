"""The to-do list of the core: what its owner must write, send and apply, and in which order.

The order of one Ready: (1) make `hard_state` durable, (2) install `snapshot`, (3) truncate, (4) write `appends`, (5) send
`messages`, (6) hand `committed` to the state machine, (7) call `advance`. Steps 3 to 6 need no sync:
acknowledgements that must wait for the disk are not in this Ready yet. After step 7 the owner syncs when it chooses: it calls
`sync_point()`, syncs, and passes the point to `persisted`. The acknowledgements are in the next Ready after that.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs

from .batch import Slice, Snapshot
from .quorum import Configuration
from .roles import Role
from .units import LogIndex, PeerId, Term


@attrs.frozen
class HardState:
    """The durable state of a node: its term and its vote in that term."""

    term: Term = 0
    vote: PeerId | None = None


@attrs.frozen
class SoftState:
    """The volatile state of a node that its owner needs to know."""

    role: Role
    term: Term
    leader: PeerId | None
    barrier_wanted: bool
    """This node leads and its term has no entry yet: the owner must propose one that changes nothing (a barrier). Entries of
    earlier terms commit only through it, and reads wait for it."""
    configuration_wanted: Configuration | None
    """The configuration that the owner must propose to leave the committed joint one; None if there is none to leave."""
    transfer_to: PeerId | None
    """The node to which leadership is being transferred, or None. Until that ends all proposals are refused, also those of
    `barrier_wanted` and `configuration_wanted`."""


@attrs.frozen
class CommittedRange:
    """Entries that are committed and written here, in order. Between two starts each entry is in exactly one range."""

    first_index: LogIndex
    last_index: LogIndex


@attrs.frozen
class ReadState:
    """The answer to one `read_index`: a read may be served once everything up to `index` is applied.

    `index` is None when leadership was lost before the leader could be confirmed; the reader must ask again.
    """

    context: Any
    index: LogIndex | None


@attrs.frozen
class SyncPoint:
    """How far the log was written when a sync began. Only a point of the log's current epoch makes entries durable.

    The epoch counts truncations. Suppose entry 5 of term 1 is written and its sync is slow. Meanwhile entry 5 is replaced by
    one of term 2, and later by the entry of term 1 again. The late report of the first sync is about entry 5 of term 1, which
    the log has, but the disk may hold the entry of term 2. The epochs differ, so the report is ignored; the next sync counts.
    """

    index: LogIndex
    epoch: int


M_co = TypeVar("M_co", covariant=True)
"""The type of the messages of a core."""


@attrs.frozen
class Ready(Generic[M_co]):
    """One to-do list. It is valid until `advance`, and at most one exists at a time."""

    hard_state: HardState | None = None
    """The hard state must be durable before anything else of this Ready is done, in particular before `messages` are sent. If
    it cannot be made durable, the rest must not be done and the node must stop."""
    snapshot: Snapshot | None = None
    """A snapshot that replaces the whole log; it must be durable before `advance`."""
    truncate_from: LogIndex | None = None
    """Remove this entry and all later ones before `appends` are written, so that they cannot reappear after a crash."""
    appends: tuple[Slice, ...] = ()
    """Consecutive entries from the leader. They must be written before `advance`; their sync may follow later. A leader's own
    entries are never here, because its owner wrote them when it proposed them."""
    messages: tuple[M_co, ...] = ()
    """Messages that may be sent once `hard_state` is durable, before `appends` are written, because none acknowledges them."""
    committed: CommittedRange | None = None
    """The entries to apply after `appends` are written. Other nodes may commit entries before they are durable here."""
    soft_state: SoftState | None = None
    """The soft state if it has changed, else None."""
    read_states: tuple[ReadState, ...] = ()

    @property
    def must_sync(self) -> bool:
        """Whether the log changed on disk, so that a sync is due after `advance`."""
        return self.truncate_from is not None or bool(self.appends)
