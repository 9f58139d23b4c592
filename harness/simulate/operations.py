"""What operators do to simulated brokers: stop and start them, promote slaves, restore backups, accept losses."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import attrs
import trio

from ledgermq.broker.config import SLAVE
from ledgermq.ha.classic.epochs import Epoch
from ledgermq.ha.classic.node import ClassicNode
from ledgermq.store.keeping.cutting import cut_log
from ledgermq.testing.history import End, Held, History, NamedLoss
from ledgermq.testing.sim.disk import DiskBackup

from .cluster_draw import ClusterDraw
from .scene import Node, Scene

LOOK_SECONDS = 0.25
RECENT_COPY_SECONDS_MAX = 1.0
"""The greatest age of a copy that is made just before it is restored. A slave must remember what it has copied since then."""
CUT_AT = re.compile(r"store cut STORE --at (\d+)")
"""The command in the error of a slave that refuses to give up a part of its log."""


@attrs.define(eq=False)
class Operations:
    """Acts on the nodes of one run, and records in its history what may be lost by that."""

    scene: Scene
    draw: ClusterDraw
    nursery: trio.Nursery
    heal: Callable[[], None]
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while nodes are stopped and started."""
    demoted: set[Node] = attrs.field(factory=set[Node])
    """Former masters that are now slaves; messages that only they have may be lost."""
    _lacking: set[Node] = attrs.field(factory=set[Node])
    """Nodes that have lost copies of acknowledged messages, until they have got them again."""
    _backup: tuple[Node, DiskBackup] | None = None
    _refused_at: dict[Node, float] = attrs.field(factory=dict[Node, float])

    @property
    def rng(self) -> random.Random:
        return self.scene.rng

    @property
    def history(self) -> History:
        return self.scene.history

    async def run(self) -> None:
        """Observe the slaves, make backups and accept losses until cancelled."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            for node in self.scene.slaves:
                self._look_at(node)
                self._lacks(node)
            if self.draw.restores and self.rng.random() < LOOK_SECONDS / self.draw.life_seconds:
                self._back_up()
            async with self.lock:
                await self._settle()

    def _look_at(self, node: Node) -> None:
        if node.broker is not None and not node.config.ha_accept_loss:
            self.history.held.append(Held(node.host, trio.current_time(), node.broker.store.log.max_offset))

    def _back_up(self) -> None:
        master = self.scene.master
        self.scene.note(f"a backup of {master.host} is made")
        self._backup = master, master.machine.disk.backup()

    async def _end(self, node: Node, end: End) -> None:
        """Stop a node; one that loses power may lose the end of its log."""
        if end is End.POWER:
            self._lost_by_name(node)
            if node is not self.scene.master:  # a master syncs what it acknowledges, or nobody expects it to be there
                self._lacking.add(node)
        await node.process.end(end)

    def _lacks(self, node: Node) -> bool:
        """Whether a slave has lost copies of acknowledged messages and may not have got them again."""
        if node in self._lacking and _has_all_acknowledged(node, self.scene.master):
            self._lacking.discard(node)
        return node in self._lacking

    def _lost_by_name(self, *nodes: Node) -> None:
        self.history.named_losses += [NamedLoss(node.host, trio.current_time()) for node in nodes]

    def _ended(self, end: End) -> None:
        self.history.ends.append(end)
        self.history.ended_at.append(trio.current_time())

    async def crash(self, end: End, outage_seconds: float) -> None:
        """Stop one node, and start it again after a while."""
        scene = self.scene
        slaves = scene.slaves if self.draw.slave_fails and self.rng.random() < 0.5 else []
        victim = self.rng.choice(slaves or [scene.master])
        scene.note(f"{victim.host} ends by {end.value}")
        life = scene.epoch
        if victim is not scene.master and end is End.POWER:
            self._ended(End.KILL)  # its master has what the slave may lose
        else:
            self._ended(end)
        if end is End.POWER and victim is scene.master and victim.broker is not None:
            self.history.flushed[life] = victim.broker.store.log.flushed_offset
        failures = _disk_failures(victim)
        await self._end(victim, end)
        if end is End.CLEAN and _disk_failures(victim) > failures:
            self.history.failed_stops[life] = trio.current_time()
        if self.draw.restores and victim is scene.master and self.rng.random() < 0.5:
            self._back_up()
        await trio.sleep(outage_seconds)
        self.heal()
        await self.nursery.start(victim.process.run)
        scene.note(f"{victim.host} is back")

    async def promote(self, end: End, outage_seconds: float) -> None:
        """Stop the master, start the slave with the longest log as the master, and the old master as its slave.

        Acknowledged messages are on a slave, so this loses no more than a kill would, however the master ends. But a slave
        that has lost copies may not have got them again, and then its master is the only node that has them; that slave is
        not promoted, and a node only crashes.
        """
        if self._lacks(max(self.scene.slaves, key=_progress)):
            self.scene.fabric.count("slave_not_promoted")
            await self.crash(end, outage_seconds)
        else:
            await self._replace_master(end, outage_seconds)

    async def _replace_master(self, end: End, outage_seconds: float) -> None:
        scene, master = self.scene, self.scene.master
        scene.note(f"{master.host} ends by {end.value}, and a slave takes its place")
        scene.fabric.count("slave_promoted")
        slave = max(scene.slaves, key=_progress)
        self.history.promotions.append(scene.epoch)
        if _has_shown_more(master, slave):
            self.history.misled.append(scene.epoch)
        await self._end(master, end)
        self._ended(End.KILL)  # now, because it may have answered until now what no slave has
        await slave.process.end(self.rng.choice((End.CLEAN, End.KILL)))
        before, after = master.config, slave.config
        slave.config = attrs.evolve(after, broker_id=0, broker_role=before.broker_role, flush_disk_type=before.flush_disk_type)
        master.config = attrs.evolve(
            before, broker_id=after.broker_id, broker_role=SLAVE, flush_disk_type=after.flush_disk_type
        )
        self.demoted.add(master)
        self.demoted.discard(slave)
        self._lost_by_name(*scene.nodes)  # slaves may have more than the new master, but nothing of it was acknowledged
        await trio.sleep(outage_seconds)
        self.heal()
        await self.nursery.start(slave.process.run)
        scene.note(f"{slave.host} is the master")
        await trio.sleep(outage_seconds * self.rng.random())
        await self.nursery.start(master.process.run)
        scene.note(f"{master.host} is its slave")

    async def restore(self, outage_seconds: float) -> None:
        """Start the master with an older copy of its store; after a while, as if this was noticed, a slave is promoted.

        In half of the cases the copy is made now, and slaves that have copied more since may be killed and started
        again. A slave may give up what it has only just reported, if its master's answer has not come; the master is
        then killed instead.
        """
        scene, master = self.scene, self.scene.master
        killed, unanswered = list[Node](), False
        if self.rng.random() < 0.5:
            self._back_up()
            copied_end = _log_end(master)
            await trio.sleep(self.rng.uniform(0.05, RECENT_COPY_SECONDS_MAX))
            ahead = [node for node in scene.slaves if _log_end(node) > copied_end]
            unanswered = any(_readable_end(node) <= copied_end for node in ahead)
            killed = [node for node in ahead if self.rng.random() < 0.7]
        copied = any(_has_all_acknowledged(node, master) for node in scene.slaves)  # else the only copy would be replaced
        if self._backup is None or self._backup[0] is not master or unanswered or not copied:
            await self.crash(End.KILL, outage_seconds)
            return
        scene.note(f"{master.host} is restored from a backup")
        self.history.promotions.append(scene.epoch)
        self.history.misled.append(scene.epoch)
        self.history.restored.append(scene.epoch)
        self._ended(End.KILL)
        await master.process.end(End.POWER)
        for node in killed:
            await node.process.end(End.KILL)
            scene.fabric.count("slave_killed_before_restore")
        master.machine.restore(self._backup[1])
        self._lacking.add(master)
        await trio.sleep(outage_seconds)
        self.heal()
        for node in killed:
            await self.nursery.start(node.process.run)
        await self.nursery.start(master.process.run)
        scene.note(f"{master.host} is back with what it had when its backup was made")
        await trio.sleep(scene.life_seconds * self.rng.random() * 0.5)
        await self._replace_master(End.KILL, outage_seconds)

    async def _settle(self) -> None:
        """Accept the loss that a slave refuses, if the run may lose anything or the slave was the master."""
        for node in self.scene.slaves:
            at = refused_from(node)
            if at is None or not (self.draw.may_lose or node in self.demoted):
                self._refused_at.pop(node, None)
                continue
            if trio.current_time() < self._refused_at.setdefault(node, trio.current_time() + self.draw.life_seconds * 0.2):
                continue  # an operator takes some time
            del self._refused_at[node]
            self.scene.note(f"the log of {node.host} is cut at {at}")
            await stop_and_cut(node, at)
            self._lost_by_name(node)
            self._lacking.add(node)
            self.scene.fabric.count("cut_by_name")
            await self._start(node)

    async def _start(self, node: Node) -> None:
        """Start a node; repeat until it succeeds, because faults may make it fail."""
        while True:
            node.machine.disk.faults.calm()
            try:
                await self.nursery.start(node.process.run)
            except* OSError as group:  # a role that fails to begin raises a group
                self.scene.note(f"{node.host} does not start: {group.exceptions}")
            else:
                return


async def stop_and_cut(node: Node, at: int) -> None:
    """Stop a node, and give up its log from an offset on, as an operator does that accepts a loss."""
    await node.process.end(End.CLEAN)
    with node.machine.disk.no_faults():
        node.machine.disk.faults.capacity = None  # the cut part is moved to another file, for which there must be space
        cut_log(node.machine.disk, node.config.store_path_root_dir, at)


def _disk_failures(node: Node) -> int:
    """How often the disk of a node has failed so far."""
    injected = node.machine.disk.faults.injected
    return sum(count for kind, count in injected.items() if kind.endswith(("_eio", "_enospc")))


def _progress(node: Node) -> tuple[int, int]:
    """The number of a slave's last epoch and the end of its log; the slave with the greatest pair becomes the master."""
    if node.broker is None:
        return (-1, -1)
    last = _last_epoch(node)
    return (last.number if last is not None else 0, node.broker.store.log.max_offset)


def _last_epoch(node: Node) -> Epoch | None:
    """The last epoch in the log of a slave, or the one that a master has begun; None if the node does not run."""
    classic = _classic(node) if node.broker is not None else None
    role = (classic.service or classic.client) if classic is not None else None
    return role.epochs.last if role is not None and role.epochs is not None else None


def _has_all_acknowledged(slave: Node, master: Node) -> bool:
    """Whether a slave has followed a running master in its epoch, and has all that the master has acknowledged."""
    service, epoch = _classic(master).service if master.broker is not None else None, _last_epoch(master)
    if service is None or epoch is None or _last_epoch(slave) != epoch:  # an epoch of another writer may have its number
        return False
    return _log_end(slave) >= service.acks.confirmed


def _has_shown_more(master: Node, slave: Node) -> bool:
    """Whether consumers may have got messages from the master that the slave does not have."""
    if master.broker is None or slave.broker is None:
        return True
    return master.broker.store.dispatcher.dispatched_offset > slave.broker.store.log.max_offset


def _log_end(node: Node) -> int:
    """The end of a node's log, or 0 if the node does not run."""
    return node.broker.store.log.max_offset if node.broker is not None else 0


def _readable_end(node: Node) -> int:
    """Up to where a node lets consumers read its log, or 0 if the node does not run."""
    return node.broker.store.log.readable_offset if node.broker is not None else 0


def refused_from(node: Node) -> int | None:
    """The offset from which on a slave refuses to give up its log; None if it does not refuse."""
    client = _classic(node).client if node.broker is not None else None
    found = CUT_AT.search(client.refusal) if client is not None and client.refusal is not None else None
    return int(found[1]) if found is not None else None


def _classic(node: Node) -> ClassicNode:
    assert node.broker is not None
    classic = node.broker.replication.node
    assert isinstance(classic, ClassicNode)
    return classic
