"""Whole nodes under seeded faults: a name server, brokers and clients, on machines that fail and a network that breaks.

Safety first: while machines lose power and paths are cut, what is acknowledged must not be lost. Then liveness: everything is
healed, and the consumer must see every acknowledged message. Clients are the project's own.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable

import attrs
import trio

from ..broker.broker import open_broker
from ..broker.config import BrokerConfig
from ..client.consumer import open_consumer
from ..client.errors import ClientError
from ..client.producer import Producer, open_producer
from ..client.subscription import ConsumeFrom
from ..message.layout import decode_record
from ..message.message import Message
from ..namesrv.config import NamesrvConfig
from ..namesrv.server import open_namesrv
from ..store.message_store import MessageStore
from ..store.opening import open_message_store
from ..world.network import Address
from .checkers import (
    check_history,
    nothing_acknowledged_is_lost,
    nothing_read_is_lost,
    queue_offsets_are_dense,
    queue_offsets_are_given_once,
)
from .embedded import broker_configs
from .history import End, History, Put, Queue, Read, Snapshot, Stored
from .outcome import Outcome, told
from .scheduler import seeded_run
from .sim_network import SimFabric
from .sim_world import Machine

NAMESRV = Address("10.0.0.1", 9876)
BROKER_PORT = 10911
TOPIC, DELAYED = "T", "D"
DELAYS_MS = (1000, 5000)
"""Of the first delay levels."""
GROUP = "g"
PRODUCERS = 2
CLUSTER_CHECKERS = (
    nothing_acknowledged_is_lost,
    nothing_read_is_lost,
    queue_offsets_are_dense,
    queue_offsets_are_given_once,
)
CONVERGE_SECONDS = 300.0
"""Virtual time in which healed nodes must have given every acknowledged message to the consumer."""


@attrs.frozen(kw_only=True)
class ClusterDraw:
    """What the seed drew: printed with a failure."""

    seed: int
    mode: str
    sync_flush: bool
    segment_size: int
    lives: int
    life_seconds: float
    ends: tuple[End, ...]
    delay_seconds: tuple[float, float]
    sync_seconds_max: float
    connection_losses: bool
    partitions: bool
    one_way_cuts: bool
    slave_fails: bool

    @classmethod
    def of(cls, seed: int) -> ClusterDraw:
        lots = random.Random(seed ^ 0xC1)  # noqa: S311 - never secrets
        lives = lots.randint(1, 4)
        return cls(
            seed=seed,
            mode=lots.choice(("local", "local", "ha")),
            sync_flush=lots.random() < 0.6,
            segment_size=lots.choice((8192, 65536, 1 << 20)),
            lives=lives,
            life_seconds=lots.choice((2.0, 10.0, 40.0)),
            ends=tuple(lots.choice((End.CLEAN, End.KILL, End.POWER)) for _ in range(lives)),
            delay_seconds=lots.choice(((0.0001, 0.001), (0.001, 0.05))),
            sync_seconds_max=lots.choice((0.0, 0.01, 0.2)),
            connection_losses=lots.random() < 0.4,
            partitions=lots.random() < 0.3,
            one_way_cuts=lots.random() < 0.3,
            slave_fails=lots.random() < 0.5,
        )


@attrs.define(eq=False)
class Node:
    """A broker on its machine: it runs until it is ended, and may be run again."""

    machine: Machine
    config: BrokerConfig
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _ended: trio.Event = attrs.field(factory=trio.Event)
    _dead: bool = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start, serve and end."""
        self._scope, self._ended, self._dead = trio.CancelScope(), trio.Event(), False
        try:
            with self._scope:
                async with open_broker(self.config, self.machine.world()):
                    task_status.started()
                    await trio.sleep_forever()
        except BaseException:
            if not self._dead:  # of a process that is gone, nobody hears
                raise
        finally:
            self._ended.set()

    async def end(self, end: End) -> None:
        """End the process: in order, by a signal, or with the machine."""
        self._dead = end is not End.CLEAN
        if end is End.POWER:
            self.machine.power_cut()
        elif end is End.KILL:
            self.machine.kill()
        self._scope.cancel()
        await self._ended.wait()


@attrs.define(eq=False)
class ClusterRun:
    """The run of one seed."""

    draw: ClusterDraw
    lots: random.Random
    fabric: SimFabric
    history: History
    nodes: list[Node] = attrs.field(factory=list[Node])
    trace: list[str] = attrs.field(factory=list[str])
    seen: set[int] = attrs.field(factory=set[int])
    slave_is_prefix: bool = True
    delayed: int = 0
    """Delayed messages that have come."""
    early: list[str] = attrs.field(factory=list[str])
    _number: int = 0

    @classmethod
    def of(cls, draw: ClusterDraw) -> ClusterRun:
        lots = random.Random(draw.seed ^ 0x5EED)  # noqa: S311 - never secrets
        fabric = SimFabric(random.Random(draw.seed ^ 0xFAB), draw.delay_seconds)  # noqa: S311 - never secrets
        return cls(draw, lots, fabric, History(draw.sync_flush))

    def say(self, what: str) -> None:
        self.trace.append(f"{trio.current_time():10.4f} {what}")

    @property
    def epoch(self) -> int:
        return len(self.history.ends)

    def _machine(self, host: str) -> Machine:
        machine = Machine.of(host, self.fabric, random.Random(self.lots.getrandbits(64)))  # noqa: S311 - never secrets
        machine.worker_seconds_max = self.draw.sync_seconds_max
        return machine

    def _configs(self) -> list[BrokerConfig]:
        draw = self.draw
        settings = {
            "listenPort": str(BROKER_PORT),
            "mappedFileSizeCommitLog": str(draw.segment_size),
            "flushDiskType": "SYNC_FLUSH" if draw.sync_flush else "ASYNC_FLUSH",
            "maxHashSlotNum": "10",
            "maxIndexNum": "1000",
            "namesrvAddr": str(NAMESRV),
            "defaultTopicQueueNums": "2",
        }
        count = 2 if draw.mode == "ha" else 1
        configs = broker_configs("store", "", mode=draw.mode, nodes=count, settings=settings)
        return [
            attrs.evolve(config, broker_ip1=f"10.0.1.{at}", bind_address=f"10.0.1.{at}") for at, config in enumerate(configs)
        ]

    # ---------------------------------------------------------------- the run

    async def run(self) -> None:
        """All lives, then healing, then a look at what is there."""
        self.nodes = [Node(self._machine(config.broker_ip1), config) for config in self._configs()]
        async with trio.open_nursery() as nursery:
            await nursery.start(self._serve_names)
            for node in self.nodes:
                await nursery.start(node.run)
            clients = trio.CancelScope()
            await nursery.start(self._clients, clients)
            for end in self.draw.ends:
                await self._live(nursery, end)
            self.fabric.heal()
            self.say("healed")
            await self._must_converge()
            clients.cancel()
            for node in reversed(self.nodes):
                await node.end(End.CLEAN)
            nursery.cancel_scope.cancel()
        await self._look()

    async def _serve_names(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        config = NamesrvConfig(listen_port=NAMESRV.port, bind_address=NAMESRV.host)
        async with open_namesrv(config, self._machine(NAMESRV.host).world()):
            task_status.started()
            await trio.sleep_forever()

    async def _live(self, nursery: trio.Nursery, end: End) -> None:
        with trio.move_on_after(self.draw.life_seconds * (0.3 + self.lots.random())):
            await self._strike()
        victim = self.nodes[-1] if self.draw.slave_fails and self.lots.random() < 0.5 else self.nodes[0]
        self.say(f"{victim.machine.host} ends by {end.value}")
        self.history.ends.append(end)
        await victim.end(end)
        await trio.sleep(self.lots.choice((0.0, 0.5, 5.0)))
        self.fabric.heal()
        await nursery.start(victim.run)
        self.say(f"{victim.machine.host} is back")

    async def _strike(self) -> None:
        draw, lots, fabric = self.draw, self.lots, self.fabric
        hosts = [NAMESRV.host, *(node.machine.host for node in self.nodes), *(f"10.0.2.{at}" for at in range(PRODUCERS + 1))]
        while True:
            await trio.sleep(draw.life_seconds * lots.random() * 0.3)
            if draw.connection_losses:
                fabric.lose_connection()
            if draw.one_way_cuts:
                fabric.cut(*lots.sample(hosts, 2))
            if draw.partitions:
                some = lots.sample(hosts, lots.randint(1, len(hosts) - 1))
                fabric.part(some, [host for host in hosts if host not in some])
            await trio.sleep(draw.life_seconds * lots.random() * 0.3)
            fabric.heal()

    async def _must_converge(self) -> None:
        # A consumer that is ahead of a log that lost its unsynced tail passes over what comes in its place.
        whole = self.history.survives(0, self.epoch)
        wanted = {put.number for put in self.history.puts if put.acknowledged and whole}
        with trio.move_on_after(CONVERGE_SECONDS):
            while not wanted <= self.seen:  # noqa: ASYNC110 - looked at from outside
                await trio.sleep(0.1)
        missing = sorted(wanted - self.seen)
        assert not missing, f"{CONVERGE_SECONDS} s after healing the consumer lacks {len(missing)} messages: {missing[:5]}"
        assert any(put.acknowledged and put.epoch == self.epoch for put in self.history.puts) or await self._one_more()

    async def _one_more(self) -> bool:
        """Whether a message is still taken."""
        before = sum(put.acknowledged for put in self.history.puts)
        with trio.move_on_after(CONVERGE_SECONDS):
            while sum(put.acknowledged for put in self.history.puts) == before:  # noqa: ASYNC110 - looked at from outside
                await trio.sleep(0.1)
        return sum(put.acknowledged for put in self.history.puts) > before

    # ---------------------------------------------------------------- clients

    async def _clients(self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        # Faults begin when all clients are there: one that finds no name server at its start says so and ends.
        with scope:
            async with trio.open_nursery() as nursery:
                for producer in range(PRODUCERS):
                    await nursery.start(self._produce, producer)
                await nursery.start(self._consume)
                await nursery.start(self._delay)
                task_status.started()

    async def _produce(self, producer: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        lots, draw = self.lots, self.draw
        world = self._machine(f"10.0.2.{producer}").world()
        async with open_producer(str(NAMESRV), f"p{producer}", world=world, send_timeout_seconds=3.0) as client:
            task_status.started()
            while True:
                self._number += 1
                put = Put(self._number, producer, (TOPIC, 0), self.epoch)
                self.history.puts.append(put)
                try:
                    result = await client.send(Message(TOPIC, b"%d;" % put.number + lots.randbytes(lots.randrange(600))))
                except ClientError as error:
                    self.say(f"producer {producer} put {put.number}: {type(error).__name__}")
                else:
                    put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
                    # An answer that came after a failure was given before it, so it counts as of the life it was asked in.
                    put.acknowledged = result.status.name == "SEND_OK"
                    put.answered = self.epoch
                    self.say(f"producer {producer} put {put.number} at {put.queue}@{put.queue_offset}: {result.status.name}")
                await trio.sleep(draw.life_seconds * lots.random() * 0.05)

    async def _consume(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        world = self._machine(f"10.0.2.{PRODUCERS}").world()
        async with open_consumer(str(NAMESRV), GROUP, TOPIC, consume_from=ConsumeFrom.FIRST, world=world) as consumer:
            task_status.started()
            async for message in consumer:
                number = int(message.body.partition(b";")[0])
                self.seen.add(number)
                # It may have been under way for a while, but no longer than since it was sent.
                epoch = self.history.puts[number - 1].epoch
                self.history.reads.append(Read((TOPIC, int(message.queue.queue_id)), message.queue_offset, number, epoch))

    async def _delay(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send delayed messages, and look at when they come: never before their time."""
        world = self._machine(f"10.0.2.{PRODUCERS + 1}").world()
        async with (
            open_producer(str(NAMESRV), "d", world=world, send_timeout_seconds=3.0) as producer,
            open_consumer(str(NAMESRV), "dg", DELAYED, consume_from=ConsumeFrom.FIRST, world=world) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._send_delayed, producer)
            task_status.started()
            async for message in consumer:
                due_ms, now_ms = int(message.body), round(trio.current_time() * 1000)
                self.delayed += 1
                if now_ms < due_ms:
                    self.early.append(f"a message that is due at {due_ms} ms came at {now_ms} ms")

    async def _send_delayed(self, producer: Producer) -> None:
        while True:
            level = self.lots.randint(1, len(DELAYS_MS))
            due_ms = int(trio.current_time() * 1000) + DELAYS_MS[level - 1]
            with contextlib.suppress(ClientError):
                await producer.send(Message(DELAYED, b"%d" % due_ms, delay_level=level))
            await trio.sleep(self.draw.life_seconds * self.lots.random() * 0.2)

    # ---------------------------------------------------------------- looking

    async def _look(self) -> None:
        """Open the stores once more and read everything in them."""
        logs: list[bytes] = []
        for node in self.nodes:
            config = node.config.store_config()
            async with open_message_store(node.machine.world(), config) as store:
                if node is self.nodes[0]:
                    self.history.snapshots.append(self._snapshot(store))
                logs.append(_whole_log(store.log.slice_from, store.log.min_offset, store.log.max_offset))
        self.slave_is_prefix = all(logs[0].startswith(log) for log in logs[1:])

    def _snapshot(self, store: MessageStore) -> Snapshot:
        queues: dict[Queue, list[Stored]] = {}
        bounds: dict[Queue, tuple[int, int]] = {}
        for queue_id in store.queue_ids(TOPIC):
            queue = (TOPIC, queue_id)
            offset, high = bounds[queue] = (store.min_offset(*queue), store.max_offset(*queue))
            found = queues[queue] = []
            while offset < high:
                result = store.get(*queue, offset, 32)
                found += map(_stored, result.slices)
                offset = result.next_offset
        return Snapshot(self.epoch + 1, queues, bounds, {})


def _stored(record: memoryview) -> Stored:
    message = decode_record(record)
    number = int(message.body.partition(b";")[0])
    return Stored(message.queue_offset, message.physical_offset, number, message.store_timestamp)


def _whole_log(slice_from: Callable[[int, int], memoryview], begin: int, end: int) -> bytes:
    parts: list[bytes] = []
    while begin < end:
        part = bytes(slice_from(begin, end - begin))
        if not part:
            break
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def simulate_cluster(seed: int) -> Outcome:
    """Run one seed; an exception of a node or a client is a violation like any other."""
    draw = ClusterDraw.of(seed)
    run = ClusterRun.of(draw)
    violations: list[str] = []
    try:
        seeded_run(run.run, seed=seed)
    except (Exception, ExceptionGroup) as error:  # noqa: BLE001 - whatever is let out is a finding
        violations.append(told(error))
    run.history.ends.append(End.CLEAN)
    violations += check_history(run.history, CLUSTER_CHECKERS)
    violations += run.early
    if not run.slave_is_prefix:
        violations.append("the slave's log is not a prefix of its master's")
    faults = Counter(run.fabric.injected)
    faults["delayed"] = run.delayed
    for node in run.nodes:
        faults.update(node.machine.disk.faults.injected)
    return Outcome(draw, violations, run.trace, run.history, faults)
