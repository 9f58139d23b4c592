"""The floor of whole nodes in the classic mode: one broker, or a master and its slaves, whose roles an operator decides."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import attrs
import trio

from ledgermq.broker.config import ASYNC_MASTER, SLAVE, BrokerConfig
from ledgermq.store.opening import open_message_store
from ledgermq.testing.checkers import CLUSTER_CHECKERS
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.history import End, History
from ledgermq.testing.sim.network import SEND_BUFFER_BYTES

from ..outcome import Outcome
from .nodes import NodesDraw, NodesRun, fabric_of, simulate, whole_log
from .scene import BROKER_PORT, Node, Scene
from .workloads.delayed import DELAY_LEVELS
from .workloads.members import Ordered
from .workloads.registry import ALWAYS_DRAWN, CLASSIC_WORKLOADS

WORKLOAD_SHARE = 0.4
"""How often each workload is drawn."""
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
            promotes=False,
        )
        # A slave does not know who owns the queues of ordered groups.
        promotes = sync_master and lots.random() < 0.5 and Ordered.name not in draw.workloads
        return attrs.evolve(draw, promotes=promotes)


@attrs.define(eq=False)
class ClusterRun(NodesRun[ClusterDraw]):
    """The run of one seed."""

    slave_is_prefix: bool = True

    @classmethod
    def of(cls, draw: ClusterDraw) -> ClusterRun:
        lots = random.Random(draw.seed ^ 0x5EED)  # noqa: S311 - never secrets
        history = History(
            draw.sync_flush,
            copies=draw.in_sync_replicas if draw.sync_master else 1,
            commit_seconds=inf if draw.disk_errors or draw.promotes else draw.commit_seconds + PERSIST_SLACK_SECONDS,
            retries_max=draw.retries_max,
            change_seconds=inf if draw.disk_errors or draw.promotes else CHANGE_SLACK_SECONDS,
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
        accept = not (draw.sync_flush and draw.slaves_sync_flush)  # a power cut may take what was promised
        configs[1:] = [attrs.evolve(config, flush_disk_type=flush, ha_accept_loss=accept) for config in configs[1:]]
        return [
            attrs.evolve(config, broker_ip1=f"10.0.1.{at}", bind_address=f"10.0.1.{at}") for at, config in enumerate(configs)
        ]

    async def start_nodes(self, nursery: trio.Nursery) -> None:
        scene = self.scene
        scene.nodes += [Node(scene.machine(config.broker_ip1), config, self.started) for config in self._configs()]
        for node in self.nodes:
            node.clock.drift = self.draw.clock_drift * self.lots.choice((0, 1))
        for node in self.nodes:
            await nursery.start(node.process.run)

    async def live(self, nursery: trio.Nursery) -> None:
        for end, outage in zip(self.draw.ends, self.draw.outage_seconds, strict=True):
            await self._live(nursery, end, outage)

    async def _live(self, nursery: trio.Nursery, end: End, outage_seconds: float) -> None:
        scene = self.scene
        with trio.move_on_after(self.draw.life_seconds * (0.3 + self.lots.random())):
            await self.strike()
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
        self.heal()
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
        self.heal()
        await nursery.start(slave.process.run)
        scene.say(f"{slave.host} is the master")
        await trio.sleep(outage_seconds * self.lots.random())
        await nursery.start(master.process.run)
        scene.say(f"{master.host} is its slave")

    def disagreement(self) -> str:
        # A slave that is ahead of a master that lost its unsynced tail goes back when it has joined again.
        logs = self._logs()
        return "" if all(logs[0].startswith(log) for log in logs[1:]) else "a slave's log is not its master's"

    def _logs(self) -> list[bytes]:
        """The log of each broker that serves, the master's first."""
        stores = [node.broker.store for node in (self.scene.master, *self.scene.slaves) if node.broker is not None]
        return [whole_log(store.log.slice_from, store.log.min_offset, store.log.max_offset) for store in stores]

    async def must_be_equal(self) -> None:
        with trio.move_on_after(self.converge_seconds):
            while len(set(self._logs())) > 1:  # noqa: ASYNC110 - looked at from outside
                await trio.sleep(0.1)
            return
        raise AssertionError(f"{self.converge_seconds} s after the last send a slave's log is not its master's")

    async def look(self, nursery: trio.Nursery) -> None:  # noqa: ARG002 - every node ends
        """End all nodes, open the stores once more and read everything in them."""
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
    """Run one seed; an exception of a node or a client is a violation like any other."""
    return simulate(ClusterRun.of(mend(ClusterDraw.of(seed))), CLUSTER_CHECKERS)
