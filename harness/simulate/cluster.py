"""Whole nodes under seeded faults: name servers, brokers and clients, on machines that fail and a network that breaks.

Safety first: while machines lose power and paths are cut, what is acknowledged must not be lost. Then liveness: everything is
healed, and every workload must find what it expects. What clients do is in `workloads`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from math import inf

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.config import ASYNC_MASTER, SLAVE, BrokerConfig
from ledgermq.message.layout import decode_record
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.testing.checkers import CLUSTER_CHECKERS, check_history
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.history import End, History, Queue, Snapshot, Stored
from ledgermq.testing.sim.network import SEND_BUFFER_BYTES, SimFabric
from ledgermq.testing.sim.scheduler import seeded_run

from ..outcome import Outcome, describe_error
from .scene import BROKER_PORT, NAMESRV, Node, Scene
from .workloads.delayed import DELAY_LEVELS
from .workloads.members import Ordered
from .workloads.registry import ALWAYS_DRAWN, WORKLOADS
from .workloads.workload import Workload, number_in

CONVERGE_SECONDS = 300.0
"""Virtual time in which healed nodes must have given every acknowledged message to the consumer."""
WORKLOAD_SHARE = 0.4
"""How often each workload is drawn."""
CHANGE_SLACK_SECONDS = 5.0
"""A crash may take what was changed in a table this long before it, for tables are written after the answer."""
PERSIST_SLACK_SECONDS = 5.0
"""How much longer than its interval the writing of a table may take."""


@attrs.frozen(kw_only=True)
class ClusterDraw:
    """What the seed drew: printed with a failure."""

    seed: int
    nodes: int
    """Above 1 a master and its slaves."""
    sync_master: bool
    in_sync_replicas: int
    sync_flush: bool
    slaves_sync_flush: bool
    segment_size: int
    lives: int
    life_seconds: float
    ends: tuple[End, ...]
    outage_seconds: tuple[float, ...]
    delay_seconds: tuple[float, float]
    send_buffer_bytes: int
    sync_seconds_max: float
    connection_losses: bool
    half_open: bool
    partitions: bool
    one_way_cuts: bool
    slave_fails: bool
    disk_errors: bool
    clock_jumps: bool
    clock_drift: float
    commit_seconds: int
    retries_max: int
    workloads: tuple[str, ...]
    promotes: bool
    """A slave may be started as the master."""

    @classmethod
    def of(cls, seed: int) -> ClusterDraw:
        lots = random.Random(seed ^ 0xC1)  # noqa: S311 - never secrets
        lives, nodes = lots.randint(1, 4), lots.choice((1, 1, 2, 2, 4))
        sync_master = nodes > 1 and lots.random() < 0.7
        draw = cls(
            seed=seed,
            nodes=nodes,
            sync_master=sync_master,
            in_sync_replicas=lots.randint(2, 3) if nodes > 2 else 2,
            sync_flush=lots.random() < 0.6,
            slaves_sync_flush=lots.random() < 0.3,
            segment_size=lots.choice((8192, 65536, 1 << 20)),
            lives=lives,
            life_seconds=lots.choice((2.0, 10.0, 40.0)),
            ends=tuple(lots.choice((End.CLEAN, End.KILL, End.POWER)) for _ in range(lives)),
            outage_seconds=tuple(lots.choice((0.0, 0.5, 5.0, 40.0)) for _ in range(lives)),
            delay_seconds=lots.choice(((0.0001, 0.001), (0.001, 0.05))),
            send_buffer_bytes=lots.choice((1024, SEND_BUFFER_BYTES)),
            sync_seconds_max=lots.choice((0.0, 0.01, 0.2, 1.0)),
            connection_losses=lots.random() < 0.4,
            half_open=lots.random() < 0.3,
            partitions=lots.random() < 0.3,
            one_way_cuts=lots.random() < 0.3,
            slave_fails=lots.random() < 0.5,
            disk_errors=lots.random() < 0.2,
            clock_jumps=lots.random() < 0.2,
            clock_drift=lots.choice((-0.01, -0.0001, 0.0001, 0.01)) if lots.random() < 0.2 else 0.0,
            commit_seconds=lots.choice((1, 5)),
            retries_max=lots.randint(1, 2),
            workloads=tuple(name for name in WORKLOADS if name in ALWAYS_DRAWN or lots.random() < WORKLOAD_SHARE),
            promotes=False,
        )
        # A slave does not know who owns the queues of ordered groups.
        promotes = sync_master and lots.random() < 0.5 and Ordered.name not in draw.workloads
        return attrs.evolve(draw, promotes=promotes)


@attrs.define(eq=False)
class ClusterRun:
    """The run of one seed."""

    draw: ClusterDraw
    scene: Scene
    workloads: list[Workload] = attrs.field(init=False)
    slave_is_prefix: bool = True

    def __attrs_post_init__(self) -> None:
        self.workloads = [WORKLOADS[name](self.scene) for name in self.draw.workloads]

    @classmethod
    def of(cls, draw: ClusterDraw) -> ClusterRun:
        lots = random.Random(draw.seed ^ 0x5EED)  # noqa: S311 - never secrets
        fabric = SimFabric(
            random.Random(draw.seed ^ 0xFAB),  # noqa: S311 - never secrets
            draw.delay_seconds,
            send_buffer_bytes=draw.send_buffer_bytes,
        )
        history = History(
            draw.sync_flush,
            copies=draw.in_sync_replicas if draw.sync_master else 1,
            commit_seconds=inf if draw.disk_errors or draw.promotes else draw.commit_seconds + PERSIST_SLACK_SECONDS,
            retries_max=draw.retries_max,
            change_seconds=inf if draw.disk_errors or draw.promotes else CHANGE_SLACK_SECONDS,
        )
        return cls(draw, Scene(lots, fabric, history, draw.life_seconds, draw.sync_seconds_max))

    @property
    def lots(self) -> random.Random:
        return self.scene.lots

    @property
    def history(self) -> History:
        return self.scene.history

    @property
    def nodes(self) -> list[Node]:
        return self.scene.nodes

    def _configs(self) -> list[BrokerConfig]:
        draw = self.draw
        settings = {
            "listenPort": str(BROKER_PORT),
            "mappedFileSizeCommitLog": str(draw.segment_size),
            "flushDiskType": "SYNC_FLUSH" if draw.sync_flush else "ASYNC_FLUSH",
            "maxHashSlotNum": "10",
            "maxIndexNum": "1000",
            "namesrvAddr": self.scene.namesrv,
            "defaultTopicQueueNums": "2",
            "messageDelayLevel": DELAY_LEVELS,
            "inSyncReplicas": str(draw.in_sync_replicas),
            "flushConsumerOffsetInterval": str(draw.commit_seconds * 1000),
        }
        mode = "ha" if draw.nodes > 1 else "local"
        configs = broker_configs("store", "", mode=mode, nodes=draw.nodes, settings=settings)
        if not draw.sync_master:
            configs[0] = attrs.evolve(configs[0], broker_role=ASYNC_MASTER)
        flush = "SYNC_FLUSH" if draw.slaves_sync_flush else "ASYNC_FLUSH"
        accept = not (draw.sync_flush and draw.slaves_sync_flush)  # a power cut may take what was promised
        configs[1:] = [attrs.evolve(config, flush_disk_type=flush, ha_accept_loss=accept) for config in configs[1:]]
        return [
            attrs.evolve(config, broker_ip1=f"10.0.1.{at}", bind_address=f"10.0.1.{at}") for at, config in enumerate(configs)
        ]

    # ---------------------------------------------------------------- the run

    async def run(self) -> None:
        """All lives, then healing, then a look at what is there."""
        scene = self.scene
        scene.name_servers.append(scene.name_server(NAMESRV.host))
        scene.nodes += [Node(scene.machine(config.broker_ip1), config, self._started) for config in self._configs()]
        for node in self.nodes:
            node.clock.drift = self.draw.clock_drift * self.lots.choice((0, 1))
        async with trio.open_nursery() as nursery:
            for process in scene.name_servers:
                await nursery.start(process.run)
            for node in self.nodes:
                await nursery.start(node.process.run)
            clients = trio.CancelScope()
            await nursery.start(self._run_workloads, clients)
            for end, outage in zip(self.draw.ends, self.draw.outage_seconds, strict=True):
                await self._live(nursery, end, outage)
            self._heal()
            scene.healed = True
            scene.say("healed")
            await self._must_converge()
            clients.cancel()
            await self._must_be_equal()
            for node in (*scene.slaves, scene.master):
                await node.process.end(End.CLEAN)
            nursery.cancel_scope.cancel()
        await self._look()

    async def _run_workloads(
        self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Run all of them until cancelled; a client that finds no name server when it starts ends, so they start first."""
        with scope:
            async with trio.open_nursery() as nursery:
                for workload in self.workloads:
                    await nursery.start(workload.run)
                task_status.started()

    def _started(self, node: Node, broker: Broker) -> None:
        self.scene.count_requests(broker.dispatcher)
        for workload in self.workloads:
            workload.started(node, broker)

    async def _live(self, nursery: trio.Nursery, end: End, outage_seconds: float) -> None:
        scene = self.scene
        with trio.move_on_after(self.draw.life_seconds * (0.3 + self.lots.random())):
            await self._strike()
        if self.draw.promotes and self.lots.random() < 0.5:
            await self._promote(nursery, end, outage_seconds)
            return
        slaves = scene.slaves if self.draw.slave_fails and self.lots.random() < 0.5 else []
        victim = self.lots.choice(slaves or [scene.master])
        scene.say(f"{victim.host} ends by {end.value}")
        self.history.ends.append(end)
        self.history.ended_at.append(trio.current_time())
        await victim.process.end(end)
        await trio.sleep(outage_seconds)
        self._heal()
        await nursery.start(victim.process.run)
        scene.say(f"{victim.host} is back")

    async def _promote(self, nursery: trio.Nursery, end: End, outage_seconds: float) -> None:
        """End the master, start the slave with the longest log as the master, and the master as its slave.

        What was acknowledged is on a slave, so this takes no more than a kill would, however the master ends.
        """
        scene, master = self.scene, self.scene.master
        scene.say(f"{master.host} ends by {end.value}, and a slave takes its place")
        await master.process.end(end)
        self.history.ends.append(End.KILL)
        self.history.ended_at.append(trio.current_time())
        slave = max(scene.slaves, key=lambda node: node.broker.store.log.max_offset if node.broker is not None else -1)
        await slave.process.end(self.lots.choice((End.CLEAN, End.KILL)))
        before, after = master.config, slave.config
        slave.config = attrs.evolve(after, broker_id=0, broker_role=before.broker_role, flush_disk_type=before.flush_disk_type)
        master.config = attrs.evolve(
            before, broker_id=after.broker_id, broker_role=SLAVE, flush_disk_type=after.flush_disk_type
        )
        await trio.sleep(outage_seconds)
        self._heal()
        await nursery.start(slave.process.run)
        scene.say(f"{slave.host} is the master")
        await trio.sleep(outage_seconds * self.lots.random())
        await nursery.start(master.process.run)
        scene.say(f"{master.host} is its slave")

    def _heal(self) -> None:
        self.scene.fabric.heal()
        for node in self.nodes:
            node.machine.disk.faults.calm()

    async def _strike(self) -> None:
        draw, lots = self.draw, self.lots
        while True:
            await trio.sleep(draw.life_seconds * lots.random() * 0.3)
            self._strike_network()
            machine = lots.choice(self.nodes).machine
            if draw.clock_jumps:
                machine.clock.jump(lots.choice((-5000, -1, 1, 60_000)))
            if draw.disk_errors:
                faults = machine.disk.faults
                faults.write_error, faults.sync_error = 0.05 * lots.random(), 0.2 * lots.random()
                if lots.random() < 0.3:
                    faults.capacity = machine.disk.usage("").used + lots.randrange(100_000)
            await trio.sleep(draw.life_seconds * lots.random() * 0.3)
            self._heal()

    def _strike_network(self) -> None:
        draw, lots, fabric = self.draw, self.lots, self.scene.fabric
        hosts = [
            *(process.host for process in self.scene.name_servers),
            *(node.host for node in self.nodes),
            *self.scene.client_hosts,
        ]
        if draw.connection_losses:
            fabric.lose_connection()
        if draw.half_open:
            fabric.lose_one_end()
        if draw.one_way_cuts:
            fabric.cut(*lots.sample(hosts, 2))
        if draw.partitions:
            some = lots.sample(hosts, lots.randint(1, len(hosts) - 1))
            fabric.part(some, [host for host in hosts if host not in some])

    async def _must_converge(self) -> None:
        puts = self.history.puts
        before = sum(put.acknowledged for put in puts)

        def lacking() -> str:
            for workload in self.workloads:
                if missing := workload.lacking():
                    return f"{workload.name}: {missing}"
            if sum(put.acknowledged for put in puts) == before:
                return "no message is taken"
            # A slave that is ahead of a master that lost its unsynced tail goes back when it has joined again.
            logs = self._logs()
            return "" if all(logs[0].startswith(log) for log in logs[1:]) else "a slave's log is not its master's"

        with trio.move_on_after(CONVERGE_SECONDS):
            while lacking():  # noqa: ASYNC110 - looked at from outside
                await trio.sleep(0.1)
        assert not lacking(), f"{CONVERGE_SECONDS} s after healing {lacking()}"

    def _logs(self) -> list[bytes]:
        """The log of each broker that serves, the master's first."""
        stores = [node.broker.store for node in (self.scene.master, *self.scene.slaves) if node.broker is not None]
        return [_whole_log(store.log.slice_from, store.log.min_offset, store.log.max_offset) for store in stores]

    async def _must_be_equal(self) -> None:
        """Nobody sends any more, so every slave gets all that there is."""
        with trio.move_on_after(CONVERGE_SECONDS):
            while len(set(self._logs())) > 1:  # noqa: ASYNC110 - looked at from outside
                await trio.sleep(0.1)
            return
        raise AssertionError(f"{CONVERGE_SECONDS} s after the last send a slave's log is not its master's")

    # ---------------------------------------------------------------- looking

    async def _look(self) -> None:
        """Open the stores once more and read everything in them."""
        logs: list[bytes] = []
        for node in (self.scene.master, *self.scene.slaves):
            config = node.config.store_config()
            async with open_message_store(node.machine.world(), config) as store:
                self.history.snapshots.append(self._snapshot(node, store))
                if node is self.scene.master:
                    for workload in self.workloads:
                        workload.look(store)
                logs.append(_whole_log(store.log.slice_from, store.log.min_offset, store.log.max_offset))
        self.slave_is_prefix = all(logs[0].startswith(log) for log in logs[1:])

    def faults(self) -> Counter[str]:
        """What was injected, and how much of the work that only this floor has was done."""
        faults = Counter(self.scene.fabric.injected)
        for workload in self.workloads:
            faults.update(workload.counts())
        for node in self.nodes:
            faults.update(node.machine.disk.faults.injected)
            faults.update(node.clock.injected)
        return faults

    def _snapshot(self, node: Node, store: MessageStore) -> Snapshot:
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


def _whole_log(slice_from: Callable[[int, int], memoryview], begin: int, end: int) -> bytes:
    parts: list[bytes] = []
    while begin < end:
        part = bytes(slice_from(begin, end - begin))
        if not part:
            break
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def simulate_cluster(seed: int, mend: Callable[[ClusterDraw], ClusterDraw] = lambda draw: draw) -> Outcome:
    """Run one seed; an exception of a node or a client is a violation like any other."""
    draw = mend(ClusterDraw.of(seed))
    run = ClusterRun.of(draw)
    violations: list[str] = []
    try:
        seeded_run(run.run, seed=seed)
    except (Exception, ExceptionGroup) as error:  # noqa: BLE001 - whatever is let out is a finding
        violations.append(describe_error(error))
    run.history.ends.append(End.CLEAN)
    violations += check_history(run.history, CLUSTER_CHECKERS)
    violations += [f"{workload.name}: {violation}" for workload in run.workloads for violation in workload.violations()]
    if not run.slave_is_prefix:
        violations.append("the slave's log is not a prefix of its master's")
    return Outcome(run.history, violations, run.faults(), run.scene.requests, str(draw), run.scene.trace)
