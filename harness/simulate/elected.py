"""The simulator of whole nodes in controller mode: controllers, brokers whose master they elect, name servers and clients.

An acknowledged message is on every replica in sync. So it is lost only with all of them, which the checkers allow in one case:
a replica that has lost power with ASYNC_FLUSH, or got an older copy of its disk, is elected, because no other one in sync lives
or reaches the controllers (`SetWatch.lossy`). While the set is the master alone, its power cut is enough for that. If fewer
copies acknowledge a message than there are nodes, a failover may lose it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import ClassVar, cast

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.ha.controller.config import ControllerConfig
from ledgermq.ha.controller.decisions import Decision, Situation, decide_cleaning, decide_election
from ledgermq.ha.controller.protocol import CleanBrokerDataRequest, ElectMasterRequest
from ledgermq.ha.controller.server import Controller, open_controller
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RequestRefused
from ledgermq.remoting.server import ServerConnection
from ledgermq.testing.checkers import DLEDGER_CHECKERS
from ledgermq.testing.embedded import broker_configs
from ledgermq.testing.history import End, History
from ledgermq.testing.sim.disk import DiskBackup
from ledgermq.world.address import Address

from ..outcome import Outcome
from .elected_draw import ENDS, MUTE, ORDERS, RESTORES, UNSYNCED, Blow, ElectedDraw
from .nodes import NodesRun, fabric_of, simulate
from .operations import refused_from, stop_and_cut
from .scene import BROKER_PORT, Node, Process, difference, tables_of
from .sets import NAME, Server, SetScene, SetWatch
from .workloads.delayed import DELAY_LEVELS

CONTROLLER_PORT, GROUP_PORT = 19876, 9877
ELECT_SECONDS = 15.0
"""Virtual time after which nodes without faults must have a master that accepts messages."""
WHOLE_SECONDS = 40.0
"""Virtual time after which all replicas must be in sync without faults."""
STOPPED_SECONDS = 10.0
"""The longest time without an acknowledgement after a failure of one node."""
NEXT_SECONDS = 2.0
"""How long the next master is waited for that is to be ended too."""
SETTLE_SECONDS = 0.5
"""How often an operator looks for replicas that refuse their master."""
UNSYNCED_SECONDS_MAX = 0.3
"""A replica whose syncs fail for longer is not in sync any more."""
COMMIT_SECONDS = 5.0
"""A failover may lose offset commits that are at most this old, if only whole nodes fail."""


@attrs.define(eq=False)
class ElectedRun(NodesRun[ElectedDraw]):
    """The run of one seed."""

    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {
            RequestCode.BROKER_HEARTBEAT,
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            RequestCode.CONTROLLER_ELECT_MASTER,
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
            RequestCode.UPDATE_CONTROLLER_CONFIG,
            RequestCode.CLEAN_BROKER_DATA,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
        }
    )
    """The requests that change state and that brokers, controllers and administrators of these groups make."""
    converge_seconds: ClassVar[float] = 120.0
    blows: Counter[str] = attrs.field(factory=Counter[str])
    _starting: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while nodes are ended and started."""

    @classmethod
    def of(cls, draw: ElectedDraw) -> ElectedRun:
        rng = random.Random(draw.seed ^ 0x5E7)  # noqa: S311 - never secrets
        history = History(
            sync_flush=draw.sync_flush,
            clients_choose_queues=True,
            elects=True,
            commit_seconds=COMMIT_SECONDS + 8 * draw.sync_seconds_max if draw.only_ends else inf,
            retries_max=draw.retries_max,
            change_seconds=-inf,  # an answered change is on all replicas in sync
        )
        scene = SetScene(
            rng,
            fabric_of(draw),
            history,
            draw.life_seconds,
            draw.sync_seconds_max,
            watch=SetWatch(draw.segment_size, may_lose=draw.may_lose),
            sync_flush=draw.sync_flush,
            members_min=draw.members_min,
            copies_min=draw.copies,
        )
        return cls(draw, scene)

    @property
    def group(self) -> SetScene:
        assert isinstance(self.scene, SetScene)
        return self.scene

    @property
    def watch(self) -> SetWatch:
        return self.group.watch

    def violations(self) -> list[str]:
        return self.watch.violations

    def faults(self) -> Counter[str]:
        watched = Counter(elections=self.watch.elections, losses_allowed=self.watch.losses)
        return super().faults() + self.blows + watched

    # ---------------------------------------------------------------- nodes

    @property
    def _processes(self) -> list[Server]:
        return [*self.group.controllers, *(node.process for node in self.nodes)]

    def hosts(self) -> list[str]:
        return [*super().hosts(), *(process.host for process in self.group.controllers)]

    def heal(self) -> None:
        super().heal()
        for process in self.group.controllers:
            process.machine.disk.faults.calm()

    def _controller(self, at: int) -> Process[Controller]:
        hosts = [f"10.0.4.{number}" for number in range(self.draw.controllers)]
        config = ControllerConfig(
            listen_port=CONTROLLER_PORT,
            bind_address=hosts[at],
            peers=";".join(f"n{number}-{host}:{GROUP_PORT}" for number, host in enumerate(hosts)),
            self_id=f"n{at}",
            store_path="controller",
            ha_secret="secret",  # noqa: S106 - of a simulated group
        )
        process = Process(self.scene.machine(hosts[at]), lambda world: open_controller(config, world))
        process.on_start = lambda server: self.scene.count_requests(server.dispatcher)
        return process

    async def start_nodes(self, nursery: trio.Nursery) -> None:
        draw, group = self.draw, self.group
        group.controllers += [self._controller(at) for at in range(draw.controllers)]
        settings = {
            "brokerName": NAME,
            "namesrvAddr": group.namesrv,
            "listenPort": str(BROKER_PORT),
            "enableControllerMode": "true",
            "controllerAddr": ";".join(str(Address(process.host, CONTROLLER_PORT)) for process in group.controllers),
            "haSecret": "secret",
            "haProtocol": "rocketmq" if draw.autoswitch else "ledgermq",
            "flushDiskType": "SYNC_FLUSH" if draw.sync_flush else "ASYNC_FLUSH",
            "minInSyncReplicas": str(draw.members_min),
            "inSyncReplicas": str(draw.copies or 1),
            "allAckInSyncStateSet": "true" if draw.copies is None else "false",
            "haTransferBatchSize": str(draw.transfer_batch),
            "mappedFileSizeCommitLog": str(draw.segment_size),
            "maxMessageSize": str(draw.segment_size // 2),
            "maxHashSlotNum": "10",
            "maxIndexNum": "1000",
            "defaultTopicQueueNums": "2",
            "messageDelayLevel": DELAY_LEVELS,
        }
        for at, config in enumerate(broker_configs("store", "", nodes=draw.nodes, settings=settings)):
            host = f"10.0.1.{at}"
            own = attrs.evolve(config, broker_ip1=host, bind_address=host)
            group.nodes.append(Node(group.machine(host), own, self._started))
        for process in self._processes:
            process.clock.drift = draw.clock_drift * self.rng.choice((0, 1))
        self.watch.on_change.append(self._life_ended)
        self.watch.on_loss.append(self._lost)
        nursery.start_soon(group.run_watch)
        for process in self._processes:
            await nursery.start(process.run)
        await group.until_led(ELECT_SECONDS)
        nursery.start_soon(self._settle, nursery)

    async def _settle(self, nursery: trio.Nursery) -> None:
        """Act as an operator: once messages were lost rightly, give up what only a replica has that refuses its master."""
        while True:
            await trio.sleep(SETTLE_SECONDS)
            async with self._starting:
                for node in self.nodes if self.watch.losses or self.draw.may_lose else ():
                    if node.broker is not None and (at := refused_from(node)) is not None:
                        self.scene.note(f"the log of {node.host} is cut at {at}")
                        self.blows["cut_by_name"] += 1
                        await stop_and_cut(node, at)
                        await nursery.start(node.process.run)

    def _started(self, node: Node, broker: Broker) -> None:
        self.watch.follow(node, broker)
        self.started(node, broker)

    def _life_ended(self, end: End = End.KILL) -> None:
        """Begin another life of the group; an earlier master may lack what is accepted from now on."""
        self.history.ends.append(end)
        self.history.ended_at.append(trio.current_time())

    def _lost(self) -> None:
        """Expect nothing that was acknowledged until now."""
        self.scene.note("a replica that may lack acknowledged messages is elected")
        self._life_ended(End.POWER)
        self.history.sync_flush = False  # lives end by power cuts here only
        self.history.change_seconds = self.history.commit_seconds = inf

    # ---------------------------------------------------------------- lives

    async def live(self, nursery: trio.Nursery) -> None:
        draw = self.draw
        for blow in draw.blows:
            with trio.move_on_after(draw.life_seconds * (0.3 + self.rng.random())):
                await self.strike()
            self.scene.note(f"{blow}")
            self.blows[blow.kind.replace(" ", "_")] += 1
            if blow.kind == "end masters":
                await self._end_masters(nursery, blow)
            elif blow.kind == UNSYNCED:
                await self._end_unsynced(nursery, blow)
            elif blow.kind in RESTORES:
                await self._restore(nursery, blow)
            elif blow.kind in ORDERS:
                await self._order(blow.kind)
            elif blow.kind in ENDS:
                await self._end_some(nursery, self._victims(blow.kind), blow.end, blow.seconds)
            else:
                await self._disturb(blow.kind, blow.seconds)
        self.heal()
        for failure in draw.failures:
            await self._judge(nursery, failure)

    async def _judge(self, nursery: trio.Nursery, failure: Blow) -> None:
        """Let one node of a whole group fail: nothing is lost, messages are taken soon, a controller's end replaces no master.

        The disk of the leading controller may take no write meanwhile.

        Raises:
            AssertionError: something of that is not so.
        """
        group, history = self.group, self.history
        await self._until(
            lambda: group.whole() and group.all_reach_controllers(), WHOLE_SECONDS, "a replica is not in sync, or not heard of"
        )
        (victim,) = self._victims("end master" if failure.kind == MUTE else failure.kind)
        if failure.kind == MUTE and self.draw.controllers > 1 and group.leading_controller is not None:
            group.leading_controller.machine.disk.faults.write_error = 1.0
        self.blows["single_failure"] += 1
        self.watch.calm = True
        copy = await self._copy(nursery, victim, failure.end) if failure.kind in RESTORES else None
        if copy is not None:
            await self._until(group.whole, WHOLE_SECONDS, f"{victim.host} is not in sync again")
            await trio.sleep(self.draw.life_seconds)  # so that it lacks messages
        term = self.watch.known.term
        group.note(f"{victim.host} alone ends by {failure.end.value}")
        stopped = trio.current_time()
        async with trio.open_nursery() as ending:
            ending.start_soon(self._end_some, nursery, [victim], failure.end, failure.seconds, copy)

            def goes_on() -> bool:
                return any(put.acknowledged and put.sent_at >= stopped for put in history.puts)

            too_few = self.draw.nodes <= self.draw.members_min
            seconds = STOPPED_SECONDS + (failure.seconds if too_few else 0.0)
            await self._until(goes_on, seconds, f"no message is acknowledged after {victim.host} alone has ended")
        self.heal()
        await self._until(
            lambda: group.whole() and not self.watch.lossy,
            WHOLE_SECONDS,
            f"{victim.host} has not left the set, if it may lack messages, and come back into it",
        )
        if victim in group.controllers:
            await trio.sleep(2.0)
            assert self.watch.known.term == term, f"{victim.host}, a controller, has ended, and the master was replaced"
        self.watch.calm = False

    async def _until(self, condition: Callable[[], bool], seconds: float, failure: str) -> None:
        with trio.move_on_after(seconds):
            while not condition():  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.02)
        assert condition(), f"{seconds} s without other faults, and {failure}"

    def _victims(self, blow: str) -> Sequence[Server]:
        rng, group = self.rng, self.group
        brokers: list[Server] = [node.process for node in group.nodes]
        if blow == "end brokers":
            return rng.sample(brokers, rng.randint(2, len(brokers)))
        if blow == "end controllers":
            return rng.sample(group.controllers, rng.randint(len(group.controllers) // 2 + 1, len(group.controllers)))
        if "controller" in blow:
            leading = group.leading_controller if "leading" in blow else None
            return [leading or rng.choice(group.controllers)]
        return [group.master.process if "master" in blow else rng.choice(brokers)]

    async def _restore(self, nursery: trio.Nursery, blow: Blow) -> None:
        """Replace the disk of a broker by a copy of it that was made some time before."""
        (victim,) = self._victims(blow.kind)
        copy = await self._copy(nursery, victim, blow.end)
        with trio.move_on_after(self.draw.life_seconds * self.rng.random()):
            await self.strike()
        await self._end_some(nursery, [victim], blow.end, blow.seconds, copy)

    async def _copy(self, nursery: trio.Nursery, victim: Server, end: End) -> DiskBackup:
        """Copy the disk of a broker, which is stopped in order for that if it will be stopped in order later."""
        if end is not End.CLEAN:
            return victim.machine.disk.backup()
        async with self._starting:
            await victim.end(End.CLEAN)
            self._life_ended()
            copy = victim.machine.disk.backup()
            await nursery.start(victim.run)
        return copy

    async def _end_some(
        self, nursery: trio.Nursery, victims: Sequence[Server], end: End, seconds: float, copy: DiskBackup | None = None
    ) -> None:
        """End nodes, and start them again after a while, from a copy of the disk if there is one."""
        scene = self.scene
        async with self._starting:
            async with trio.open_nursery() as ending:
                for process in victims:
                    scene.note(f"{process.host} ends by {end.value}")
                    self.group.ends(process, end)
                    ending.start_soon(process.end, end)
            self._life_ended()
            if copy is not None:
                for process in victims:
                    scene.note(f"the disk of {process.host} is replaced by an older copy")
                    self.group.ends(process, end, restored=True)  # it acknowledged until its stop was complete
                    process.machine.restore(copy)
            await trio.sleep(seconds)
            if self.rng.random() < 0.5:
                scene.fabric.heal()
            for process in self.rng.sample(victims, len(victims)):
                process.machine.disk.faults.calm()
                await nursery.start(process.run)
                if self.draw.twice:
                    await process.end(End.CLEAN)
                    await nursery.start(process.run)
                scene.note(f"{process.host} is back")
                await trio.sleep(seconds * self.rng.random() * 0.3)

    async def _end_masters(self, nursery: trio.Nursery, blow: Blow) -> None:
        """End the master and, a moment after the election of another one, that one too; the first one comes back alone."""
        rng, ended = self.rng, list[Node]()
        async with self._starting:
            for _ in range(2):
                with trio.move_on_after(NEXT_SECONDS):
                    while self.group.leader in (None, *ended):  # noqa: ASYNC110 - no event is set for this
                        await trio.sleep(0.01)
                if (master := self.group.leader) is not None:
                    await trio.sleep(rng.random() * rng.choice((0.05, 1.0)))
                    self.scene.note(f"{master.host} ends by {blow.end.value}")
                    self.group.ends(master.process, blow.end)
                    await master.process.end(blow.end)
                    self._life_ended()
                    ended.append(master)
            for node in ended:
                node.machine.disk.faults.calm()
                await nursery.start(node.process.run)
                await trio.sleep(blow.seconds)

    async def _end_unsynced(self, nursery: trio.Nursery, blow: Blow) -> None:
        """Let the master hand over while the disk of another broker has failed to sync what it was sent last."""
        disk = self.rng.choice([node.machine.disk for node in self.nodes if node is not self.group.master])
        disk.faults.sync_error = 1.0
        await trio.sleep(self.rng.random() * UNSYNCED_SECONDS_MAX)
        disk.faults.calm()
        await self._end_some(nursery, [self.group.master.process], End.CLEAN, blow.seconds)

    async def _order(self, order: str) -> None:
        """Do what an administrator may: name the next master, forget a replica, not the only one in sync, or configure."""
        leading = self.group.leading_controller
        if order == "configure":
            await self._configure(leading)
            return
        if leading is None or leading.server is None or (one := leading.server.node.state.sets.get(NAME)) is None:
            return
        replica = self.rng.choice([broker_id for broker_id in sorted(one.replicas) if one.in_sync - {broker_id}] or [0])
        elected = ElectMasterRequest(broker_name=NAME, broker_id=replica, designate_elect=True)
        forgotten = CleanBrokerDataRequest(
            broker_name=NAME, broker_controller_ids_to_clean=str(replica), is_clean_living_broker=True
        )

        def judge(situation: Situation) -> Decision:
            return decide_election(elected, situation) if order == "elect" else decide_cleaning(forgotten, situation)

        with suppress(RequestRefused):
            await leading.server.node.decide(judge)
            self.group.ask_controllers()  # the next fault, which replaces no master, waits for this one
            self.blows[f"{order}_carried_out"] += 1
            self.scene.note(f"replica {replica}: {order}")

    async def _configure(self, controller: Process[Controller] | None) -> None:
        """Let a controller look for dead masters more often or less often; its file may not be written."""
        if controller is not None and controller.server is not None:
            change = b"scanNotActiveBrokerInterval=%d" % self.rng.choice((20, 400))
            with suppress(RequestRefused, OSError):
                request = RemotingCommand(RequestCode.UPDATE_CONTROLLER_CONFIG, body=change)
                await controller.server.service.update_config(cast("ServerConnection", None), request)
                self.blows["configured"] += 1

    async def _disturb(self, blow: str, seconds: float) -> None:
        """Inject a fault that ends no process, for a while."""
        rng, fabric, group = self.rng, self.scene.fabric, self.group
        (victim,) = self._victims(blow)
        machine, disk = victim.machine, victim.machine.disk
        roles = [
            [node.host for node in group.nodes],
            [process.host for process in group.controllers],
            [*group.client_hosts, *(process.host for process in group.name_servers)],
        ]
        if blow.startswith("isolate"):
            away = rng.sample(self.hosts(), rng.randrange(len(self.hosts())))  # some peers may be with the isolated node
            fabric.part([victim.host], [host for host in self.hosts() if host != victim.host and host not in away])
        elif blow in ("part", "one way"):
            some, others = rng.choice(roles), rng.choice(roles)
            pairs = [(one, other) for one in some for other in others if one != other]
            for one, other in rng.sample(pairs, rng.randint(1, len(pairs))) if pairs else ():
                if blow == "part":
                    fabric.part([one], [other])
                else:
                    fabric.cut(one, other)
        elif blow.startswith("pause"):
            machine.processor.stall(seconds)
        elif blow.startswith("slow"):
            machine.slow_down(rng.choice((0.5, 2.0)))
        elif blow.endswith("sync fails"):
            disk.faults.sync_error = rng.choice((0.3, 1.0))
        elif blow.endswith("full disk"):
            disk.faults.capacity = disk.usage("").used + rng.randrange(20_000)
        await trio.sleep(max(seconds, 1.0))
        machine.slow_down(self.draw.sync_seconds_max)
        self.heal()

    # ---------------------------------------------------------------- afterwards

    def disagreement(self) -> str:
        return "" if self.group.whole() else f"not all nodes are in sync: {self.watch.known}"

    def _differences(self) -> str:
        """A description of how the nodes still differ; empty if they do not."""
        leader = self.group.leader
        if leader is None or leader.broker is None:
            return "nobody takes messages"
        expected, end = tables_of(leader), leader.broker.store.log.max_offset
        for node in self.group.nodes:
            if node.broker is None:
                return f"{node.host} does not run"
            log = node.broker.store.log
            if node.broker.store.dispatcher.behind_bytes or not log.readable_offset == log.max_offset == end:
                return f"{node.host} has not derived all of the log: {log.readable_offset} of {log.max_offset}, {end} expected"
            for name, value in tables_of(node).items():
                if value != expected[name]:
                    return f"{node.host} has other {name} than {leader.host}, the master: {difference(value, expected[name])}"
        return ""

    async def must_be_equal(self) -> None:
        with trio.move_on_after(self.converge_seconds):
            while self._differences():  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.1)
        assert not self._differences(), f"{self.converge_seconds} s after the last send {self._differences()}"

    async def look(self, nursery: trio.Nursery) -> None:
        """Read everything that the nodes have stored; in some runs all nodes lose power first."""
        if self.draw.restarts:
            await self._end_some(nursery, self._processes, End.POWER, 0.0)
            self.heal()
            await self.group.until_led(ELECT_SECONDS)
            await self.must_be_equal()
        for node in self.nodes:
            assert node.broker is not None
            self.history.snapshots.append(self.snapshot(node, node.broker.store))
        for workload in self.workloads:
            workload.look(self.group.master.process.server.store)  # type: ignore[union-attr]
        async with self._starting:
            for process in self._processes:
                await process.end(End.KILL)


def simulate_elected(seed: int, mend: Callable[[ElectedDraw], ElectedDraw] = lambda draw: draw) -> Outcome:
    """Run one seed; an exception of a node or a client counts as a violation."""
    return simulate(ElectedRun.of(mend(ElectedDraw.of(seed))), DLEDGER_CHECKERS)
