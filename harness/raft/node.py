"""One node of a group without a world: the real core, a memory storage, and the loop that obeys `Ready`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ledgermq.ha.raft.batch import Batch, Snapshot
from ledgermq.ha.raft.core import Raft
from ledgermq.ha.raft.messages import Message
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.ready import Ready, SyncPoint
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.state_machine import StateMachineCaller
from ledgermq.ha.raft.units import LogIndex, PeerId

from .storage import Entry, MemoryStorage

BARRIER = "barrier"
"""The value of the entry that opens a term."""


@attrs.define(eq=False)
class Journal:
    """A state machine that remembers all that it was given since the node started, with indexes."""

    applied: list[tuple[LogIndex, Entry]] = attrs.field(factory=list[tuple[LogIndex, Entry]])

    def apply(self, batch: Batch) -> None:
        entries: tuple[Entry, ...] = batch.payload
        self.applied.extend(enumerate(entries, batch.first_index))

    def save(self) -> None:
        """The storage makes snapshots of its own."""

    def load(self, snapshot: Snapshot) -> None:
        """The entries before the snapshot are not in the journal, its indexes say so."""


@attrs.define(eq=False)
class Node:
    """Owns one core. It does everything of a Ready at once, except the sync, which whoever drives it orders."""

    id: PeerId
    settings: Settings
    draw: Callable[[int, int], int]
    storage: MemoryStorage
    raft: Raft = attrs.field(init=False)
    caller: StateMachineCaller = attrs.field(init=False)
    journal: Journal = attrs.field(init=False)
    reads: dict[Any, LogIndex | None] = attrs.field(factory=dict[Any, LogIndex | None])
    """Answers to reads, by context."""
    sync_wanted: bool = False
    lost: list[MemoryStorage] = attrs.field(factory=list[MemoryStorage])
    """Disks that this node has lost; they stay for the checker, which asks what was on a majority of disks once."""
    opens_terms: bool = True
    """Whether this owner proposes a barrier when it leads, as it should."""

    def __attrs_post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start from what the storage holds."""
        self.sync_wanted = False
        self.raft = Raft.start(
            self.id,
            settings=self.settings,
            reader=self.storage,
            draw=self.draw,
            log=self.storage.log_state(),
            hard_state=self.storage.hard_state,
            commit_index=self.storage.checkpoint,
        )
        self.journal = Journal()
        self.caller = StateMachineCaller(self.journal, self.storage, self.raft.applied_index)

    def process(self) -> list[Message]:
        """Obey every Ready there is now; returns what is to be sent."""
        messages: list[Message] = []
        while (ready := self.raft.ready()) is not None:
            self.obey(ready)
            messages.extend(ready.messages)
            self.raft.advance(ready)
            self.own_proposals()
        return messages

    def obey(self, ready: Ready) -> None:
        """Do what a Ready asks for, in its order."""
        storage = self.storage
        if ready.hard_state is not None:
            storage.hard_state = ready.hard_state
        if ready.snapshot is not None:
            storage.install(ready.snapshot)
        if ready.truncate_from is not None:
            storage.truncate(ready.truncate_from)
        for piece in ready.appends:
            storage.write(piece)
        self.sync_wanted |= ready.must_sync
        self.caller.obey(ready)
        for read in ready.read_states:
            self.reads[read.context] = read.index

    def own_proposals(self) -> None:
        """Propose what the core asks of its owner: the barrier of a new term, and leaving a joint configuration."""
        raft = self.raft
        if raft.leadership is None or raft.leadership.transfer_to is not None:
            return
        if raft.barrier_wanted and self.opens_terms:
            self.propose(BARRIER)
        wanted = raft.leadership.configuration_wanted
        if wanted is not None:
            self.propose(wanted)

    def propose(self, *values: Any) -> LogIndex:
        """Write entries behind the log and propose them; returns the first index."""
        assignment = self.raft.admit()
        configuration = values[0] if isinstance(values[0], Configuration) else None
        self.raft.propose(len(values), configuration=configuration)
        self.storage.append(tuple((assignment.term, value) for value in values))
        self.sync_wanted = True
        return assignment.first_index

    def begin_sync(self) -> SyncPoint:
        """Begin to sync what is written now."""
        self.sync_wanted = False
        self.storage.begin_sync()
        return self.raft.sync_point()

    def finish_sync(self, point: SyncPoint) -> None:
        """The sync that began at `point` has succeeded."""
        self.storage.finish_sync()
        self.raft.persisted(point)

    def sync(self) -> None:
        self.finish_sync(self.begin_sync())

    @property
    def applied(self) -> list[tuple[LogIndex, Entry]]:
        """What this life of the node applied, in order."""
        return self.journal.applied

    @property
    def last_applied(self) -> LogIndex:
        return self.caller.applied_index
