"""Brokers whose master a real controller elects, on simulated machines."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import attrs
import pytest
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.opening import open_broker
from ledgermq.broker.role import Role
from ledgermq.client.consumer import open_consumer
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.testing.embedded import OpenEmbedded, open_virtual
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.network import SimNetwork
from ledgermq.testing.sim.world import Machine
from ledgermq.world.network import Address

from .modes.test_controller import send

pytestmark = pytest.mark.usefixtures("autojump_clock")


@pytest.mark.parametrize("nodes", [2, 3])
async def test_any_one_broker_may_die_and_nothing_acknowledged_is_lost(nodes: int) -> None:
    """Each master in turn is killed, and started again when another one has taken over."""
    async with (
        open_virtual(mode="controller", nodes=nodes) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
    ):
        sent: list[str] = []
        for kill in range(4):
            for number in range(5):
                await send(producer, f"{kill}-{number}")
                sent.append(f"{kill}-{number}")
            master = await cluster.master()
            await cluster.kill(master)
            begun = trio.current_time()
            await send(producer, f"{kill}-after")
            sent.append(f"{kill}-after")
            assert trio.current_time() - begun < 3
            await cluster.start(master)
            await trio.sleep(5)

        got: list[str] = []
        with trio.fail_after(60):
            async with open_consumer(
                cluster.namesrv, "consumers", "orders", consume_from=ConsumeFrom.FIRST, world=cluster.world
            ) as consumer:
                async for message in consumer:
                    got.append(message.body.decode())
                    if set(got) >= set(sent):
                        break
        assert sorted(set(got)) == sorted(sent)


async def test_a_master_that_is_stopped_in_order_is_replaced_before_it_goes() -> None:
    """A deploy costs no time-out: the next send is acknowledged at once by another replica."""
    async with (
        open_virtual(mode="controller", nodes=2) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
    ):
        await send(producer, "before")
        master = await cluster.master()
        await cluster.stop(master)
        begun = trio.current_time()

        await send(producer, "after")

        assert trio.current_time() - begun < 0.5
        assert await cluster.master() != master


def broker_at(cluster: OpenEmbedded, address: str) -> Broker:
    """The broker that serves clients at an address."""
    return next(broker for broker in cluster.brokers if broker.address == address)


def incompressible(seed: int) -> str:
    """A text of which a megabyte is left when it is compressed."""
    return random.Random(seed).randbytes(1_000_000).hex()


async def until(holds: Callable[[], bool], pause: float = 0.01) -> None:
    """Wait until something holds, and pause between two looks."""
    while not holds():  # noqa: ASYNC110 - a replica notifies nobody of a part of a record
        await trio.sleep(pause)


def whole_records_end(broker: Broker) -> int:
    """Where the last whole record of a broker's log ends."""
    log = broker.store.log
    return max((end for end, _ in log.records(log.min_offset, log.max_offset)), default=log.min_offset)


@pytest.mark.parametrize("nodes", [2, 3])
async def test_a_replica_whose_log_ends_inside_a_record_goes_on_behind_the_last_whole_one(nodes: int) -> None:
    """Its master died while it sent the rest. What followed the first bytes of a record would be read by nobody.

    All replicas hold a part of the record, and have been told so. That they drop it is no loss.
    """
    async with (
        open_virtual(mode="controller", nodes=nodes, settings={"haTransferBatchSize": "200"}) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
        trio.open_nursery() as nursery,
    ):
        await send(producer, "before")
        master = await cluster.master()
        replicas = [broker for broker in cluster.brokers if broker.address != master]
        nursery.start_soon(send, producer, incompressible(1))
        with trio.fail_after(5):
            await until(
                lambda: all(whole_records_end(each) < (each.store.log.readable_limit or 0) for each in replicas), 0.0001
            )
        network = cluster.world.network
        assert isinstance(network, SimNetwork)
        network.fabric.swallow(Address.parse(master).host)  # what is on its way does not arrive either
        await cluster.kill(master)
        await send(producer, incompressible(2))

        elected = cluster.node(await cluster.master()).broker
        assert elected is not None
        store = elected.store
        with trio.fail_after(5):
            await until(lambda: store.dispatch_behind_bytes == 0)
        network.fabric.spare(Address.parse(master).host)
        await cluster.start(master)
        with trio.fail_after(60):
            await until(lambda: len({each.store.log.max_offset for each in cluster.brokers}) == 1)
        end = store.log.max_offset
        assert [bytes(each.store.log.slice_from(0, end)) for each in cluster.brokers] == nodes * [
            bytes(store.log.slice_from(0, end))
        ]


async def test_a_replica_that_cannot_begin_its_epoch_lets_another_one_be_elected() -> None:
    """Its disk takes no new file. It would stay the master for which nothing is stored, and soon the only one in the set."""
    async with (
        open_virtual(mode="controller", nodes=3) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
    ):
        await send(producer, "before")
        master = await cluster.master()
        first = next(broker for broker in cluster.brokers if broker.address != master)
        disk = first.world.disk
        assert isinstance(disk, SimDisk)
        disk.faults.create_error = 1.0
        await cluster.kill(master)

        with trio.fail_after(10):
            await send(producer, "after")

        assert await cluster.master() not in {master, first.address}


def opened_copy(broker: Broker) -> AbstractAsyncContextManager[Broker]:
    """Another broker, on a machine of its own, with a copy of this one's disk as it is now."""
    disk, network = broker.world.disk, broker.world.network
    assert isinstance(disk, SimDisk)
    assert isinstance(network, SimNetwork)
    machine = Machine.of("10.0.9.9", network.fabric, random.Random(1))
    machine.disk = machine.disk.restored(disk.backup())
    config = attrs.evolve(broker.config, broker_ip1=machine.host, bind_address=machine.host)
    return open_broker(config, machine.world())


async def test_a_copied_directory_that_is_started_on_another_machine_gets_no_role_and_says_why() -> None:
    """Both brokers have one id: as masters they would share an epoch, and as replicas an acknowledgement."""
    async with (
        open_virtual(mode="controller", nodes=2) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
    ):
        await send(producer, "before")
        first = broker_at(cluster, await cluster.master())

        async with opened_copy(first) as copy:
            await send(producer, "meanwhile")
            await trio.sleep(3)

            trouble = copy.replication.status()["controller"]["trouble"]
            assert "is alive at" in trouble
            assert f"a broker at {copy.address} has the same identity: if its directory is a copy, stop it" in trouble
            assert copy.role.state.role is Role.CANDIDATE
        await send(producer, "after")
        assert broker_at(cluster, await cluster.master()) is first


async def test_a_master_whose_copy_was_registered_while_it_was_cut_off_is_master_no_more() -> None:
    """It was alone in the set, and so is the copy: each of them would acknowledge what the other one lacks."""
    async with (
        open_virtual(mode="controller", nodes=2) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
    ):
        await send(producer, "before")
        first = broker_at(cluster, await cluster.master())
        await cluster.kill(next(broker.address for broker in cluster.brokers if broker is not first))
        await send(producer, "alone")
        network = first.world.network
        assert isinstance(network, SimNetwork)
        network.fabric.part([Address.parse(first.address).host], [Address.parse(cluster.namesrv).host])
        await trio.sleep(2)

        async with opened_copy(first) as copy:
            with trio.fail_after(10):
                await until(lambda: copy.role.takes_puts)
                network.fabric.heal()
                await until(lambda: not first.role.takes_puts)
            await trio.sleep(3)

            assert copy.role.takes_puts
            assert not first.role.takes_puts
            assert first.role.state.reason == "the controller does not know it"


async def test_a_master_that_waits_for_a_lost_replica_without_a_controller_says_so() -> None:
    """Only a controller can let the replica leave the set, and until then no send is acknowledged."""
    async with (
        open_virtual(mode="controller", nodes=2) as cluster,
        open_producer(cluster.namesrv, "producers", world=cluster.world) as producer,
    ):
        await send(producer, "before")
        first = broker_at(cluster, await cluster.master())
        network = first.world.network
        assert isinstance(network, SimNetwork)
        with capture_logs() as events:
            controller = first.config.controller_addr
            network.fabric.part(
                [Address.parse(broker.address).host for broker in cluster.brokers], [Address.parse(controller).host]
            )
            await trio.sleep(10)
            assert [event for event in events if event["event"] == "sync_state_set_cannot_shrink"] == []

            await cluster.kill(next(broker.address for broker in cluster.brokers if broker is not first))
            await trio.sleep(10)

        said = [event for event in events if event["event"] == "sync_state_set_cannot_shrink"]
        assert [event["lacking"] for event in said] == [[2]]
        assert controller in said[0]["reason"]
