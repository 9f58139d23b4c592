"""Controller mode with strangers: our slave behind a master that Apache's controller has elected, and back."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from ledgermq.client.admin import open_admin
from ledgermq.client.producer import Producer, open_producer
from ledgermq.ha.classic.files import EpochFile
from ledgermq.ha.classic.node import ClassicNode
from ledgermq.ha.classic.protocol import TransferLimits
from ledgermq.ha.classic.settings import BARE, HaSettings
from ledgermq.ha.controller.protocol import BrokerReplicasInfo
from ledgermq.message.message import Message
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.store.config import StoreConfig
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.world.disk import RealDisk
from ledgermq.world.network import Address
from ledgermq.world.real import real_world

from .members import MASTER_SECONDS, SEGMENT_SIZE, Group, Member, becomes_equal, digests, open_group
from .servers import Maker

pytestmark = pytest.mark.interop

TOPIC = "Elected"
SECONDS = 240.0


def elected(controller: str, maker: Maker = Maker.APACHE_55) -> dict[str, object]:
    """The configuration of a broker whose role the controller decides."""
    # With the role SLAVE Apache's wants a broker id, although the controller gives it one.
    keys: dict[str, object] = {"enableControllerMode": "true", "controllerAddr": controller, "brokerRole": "ASYNC_MASTER"}
    return keys | ({"haProtocol": BARE} if maker is Maker.OURS else {"brokerId": -1})


@attrs.define
class Following:
    """A slave of ours without a broker around it."""

    store: MessageStore
    node: ClassicNode

    async def reaches(self, end: int) -> None:
        with trio.fail_after(SECONDS):
            while self.store.log.max_offset != end or not self.node.is_following:  # noqa: ASYNC110 - bytes of another process
                await trio.sleep(0.05)


@asynccontextmanager
async def following(root: Path, master: Member, broker_id: int) -> AsyncGenerator[Following]:
    """Follows a master over RocketMQ's protocol of controller mode."""
    limits = TransferLimits(segment_size=SEGMENT_SIZE)
    node = ClassicNode(
        real_world(),
        HaSettings(protocol=BARE, autoswitch=True, slave=True, from_first=True, limits=limits),
        "DefaultCluster",
        "broker-a",
    )
    node.set_master(Address("127.0.0.1", int(str(master.config["haListenPort"]))))
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=SEGMENT_SIZE,
        mapped_file_size_consume_queue=int(str(master.config["mappedFileSizeConsumeQueue"])),
    )
    async with (
        open_message_store(node.world, config, open_commit_log=node.open_commit_log) as store,
        trio.open_nursery() as nursery,
    ):
        store.is_replica = True
        await nursery.start(node.run, store)
        await node.follow(broker_id, term=0)
        yield Following(store, node)
        nursery.cancel_scope.cancel()


async def send(producer: Producer, count: int, size: int) -> None:
    for number in range(count):
        await producer.send(Message(TOPIC, random.Random(number).randbytes(size)))  # which cannot be compressed


async def start_elected(group: Group, controller: str, number: int = 0, maker: Maker = Maker.APACHE_55) -> Member:
    """A broker that the controller has made the master, or with a number its slave."""
    member = await group.start(maker, number=number, more=elected(controller, maker))
    if not number:
        await group.master_of([member])
    return member


async def all_in_sync(controller: str, count: int) -> None:
    """Wait until the controller has confirmed so many replicas in sync."""
    with trio.fail_after(SECONDS):
        async with connected(Address.parse(controller), network=real_world().network) as channel:
            while True:
                answer = await channel.call(
                    RemotingCommand(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["broker-a"]'), 5
                )
                if len(BrokerReplicasInfo.of(answer.body).replicas_info_table["broker-a"].in_sync_replicas) == count:
                    return
                await trio.sleep(0.2)


async def has_topic(member: Member) -> None:
    """Wait until a replica has the topic: Apache's ask for tables every few seconds, and would create it with fewer queues."""
    with trio.fail_after(SECONDS):
        async with connected(Address.parse(member.address), network=real_world().network) as channel:
            topics = RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG)
            while TOPIC.encode() not in (await channel.call(topics, 5)).body:  # noqa: ASYNC110 - a table of another process
                await trio.sleep(0.2)


def epochs_at(root: Path) -> list[tuple[int, int]]:
    return [(entry.number, entry.start) for entry in EpochFile(RealDisk(), str(root)).load()]


async def test_our_slave_follows_a_master_that_apaches_controller_has_elected(tmp_path: Path) -> None:
    """From the first byte, through a kill -9 of the master; then a broker of Apache's goes on with our directory."""
    async with open_group(tmp_path) as group, open_admin(group.namesrv) as admin, open_producer(group.namesrv) as producer:
        controller = await group.start_controller(Maker.APACHE_55)
        master = await start_elected(group, controller)
        await admin.create_topic(TOPIC, broker=master.address)
        root = tmp_path / "broker-a-1" / "store"
        async with following(root, master, 77) as slave:
            await send(producer, 100, 50_000)
            end = await becomes_equal(admin, master, seconds=SECONDS)
            await slave.reaches(end)
            assert slave.store.log.readable_offset == end > SEGMENT_SIZE

            master.kill()
            await master.start()
            with trio.fail_after(MASTER_SECONDS):
                await group.master_of([master])
            await send(producer, 10, 1000)
            end = await becomes_equal(admin, master, seconds=SECONDS)
            await slave.reaches(end)

        epochs = epochs_at(root)
        assert len(epochs) == 2
        assert epochs == epochs_at(master.folder / "store")
        assert digests(root / "commitlog", end) == digests(master.segments, end)

        other = await start_elected(group, controller, number=1)
        await send(producer, 10, 1000)
        assert await becomes_equal(admin, master, other, seconds=SECONDS) > end
        assert epochs_at(root) == epochs


@pytest.mark.parametrize("maker", [Maker.APACHE_55, Maker.OURS], ids=lambda maker: f"controller-{maker.value}")
async def test_brokers_of_both_makes_take_over_from_each_other(tmp_path: Path, maker: Maker) -> None:
    """Ours leads first, then Apache's after a kill -9, then ours again; whatever was acknowledged is in both logs."""
    async with open_group(tmp_path) as group, open_admin(group.namesrv) as admin, open_producer(group.namesrv) as producer:
        controller = await group.start_controller(maker)
        ours = await start_elected(group, controller, maker=Maker.OURS)
        await admin.create_topic(TOPIC, broker=ours.address)
        await send(producer, 50, 50_000)
        theirs = await start_elected(group, controller, number=1)
        await becomes_equal(admin, ours, theirs, seconds=SECONDS)
        await all_in_sync(controller, 2)
        await has_topic(theirs)

        for lost, next_master in ((ours, theirs), (theirs, ours)):
            lost.kill()
            await group.master_of([next_master])
            await send(producer, 30, 50_000)
            await lost.start()
            end = await becomes_equal(admin, ours, theirs, seconds=SECONDS)
            await all_in_sync(controller, 2)

        assert epochs_at(ours.folder / "store") == epochs_at(theirs.folder / "store")
        await theirs.stop()
        await ours.stop()

    assert end > SEGMENT_SIZE
    assert digests(ours.segments, end) == digests(theirs.segments, end)
