"""The to-do list of the core: what its owner must write, send and apply, and in which order.

The order of one Ready: (1) make `hard_state` durable, (2) install `snapshot`, (3) truncate, (4) write `appends`, (5) send
`messages`, (6) hand `committed` to the state machine, (7) call `advance`. Steps 3 to 6 need no sync: what must wait for the
disk is not in this Ready yet. After step 7 the owner syncs in its own time: it takes `sync_point()`, syncs, and gives the point
to `persisted`; acknowledgements appear in the Ready after that.
"""

from __future__ import annotations

from typing import Any

import attrs

from .batch import Slice, Snapshot
from .messages import Message
from .quorum import Configuration
from .roles import Role
from .units import LogIndex, PeerId, Term


@attrs.frozen
class HardState:
    """What a node must remember to keep its promises: its term and its vote in it."""

    term: Term = 0
    vote: PeerId | None = None


@attrs.frozen
class SoftState:
    """What the owner of the core wants to know and nobody needs to store."""

    role: Role
    term: Term
    leader: PeerId | None
    barrier_wanted: bool
    """This node leads and its term has no entry yet: the owner must propose one that changes nothing (a barrier). Entries of
    earlier terms commit only through it, and reads wait for it."""
    configuration_wanted: Configuration | None
    """The joint configuration is committed: the owner must propose this one, which leaves it."""
    transfer_to: PeerId | None
    """Leadership is being transferred to this node; until that ends, proposals are refused, the two above included."""


@attrs.frozen
class CommittedRange:
    """Entries that are committed and written here, in order; each entry is in exactly one range of a node's life."""

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
    """How far the log was written when a sync began. Only a point of the present epoch makes anything durable.

    The epoch counts truncations. Suppose entry 5 of term 1 is written and its sync is slow; meanwhile entry 5 is replaced by
    one of term 2, and later by the entry of term 1 again. The late report of the first sync says "5 of term 1", and so does the
    log, but on the disk there may be the entry of term 2. The epochs differ, so the report is ignored; the next sync counts.
    """

    index: LogIndex
    epoch: int


@attrs.frozen
class Ready:
    """One to-do list. It stays valid until `advance`; there is at most one at a time."""

    hard_state: HardState | None = None
    """Must be durable before anything else of this Ready is done, in particular before `messages` are sent. If it cannot be
    made durable, none of it may be done and the node must stop."""
    snapshot: Snapshot | None = None
    """Replaces the whole log; must be durable before `advance`."""
    truncate_from: LogIndex | None = None
    """Remove this entry and all behind it, so that they cannot come back after a crash, before `appends` are written."""
    appends: tuple[Slice, ...] = ()
    """Entries from the leader, in order, each behind the one before. They must be written before `advance`; their sync may
    come later. A leader's own entries are never here: its owner wrote them when it proposed them."""
    messages: tuple[Message, ...] = ()
    """May be sent at once after `hard_state` is durable, before `appends` are written: no message acknowledges them."""
    committed: CommittedRange | None = None
    """To be applied after `appends` are written. Entries may be committed by others before they are durable here."""
    soft_state: SoftState | None = None
    """Present when it changed."""
    read_states: tuple[ReadState, ...] = ()
    snapshot_due: bool = False
    """The snapshot timer has expired: it is time to save the state machine."""

    @property
    def must_sync(self) -> bool:
        """Whether the log changed on disk, so that a sync is due after `advance`."""
        return self.truncate_from is not None or bool(self.appends)
