"""The floor of whole nodes in the classic mode: one broker, or a master and its slaves, whose roles an operator decides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from math import inf

import attrs
import trio

from ledgermq.broker.config import ASYNC_MASTER, BrokerConfig
from ledgermq.store.opening import open_message_store
from ledgermq.testing.checkers import CLUSTER_CHECKERS
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.history import End, History
from ledgermq.testing.sim.network import SEND_BUFFER_BYTES

from ..outcome import Outcome
from .nodes import NodesDraw, NodesRun, fabric_of, simulate, whole_log
from .operations import Operations
from .scene import BROKER_PORT, Node, Scene
from .surroundings import Surroundings
from .workloads.delayed import DELAY_LEVELS
from .workloads.registry import ALWAYS_DRAWN, CLASSIC_WORKLOADS, DRAWN_WIDELY

WORKLOAD_SHARE = 0.4
"""How often each workload is drawn."""
WIDE_SALT = 0x19D
WIDE_SHARE, WIDE_WORKLOAD_SHARE = 0.6, 0.5
"""How many seeds have surroundings that fail, and how often each further workload is drawn then."""
CHANGE_SLACK_SECONDS = 5.0
"""A crash may take what was changed in a table this long before it, for tables are written after the answer."""
PERSIST_SLACK_SECONDS = 5.0
"""How much longer than its interval the writing of a table may take."""


@attrs.frozen(kw_only=True)
class ClusterDraw(NodesDraw):
    """What the seed drew; with more than one node they are a master and its slaves."""

    sync_master: bool
    in_sync_replicas: int
    sync_flush: bool
    slaves_sync_flush: bool
    lives: int
    ends: tuple[End, ...]
    outage_seconds: tuple[float, ...]
    slave_fails: bool
    commit_seconds: int
    promotes: bool
    """A slave may be started as the master."""
    accepts_loss: bool
    """Every slave is configured to accept losses; otherwise an operator settles each."""
    restores: bool
    """The master's store may be replaced by an older copy of it."""

    @property
    def may_lose(self) -> bool:
        """Whether a power cut may take from a master what was promised, or what a slave must take for promised."""
        return not (self.sync_flush and self.slaves_sync_flush)

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
            workloads=tuple(name for name in CLASSIC_WORKLOADS if name in ALWAYS_DRAWN or lots.random() < WORKLOAD_SHARE),
            promotes=sync_master and lots.random() < 0.5,
            accepts_loss=(accepts_loss := lots.random() < 0.5),
            restores=sync_master and lots.random() < 0.3 and not accepts_loss,
        )
        # What a promotion may take of tables is judged without further faults.
        wide = not (draw.restores or draw.promotes) and random.Random(seed ^ WIDE_SALT).random() < WIDE_SHARE  # noqa: S311 - never secrets
        return draw.widened() if wide else draw

    def widened(self) -> ClusterDraw:
        """The same with surroundings that fail, and with more clients."""
        lots = random.Random(self.seed ^ 0xA2)  # noqa: S311 - never secrets
        more = tuple(name for name in DRAWN_WIDELY if lots.random() < WIDE_WORKLOAD_SHARE)
        return attrs.evolve(self, around=Surroundings.of(lots), workloads=(*self.workloads, *more))


@attrs.define(eq=False)
class ClusterRun(NodesRun[ClusterDraw]):
    """The run of one seed."""

    operations: Operations = attrs.field(init=False)
    slave_is_prefix: bool = True

    @classmethod
    def of(cls, draw: ClusterDraw) -> ClusterRun:
        lots = random.Random(draw.seed ^ 0x5EED)  # noqa: S311 - never secrets
        replaces = draw.promotes or draw.restores  # tables are copied to slaves only every ten seconds
        history = History(
            draw.sync_flush,
            copies=draw.in_sync_replicas if draw.sync_master else 1,
            commit_seconds=inf if draw.disk_errors or replaces else draw.commit_seconds + PERSIST_SLACK_SECONDS,
            retries_max=draw.retries_max,
            change_seconds=inf if draw.disk_errors or replaces else CHANGE_SLACK_SECONDS,
        )
        return cls(draw, Scene(lots, fabric_of(draw), history, draw.life_seconds, draw.sync_seconds_max))

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
        configs[1:] = [attrs.evolve(config, flush_disk_type=flush) for config in configs[1:]]
        accept = draw.accepts_loss and draw.may_lose
        return [
            attrs.evolve(config, broker_ip1=f"10.0.1.{at}", bind_address=f"10.0.1.{at}", ha_accept_loss=accept)
            for at, config in enumerate(configs)
        ]

    async def start_nodes(self, nursery: trio.Nursery) -> None:
        scene = self.scene
        scene.nodes += [Node(scene.machine(config.broker_ip1), config, self.started) for config in self._configs()]
        for node in self.nodes:
            node.clock.drift = self.draw.clock_drift * self.lots.choice((0, 1))
        for node in self.nodes:
            await nursery.start(node.process.run)
        self.operations = Operations(scene, self.draw, nursery, self.heal)
        nursery.start_soon(self.operations.run)

    async def live(self, nursery: trio.Nursery) -> None:  # noqa: ARG002 - `operations` starts nodes
        for end, outage in zip(self.draw.ends, self.draw.outage_seconds, strict=True):
            await self._live(end, outage)

    async def _live(self, end: End, outage_seconds: float) -> None:
        operations = self.operations
        with trio.move_on_after(self.draw.life_seconds * (0.3 + self.lots.random())):
            await self.strike()
        async with operations.lock:
            if self.draw.restores and self.lots.random() < 0.4:
                await operations.restore(outage_seconds)
            elif self.draw.promotes and self.lots.random() < 0.5:
                await operations.promote(end, outage_seconds)
            else:
                await operations.crash(end, outage_seconds)

    def disagreement(self) -> str:
        if self._is_any_down:
            return "an operator settles the refusal of a slave"
        # A slave that is ahead of a master that lost its unsynced tail goes back when it has joined again.
        logs = self._logs()
        return "" if all(logs[0].startswith(log) for log in logs[1:]) else "a slave's log is not its master's"

    @property
    def _is_any_down(self) -> bool:
        return any(node.broker is None for node in self.nodes)

    def _logs(self) -> list[bytes]:
        """The log of each broker that serves, the master's first."""
        stores = [node.broker.store for node in (self.scene.master, *self.scene.slaves) if node.broker is not None]
        return [whole_log(store.log.slice_from, store.log.min_offset, store.log.max_offset) for store in stores]

    async def must_be_equal(self) -> None:
        with trio.move_on_after(self.converge_seconds):
            while self._is_any_down or len(set(self._logs())) > 1:  # noqa: ASYNC110 - looked at from outside
                await trio.sleep(0.1)
            return
        raise AssertionError(f"{self.converge_seconds} s after the last send a slave's log is not its master's")

    async def look(self, nursery: trio.Nursery) -> None:  # noqa: ARG002 - every node ends
        """End all nodes, open the stores once more and read everything in them."""
        async with self.operations.lock:
            for node in (*self.scene.slaves, self.scene.master):
                await node.process.end(End.CLEAN)
        logs: list[bytes] = []
        for node in (self.scene.master, *self.scene.slaves):
            config = node.config.store_config()
            async with open_message_store(node.machine.world(), config) as store:
                self.history.snapshots.append(self.snapshot(node, store))
                if node is self.scene.master:
                    for workload in self.workloads:
                        workload.look(store)
                logs.append(whole_log(store.log.slice_from, store.log.min_offset, store.log.max_offset))
        self.slave_is_prefix = all(logs[0].startswith(log) for log in logs[1:])

    def faults(self) -> Counter[str]:
        faults = super().faults()
        faults["cut_by_name"] = self.operations.cuts
        return faults

    def violations(self) -> list[str]:
        return [] if self.slave_is_prefix else ["the slave's log is not a prefix of its master's"]


def simulate_cluster(seed: int, mend: Callable[[ClusterDraw], ClusterDraw] = lambda draw: draw) -> Outcome:
    """Run one seed; an exception of a node or a client is a violation like any other."""
    return simulate(ClusterRun.of(mend(ClusterDraw.of(seed))), CLUSTER_CHECKERS)
