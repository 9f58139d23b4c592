"""How often queues are synced."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import pytest
import trio

from ledgermq.store.opening import open_message_store
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.real import World

from .stores import derive_all, incoming, small_config, small_world


def sim_world(disk: SimDisk) -> World:
    return attrs.evolve(small_world(disk=disk), workers=SimWorkers(random.Random(1)))


@pytest.mark.parametrize(("interval_ms", "records_read"), [(100, 0), (3_600_000, 3)])
async def test_queues_are_synced_as_often_as_is_said(interval_ms: int, records_read: int, autojump_clock: object) -> None:
    """What `flushIntervalConsumeQueue` has let go by is derived anew from the log after a power cut."""
    assert autojump_clock
    disk = SimDisk()
    # Without a key index: after a power cut that alone would have the log read back.
    keys: dict[str, object] = {"flush_interval_consume_queue": interval_ms, "flush_disk_type": "SYNC_FLUSH"}
    config = small_config(Path("store"), message_index_enable=False, **keys)
    async with open_message_store(sim_world(disk), config) as store:
        store.put([incoming() for _ in range(3)])
        derive_all(store)
        await trio.sleep(2)
        cut = disk.power_cut(1)

    with capture_logs() as events:
        async with open_message_store(sim_world(cut), config) as store:
            assert store.max_offset("TopicTest", 1) == 3

    opened = next(event for event in events if event["event"] == "store_opened")
    assert opened["records_read"] == records_read
