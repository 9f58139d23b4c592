"""Opens nodes of a classic group and lets slaves join them, as fixtures."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from ledgermq.ha.classic.authenticated import AuthenticatedSlave
from ledgermq.ha.classic.epochs import EpochList
from ledgermq.ha.classic.layout import NodeIdentity
from ledgermq.ha.classic.node import ClassicNode
from ledgermq.ha.classic.protocol import TransferLimits
from ledgermq.ha.classic.settings import HaSettings
from ledgermq.ha.envelopes import NODE_SIZE, NONCE_SIZE
from ledgermq.store.config import StoreConfig
from ledgermq.store.opening import open_message_store
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.real import World

from .nodes import MASTER_ADDRESS, SECRET, SEGMENT, Bounds, Hand, JoinByHand, Joined, Lines, OpenNode, Running


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def open_node(lines: Lines) -> OpenNode:
    """Opens a node by name; a slave follows the master's port. `disk` continues an earlier life."""
    lives = itertools.count(1)

    @asynccontextmanager
    async def opened(
        name: str,
        *,
        slave: bool = False,
        disk: SimDisk | None = None,
        segment_size: int = SEGMENT,
        flush: str = "ASYNC_FLUSH",
        broker_id: int | None = None,
        batch_size: int = 2048,
        **settings: Any,
    ) -> AsyncGenerator[Running]:
        world = World(
            disk if disk is not None else SimDisk(random.Random(name)),
            lines,
            SimClock(),
            random.Random(name),
            SimWorkers(),
            random.Random(f"{name} secrets {next(lives) if disk is not None else 0}"),
        )
        config = StoreConfig(
            store_path_root_dir="store",
            mapped_file_size_commit_log=segment_size,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=16,
            max_index_num=64,
            flush_disk_type=flush,
        )
        limits = TransferLimits(batch_size=batch_size, segment_size=segment_size)
        ha = HaSettings(limits=limits, secret=SECRET)
        ha = attrs.evolve(ha, slave=slave, **settings)
        number = broker_id if broker_id is not None else int(slave)
        node = ClassicNode(world, ha, "cluster", "broker")
        if slave:
            node.set_master(MASTER_ADDRESS)
        async with (
            open_message_store(world, config, open_commit_log=node.open_commit_log) as store,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(node.run, store)
            if slave:
                store.is_replica, store.writability.role_refusal = True, "the broker is a slave"
                await node.follow(number, term=0)
            else:
                await node.lead(number, synchronous=ha.sync_master, term=0)
            yield Running(node, store, world)
            nursery.cancel_scope.cancel()

    return opened


@pytest.fixture
def joined() -> Joined:
    """Waits until a master has so many slaves."""

    async def wait(master: Running, count: int = 1) -> None:
        service = master.node.service
        assert service is not None
        await master.until(lambda: service.acks.slave_count == count)

    return wait


@pytest.fixture
def join_by_hand(lines: Lines) -> JoinByHand:
    """Lets a slave of ours that is led by hand join the master, up to its first report or beyond it."""

    async def join(name: bytes = b"hand", *, first_report: bool = True) -> Hand:
        stream = await lines.open_stream(MASTER_ADDRESS)
        identity = NodeIdentity("cluster", "broker", 9, name.ljust(NODE_SIZE))
        limits = TransferLimits(batch_size=2048, segment_size=SEGMENT)
        core = AuthenticatedSlave(
            Bounds(), limits, trio.current_time(), identity, SECRET, bytes(NONCE_SIZE), EpochList(), from_first=True
        )
        hand = Hand(stream, core)
        await stream.send_all(core.opening())
        await stream.send_all(await hand.hear())
        first = await hand.hear()
        if first_report:
            await stream.send_all(first)
            await trio.sleep(0.01)
        return hand

    return join
