"""The simulator of whole nodes in the classic mode: one broker, or a master and its slaves, whose roles an operator sets."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import attrs
import trio

from ledgermq.broker.config import ASYNC_MASTER, BrokerConfig
from ledgermq.store.opening import open_message_store
from ledgermq.testing.checkers import CLUSTER_CHECKERS
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.history import End, History

from ..outcome import Outcome
from .cluster_draw import ClusterDraw
from .nodes import NodesRun, fabric_of, simulate, whole_log
from .operations import Operations
from .scene import BROKER_PORT, Node, Scene, difference, tables_of
from .workloads.delayed import DELAY_LEVELS

FLUSH_SECONDS = 1.0
"""Without SYNC_FLUSH, a log is synced at least this often, if disks are not slow."""
GATHER_SLACK_SECONDS = 1.5
"""Commits are collected for a moment before they are appended to the log; a crash may lose those of this long, if disks are
not slow."""


@attrs.define(eq=False)
class ClusterRun(NodesRun[ClusterDraw]):
    """The run of one seed."""

    operations: Operations = attrs.field(init=False)
    slave_is_prefix: bool = True

    @classmethod
    def of(cls, draw: ClusterDraw) -> ClusterRun:
        rng = random.Random(draw.seed ^ 0x5EED)  # noqa: S311 - never secrets
        replaces = draw.promotes or draw.restores  # the next master may lack commits, which wait for no slave
        flush_seconds = inf if draw.disk_errors else FLUSH_SECONDS + 3 * draw.sync_seconds_max
        history = History(
            draw.sync_flush,
            clients_choose_queues=True,
            flush_seconds=flush_seconds,
            copies=draw.in_sync_replicas if draw.sync_master else 1,
            commit_seconds=inf if draw.disk_errors or replaces else GATHER_SLACK_SECONDS + 8 * draw.sync_seconds_max,
            retries_max=draw.retries_max,
            change_seconds=-inf if draw.sync_flush else flush_seconds,
        )
        return cls(draw, Scene(rng, fabric_of(draw), history, draw.life_seconds, draw.sync_seconds_max))

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
            node.machine.memory_bytes = self.draw.memory_bytes
            node.clock.drift = self.draw.clock_drift * self.rng.choice((0, 1))
        for node in self.nodes:
            await nursery.start(node.process.run)
        self.operations = Operations(scene, self.draw, nursery, self.heal)
        nursery.start_soon(self.operations.run)

    async def live(self, nursery: trio.Nursery) -> None:  # noqa: ARG002 - `operations` starts nodes
        for end, outage in zip(self.draw.ends, self.draw.outage_seconds, strict=True):
            await self._live(end, outage)

    async def _live(self, end: End, outage_seconds: float) -> None:
        operations = self.operations
        with trio.move_on_after(self.draw.life_seconds * (0.3 + self.rng.random())):
            await self.strike()
        async with operations.lock:
            if self.draw.restores and self.rng.random() < 0.4:
                await operations.restore(outage_seconds)
            elif self.draw.promotes and self.rng.random() < 0.5:
                await operations.promote(end, outage_seconds)
            else:
                await operations.crash(end, outage_seconds)

    def disagreement(self) -> str:
        if self._is_any_down:
            return "an operator settles the refusal of a slave"
        # A slave that is ahead of its master, which lost its unsynced tail, truncates its log when it has connected again.
        logs = self._logs()
        return "" if all(logs[0].startswith(log) for log in logs[1:]) else "a slave's log is not its master's"

    @property
    def _is_any_down(self) -> bool:
        return any(node.broker is None for node in self.nodes)

    def _logs(self) -> list[bytes]:
        """The log of each running broker, the master's first."""
        stores = [node.broker.store for node in (self.scene.master, *self.scene.slaves) if node.broker is not None]
        return [whole_log(store.log.slice_from, store.log.min_offset, store.log.max_offset) for store in stores]

    def _differences(self) -> str:
        """A description of how a slave still differs from its master; empty if none does."""
        if self._is_any_down:
            return "a node does not run"
        if len(set(self._logs())) > 1:
            return "a slave's log is not its master's"
        expected = tables_of(self.scene.master)
        for slave in self.scene.slaves:
            for name, value in tables_of(slave).items():
                # What a slave knows of leases binds nobody: as master it gives none before all of them must have ended.
                if name != "locks" and value != expected[name]:
                    return f"{slave.host} has other {name} than its master: {difference(value, expected[name])}"
        return ""

    async def must_be_equal(self) -> None:
        with trio.move_on_after(self.converge_seconds):
            while self._differences():  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.1)
        assert not self._differences(), f"{self.converge_seconds} s after the last send {self._differences()}"

    async def look(self, nursery: trio.Nursery) -> None:  # noqa: ARG002 - every node ends
        """Stop all nodes, open their stores once more and read everything in them."""
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

    def violations(self) -> list[str]:
        return [] if self.slave_is_prefix else ["the slave's log is not a prefix of its master's"]


def simulate_cluster(seed: int, mend: Callable[[ClusterDraw], ClusterDraw] = lambda draw: draw) -> Outcome:
    """Run one seed; an exception of a node or a client counts as a violation."""
    return simulate(ClusterRun.of(mend(ClusterDraw.of(seed))), CLUSTER_CHECKERS)
