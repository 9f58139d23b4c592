"""Simulated nodes, disks, clocks and a network on one event heap: the Raft core under faults, without an event loop.

Time is counted in nominal ticks. Everything random is drawn from one source, so a seed replays exactly.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs

from ledgermq.ha.raft.messages import Message, VoteResponse
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.ready import HardState, Ready, SyncPoint
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import FORGOTTEN, LogIndex, PeerId

from .checkers import Checker
from .node import Node
from .storage import MemoryStorage
from .task import Task, TaskQueue

DISK_TICKS = 0.3
"""The longest durable write on a healthy disk, in ticks."""


@attrs.define(eq=False)
class SimNode(Node):
    """A node with a slow disk and its own clock."""

    up: bool = True
    life: int = 0
    """How often the node was started; operations that began in an earlier life have no effect."""
    rate: float = 1.0
    """The rate of its clock; 1 is exact."""
    disk_factor: float = 1.0
    """How many times slower its disk is than a healthy one."""
    wiped: bool = False
    """Whether its disk is lost; the node then never returns under this name."""

    @property
    def forgetful(self) -> bool:
        """Whether it has lost its disk and has not caught up since, in memory or on its disk."""
        return self.raft.forgetful or self.storage.hard_state.vote == FORGOTTEN

    obeying: Ready[Message] | None = None
    """A Ready whose durable part is being written."""
    sync_running: bool = False
    tasks: TaskQueue = attrs.field(factory=TaskQueue)
    """Proposals of this node that are not yet answered."""
    waiting_reads: dict[int, LogIndex] = attrs.field(factory=dict[int, LogIndex])
    """Reads by context, and the index that had been acknowledged when each began."""


@attrs.define(eq=False)
class World:
    """The whole state of one run."""

    rng: random.Random
    settings: Settings
    checker: Checker = attrs.field(factory=Checker)
    now: float = 0.0
    nodes: dict[PeerId, SimNode] = attrs.field(factory=dict[PeerId, SimNode])
    cut: set[tuple[PeerId, PeerId]] = attrs.field(factory=set[tuple[PeerId, PeerId]])
    loss: float = 0.0
    duplication: float = 0.0
    delay_max: float = 0.5
    """A message takes up to this many ticks, so messages overtake each other."""
    late_max: float = 0.0
    """A duplicate takes up to this many ticks more."""
    crash_voters: float = 0.0
    """The probability that a node crashes right after it has sent its vote."""
    counts: Counter[str] = attrs.field(factory=Counter[str])
    trace: list[str] = attrs.field(factory=list[str])
    _events: list[tuple[float, int, Callable[[], None]]] = attrs.field(factory=list[tuple[float, int, Callable[[], None]]])
    _made: int = 0

    # ---------------------------------------------------------------- time

    def after(self, ticks: float, event: Callable[[], None]) -> None:
        self._made += 1
        heapq.heappush(self._events, (self.now + ticks, self._made, event))

    def run_until(self, end: float) -> None:
        """Run all events that are due before `end`, or until a claim is violated."""
        while self._events and self._events[0][0] < end and not self.checker.violations:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = max(self.now, end)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:8.2f} {text}")

    # ---------------------------------------------------------------- nodes

    def add_node(self, name: PeerId, configuration: Configuration, rate: float, *, new: bool = False) -> SimNode:
        """Add a node with an empty disk. Founding nodes know the first configuration, later ones know none.

        Args:
            new: the node cannot tell whether the group is new or its disk was lost.
        """
        storage = MemoryStorage(configuration, hard_state=HardState(0, FORGOTTEN) if new else HardState())
        node = SimNode(name, self.settings, self.rng.randint, storage, rate=rate)
        self.nodes[name] = node
        self._tick_later(node)
        return node

    def _tick_later(self, node: SimNode) -> None:
        life = node.life

        def tick() -> None:
            if node.up and node.life == life:
                node.raft.tick()
                self.pump(node)
                self.after(node.rate, tick)

        self.after(node.rate * self.rng.random(), tick)

    def crash(self, node: SimNode) -> None:
        """Cut the power of a node: any prefix of the unsynced operations survives, the rest is lost."""
        if not node.up:
            return
        self.counts["crash"] += 1
        if node.obeying is not None and node.obeying.hard_state is not None and self.rng.random() < 0.5:
            node.storage.hard_state = node.obeying.hard_state
        storage = node.storage
        storage.crash(self.rng.randint(0, len(storage.syncing) + len(storage.unsynced)))
        node.up = False
        node.life += 1
        node.obeying = None
        node.sync_running = False
        node.tasks = TaskQueue()
        node.waiting_reads.clear()
        self.note(f"{node.id} crashes, {storage.last_index} is its last entry")

    def restart(self, node: SimNode) -> None:
        if node.up or node.wiped:
            return
        node.up = True
        self.counts["restart"] += 1
        node.start()
        self.note(f"{node.id} starts")
        self._tick_later(node)
        self.pump(node)
        if self.rng.random() < 0.5:
            self.after(self.delay_max, lambda: self.reconnect(node.id))

    def reconnect(self, peer: PeerId) -> None:
        """Notify leaders of a new connection to a peer."""
        for leader in self.leaders():
            self.counts["reconnect"] += 1
            leader.raft.reconnected(peer)
            self.pump(leader)

    def lose_disk(self, node: SimNode) -> None:
        """Lose the disk of a node and the node with it: its name is never used again.

        The storage is kept because the checker asks whether an entry was on a majority of disks when it was acknowledged.
        """
        self.crash(node)
        node.wiped = True
        self.counts["disk_lost"] += 1
        self.note(f"{node.id} has lost its disk")

    def wipe(self, node: SimNode, configuration: Configuration) -> None:
        """Lose the disk of a node, which returns under its name with an empty one.

        Args:
            configuration: the first one of the group, which is in the node's settings.
        """
        self.crash(node)
        node.lost.append(node.storage)
        node.storage = MemoryStorage(configuration, hard_state=HardState(0, FORGOTTEN))
        self.counts["disk_wiped"] += 1
        self.note(f"{node.id} has lost its disk and will come back without it")

    def leaders(self) -> list[SimNode]:
        """The nodes that consider themselves leader, the highest term first."""
        leading = [node for node in self.nodes.values() if node.up and node.raft.leadership is not None]
        return sorted(leading, key=lambda node: -node.raft.term)

    # ---------------------------------------------------------------- network

    def send(self, message: Message) -> None:
        if self.rng.random() < self.loss:
            self.counts["message_lost"] += 1
            return
        self.after(self.rng.random() * self.delay_max, lambda: self._arrive(message))
        # A vote that arrives again in a later term is the most dangerous duplicate and the rarest; votes are always duplicated.
        vote = self.late_max and isinstance(message, VoteResponse)
        if self.duplication and (vote or self.rng.random() < self.duplication):
            self.counts["message_duplicated"] += 1
            self.after(self.rng.random() * (self.delay_max + self.late_max), lambda: self._arrive(message))
        if self.crash_voters and isinstance(message, VoteResponse) and message.granted:
            self._crash_voter(self.nodes[message.sender])

    def _arrive(self, message: Message) -> None:
        node = self.nodes.get(message.to)
        if node is None or not node.up:
            return
        if self.cut and (message.sender, message.to) in self.cut:
            self.counts["message_cut"] += 1
            return
        late = node.raft.role is Role.PRE_CANDIDATE and node.raft.ballot is not None
        node.raft.step(message)
        if late and isinstance(message, VoteResponse) and message.granted and message.term == node.raft.term:
            self.counts["late_vote"] += 1
            self.counts["late_vote_wins"] += node.raft.role is Role.LEADER
        self.pump(node)

    def isolate(self, name: PeerId) -> None:
        """Lose every message to and from a node."""
        for other in self.nodes:
            if other != name:
                self.cut |= {(name, other), (other, name)}

    def _crash_voter(self, node: SimNode) -> None:
        if self.rng.random() < self.crash_voters:
            self.counts["crash_voter"] += 1

            def crash() -> None:
                self.crash(node)
                self.after(0.1, lambda: self.restart(node))

            self.after(0.0, crash)

    # ---------------------------------------------------------------- the loop of a node

    def pump(self, node: SimNode) -> None:
        """Let a node process every Ready; one with a part that must be durable takes time."""
        self.checker.election_safety(node)
        while node.obeying is None and (ready := node.raft.ready()) is not None:
            if ready.hard_state is not None or ready.snapshot is not None:
                node.obeying = ready
                life = node.life
                self.after(
                    self._disk_ticks(node),
                    lambda ready=ready, life=life: self._durable(node, ready, life),  # type: ignore[misc]
                )
            else:
                self._finish(node, ready)
        self._sync_if_wanted(node)
        self._acknowledge(node)
        self.checker.invariants(node)

    def _disk_ticks(self, node: SimNode) -> float:
        return self.rng.random() * DISK_TICKS * node.disk_factor

    def _durable(self, node: SimNode, ready: Ready[Message], life: int) -> None:
        if node.life == life:
            node.obeying = None
            self._finish(node, ready)
            self.pump(node)

    def _finish(self, node: SimNode, ready: Ready[Message]) -> None:
        """Carry out a whole Ready, and check its effects."""
        checker = self.checker
        if ready.soft_state is not None:
            soft = ready.soft_state
            self.note(f"{node.id} is {soft.role.value} of term {soft.term}, leader {soft.leader}")
        if ready.snapshot is not None:
            checker.snapshot_safety(node, ready.snapshot.last_index, ready.snapshot.last_term)
            self.counts["snapshot_installed"] += 1
            self.note(f"{node.id} installs a snapshot of {ready.snapshot.last_index}")
        if ready.truncate_from is not None:
            self.counts["truncation"] += 1
            self.note(f"{node.id} truncates from {ready.truncate_from}")
        applied = node.last_applied
        node.obey(ready)
        if ready.appends:
            checker.log_matching(node, ready.appends[0].first_index)
        if ready.committed is not None:
            if ready.snapshot is not None:
                applied = ready.snapshot.last_index
            checker.state_machine_safety(node, ready.committed.first_index, ready.committed.last_index, applied + 1)
        for message in ready.messages:
            self.send(message)
        node.raft.advance(ready)
        checker.election_safety(node)
        before = node.storage.last_index
        node.own_proposals()
        checker.log_matching(node, before + 1)
        self._finish_reads(node)

    def _sync_if_wanted(self, node: SimNode) -> None:
        if node.sync_wanted and not node.sync_running and node.obeying is None:
            point, life = node.begin_sync(), node.life
            node.sync_running = True
            self.after(self._disk_ticks(node), lambda: self._synced(node, point, life))

    def _synced(self, node: SimNode, point: SyncPoint, life: int) -> None:
        if node.life == life:
            node.sync_running = False
            node.finish_sync(point)
            self.pump(node)

    # ---------------------------------------------------------------- clients

    def propose(self, node: SimNode, *values: Any) -> None:
        """Send entries of a client to a node that considers itself leader."""
        first = node.propose(*values)
        self.checker.log_matching(node, first)
        task = Task(node.raft.term, node.storage.last_index, lambda committed: self._answer(node, task, committed=committed))
        node.tasks.append(task)
        self.counts["proposed"] += len(values)
        self.pump(node)

    def _acknowledge(self, node: SimNode) -> None:
        """Answer the clients whose entries are committed, as long as the node leads in the term in which it proposed them."""
        if node.raft.leadership is None:
            node.tasks.step_down()
        else:
            node.tasks.commit(node.raft.term, node.raft.applied_index)

    def _answer(self, node: SimNode, task: Task, *, committed: bool) -> None:
        self.counts["acknowledged" if committed else "unanswered"] += 1
        if committed:
            self.checker.majority_stores(self.nodes, node.raft.configuration, task.last_index, task.term, node.id)

    def read(self, node: SimNode, context: int) -> None:
        """Read at a node as a client; the answer must be linearizable."""
        if node.raft.leadership is None and (node.raft.leader is None or node.raft.role is not Role.FOLLOWER):
            return
        node.waiting_reads[context] = self.checker.acknowledged_index
        node.raft.read_index(context)
        self.pump(node)

    def _finish_reads(self, node: SimNode) -> None:
        for context, index in list(node.reads.items()):
            floor = node.waiting_reads.get(context)
            applied = node.last_applied
            if floor is None or index is None:
                del node.reads[context]
                node.waiting_reads.pop(context, None)
            elif applied >= index:
                del node.reads[context], node.waiting_reads[context]
                self.counts["reads"] += 1
                self.checker.read_is_linearizable(node, floor, applied)
