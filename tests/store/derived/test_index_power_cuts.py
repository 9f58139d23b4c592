"""What a start after a power cut has to index again."""

from __future__ import annotations

import random

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgermq.message.properties import encode_properties
from ledgermq.store.config import StoreConfig
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.world import Machine

from ..stores import incoming

CONFIG = StoreConfig(store_path_root_dir="store", mapped_file_size_commit_log=1 << 20, max_hash_slot_num=50, max_index_num=5000)
BEFORE, AFTER = 1000, 20
FOREVER = (0, 1 << 62)


def _put(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.put([incoming(properties=encode_properties({"KEYS": f"k{number}"}))])


@pytest.mark.parametrize("keys", [True, False], ids=["keys", "last ones without keys"])
async def test_a_start_indexes_again_only_what_came_after_the_last_sync(autojump_clock: MockClock, keys: bool) -> None:
    """The file that is being filled is far from full, and still it is not made anew."""
    machine = Machine.of("10.0.0.1", SimFabric(), random.Random(1))
    async with open_message_store(machine.world(), CONFIG) as store:
        _put(store, 0, BEFORE)
        if not keys:
            store.put([incoming()] * BEFORE)
        await trio.sleep(60)
        synced = store.log.max_offset
        _put(store, BEFORE, AFTER)
        await trio.sleep(3)
        machine.power_cut()

    with capture_logs() as logs:
        async with open_message_store(machine.world(), attrs.evolve(CONFIG)) as store:
            (opened,) = [entry for entry in logs if entry["event"] == "store_opened"]
            found = [bool(store.query("TopicTest", f"k{number}", 10, *FOREVER)) for number in range(BEFORE + AFTER)]

    assert opened["read_from"] >= synced
    assert opened["records_read"] <= AFTER
    assert all(found[:BEFORE])
