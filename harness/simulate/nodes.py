"""The common part of the simulators of whole nodes: name servers, brokers and clients under seeded faults.

A run has three parts. In the first (safety), machines lose power and paths are cut, and nothing acknowledged may be lost. In
the second (liveness), all faults end, and every workload must find what it expects. In the third, everything stored is read.
What clients do is in `workloads`; the nodes of a simulator, and how their lives end, are in its own module.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.message.layout import decode_record
from ledgermq.store.message_store import MessageStore
from ledgermq.testing.checkers import Checker, check_history
from ledgermq.testing.history import End, History, Queue, Snapshot, Stored
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run

from ..logged_faults import logged_faults
from ..outcome import Outcome, describe_error
from ..stored_offsets import queue_offset_faults
from .scene import Node, Scene
from .surroundings import NO_TROUBLE, Surroundings, Troubles
from .workloads.registry import WORKLOADS
from .workloads.workload import Workload, number_in


@attrs.frozen(kw_only=True)
class NodesDraw:
    """What was drawn from the seed for any simulator of whole nodes; it is printed with a failure."""

    seed: int
    nodes: int
    segment_size: int
    life_seconds: float
    """The typical length of a life of the nodes; the average is a little less."""
    delay_seconds: tuple[float, float]
    send_buffer_bytes: int
    sync_seconds_max: float
    connection_losses: bool
    half_open: bool
    partitions: bool
    one_way_cuts: bool
    disk_errors: bool
    clock_jumps: bool
    clock_drift: float
    retries_max: int
    workloads: tuple[str, ...]
    around: Surroundings = NO_TROUBLE


Draw = TypeVar("Draw", bound=NodesDraw)


@attrs.define(eq=False)
class NodesRun(ABC, Generic[Draw]):
    """The run of one seed."""

    converge_seconds: ClassVar[float] = 300.0
    """Virtual time after healing by which the consumer must have got every acknowledged message."""

    draw: Draw
    scene: Scene
    workloads: list[Workload] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.workloads = [WORKLOADS[name](self.scene) for name in self.draw.workloads]

    @property
    def rng(self) -> random.Random:
        return self.scene.rng

    @property
    def history(self) -> History:
        return self.scene.history

    @property
    def nodes(self) -> list[Node]:
        return self.scene.nodes

    # ---------------------------------------------------------------- what a simulator implements

    @abstractmethod
    async def start_nodes(self, nursery: trio.Nursery) -> None:
        """Create the machines of `scene.nodes`, and start their brokers."""

    @abstractmethod
    async def live(self, nursery: trio.Nursery) -> None:
        """Run the nodes under faults, one life after the other; all nodes run when it returns."""

    @abstractmethod
    def disagreement(self) -> str:
        """A description of a difference between running nodes that must vanish without faults; empty if there is none."""

    @abstractmethod
    async def must_be_equal(self) -> None:
        """Wait until all nodes have the same data; no client sends any more."""

    @abstractmethod
    async def look(self, nursery: trio.Nursery) -> None:
        """Read everything that the nodes have stored into the history, and end them."""

    def violations(self) -> list[str]:
        """Violations that were observed directly, in addition to those that the checkers find in the history."""
        return []

    # ---------------------------------------------------------------- the run

    async def run(self) -> None:
        """Run all lives, end all faults, and read what is stored."""
        scene = self.scene
        troubles = Troubles(self.draw.around, scene, random.Random(self.draw.seed ^ 0x7B))  # noqa: S311 - never secrets
        async with trio.open_nursery() as nursery:
            await troubles.start(nursery)
            await self.start_nodes(nursery)
            await troubles.start_spare(nursery)
            clients = trio.CancelScope()
            await nursery.start(self._run_workloads, clients)
            async with trio.open_nursery() as beside:
                beside.start_soon(troubles.run, nursery)
                await self.live(nursery)
                scene.mended.set()
            self.heal()
            await troubles.must_end()
            scene.healed = True
            scene.note("healed")
            try:
                await self._must_converge()
                clients.cancel()
                await self.must_be_equal()
            except AssertionError:
                self._look_at_master()
                raise
            await self.look(nursery)
            nursery.cancel_scope.cancel()

    async def _run_workloads(
        self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run all workloads until cancelled. They start before the faults, because a starting client needs a name server."""
        with scope:
            async with trio.open_nursery() as nursery:
                for workload in self.workloads:
                    await nursery.start(workload.run)
                task_status.started()

    def started(self, node: Node, broker: Broker) -> None:
        """Handle the start of a broker."""
        self.scene.count_requests(broker.dispatcher)
        for workload in self.workloads:
            workload.started(node, broker)

    async def _must_converge(self) -> None:
        puts = self.history.puts
        before = sum(put.acknowledged for put in puts)

        def of_workloads() -> str:
            for workload in self.workloads:
                if missing := workload.lacking():
                    return f"{workload.name}: {missing}"
            return "no message is taken" if sum(put.acknowledged for put in puts) == before else ""

        def lacking() -> str:
            return of_workloads() or self.disagreement()

        # An ordered queue gets on slowly, since messages that fail hold up the others: then it has the time twice.
        for _ in range(2):
            last = of_workloads()
            with trio.move_on_after(self.converge_seconds):
                while lacking():  # noqa: ASYNC110 - no event is set for this
                    await trio.sleep(0.1)
            if of_workloads() in ("", last):
                break
        assert not lacking(), f"{self.converge_seconds} s after healing {lacking()}"

    def _look_at_master(self) -> None:
        """Read what the master has stored although the run has failed: a message that is missing may have been lost."""
        for node in self.nodes:
            if node.broker is not None and node.broker is self.scene.serving:
                node.broker.store.catch_up()
                self.history.snapshots.append(self.snapshot(node, node.broker.store))

    # ---------------------------------------------------------------- faults

    def heal(self) -> None:
        """End all faults, but start no machine that is down."""
        self.scene.fabric.heal()
        for node in self.nodes:
            node.machine.disk.faults.calm()

    async def strike(self) -> None:
        """Inject faults of network, clocks and disks until cancelled."""
        draw, rng = self.draw, self.rng
        while True:
            await trio.sleep(draw.life_seconds * rng.random() * 0.3)
            self._strike_network()
            machine = rng.choice(self.nodes).machine
            if draw.clock_jumps:
                machine.clock.jump(rng.choice((-5000, -1, 1, 60_000)))
            if draw.disk_errors:
                faults = machine.disk.faults
                faults.write_error, faults.sync_error = 0.05 * rng.random(), 0.2 * rng.random()
                if rng.random() < 0.3:
                    faults.capacity = machine.disk.usage("").used + rng.randrange(100_000)
            await trio.sleep(draw.life_seconds * rng.random() * 0.3)
            self.heal()

    def hosts(self) -> list[str]:
        """The hosts of all servers and clients."""
        servers = [*(process.host for process in self.scene.name_servers), *(node.host for node in self.nodes)]
        return [*servers, *self.scene.client_hosts]

    def _strike_network(self) -> None:
        draw, rng, fabric = self.draw, self.rng, self.scene.fabric
        hosts = [host for host in self.hosts() if host not in fabric.safe]
        if draw.connection_losses:
            fabric.lose_connection()
        if draw.half_open:
            fabric.lose_one_end()
        if draw.one_way_cuts:
            fabric.cut(*rng.sample(hosts, 2))
        if draw.partitions:
            some = rng.sample(hosts, rng.randint(1, len(hosts) - 1))
            fabric.part(some, [host for host in hosts if host not in some])

    # ---------------------------------------------------------------- results

    def faults(self) -> Counter[str]:
        """How many faults were injected, and how much each workload has done."""
        faults = Counter(self.scene.fabric.injected)
        for workload in self.workloads:
            faults.update(workload.counts())
        for node in self.nodes:
            faults.update(node.machine.disk.faults.injected)
            faults.update(node.clock.injected)
        return faults

    def snapshot(self, node: Node, store: MessageStore) -> Snapshot:
        """All messages that a store has."""
        queues: dict[Queue, list[Stored]] = {}
        bounds: dict[Queue, tuple[int, int]] = {}
        topics = sorted({put.queue[0] for put in self.history.puts})
        for queue in [(topic, queue_id) for topic in topics for queue_id in store.queue_ids(topic)]:
            offset, high = bounds[queue] = (store.min_offset(*queue), store.max_offset(*queue))
            found = queues[queue] = []
            while offset < high:
                result = store.get(*queue, offset, 32)
                found += map(_stored, result.slices)
                offset = result.next_offset
        return Snapshot(self.scene.epoch + 1, queues, bounds, {}, node.host)


def _stored(record: memoryview) -> Stored:
    message = decode_record(record)
    return Stored(message.queue_offset, message.physical_offset, number_in(message.body), message.store_timestamp)


def whole_log(slice_from: Callable[[int, int], memoryview], begin: int, end: int) -> bytes:
    """The bytes of a log between two physical offsets."""
    parts: list[bytes] = []
    while begin < end:
        part = bytes(slice_from(begin, end - begin))
        if not part:
            break
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def simulate(run: NodesRun[Draw], checkers: tuple[Checker, ...]) -> Outcome:
    """Run one seed; an exception of a node or a client counts as a violation, also one that a server survives.

    The logs of all nodes are read in any case, also after a run that has ended early.
    """
    with logged_faults() as violations:
        try:
            seeded_run(run.run, seed=run.draw.seed)
        except (Exception, ExceptionGroup) as error:  # noqa: BLE001 - every exception is a finding
            violations.append(describe_error(error))
    run.history.ends.append(End.CLEAN)
    violations += [f"{node.host}: {fault}" for node in run.nodes for fault in _stored_faults(node)]
    violations += check_history(run.history, checkers)
    violations += [f"{workload.name}: {violation}" for workload in run.workloads for violation in workload.violations()]
    violations += run.violations()
    return Outcome(run.history, violations, run.faults(), run.scene.requests, str(run.draw), run.scene.trace)


def _stored_faults(node: Node) -> list[str]:
    with node.machine.disk.no_faults():
        return queue_offset_faults(node.machine.disk, node.config.store_path_root_dir)


def fabric_of(draw: NodesDraw) -> SimFabric:
    """The network that a seed has drawn."""
    rng = random.Random(draw.seed ^ 0xFAB)  # noqa: S311 - never secrets
    return SimFabric(rng, draw.delay_seconds, send_buffer_bytes=draw.send_buffer_bytes)
