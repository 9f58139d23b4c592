"""The simulator of whole nodes in DLedger mode: brokers that elect their master, under faults that also target the leader."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.modes.dledger import replica_settings
from ledgermq.ha.dledger.java.state import JavaSettings
from ledgermq.ha.dledger.settings import JAVA, NATIVE
from ledgermq.remoting.codes import RequestCode
from ledgermq.store.message_store import MessageStore
from ledgermq.testing.checkers import DLEDGER_CHECKERS
from ledgermq.testing.embedded import RAFT_PORT, broker_configs
from ledgermq.testing.history import End, History
from ledgermq.testing.sim.network import SEND_BUFFER_BYTES

from ..outcome import Outcome
from .group import GroupScene, GroupWatch, peer_of, replica_of
from .names import ELECT_SECONDS, NamesWatch
from .nodes import NodesDraw, NodesRun, fabric_of, simulate
from .older import check_older_log, leave_older_log, leave_older_offsets
from .scene import BROKER_PORT, Node, difference, tables_of
from .workloads.delayed import DELAY_LEVELS
from .workloads.groups import Groups
from .workloads.membership import Membership
from .workloads.operator import Operator
from .workloads.plain import Plain
from .workloads.pulls import Pulls
from .workloads.registry import DLEDGER_WORKLOADS

WORKLOAD_SHARE = 0.25
"""The probability with which each workload is drawn that is not in `ALWAYS`."""
ALWAYS = (Plain.name, Pulls.name)
WITH_EXPIRY = (*ALWAYS, Groups.name, Membership.name)
"""The workloads whose clients do not expect messages that have expired before they were read."""
EXPIRY_SHARE = 0.2
EXPIRING_SEGMENT = 16384
"""The size of a file if files expire: a node is away for several of them."""
GATHER_SLACK_SECONDS = 1.5
"""A failover may lose offset commits that are at most this old, if disks are not slow: an isolated leader accepts commits for
an election time-out, and collects them for a moment before it replicates them."""
JAVA_SLACK_SECONDS = GATHER_SLACK_SECONDS + JavaSettings().heartbeat_ms * JavaSettings().heartbeat_leak / 1000
"""The same with the dialect of DLedger, whose isolated leader leads on for some intervals between heartbeats."""

ELECTIONS_HEALED_MAX = 5
"""How many elections there may be from the end of all faults until all nodes are equal."""
ELECTIONS_AT_START_MAX = 2
"""How many elections there may be before the first fault; the second one is that of a preferred leader."""
CARRY_SECONDS = 5.0
"""How long nodes with large tables are left alone at first; in this time a leader that sends no heartbeats is deposed often."""
LARGE_TABLES_SLOWNESS = 20.0
"""How much slower than usual the processors of nodes with large tables are. So 20,000 offsets take as long as the 400,000 that
the bounds of the tables allow, and a run with so many would take minutes."""
RETURN_SHARE = 0.5
"""The share of lost disks after which the voter comes back under its own name instead of being replaced."""
REPLACE_SECONDS = 90.0
"""The longest time for a change of members: one in progress may take 60 s, and the next is accepted only after it."""

BLOWS = (
    *("end", "end", "end leader", "end leader", "end minority", "end all"),
    *("isolate leader", "isolate leader", "isolate", "half-isolate leader", "one way", "split"),
    *("slow", "slow leader", "sync fails", "leader's sync fails", "full disk", "lose disk"),
)
"""Kinds of faults of the group in one life; one that is listed twice happens twice as often."""


@attrs.frozen
class Blow:
    """One fault of the group, at the end of a life."""

    kind: str
    """One of `BLOWS`."""
    end: End = End.KILL
    """How nodes end, if the fault ends nodes."""
    seconds: float = 1.0
    """How long the nodes are down, or how long the fault lasts."""

    @classmethod
    def of(cls, rng: random.Random) -> Blow:
        end = rng.choice((End.CLEAN, End.KILL, End.POWER, End.POWER))
        return cls(rng.choice(BLOWS), end, rng.choice((0.05, 0.5, 2.0, 5.0)))


@attrs.frozen(kw_only=True)
class DLedgerDraw(NodesDraw):
    """The conditions of one run, drawn from its seed."""

    blows: tuple[Blow, ...]
    preferred: bool
    dialect: str
    """The protocol between the nodes; that of DLedger has no changes of members."""
    restarts: bool
    """Whether all nodes lose power at the end of the run, and are read after they have started again."""
    older_messages: int
    """How many messages are in the classic log that the group's ledger continues."""
    older_offsets: int
    """How many consumer offsets the classic brokers had, on slow processors; 0 if they had none, and work takes no time."""
    expiry: bool
    """Whether files expire at once, whenever an operator has the expired ones deleted; nodes may be away for longer."""

    @classmethod
    def of(cls, seed: int) -> DLedgerDraw:
        rng = random.Random(seed ^ 0xD1ED)  # noqa: S311 - never secrets
        lives = rng.randint(1, 3)
        drawn = tuple(name for name in DLEDGER_WORKLOADS if name in ALWAYS or rng.random() < WORKLOAD_SHARE)
        draw = cls(
            seed=seed,
            nodes=rng.choice((3, 3, 3, 3, 5)),
            segment_size=rng.choice((16384, 65536)),
            life_seconds=rng.choice((1.0, 2.5, 5.0)),
            delay_seconds=rng.choice(((0.0001, 0.001), (0.001, 0.05))),
            send_buffer_bytes=rng.choice((1024, SEND_BUFFER_BYTES, SEND_BUFFER_BYTES)),
            sync_seconds_max=rng.choice((0.0, 0.01, 0.2)),
            connection_losses=rng.random() < 0.3,
            half_open=rng.random() < 0.2,
            partitions=rng.random() < 0.2,
            one_way_cuts=rng.random() < 0.3,
            disk_errors=rng.random() < 0.2,
            clock_jumps=rng.random() < 0.2,
            clock_drift=rng.choice((-0.05, -0.0001, 0.0001, 0.05)) if rng.random() < 0.2 else 0.0,
            retries_max=rng.randint(1, 2),
            workloads=drawn,
            blows=tuple(Blow.of(rng) for _ in range(lives)),
            preferred=rng.random() < 0.1,
            restarts=rng.random() < 0.4,
            dialect=JAVA if Membership.name not in drawn and rng.random() < 0.2 else NATIVE,
            older_messages=rng.randint(1, 400) if rng.random() < 0.25 else 0,
            older_offsets=rng.choice((2_000, 20_000)) if rng.random() < 0.1 else 0,
            expiry=False,
        )
        expires = random.Random(seed ^ 0x31C).random() < EXPIRY_SHARE  # noqa: S311 - never secrets
        return draw.expiring() if expires else draw

    @property
    def expires(self) -> bool:
        """Whether messages expire, which depends on what the other conditions allow."""
        older = self.older_messages or self.older_offsets  # appending large tables again takes longer than the run
        return self.expiry and self.dialect == NATIVE and not older and {*self.workloads} <= {*WITH_EXPIRY}

    def expiring(self) -> DLedgerDraw:
        """The same conditions, but messages expire, in small files and with clients that expect no more than that."""
        workloads = tuple(name for name in self.workloads if name in WITH_EXPIRY)
        small = attrs.evolve(self, segment_size=EXPIRING_SEGMENT, older_messages=0, older_offsets=0)
        return attrs.evolve(small, expiry=True, workloads=workloads)


@attrs.define(eq=False)
class DLedgerRun(NodesRun[DLedgerDraw]):
    """The run of one seed."""

    converge_seconds: ClassVar[float] = 120.0
    blows: Counter[str] = attrs.field(factory=Counter[str])
    names: NamesWatch = attrs.field(init=False)
    _elections_before: int = 0
    """The number of elections when faults ended last."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.names = NamesWatch(self.group)

    @classmethod
    def of(cls, draw: DLedgerDraw) -> DLedgerRun:
        rng = random.Random(draw.seed ^ 0x1ED6)  # noqa: S311 - never secrets
        kinds = [blow.kind for blow in draw.blows]
        spoiled = draw.disk_errors or any("sync" in blow or "full" in blow or "slow" in blow for blow in kinds)
        slack = JAVA_SLACK_SECONDS if draw.dialect == JAVA else GATHER_SLACK_SECONDS
        history = History(
            sync_flush=True,
            clients_choose_queues=True,
            elects=True,
            copies=draw.nodes // 2 + 1,
            commit_seconds=inf if spoiled or draw.clock_drift else slack + 8 * draw.sync_seconds_max,
            retries_max=draw.retries_max,
            change_seconds=-inf,  # an answered change is on a majority, so no later fault may lose it
        )
        watch = GroupWatch(draw.segment_size)
        return cls(
            draw,
            GroupScene(
                rng, fabric_of(draw), history, draw.life_seconds, draw.sync_seconds_max, watch=watch, voters_min=draw.nodes
            ),
        )

    @property
    def group(self) -> GroupScene:
        assert isinstance(self.scene, GroupScene)
        return self.scene

    @property
    def watch(self) -> GroupWatch:
        return self.group.watch

    def violations(self) -> list[str]:
        return self.watch.violations + self.names.violations

    def faults(self) -> Counter[str]:
        return super().faults() + self.blows + Counter(elections=self.watch.elections)

    # ---------------------------------------------------------------- nodes

    async def start_nodes(self, nursery: trio.Nursery) -> None:
        draw, group = self.draw, self.group
        spare = Membership.name in draw.workloads or any(blow.kind == "lose disk" for blow in draw.blows)
        spare = spare and draw.dialect == NATIVE
        hosts = [f"10.0.1.{at}" for at in range(draw.nodes + spare)]
        peers = [f"n{at}-{host}:{RAFT_PORT}" for at, host in enumerate(hosts)]
        settings = {
            "namesrvAddr": group.namesrv,
            "listenPort": str(BROKER_PORT),
            "mappedFileSizeCommitLog": str(draw.segment_size),
            "maxMessageSize": str(draw.segment_size // 2),
            "maxHashSlotNum": "10",
            "maxIndexNum": "1000",
            "defaultTopicQueueNums": "2",
            "messageDelayLevel": DELAY_LEVELS,
            "haSecret": "secret" if draw.dialect == NATIVE else "",
            "raftDialect": draw.dialect,
            **({"fileReservedTime": "0"} if draw.expires else {}),
            **({"preferredLeaderId": "n0"} if draw.preferred and draw.dialect == NATIVE else {}),
        }
        configs = broker_configs(
            "store", "", mode="dledger", nodes=len(hosts), settings=settings, raft_ports=[RAFT_PORT] * len(hosts)
        )
        for at, (host, config) in enumerate(zip(hosts, configs, strict=True)):
            known = peers[: draw.nodes] if at < draw.nodes else peers  # a node that joins later has all peers in its settings
            own = attrs.evolve(config, broker_ip1=host, bind_address=host, dleger_peers=";".join(known))
            group.nodes.append(Node(group.machine(host), own, self._started))
        for node in group.nodes:
            node.clock.drift = draw.clock_drift * self.rng.choice((0, 1))
        if draw.older_messages:
            await leave_older_log(group.nodes, draw.older_messages)
        if draw.older_offsets:
            leave_older_offsets(group.nodes, draw.older_offsets)
            for node in group.nodes:
                node.machine.processor.slowness = LARGE_TABLES_SLOWNESS
        if draw.dialect == NATIVE:  # a leader of DLedger registers no term
            nursery.start_soon(self.names.run)
        if draw.expires:
            nursery.start_soon(self._expire)
        self.watch.on_change.append(self._life_ended)
        for node in group.nodes:
            await nursery.start(node.process.run)
        await group.until_led(ELECT_SECONDS)
        if draw.older_offsets:  # the first leader brings them into the log
            await trio.sleep(CARRY_SECONDS)
            assert self.watch.elections <= ELECTIONS_AT_START_MAX, f"{self.watch.elections} elections before any fault"

    def _started(self, node: Node, broker: Broker) -> None:
        self.watch.follow(node.host, replica_of(broker))
        self.started(node, broker)

    def _life_ended(self) -> None:
        """Begin another life of the group; an earlier leader may lack what is accepted from now on."""
        self.history.ends.append(End.KILL)
        self.history.ended_at.append(trio.current_time())

    def heal(self) -> None:
        super().heal()
        self._elections_before = self.watch.elections

    async def _expire(self) -> None:
        """Let all files but the last one expire, now on one node and then on another, and record what has expired."""
        rng, operator = random.Random(self.draw.seed ^ 0xE4), Operator(self.scene)  # noqa: S311 - never secrets
        while True:
            await trio.sleep(self.draw.life_seconds * rng.random() * 0.4)
            node = rng.choice(self.nodes)
            if node.broker is not None and not self.scene.healed:
                await operator.ask(node.address, RequestCode.DELETE_EXPIRED_COMMITLOG)
            for store in [each.broker.store for each in self.nodes if each.broker is not None]:
                for queue in store.queues.table:
                    self.history.expired[queue] = max(self.history.expired.get(queue, 0), store.min_offset(*queue))

    # ---------------------------------------------------------------- lives

    async def live(self, nursery: trio.Nursery) -> None:
        draw = self.draw
        for blow in draw.blows:
            with trio.move_on_after(draw.life_seconds * (0.3 + self.rng.random())):
                await self.strike()
            self.scene.note(f"{blow}")
            self.blows[blow.kind.replace(" ", "_")] += 1
            if blow.kind == "lose disk":
                await self._lose_disk(nursery)
            elif blow.kind.startswith("end"):
                await self._end_some(nursery, self._victims(blow.kind), blow.end, blow.seconds)
            else:
                await self._disturb(blow.kind, blow.seconds)

    def _victims(self, blow: str) -> list[Node]:
        rng, nodes, leader = self.rng, self.nodes, self.group.master
        if blow == "end all":
            return list(nodes)
        if blow == "end minority":
            return rng.sample(nodes, (len(nodes) - 1) // 2)
        return [leader if blow == "end leader" else rng.choice(nodes)]

    async def _end_some(self, nursery: trio.Nursery, victims: Sequence[Node], end: End, seconds: float) -> None:
        scene = self.scene
        async with trio.open_nursery() as ending:
            for node in victims:
                scene.note(f"{node.host} ends by {end.value}")
                ending.start_soon(node.process.end, end)
        self._life_ended()
        await trio.sleep(seconds)
        if self.rng.random() < 0.5:
            scene.fabric.heal()
        for node in self.rng.sample(victims, len(victims)):
            node.machine.disk.faults.calm()
            await nursery.start(node.process.run)
            scene.note(f"{node.host} is back")
            await trio.sleep(seconds * self.rng.random() * 0.3)

    async def _lose_disk(self, nursery: trio.Nursery) -> None:
        """Let a voter lose its disk: it comes back with an empty one, or another machine with another name replaces it.

        This waits until every voter has synced all committed entries, so that no last copy is lost with the disk. With the
        dialect of DLedger no voter can be replaced, and one without its log might elect a leader that lacks some of it.
        """
        group, draw = self.group, self.draw
        self.heal()
        if draw.dialect == JAVA:
            return
        with trio.move_on_after(ELECT_SECONDS):
            while not group.dispensable():  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.05)
        victims = group.dispensable()
        if not victims:
            return
        victim, strangers = self.rng.choice(victims), [node for node in self.nodes if node not in group.members]
        group.note(f"{victim.host} loses its disk")
        group.disk_lost_at = trio.current_time()
        if not draw.older_messages and self.rng.random() < RETURN_SHARE:
            await self._return_without_disk(nursery, victim)
        elif strangers or len(victims) > draw.nodes:
            group.nodes.remove(victim)
            nursery.start_soon(victim.process.end, End.KILL)
            self._life_ended()
            await self._replace(victim, strangers)

    async def _return_without_disk(self, nursery: trio.Nursery, victim: Node) -> None:
        """Start a voter with an empty disk under its own name; other nodes may fail before the leader has filled it."""
        await victim.process.end(End.KILL)
        self._life_ended()
        disk = victim.machine.disk
        with disk.no_faults():
            disk.remove_tree(victim.config.store_path_root_dir)
        self.blows["returned_without_disk"] += 1
        await trio.sleep(self.rng.random())
        if (leader := self.group.serving) is not None:  # an operator names the members that the group has now
            present = replica_of(leader).addresses()
            peers = ";".join(f"{peer}-{address}" for peer, address in sorted(present.items()))
            victim.config = attrs.evolve(victim.config, dleger_peers=peers)
        await nursery.start(victim.process.run)
        self.group.note(f"{victim.host} is back without its disk")

    async def _replace(self, victim: Node, strangers: Sequence[Node]) -> None:
        """Act as an operator after the loss of a machine: remove it from the group, and add a new one."""
        group, operator = self.group, Operator(self.scene)
        wanted = [("remove", victim), *(("add", node) for node in strangers[:1])]
        for action, node in wanted:
            peer = peer_of(node)
            fields = {"action": action, "peer": peer, "address": replica_settings(node.config).peers[peer]}
            with trio.fail_after(REPLACE_SECONDS):
                while True:
                    leader = await group.until_led(ELECT_SECONDS)
                    assert leader.broker is not None
                    if replica_of(leader.broker).core.configuration.votes(peer) == (action == "add"):
                        break
                    await operator.ask(leader.address, RequestCode.CHANGE_DLEDGER_GROUP, fields)
                    await trio.sleep(0.5)

    async def _disturb(self, blow: str, seconds: float) -> None:
        """Inject a fault that ends no process, for a while."""
        rng, fabric, nodes = self.rng, self.scene.fabric, self.nodes
        node = self.group.master if "leader" in blow else rng.choice(nodes)
        others = [other.host for other in nodes if other is not node]
        clients = [*self.scene.client_hosts, *(one.host for one in self.scene.name_servers)]
        disk = node.machine.disk
        if blow.startswith("isolate"):
            # Some clients can reach only the isolated node.
            away = rng.sample(clients, rng.randrange(len(clients) + 1))
            fabric.part([node.host, *away], [*others, *(host for host in clients if host not in away)])
        elif blow.startswith("half-isolate"):
            fabric.part([node.host], rng.sample(others, len(others) - 1))
        elif blow == "one way":
            outwards = rng.random() < 0.5
            for other in rng.sample(others, rng.randint(1, len(others))):
                fabric.cut(*((node.host, other) if outwards else (other, node.host)))
        elif blow == "split":
            hosts = [one.host for one in nodes]
            some = rng.sample(hosts, len(hosts) // 2)
            fabric.part(some, [host for host in hosts if host not in some])
        elif blow.startswith("slow"):
            node.machine.slow_down(rng.choice((0.5, 2.0)))
        elif blow.endswith("sync fails"):
            disk.faults.sync_error = rng.choice((0.3, 1.0))
        elif blow == "full disk":
            disk.faults.capacity = disk.usage("").used + rng.randrange(20_000)
        await trio.sleep(max(seconds, 1.0))
        node.machine.slow_down(self.draw.sync_seconds_max)
        self.heal()

    # ---------------------------------------------------------------- afterwards

    def disagreement(self) -> str:
        return "" if self.group.leader is not None else "nobody takes messages"

    def _differences(self) -> str:
        """A description of how the nodes still differ; empty if they do not."""
        leader = self.group.leader
        if leader is None or leader.broker is None:
            return "nobody takes messages"
        store = leader.broker.store
        expected = tables_of(leader)
        for node in self.group.members:
            if node.broker is None:
                return f"{node.host} does not run"
            replica = replica_of(node.broker)
            if replica.stopped or replica.ledger.failure:
                return f"{node.host} has no part in its group: {replica.stopped or replica.ledger.failure}"
            if node.broker.store.dispatcher.behind_bytes or replica.ledger.committed_position != store.log.max_offset:
                return f"{node.host} has not derived all that is committed"
            if is_removing(node.broker.store):
                return f"{node.host} has removed messages from the log that are still in queues"
            for name, value in tables_of(node).items():
                if value != expected[name]:
                    return f"{node.host} has other {name} than {leader.host}, which leads: {difference(value, expected[name])}"
        return self.names.lacking()

    async def must_be_equal(self) -> None:
        with trio.move_on_after(self.converge_seconds):
            while self._differences():  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.1)
        assert not self._differences(), f"{self.converge_seconds} s after the last send {self._differences()}"
        elections = self.watch.elections - self._elections_before
        assert elections <= ELECTIONS_HEALED_MAX, f"{elections} elections without faults"

    async def look(self, nursery: trio.Nursery) -> None:
        """Read everything that the nodes have stored; in some runs all nodes lose power first."""
        if self.draw.restarts:
            await self._end_some(nursery, self.nodes, End.POWER, 0.0)
            self.heal()
            await self.group.until_led(ELECT_SECONDS)
            await self.must_be_equal()
        if self.draw.dialect == NATIVE and not self.draw.preferred:
            await self.names.judge_election()
            await self.must_be_equal()
        for node in self.group.members:
            assert node.broker is not None
            if self.draw.older_messages:
                check_older_log(node.host, node.broker.store, self.draw.older_messages)
            self.history.snapshots.append(self.snapshot(node, node.broker.store))
        for workload in self.workloads:
            workload.look(self.group.master.process.server.store)  # type: ignore[union-attr]
        self.names.is_over = True
        for node in self.nodes:
            await node.process.end(End.KILL)


def is_removing(store: MessageStore) -> bool:
    """Whether expired messages are gone from the log and not yet from all queues, which follow in several turns."""
    keys = ((topic, queue_id) for topic in store.topics() for queue_id in store.queue_ids(topic))
    units = (store.unit(*key, store.min_offset(*key)) for key in keys)
    return any(unit is not None and unit[0] < store.log.min_offset for unit in units)


def simulate_dledger(seed: int, mend: Callable[[DLedgerDraw], DLedgerDraw] = lambda draw: draw) -> Outcome:
    """Run one seed; an exception of a node or a client counts as a violation."""
    return simulate(DLedgerRun.of(mend(DLedgerDraw.of(seed))), DLEDGER_CHECKERS)
