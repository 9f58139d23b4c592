"""A breadth-first model checker that drives the real Raft core through all interleavings of a small world.

The world has three nodes. An action is an election time-out, the delivery of a message (which may leave a copy in the network),
a sync, a client's entry, a retry of a leader, or a crash after which any prefix of the unsynced operations is on the disk.
Messages arrive in any order, and one that is never delivered is lost. Every reached state is checked; states that differ only
in the names of the nodes count as one. Since the search is breadth-first, the first violation has a shortest trace.

Time is left out, and with it what depends on time: pre-votes and answers to heartbeats. Elections can begin at
any moment, which is more than the real timers allow. In a world without crashes every write is synced at once.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from ledgermq.ha.raft.core import Raft
from ledgermq.ha.raft.errors import Diverged
from ledgermq.ha.raft.messages import Append, AppendResponse, Heartbeat, Message, TimeoutNow, VoteRequest, VoteResponse
from ledgermq.ha.raft.progress import Mode, ReplicatorGroup
from ledgermq.ha.raft.quorum import Configuration, majority
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.state import Leadership
from ledgermq.ha.raft.units import PeerId, Term

from .group import shortest
from .node import Journal, Node
from .state_machine import StateMachineCaller
from .storage import Entry, MemoryStorage

PEERS = (PeerId("a"), PeerId("b"), PeerId("c"))
NAMINGS: tuple[dict[PeerId | None, int], ...] = tuple(
    {None: -1, **dict(zip(PEERS, numbers, strict=True))} for numbers in itertools.permutations(range(len(PEERS)))
)
"""All permutations of the nodes' names; the key of a state is the smallest one over all of them."""
# Time does not pass here, and a message may take any time, so the commit index is sent at once.
SETTINGS = Settings(commit_ticks=0, append_bytes_max=4, probe_bytes_max=1)

Ghost: TypeAlias = tuple[Entry, Term]
"""A committed entry, and the term of the leader that committed it."""


@attrs.frozen(kw_only=True)
class Bounds:
    """The bounds of the explored world."""

    terms: int = 2
    """The highest term that an election may reach."""
    campaigns: int = 2
    """How often all nodes together may campaign."""
    entries: int = 1
    """How many entries clients propose, not counting the barrier of each term."""
    crashes: int = 0
    duplicates: int = 0
    retries: int = 0
    """How often a leader forgets the appends that are in flight to a follower and probes it again, as after lost messages."""
    heartbeats: int = 0
    """How often a leader sends a round of heartbeats, which carry its commit index."""
    states: int = 1_000_000
    """The search stops after this many states."""


@attrs.define(eq=False)
class SmallNode(Node):
    """A node that never changes once it is part of a state; it caches its keys."""

    keys: tuple[int, ...] = ()
    """One key for each naming; empty until they are computed."""
    eager: bool = False
    """Whether it syncs every write at once."""

    def changed(self) -> SmallNode:
        """A copy that an action may change."""
        node = copy.copy(self)
        node.keys = ()
        node.storage = storage = copy.copy(self.storage)
        storage.entries, storage.synced = list(storage.entries), list(storage.synced)
        storage.unsynced, storage.syncing = list(storage.unsynced), []
        node.raft = raft = copy.copy(self.raft)
        raft.reader = storage
        node.journal = Journal(list(self.journal.applied))
        node.caller = StateMachineCaller(node.journal, storage, self.caller.applied_index)
        raft.log = log = copy.copy(raft.log)
        log.runs, log.configurations, log.unstable = list(log.runs), list(log.configurations), list(log.unstable)
        raft.messages, raft.read_states = [], []
        if raft.ballot is not None:
            raft.ballot = copy.copy(raft.ballot)
            raft.ballot.granted, raft.ballot.refused = set(raft.ballot.granted), set(raft.ballot.refused)
        if raft.leadership is not None:
            raft.leadership = _copied(raft.leadership)
        return node


def _copied(led: Leadership) -> Leadership:
    led = copy.copy(led)
    group = ReplicatorGroup()
    for peer, replicator in led.group.replicators.items():
        copied = group.replicators[peer] = copy.copy(replicator)
        copied.inflight = deque(replicator.inflight)
    led.group = group
    return led


@attrs.frozen(eq=False)
class World:
    """One state: the nodes, the messages in flight, and what only the checker knows."""

    nodes: tuple[SmallNode, ...]
    network: frozenset[Message] = frozenset()
    leaders: frozenset[tuple[Term, PeerId]] = frozenset()
    committed: tuple[Ghost, ...] = ()
    campaigns: int = 0
    entries: int = 0
    crashes: int = 0
    duplicates: int = 0
    retries: int = 0
    heartbeats: int = 0

    def node(self, peer: PeerId) -> SmallNode:
        return self.nodes[PEERS.index(peer)]


# ---------------------------------------------------------------- keys


def _node_key(node: SmallNode, naming: Mapping[PeerId | None, int]) -> int:
    """A hash of everything that determines what a node does next."""
    raft, storage = node.raft, node.storage
    led, ballot = raft.leadership, raft.ballot
    leadership: Any = None
    if led is not None:
        replicators = (
            (
                naming[r.peer],
                r.next_index,
                r.match_index,
                r.mode is Mode.PIPELINE,
                r.probe_sent,
                tuple(r.inflight),
                r.commit_sent,
            )
            for r in led.group
        )
        leadership = (led.term_start_index, tuple(sorted(replicators)))
    votes: Any = None
    if ballot is not None:
        votes = frozenset(naming[peer] for peer in ballot.granted), frozenset(naming[peer] for peer in ballot.refused)
    return hash(
        (
            (raft.term, naming[raft.vote], raft.role.value, naming[raft.leader], raft.commit_index, raft.applied_index),
            (raft.verified_index, raft.acked_index, raft.ack_due, raft.ack_at_once, raft.log.durable_index),
            (tuple(storage.entries), tuple(storage.synced), tuple(storage.unsynced)),
            leadership,
            votes,
        )
    )


def _message_key(message: Message, naming: Mapping[PeerId | None, int]) -> int:
    fields: list[Any] = [type(message).__name__]
    for field in attrs.fields(type(message)):
        value = getattr(message, field.name)
        fields.append(naming[value] if field.name in {"sender", "to"} else value)
    return hash(tuple(map(repr, fields)))


@attrs.define(eq=False)
class Keys:
    """Computes the keys of states and caches those of messages, which are few."""

    messages: dict[Message, tuple[int, ...]] = attrs.field(factory=dict[Message, tuple[int, ...]])

    def of(self, world: World) -> int:
        """The smallest key of the state under all namings of its nodes."""
        for node in world.nodes:
            if not node.keys:
                node.keys = tuple(_node_key(node, naming) for naming in NAMINGS)
        network = [self._message(message) for message in world.network]
        rest = (
            world.committed,
            world.campaigns,
            world.entries,
            world.crashes,
            world.duplicates,
            world.retries,
            world.heartbeats,
        )
        smallest: int | None = None
        for number, naming in enumerate(NAMINGS):
            nodes = sorted((naming[node.id], node.keys[number]) for node in world.nodes)
            leaders = frozenset((term, naming[peer]) for term, peer in world.leaders)
            key = hash((tuple(nodes), frozenset(keys[number] for keys in network), leaders, rest))
            smallest = key if smallest is None else min(smallest, key)
        assert smallest is not None
        return smallest

    def _message(self, message: Message) -> tuple[int, ...]:
        keys = self.messages.get(message)
        if keys is None:
            keys = self.messages[message] = tuple(_message_key(message, naming) for naming in NAMINGS)
        return keys


# ---------------------------------------------------------------- actions

Action: TypeAlias = tuple[str, Callable[[], tuple[World, list[str]]]]
"""A description, and a function that returns the next state and the violations in it."""


def actions(world: World, bounds: Bounds) -> Iterator[Action]:
    """Everything that can happen next."""
    for message in world.network:
        yield f"deliver {describe(message)}", lambda message=message: _deliver(world, message, keep=False)  # type: ignore[misc]
        if world.duplicates < bounds.duplicates:
            yield (
                f"deliver a copy of {describe(message)}",
                lambda message=message: _deliver(world, message, keep=True),  # type: ignore[misc]
            )
    for node in world.nodes:
        raft = node.raft
        if raft.role is not Role.LEADER and raft.term < bounds.terms and world.campaigns < bounds.campaigns:
            yield (
                f"{node.id} campaigns",
                lambda node=node: _act(world, node, _campaign, campaigns=world.campaigns + 1),  # type: ignore[misc]
            )
        if node.storage.unsynced:
            yield f"{node.id} syncs", lambda node=node: _act(world, node, Node.sync)  # type: ignore[misc]
        if raft.leadership is not None:
            if world.entries < bounds.entries:
                yield f"{node.id} is given an entry", lambda node=node: _propose(world, node)  # type: ignore[misc]
            if world.heartbeats < bounds.heartbeats:
                yield f"{node.id} sends heartbeats", lambda node=node: _send_heartbeats(world, node)  # type: ignore[misc]
            if world.retries < bounds.retries:
                for replicator in raft.leadership.group:
                    yield (
                        f"{node.id} tries {replicator.peer} again",
                        lambda node=node, peer=replicator.peer: _try_again(world, node, peer),  # type: ignore[misc]
                    )
        if world.crashes < bounds.crashes:
            for survive in range(len(node.storage.unsynced) + 1):
                yield (
                    f"{node.id} crashes and starts with {survive} of {len(node.storage.unsynced)} unsynced operations",
                    lambda node=node, survive=survive: _crash(world, node, survive),  # type: ignore[misc]
                )


def describe(message: Message) -> str:
    """A message in words."""
    head = f"{message.sender}->{message.to} {type(message).__name__} term {message.term}"
    if isinstance(message, Append):
        entries = list(message.batch.payload) if message.batch is not None else []
        return f"{head} after {message.prev_index}/{message.prev_term}: {entries}, commit {message.commit_index}"
    if isinstance(message, AppendResponse):
        return f"{head} match {message.match_index}" + (" rejected" if message.rejection else "")
    if isinstance(message, VoteResponse):
        return f"{head} {'granted' if message.granted else 'refused'}"
    return head


def _campaign(node: Node) -> None:
    raft = node.raft
    if raft.role is Role.CANDIDATE:
        raft.timers.vote.start(1)
        raft.tick()
    if raft.role is not Role.CANDIDATE:
        raft.step(TimeoutNow(raft.leader or raft.id, raft.id, raft.term))


def _act(world: World, node: SmallNode, what: Callable[[Node], None], **changes: Any) -> tuple[World, list[str]]:
    """Let one node do something and process its Ready; returns the next state and the violations in it."""
    changed = node.changed()
    try:
        what(changed)
        messages = changed.process()
        if changed.eager:
            while changed.sync_wanted:
                changed.sync()
                messages += changed.process()
    except (Diverged, AssertionError) as error:
        return world, [f"{node.id}: {type(error).__name__}: {error}"]
    nodes = tuple(changed if other is node else other for other in world.nodes)
    network = (changes.pop("network", world.network)) | frozenset(filter(_matters, messages))
    following = attrs.evolve(world, nodes=nodes, network=_alive(network, nodes), **changes)
    return _checked(following, changed)


def _matters(message: Message) -> bool:
    """Whether a message can have an effect. Refused votes are dropped, since candidates may give up at any moment anyway."""
    return isinstance(message, VoteRequest | Append | AppendResponse) or (isinstance(message, VoteResponse) and message.granted)


def _alive(network: frozenset[Message], nodes: tuple[SmallNode, ...]) -> frozenset[Message]:
    """Drop messages without effect from now on: terms never decrease, and no node leads or campaigns twice in a term."""
    by_peer = {node.id: node.raft for node in nodes}
    return frozenset(
        message
        for message in network
        if message.term >= by_peer[message.to].term
        and not (isinstance(message, VoteResponse) and by_peer[message.to].ballot is None)
        and not (isinstance(message, AppendResponse) and _is_redundant(message, by_peer[message.to]))
    )


def _is_redundant(message: AppendResponse, raft: Raft) -> bool:
    replicator = raft.leadership.group.get(message.sender) if raft.leadership is not None else None
    if replicator is None:
        return True
    known = message.match_index <= replicator.match_index and message.received_index < replicator.next_index
    return known and message.rejection is None and replicator.mode is Mode.PIPELINE


def _deliver(world: World, message: Message, *, keep: bool) -> tuple[World, list[str]]:
    node = world.node(message.to)
    network = world.network if keep else world.network - {message}

    def receive(changed: Node) -> None:
        changed.raft.heard_tick = -(10**6)  # no leader was heard recently, so the node may vote at every moment
        changed.raft.step(message)

    return _act(world, node, receive, network=network, duplicates=world.duplicates + keep)


def _try_again(world: World, node: SmallNode, peer: PeerId) -> tuple[World, list[str]]:
    def try_again(changed: Node) -> None:
        led = changed.raft.leadership
        replicator = led.group.get(peer) if led is not None else None
        assert replicator is not None
        replicator.probe_from(replicator.match_index + 1)

    return _act(world, node, try_again, retries=world.retries + 1)


def _send_heartbeats(world: World, node: SmallNode) -> tuple[World, list[str]]:
    """Send a round of heartbeats; those that a leader sends when it is elected are dropped."""
    raft = node.raft
    beats = frozenset(Heartbeat(node.id, peer, raft.term, raft.commit_index, 0) for peer in PEERS if peer != node.id)
    return attrs.evolve(world, network=world.network | beats, heartbeats=world.heartbeats + 1), []


def _propose(world: World, node: SmallNode) -> tuple[World, list[str]]:
    def propose(changed: Node) -> None:
        changed.propose(f"v{world.entries}")

    return _act(world, node, propose, entries=world.entries + 1)


def _crash(world: World, node: SmallNode, survive: int) -> tuple[World, list[str]]:
    def crash(changed: Node) -> None:
        changed.storage.crash(survive)
        changed.start()

    return _act(world, node, crash, crashes=world.crashes + 1)


# ---------------------------------------------------------------- checks


def _checked(world: World, node: SmallNode) -> tuple[World, list[str]]:
    """Record elections and commits of the node; returns the state with these records, and the violations."""
    raft, found = node.raft, list[str]()
    leaders, committed = world.leaders, world.committed
    if raft.leadership is not None and (raft.term, node.id) not in leaders:
        others = [peer for term, peer in leaders if term == raft.term]
        if others:
            found.append(f"{others[0]} and {node.id} both lead term {raft.term}")
        leaders |= {(raft.term, node.id)}
        missing = [
            index for index, (entry, term) in enumerate(committed) if term < raft.term and raft.log.term_at(index) != entry[0]
        ]
        if missing:
            found.append(f"{node.id} leads term {raft.term} without the committed entries {missing}")
    for index, entry in node.applied:
        if index < len(committed):
            if committed[index][0] != entry:
                found.append(f"{node.id} applies {entry} at {index}, where {committed[index][0]} is committed")
        else:
            committed += ((entry, raft.term),)
            if raft.leadership is not None and not _on_majority(world, index, entry):
                found.append(f"{node.id} commits {entry} at {index}, which a majority has not synced")
    if raft.leadership is not None and raft.commit_index >= 0 and raft.log.term_at(raft.commit_index) != raft.term:
        known = max((index for index, (_, term) in enumerate(committed) if term < raft.term), default=-1)
        if raft.commit_index > known:
            found.append(f"{node.id} commits index {raft.commit_index} of an earlier term by counting (Raft §5.4.2)")
    found += _unmatched(world, node)
    if leaders is not world.leaders or committed is not world.committed:
        world = attrs.evolve(world, leaders=leaders, committed=committed)
    return world, found


def _on_majority(world: World, index: int, entry: Entry) -> bool:
    return sum(node.storage.synced_entry(index) == entry for node in world.nodes) >= majority(len(PEERS))


def _unmatched(world: World, node: SmallNode) -> list[str]:
    """Logs that have an entry of the same index and term, but differ at or before it."""
    found: list[str] = []
    own = node.storage.entries
    for other in world.nodes:
        if other is node:
            continue
        theirs = other.storage.entries
        same = [index for index, (left, right) in enumerate(zip(own, theirs, strict=False)) if left[0] == right[0]]
        if same and own[: same[-1] + 1] != theirs[: same[-1] + 1]:
            found.append(f"{node.id} has {own} and {other.id} has {theirs}")
    return found


# ---------------------------------------------------------------- search


@attrs.frozen
class Result:
    """What a search found."""

    states: int
    transitions: int
    depth: int
    complete: bool
    """Whether every state within the bounds was reached."""
    violations: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()
    """The actions that lead to the violation, a shortest such sequence."""


def initial_world(bounds: Bounds) -> World:
    """Three founding nodes with empty disks."""
    configuration = Configuration(PEERS)
    nodes = tuple(SmallNode(peer, SETTINGS, shortest, MemoryStorage(configuration), eager=not bounds.crashes) for peer in PEERS)
    for node in nodes:
        node.process()
    return World(nodes)


def explore(bounds: Bounds) -> Result:
    """Visit every state within the bounds in breadth-first order, until one violates a claim."""
    keys = Keys()
    first = initial_world(bounds)
    start = keys.of(first)
    parents: dict[int, tuple[int, str] | None] = {start: None}
    frontier: list[tuple[World, int]] = [(first, start)]
    transitions = depth = 0
    while frontier:
        following: list[tuple[World, int]] = []
        for world, key in frontier:
            for name, act in actions(world, bounds):
                transitions += 1
                reached, violations = act()
                if violations:
                    trace = (*_path(parents, key), name)
                    return Result(len(parents), transitions, depth + 1, False, tuple(violations), trace)
                reached_key = keys.of(reached)
                if reached_key not in parents:
                    parents[reached_key] = (key, name)
                    following.append((reached, reached_key))
            if len(parents) >= bounds.states:
                return Result(len(parents), transitions, depth + 1, complete=False)
        frontier = following
        depth += bool(frontier)
    return Result(len(parents), transitions, depth, complete=True)


def _path(parents: Mapping[int, tuple[int, str] | None], key: int) -> list[str]:
    """The actions from the first state to this one. Names may be permuted along the path, because such states count as one."""
    path: list[str] = []
    while (step := parents[key]) is not None:
        key, name = step
        path.append(name)
    return path[::-1]
