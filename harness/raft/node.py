"""One node without network or clock: the real core, a memory storage, and the loop that processes `Ready`."""

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
from ledgermq.ha.raft.units import LogIndex, PeerId

from .state_machine import StateMachineCaller
from .storage import Entry, MemoryStorage

BARRIER = "barrier"
"""The value of the entry that opens a term."""


@attrs.define(eq=False)
class Journal:
    """A state machine that records every entry it applied since the node started, with its index."""

    applied: list[tuple[LogIndex, Entry]] = attrs.field(factory=list[tuple[LogIndex, Entry]])

    def apply(self, batch: Batch) -> None:
        entries: tuple[Entry, ...] = batch.payload
        self.applied.extend(enumerate(entries, batch.first_index))

    def save(self) -> None:
        """Does nothing: the storage makes its own snapshots."""

    def load(self, snapshot: Snapshot) -> None:
        """Does nothing: the entries before the snapshot are absent from the journal, as its indexes show."""


@attrs.define(eq=False)
class Node:
    """Owns one core. It does everything in a Ready at once, except the sync, which the caller orders."""

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
    """Disks that this node has lost, kept because the checker asks what was once on a majority of disks."""
    opens_terms: bool = True
    """Whether the node proposes a barrier when it becomes leader, as the core asks of it."""

    def __attrs_post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Start the core from the content of the storage."""
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
        """Process every Ready that there is now; returns the messages to send."""
        messages: list[Message] = []
        while (ready := self.raft.ready()) is not None:
            self.obey(ready)
            messages.extend(ready.messages)
            self.raft.advance(ready)
            self.own_proposals()
        return messages

    def obey(self, ready: Ready[Message]) -> None:
        """Carry out one Ready, in the required order."""
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
        """Propose what the core leaves to its owner: the barrier of a new term, and the end of a joint configuration."""
        raft = self.raft
        if raft.leadership is None or raft.leadership.transfer_to is not None:
            return
        if raft.barrier_wanted and self.opens_terms:
            self.propose(BARRIER)
        wanted = raft.leadership.configuration_wanted
        if wanted is not None:
            self.propose(wanted)

    def propose(self, *values: Any) -> LogIndex:
        """Append entries to the log and propose them; returns the index of the first."""
        assignment = self.raft.admit()
        configuration = values[0] if isinstance(values[0], Configuration) else None
        self.raft.propose(len(values), configuration=configuration)
        self.storage.append(tuple((assignment.term, value) for value in values))
        self.sync_wanted = True
        return assignment.first_index

    def compact(self, boundary_index: LogIndex) -> None:
        """Remove the applied entries up to and including an index, from the core and from the storage."""
        self.raft.compact(boundary_index)
        self.storage.compact(self.raft.log.boundary_index)

    def begin_sync(self) -> SyncPoint:
        """Begin to sync what is written now."""
        self.sync_wanted = False
        self.storage.begin_sync()
        return self.raft.sync_point()

    def finish_sync(self, point: SyncPoint) -> None:
        """Record that the sync which began at `point` has succeeded."""
        self.storage.finish_sync()
        self.raft.persisted(point)

    def sync(self) -> None:
        self.finish_sync(self.begin_sync())

    @property
    def applied(self) -> list[tuple[LogIndex, Entry]]:
        """The entries that the node has applied since its last start, in order."""
        return self.journal.applied

    @property
    def last_applied(self) -> LogIndex:
        return self.caller.applied_index
