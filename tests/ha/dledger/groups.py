"""Groups of nodes in one process: simulated machines, virtual time, and a history of what was acknowledged."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from ledgermq.ha.dledger.ledger.recovery import LedgerFiles
from ledgermq.ha.dledger.opening import open_replica
from ledgermq.ha.dledger.outcomes import Outcome
from ledgermq.ha.dledger.replica import Replica
from ledgermq.ha.dledger.settings import ReplicaSettings
from ledgermq.ha.errors import HaError
from ledgermq.ha.raft.errors import Refused
from ledgermq.ha.raft.units import PeerId
from ledgermq.store.errors import NotWritable
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import Machine
from ledgermq.world.network import Address

from .ledgers import FILE_SIZE, INDEX_FILE_SIZE, content, message

PORT = 40911
SECRET = b"secret"


def files_of(peer: str, *, file_size: int = FILE_SIZE) -> LedgerFiles:
    """Where a node keeps its ledger, in small files."""
    return LedgerFiles(f"store/dledger-{peer}", file_size, INDEX_FILE_SIZE)


@attrs.define(eq=False)
class Node:
    """One machine with the node that runs on it, if one does."""

    group: Group
    peer: PeerId
    machine: Machine
    changes: dict[str, Any] = attrs.field(factory=dict[str, Any])
    """Settings in which the node differs from the others."""
    replica: Replica | None = None
    failure: BaseException | None = None
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def up(self) -> Replica:
        assert self.replica is not None
        return self.replica

    async def start(self) -> None:
        """Start the node, and return when it runs."""
        settings = attrs.evolve(self.group.settings(self.peer), **self.changes)
        self.failure = None
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        started = trio.Event()
        self.group.nursery.start_soon(self._run, settings, started)
        await started.wait()

    async def _run(self, settings: ReplicaSettings, started: trio.Event) -> None:
        try:
            with self._scope:
                async with open_replica(self.machine.world(), settings) as replica:
                    self.replica = replica
                    started.set()
                    await self.group.stopping[self.peer].wait()
        except (HaError, OSError) as error:
            self.failure = error
        finally:
            self.replica = None
            started.set()
            self._ended.set()

    async def stop(self) -> None:
        """Stop the node as an operator does."""
        self.group.stopping[self.peer].set()
        await self._ended.wait()
        self.group.stopping[self.peer] = trio.Event()

    async def kill(self) -> None:
        """End the process."""
        self.machine.kill()
        await self.end()

    async def power_cut(self) -> None:
        """Switch the machine off."""
        self.machine.power_cut()
        await self.end()

    async def end(self) -> None:
        self._scope.cancel()
        await self._ended.wait()


@attrs.define(eq=False)
class Group:
    """The machines of one group, and the answers to their clients."""

    nursery: trio.Nursery
    fabric: SimFabric
    rng: random.Random
    peers: dict[PeerId, Address]
    shared: dict[str, Any]
    nodes: dict[PeerId, Node] = attrs.field(factory=dict[PeerId, Node])
    stopping: dict[PeerId, trio.Event] = attrs.field(factory=dict[PeerId, trio.Event])
    acknowledged: dict[int, tuple[int, bytes]] = attrs.field(factory=dict[int, tuple[int, bytes]])
    """Term and first bytes of each entry that was acknowledged."""
    committed: dict[int, tuple[int | None, bytes]] = attrs.field(factory=dict[int, "tuple[int | None, bytes]"])
    """What was seen committed on any node."""
    sent: int = 0

    def settings(self, peer: PeerId) -> ReplicaSettings:
        changes = self.nodes[peer].changes
        peers, own = changes.get("peers", self.peers), changes.get("self_id", peer)
        return attrs.evolve(
            ReplicaSettings(group="g", self_id=own, peers=peers, files=files_of(peer), secret=SECRET), **self.shared
        )

    def add(self, peer: str, **changes: Any) -> Node:
        """A new machine."""
        name = PeerId(peer)
        self.stopping[name] = trio.Event()
        host = f"10.0.0.{len(self.nodes) + 1}"
        node = self.nodes[name] = Node(
            self, name, Machine.of(host, self.fabric, random.Random(self.rng.getrandbits(64))), changes
        )
        return node

    def host(self, node: Node) -> str:
        return node.machine.host

    def isolate(self, node: Node) -> None:
        """Cut a machine off from all others."""
        self.fabric.part([node.machine.host], [other.machine.host for other in self.nodes.values() if other is not node])

    async def until(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        with trio.fail_after(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time, and any condition
                await trio.sleep(0.005)

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.replica is not None]

    def leaders(self) -> list[Node]:
        return [node for node in self.running if node.up.is_leader]

    async def leader(self, *, among: list[Node] | None = None) -> Node:
        """The one leader, once it can commit."""

        def found() -> list[Node]:
            return [
                node
                for node in self.leaders()
                if (among is None or node in among) and node.up.core.commit_index >= node.up.core.leadership.term_start_index  # type: ignore[union-attr]
            ]

        await self.until(found)
        return max(found(), key=lambda node: node.up.leading.term)

    async def put(self, node: Node, count: int = 1, *, body_size: int = 100) -> Outcome:
        """Put messages through one node, and wait for the outcome."""
        replica, answered = node.up, trio.Event()
        outcomes: list[Outcome] = []

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        records = [message(self.sent + number, body_size) for number in range(count)]
        self.sent += count
        placed = replica.propose(records)
        term = replica.ledger.end_term
        bodies = [bytes(replica.ledger.body(index)) for index in range(placed.first_index, placed.last_index + 1)]
        replica.when_committed(placed.last_index, replica.world.clock.monotonic() + 2.5, done)
        await answered.wait()
        if outcomes == [Outcome.COMMITTED]:
            for index, body in enumerate(bodies, placed.first_index):
                self.acknowledged[index] = (term, body)
        assert len(outcomes) == 1
        return outcomes[0]

    async def put_until_done(self, count: int = 1, seconds: float = 120.0) -> None:
        """As a producer does: look for the leader and try until a put is acknowledged."""
        with trio.fail_after(seconds):
            while not await self._put_once(count):  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)

    async def _put_once(self, count: int) -> bool:
        for node in self.leaders():
            try:
                if await self.put(node, count) is Outcome.COMMITTED:
                    return True
            except (Refused, NotWritable, OSError):
                continue
            except AssertionError:
                if node.replica is not None:
                    raise
        return False

    async def converged(self, seconds: float = 30.0) -> None:
        """Wait until all running nodes hold the same committed entries."""

        def same() -> bool:
            ends = {(node.up.ledger.end_index, node.up.ledger.committed_index) for node in self.running}
            return len(ends) == 1 and all(end == committed for end, committed in ends)

        await self.until(same, seconds)

    def check_agreement(self) -> None:
        """What is committed anywhere is the same everywhere, and what was acknowledged is committed as it was."""
        for node in self.running:
            ledger = node.up.ledger
            for index in range(max(ledger.begin_index, ledger.committed_index - 20), ledger.committed_index + 1):
                entry = (ledger.term_of(index), bytes(ledger.body(index)))
                assert self.committed.setdefault(index, entry) == entry, index
                assert self.acknowledged.get(index, entry) == entry, index

    def check(self) -> None:
        """Logs are equal where they overlap, and everything acknowledged is in all that reach so far."""
        logs = [{index: (term, body) for index, term, body in content(node.up.ledger)} for node in self.running]
        for one in logs:
            for other in logs:
                for index in one.keys() & other.keys():
                    assert one[index] == other[index], index
        for index, entry in self.acknowledged.items():
            for node, log in zip(self.running, logs, strict=True):
                assert node.up.ledger.begin_index > index or log.get(index) == entry, index


@asynccontextmanager
async def open_group(seed: int, names: tuple[str, ...] = ("n0", "n1", "n2"), **shared: Any) -> AsyncGenerator[Group]:
    """Machines of one group, all switched on."""
    rng = random.Random(seed)
    peers = {PeerId(name): Address(f"10.0.0.{number}", PORT) for number, name in enumerate(names, 1)}
    async with trio.open_nursery() as nursery:
        group = Group(nursery, SimFabric(random.Random(rng.getrandbits(64))), rng, peers, shared)
        for name in names:
            await group.add(name).start()
        yield group
        nursery.cancel_scope.cancel()


def scenario(story: Callable[[Group], Awaitable[None]], *, seed: int = 1, **shared: Any) -> None:
    """Run a story on a group of three, in virtual time."""

    async def run() -> None:
        async with open_group(seed, **shared) as group:
            await story(group)

    with_clock: Any = seeded_run
    with_clock(run, seed=seed)


async def lose_power_during_puts(group: Group) -> None:
    """Cut the power of all machines in the middle of puts; everything that was acknowledged is there afterwards."""
    leader = await group.leader()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(group.put, leader, 3)
        await trio.sleep(0.004)
        for node in list(group.running):
            await node.power_cut()
        nursery.cancel_scope.cancel()
    for node in group.nodes.values():
        await node.start()
        assert node.failure is None
    await group.put_until_done()
    await group.converged()
    group.check()


async def miss_files_that_expire(group: Group) -> tuple[Node, Node]:
    """Kill a follower, and expire on the others what it misses; returns the leader and the killed node."""
    leader = await group.leader()
    away = next(node for node in group.running if node is not leader)
    await group.put(leader, 5)
    await group.converged()
    await away.kill()
    for _ in range(30):
        await group.put(leader, 10, body_size=300)
    await group.converged()
    for node in group.running:
        assert await node.up.expire(node.up.ledger.end_position) > 5
    return leader, away


async def check_begun_anew(group: Group, leader: Node, away: Node) -> None:
    """A node that was started after `miss_files_that_expire` has the leader's log, follows it, and can be restarted."""
    await group.converged()
    assert away.up.ledger.begin_index == leader.up.ledger.begin_index > 5
    await group.put(leader, 5)
    await group.converged()
    group.check()
    await away.kill()
    await away.start()
    assert away.failure is None
    await group.converged()


async def isolate_leader_during_puts(group: Group) -> tuple[Node, Node, list[Outcome]]:
    """Cut the leader off while it takes puts, until it has stepped down; returns it, the next one, and what the puts became."""
    old = await group.leader()
    assert await group.put(old, 3) is Outcome.COMMITTED
    group.isolate(old)
    async with trio.open_nursery() as nursery:
        outcomes: list[Outcome] = []

        async def put() -> None:
            outcomes.append(await group.put(old, 2))

        nursery.start_soon(put)
        new = await group.leader(among=[node for node in group.running if node is not old])
        assert await group.put(new, 5) is Outcome.COMMITTED
        await group.until(lambda: not old.up.is_leader)
    return old, new, outcomes


def copy_of_disk(node: Node) -> SimDisk:
    """A copy of all that a node has on its disk, as a backup of a running node is."""
    copied = SimDisk()
    directories = [files_of(node.peer).directory]
    while directories:
        directory = directories.pop()
        copied.make_directories(directory)
        for name in node.machine.disk.list_directory(directory):
            path = f"{directory}/{name}"
            if node.machine.disk.is_directory(path):
                directories.append(path)
                continue
            source = node.machine.disk.open(path)
            file = copied.open(path, create_size=source.size)
            file.write(source.read(0, source.size), 0)
            source.close()
            file.close()
    return copied
