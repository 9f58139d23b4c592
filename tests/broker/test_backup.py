"""Backups of running brokers on simulated machines, restored at drawn moments and compared with what clients were told.

What was acknowledged before a moment is there or was already consumed, delayed messages among it; what came later is not.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.broker.modes.leaving_dledger import write_classic_copy
from ledgermq.broker.opening import open_broker
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import ConsumeFrom, open_consumer
from ledgermq.client.producer import open_producer
from ledgermq.ha.dledger.offline import forget_what_was_synced, log_parts, look_of
from ledgermq.ha.dledger.reset_peers import look_at_node, reset_peers
from ledgermq.message.message import Message
from ledgermq.namesrv.config import NamesrvConfig
from ledgermq.namesrv.server import open_namesrv
from ledgermq.store.keeping.backup import BackedUp, DirectoryKeep, Restored, restore, take_backup, verify_backup
from ledgermq.testing.embedded import RAFT_PORT, OpenEmbedded, SimulatedPlace, open_virtual
from ledgermq.testing.history import End
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import Machine
from ledgermq.world.address import Address
from ledgermq.world.real import World

from .modes.test_dledger import Group, scenario
from .tables.test_tables import tables_of, up
from .test_older_logs import ROOT, leave_classic_stores, start_all

SETTINGS = {
    "mappedFileSizeCommitLog": "16384",
    "maxMessageSize": "8000",
    "messageDelayLevel": "1s 5s 30s",
    "fileReservedTime": "72",
    "flushConsumerOffsetInterval": "500",
}
GROUP = "readers"
FORK_HOST, FORK_NAMESRV = "10.0.1.8", "10.0.2.2:9876"


def back_up(disk: SimDisk, root: str, world: World) -> BackedUp:
    return take_backup(disk, root, DirectoryKeep(disk, "backup"), lambda: log_parts(disk, root), world.clock.wall_ms)


@attrs.define
class Told:
    """What the clients of a broker were told, by the number of the message."""

    acknowledged: dict[int, int] = attrs.field(factory=dict[int, int])
    """When, in ms by the clock of the broker's machine."""
    begun: dict[int, int] = attrs.field(factory=dict[int, int])
    """When the send began."""
    consumed: dict[int, int] = attrs.field(factory=dict[int, int])
    """When it was given to the group, whose acknowledgement follows."""


@attrs.define
class Scene:
    """One broker, a producer and a group, and points that are added to a backup meanwhile."""

    embedded: OpenEmbedded
    rng: random.Random
    told: Told = attrs.field(factory=Told)
    points: list[BackedUp] = attrs.field(factory=list[BackedUp])

    @property
    def machine(self) -> Machine:
        place = self.embedded.nodes[0].place
        assert isinstance(place, SimulatedPlace)
        return place.machine

    @property
    def root(self) -> str:
        return self.embedded.nodes[0].config.store_path_root_dir

    def now(self) -> int:
        return self.machine.clock.wall_ms()

    async def produce(self) -> None:
        async with open_producer(self.embedded.namesrv, "p", world=self.embedded.world) as producer:
            number = 0
            while True:
                body = b"%d " % number + bytes(self.rng.randrange(1500))
                self.told.begun[number] = self.now()
                await producer.send(Message("T", body, delay_level=self.rng.choice((0, 0, 0, 1, 2, 3))))
                self.told.acknowledged[number] = self.now()
                number += 1
                await trio.sleep(self.rng.random() * 0.2)

    async def consume(self) -> None:
        async with open_consumer(
            self.embedded.namesrv, GROUP, "T", consume_from=ConsumeFrom.FIRST, world=self.embedded.world
        ) as consumer:
            async for message in consumer:
                self.told.consumed.setdefault(number_of(message.body), self.now())
                await trio.sleep(self.rng.random() * 0.2)

    async def live(self) -> None:
        """Add points at drawn moments while clients work; the broker is killed once."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.produce)
            nursery.start_soon(self.consume)
            for _ in range(self.rng.randrange(3, 6)):
                await trio.sleep(self.rng.uniform(0.5, 12.0))
                self.points.append(back_up(self.machine.disk, self.root, self.embedded.world))
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def fork(self, number: int) -> AsyncGenerator[tuple[Broker, str]]:
        """Run a restored store beside the broker, with another name, other ports and a name server of its own."""
        world = attrs.evolve(self.embedded.world, disk=self.machine.disk)
        host = world.network.own_host()
        async with open_namesrv(NamesrvConfig(listen_port=0, bind_address=host), world) as server:
            config = attrs.evolve(
                self.embedded.nodes[0].config,
                broker_name=f"fork-{number}",
                listen_port=0,
                namesrv_addr=str(server.address),
                broker_ip1=host,
                bind_address=host,
                store_path_root_dir=f"fork-{number}",
            )
            async with open_broker(config, world) as broker:
                yield broker, str(server.address)


def number_of(body: bytes) -> int:
    return int(body.split(b" ")[0])


async def all_of(namesrv: str, group: str, count: int, world: World) -> set[int]:
    """Consume as a group until so many different messages were given, and longer than the longest delay."""
    found: set[int] = set()
    async with open_consumer(namesrv, group, "T", consume_from=ConsumeFrom.FIRST, world=world) as consumer:
        with trio.move_on_after(40):
            async for message in consumer:
                found.add(number_of(message.body))
    assert len(found) >= count or count == 0
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_fork_has_what_was_acknowledged_at_a_drawn_moment(seed: int) -> None:
    """Every message is there, the group skips none, and nothing of later is there; with or without a moment between points."""

    async def run() -> None:
        rng = random.Random(seed)
        async with open_virtual(seed=seed, settings=SETTINGS) as embedded:
            scene = Scene(embedded, rng)
            await scene.live()
            disk, keep = scene.machine.disk, DirectoryKeep(scene.machine.disk, "backup")
            assert verify_backup(keep)[1] == []
            first, last = scene.points[0].point.taken_ms, scene.points[-1].point.taken_ms
            for number, until in enumerate([None, rng.randint(first, last), rng.randint(first, last)]):
                done = restore(disk, keep, f"fork-{number}", look_of, until_ms=until)
                await check_fork(scene, number, done, last if until is None else until)

    seeded_run(run, seed=seed)


async def check_fork(scene: Scene, number: int, done: Restored, moment: int) -> None:
    told, world = scene.told, scene.embedded.world
    acknowledged = {each for each, at in told.acknowledged.items() if at <= moment}
    later = {each for each, at in told.begun.items() if at > moment}
    consumed = {each for each, at in told.consumed.items() if at <= moment}
    async with scene.fork(number) as (broker, namesrv):
        for (topic, _), offsets in broker.offsets.table.items():
            for queue_id, offset in offsets.items():
                assert offset <= broker.store.max_offset(topic, queue_id)
        read_on = await all_of(namesrv, GROUP, 0, world)
        everything = await all_of(namesrv, "fresh", len(acknowledged), world)
    assert acknowledged <= everything, acknowledged - everything
    assert not everything & later
    assert acknowledged <= consumed | read_on, acknowledged - consumed - read_on
    assert not read_on & later


@pytest.mark.parametrize(("seed", "older"), [(0, False), (3, True), (1, False)])
def test_a_node_of_a_group_is_restored_as_a_group_and_as_a_classic_store(seed: int, *, older: bool) -> None:
    """A group of its own, with all tables, of which it is the only voter; from it a classic store as from any last voter."""

    async def story(group: Group) -> None:
        if older:  # then the first messages are in a classic log, and the others in the ledger behind it
            await leave_classic_stores(group)
            await start_all(group)
        world = group.world("10.0.3.1")
        node = group.nodes[group.rng.randrange(3)]
        disk, root = node.machine.disk, node.config.store_path_root_dir
        async with open_producer(group.namesrv, "p", world=world) as producer, open_admin(group.namesrv, world=world) as admin:
            await group.produce(producer, 100)
            await admin.create_topic("Other", queues=1)
            await trio.sleep(1)
            back_up(disk, root, world)
            await group.produce(producer, 150)
            await producer.send(Message("T", b"%d" % 999, delay_level=2))
            await commit_some(group)
            await trio.sleep(2)  # the other nodes know what is committed
            before, tables = dict(group.sent), tables_of(up(node))
            offsets = {key: dict(value) for key, value in up(node).offsets.table.items()}
            point = back_up(disk, root, world).point
            await group.produce(producer, 50)
        address = Address(FORK_HOST, RAFT_PORT)

        def finish() -> None:
            forget_what_was_synced(disk, "fork")
            reset_peers(disk, "fork", look_at_node(disk, "fork"), address, point.taken_ms, secrets=random.Random(seed))

        restore(disk, DirectoryKeep(disk, "backup"), "fork", look_of, finish=finish)
        await group.nursery.start(serve_names, group)
        peers = f"{node.config.dleger_self_id}-{address}"
        fork = await run_fork(group, node, FORK_HOST, dleger_peers=peers, store_path_root_dir="fork")

        with trio.fail_after(30):
            while not up(fork).role.takes_puts:  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.05)
        restored = tables_of(up(fork))
        assert restored["topics"].pop("fork") == attrs.evolve(restored["topics"]["broker-a"], topic_name="fork")
        assert restored == tables
        assert {key: dict(value) for key, value in up(fork).offsets.table.items()} == offsets
        expected = [*before, 999]
        assert await read_all(group, "fork") == sorted(expected)
        await trio.sleep(1)
        await fork.process.end(End.CLEAN)
        write_classic_copy(fork.machine.world(), "fork", "classic")
        await run_fork(group, node, "10.0.1.9", enable_dleger_commit_log=False, store_path_root_dir="classic")
        assert await read_all(group, "classic") == sorted(expected)

    scenario(story, seed)


async def commit_some(group: Group) -> None:
    async with open_consumer(
        group.namesrv, GROUP, "T", consume_from=ConsumeFrom.FIRST, ack="explicit", world=group.world("10.0.3.2")
    ) as consumer:
        for message in await consumer.get_many(32, 5.0):
            await message.ack()


async def run_fork(group: Group, node: Node, host: str, **settings: Any) -> Node:
    """Start a broker on the disk of a node, beside it, under a name that no other broker has."""
    machine = Machine.of(host, group.fabric, random.Random(1))
    machine.disk = node.machine.disk
    settings |= {"broker_name": settings["store_path_root_dir"], "broker_ip1": host, "bind_address": host}
    fork = Node(machine, attrs.evolve(node.config, namesrv_addr=FORK_NAMESRV, **settings))
    await group.nursery.start(fork.process.run)
    return fork


async def serve_names(group: Group, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    async with open_namesrv(NamesrvConfig(listen_port=9876, bind_address="10.0.2.2"), group.world("10.0.2.2")):
        task_status.started()
        await trio.sleep_forever()


async def read_all(group: Group, reader: str) -> list[int]:
    numbers: list[int] = []
    async with open_consumer(
        FORK_NAMESRV, reader, "T", consume_from=ConsumeFrom.FIRST, world=group.world("10.0.3.5")
    ) as consumer:
        with trio.move_on_after(20):
            async for message in consumer:
                numbers.append(int(message.body))  # noqa: PERF401 - they are kept when the time is over
    return sorted(numbers)


def test_a_classic_store_is_restored_to_the_nodes_of_a_group() -> None:
    """Each node begins with what the backup has, as with a copy of the classic store."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group, copies=1)
        disk = group.nodes[0].machine.disk
        back_up(disk, ROOT, group.world("10.0.3.1"))
        disk.remove_tree(ROOT)
        for node in group.nodes:
            restore(node.machine.disk, DirectoryKeep(disk, "backup"), ROOT, look_of)

        await start_all(group)

        assert sorted(await group.consumed()) == sorted(group.sent)

    scenario(story)
