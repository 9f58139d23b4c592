from __future__ import annotations

import random

from ledgermq.message.layout import encode_host
from ledgermq.message.message import IncomingMessage
from ledgermq.store.config import StoreConfig
from ledgermq.store.opening import open_message_store
from ledgermq.testing.scheduler import seeded_run
from ledgermq.testing.sim_disk import SECTOR
from ledgermq.testing.sim_network import SimFabric
from ledgermq.testing.sim_world import Machine, sim_world
from ledgermq.world.real import World

CONFIG = StoreConfig(store_path_root_dir="store", mapped_file_size_commit_log=16384, max_hash_slot_num=10, max_index_num=10)


def message(body: bytes, properties: str) -> IncomingMessage:
    return IncomingMessage("T", 0, body, properties, 0, 0, 0, encode_host("10.0.0.1", 1))


async def put(world: World, *messages: IncomingMessage) -> int:
    async with open_message_store(world, CONFIG) as store:
        for one in messages:
            await store.put_one(one)
        return store.max_offset("T", 0)


def test_a_record_whose_last_sector_was_lost_is_the_end_of_the_log() -> None:
    """The CRC covers the body: properties that read as zeros have to be noticed by themselves."""

    async def main() -> None:
        world = sim_world(1)
        long = "\x02".join(f"name{n}\x01{'x' * 20}" for n in range(60))
        await put(world, message(b"whole", "TAGS\x01a\x02"), message(b"torn", long))
        world.disk.open("store/commitlog/00000000000000000000").clear(2 * SECTOR)
        world.disk.remove("store/checkpoint")
        world.disk.open("store/abort", create_size=0)

        assert await put(world) == 1

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
