from __future__ import annotations

import random

import pytest

from ledgermq.message.layout import encode_host, record_size
from ledgermq.message.message import IncomingMessage
from ledgermq.store.config import StoreConfig
from ledgermq.store.opening import open_message_store
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.sim.medium import SECTOR
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.world import Machine, sim_world
from ledgermq.world.disk import Disk
from ledgermq.world.real import World

CONFIG = StoreConfig(store_path_root_dir="store", mapped_file_size_commit_log=16384, max_hash_slot_num=10, max_index_num=10)


def message(body: bytes, properties: str) -> IncomingMessage:
    return IncomingMessage("T", 0, body, properties, 0, 0, 0, encode_host("10.0.0.1", 1))


async def put(world: World, *messages: IncomingMessage) -> int:
    async with open_message_store(world, CONFIG) as store:
        for one in messages:
            await store.put_one(one)
        return store.max_offset("T", 0)


LOG = "store/commitlog/00000000000000000000"
LONG = "".join(f"name{n}\x01{'x' * 20}\x02" for n in range(60))
"""Properties of several sectors."""


def crash(disk: Disk) -> None:
    """Have the next start find no clean exit and no recovery mark."""
    disk.remove("store/checkpoint")
    disk.open("store/abort", create_size=0)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_record_of_which_a_power_cut_took_one_sector_of_its_properties_is_the_end_of_the_log(lost: int) -> None:
    """The CRC covers the body: a sector that reads as zeros has to be noticed, also with what lies behind it all there."""

    async def main() -> None:
        world = sim_world(1)
        await put(world, message(b"whole", "TAGS\x01a\x02"), message(b"torn", LONG), message(b"behind", "TAGS\x01a\x02"))
        log = world.disk.open(LOG)
        log.write(bytes(SECTOR), lost * SECTOR)
        crash(world.disk)

        assert await put(world) == 1

    seeded_run(main, seed=1)


def test_a_record_of_which_a_power_cut_took_the_last_sector_is_the_end_of_the_log() -> None:
    async def main() -> None:
        world = sim_world(1)
        await put(world, message(b"whole", "TAGS\x01a\x02"), message(b"torn", LONG))
        end = world.disk.open(LOG).read(0, 1 << 20).rstrip(b"\0")
        world.disk.open(LOG).clear(len(end) // SECTOR * SECTOR)
        crash(world.disk)

        assert await put(world) == 1

    seeded_run(main, seed=1)


@pytest.mark.parametrize("beyond", [1, 2, 3, 4])
def test_a_record_without_properties_that_ends_just_behind_the_edge_of_a_sector_is_whole(beyond: int) -> None:
    """Its last two bytes are zeros by right, the length of no properties: in a sector of their own they are no loss."""

    async def main() -> None:
        world = sim_world(1)
        body = b"x" * (SECTOR + beyond - record_size(topic_bytes=1, body_bytes=0, properties_bytes=0))
        await put(world, message(body, ""), message(b"behind", "TAGS\x01a\x02"))
        crash(world.disk)

        assert await put(world) == 2

    seeded_run(main, seed=1)


@pytest.mark.parametrize("properties", ["a\x01b\0", "a\x01" + "\0" * SECTOR + "\x02"])
def test_properties_that_would_read_as_a_lost_sector_are_refused(properties: str) -> None:
    """Once acknowledged, they would be the end of the log after a crash, and take along all that lies behind them."""

    async def main() -> None:
        world = sim_world(1)
        async with open_message_store(world, CONFIG) as store:
            known = store.put([message(b"before", "")])
            batch = store.put([message(b"refused", properties), message(b"stored", "a\x01b\0c\x02")])
        crash(world.disk)

        assert known.statuses == [PutStatus.PUT_OK]
        assert batch.statuses == [PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK]
        assert "U+0000" in batch.remark
        assert await put(world) == 2

    seeded_run(main, seed=1)


def test_a_machine_keeps_its_store_through_power_cuts() -> None:
    async def main() -> None:
        machine = Machine.of("10.0.0.1", SimFabric(), random.Random(1))
        assert await put(machine.world(), message(b"one", "")) == 0
        machine.power_cut()
        assert await put(machine.world()) == 1
        machine.kill()
        assert await put(machine.world()) == 1

    seeded_run(main, seed=1)
