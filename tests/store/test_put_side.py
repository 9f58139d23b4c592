"""Putting and getting messages: every status, and what a failing disk does to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from ledgermq.message.layout import decode_record
from ledgermq.store.config import SCHEDULE_TOPIC
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.store.put_side import TIMESTAMP_LEAD_MS_MAX
from ledgermq.store.statuses import GetStatus, PutStatus
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.network import TcpNetwork
from ledgermq.world.real import World

from .stores import STORE_HOST, SetClock, derive_all, incoming, small_config, small_store


@asynccontextmanager
async def simulated_store(disk: SimDisk, **changes: object) -> AsyncGenerator[MessageStore]:
    """A store on a simulated disk; everything it waits for takes no time under a mock clock."""
    world = World(disk, TcpNetwork(), SetClock(), disk.rng, SimWorkers())
    async with open_message_store(world, small_config(Path("/store"), **changes), store_host=STORE_HOST) as store:
        yield store


async def test_queue_offsets_are_dense_and_counted_per_queue(tmp_path: Path) -> None:
    """Each queue counts from 0, whatever else is put between."""
    async with small_store(tmp_path) as store:
        batch = store.put([incoming(queue_id=number % 2) for number in range(6)])

        assert batch.queue_offsets == [0, 0, 1, 1, 2, 2]
        assert batch.statuses == [PutStatus.PUT_OK] * 6
        assert batch.physical_offsets == sorted(set(batch.physical_offsets))


async def test_an_illegal_message_does_not_hold_up_its_neighbours(tmp_path: Path) -> None:
    """Too large a record, too long properties or topic are refused one by one, and leave no gap in the queue."""
    async with small_store(tmp_path) as store:
        batch = store.put(
            [
                incoming(b"a"),
                incoming(bytes(4096)),
                incoming(properties="p" * 32768),
                incoming(topic="t" * 128),
                incoming(b"b"),
            ]
        )
        derive_all(store)

        illegal = PutStatus.MESSAGE_ILLEGAL
        assert batch.statuses == [PutStatus.PUT_OK, illegal, illegal, illegal, PutStatus.PUT_OK]
        assert batch.queue_offsets == [0, -1, -1, -1, 1]
        assert [decode_record(record).body for record in store.get("TopicTest", 1, 0, 32).slices] == [b"a", b"b"]


async def test_what_belongs_together_is_put_whole_and_in_one_segment(tmp_path: Path) -> None:
    """A batch that does not fit the rest of a segment goes to the next one whole; one illegal item refuses all."""
    async with small_store(tmp_path) as store:
        store.put([incoming(bytes(3000))])
        together = store.put([incoming(bytes(300)) for _ in range(5)], together=True)
        refused = store.put([incoming(), incoming(topic="")], together=True)

        assert together.physical_offsets[0] == 4096
        assert refused.statuses == [PutStatus.MESSAGE_ILLEGAL] * 2
        assert store.next_offsets["TopicTest", 1] == 6


async def test_a_run_of_messages_fills_segments_as_if_put_one_by_one(tmp_path: Path) -> None:
    """A put that crosses a segment border splits between records, never inside one."""
    async with small_store(tmp_path / "run") as run, small_store(tmp_path / "single") as single:
        offsets = run.put([incoming(bytes(700)) for _ in range(12)]).physical_offsets
        one_by_one = [single.put([incoming(bytes(700))]).physical_offsets[0] for _ in range(12)]

    assert offsets == one_by_one
    assert [path.read_bytes() for path in sorted((tmp_path / "run" / "commitlog").iterdir())] == [
        path.read_bytes() for path in sorted((tmp_path / "single" / "commitlog").iterdir())
    ]


async def test_the_delay_topic_keeps_due_times_for_tags_codes(tmp_path: Path) -> None:
    """In the delay topic a unit's tags code is the store time plus the level's delay."""
    clock = SetClock(wall=5000)
    async with small_store(tmp_path, clock) as store:
        store.put([incoming(topic=SCHEDULE_TOPIC, queue_id=2, properties="DELAY\x013\x02")])
        derive_all(store)

        assert store.units(SCHEDULE_TOPIC, 2, 0, 1)[0][2] == 15_000


async def test_a_full_disk_is_answered_as_such_and_recovers(autojump_clock: trio.testing.MockClock) -> None:
    """ENOSPC refuses the put with DISK_FULL, and later puts too; no gap is left, and puts go on when there is space."""
    disk = SimDisk()
    async with simulated_store(disk) as store:
        store.put([incoming()])
        disk.faults.capacity = 0
        full = store.put([incoming(bytes(2000))])
        later = store.put([incoming()])
        disk.faults.capacity = None
        await trio.sleep(store.config.clean_resource_interval / 1000 + 1)
        after = store.put([incoming()])

    assert full.statuses == later.statuses == [PutStatus.DISK_FULL]
    assert "not stored" in full.remark
    assert "the disk is full" in later.remark
    assert after.statuses == [PutStatus.PUT_OK]
    assert after.queue_offsets == [1]


async def test_a_message_whose_queue_cannot_be_written_is_read_all_the_same(autojump_clock: trio.testing.MockClock) -> None:
    """Its record is in the log and was acknowledged; that a full disk does not take its unit is no reason to wait."""
    disk = SimDisk()
    async with simulated_store(disk) as store:
        store.put([incoming(b"first"), incoming(b"second")])
        disk.faults.write_error = 1.0
        with pytest.raises(OSError, match="Input/output"):
            derive_all(store)
        topic, queue_id = next(iter(store.queues.table))

        both, last = store.get(topic, queue_id, 0, 32), store.get(topic, queue_id, 1, 32)
        disk.faults.write_error = 0.0
        derive_all(store)

        for found in (both, last, store.get(topic, queue_id, 0, 32)):
            assert (found.status, found.next_offset) == (GetStatus.FOUND, 2)
        assert [decode_record(each).body for each in both.slices] == [b"first", b"second"]
        assert [decode_record(each).body for each in last.slices] == [b"second"]


async def test_a_failed_sync_is_never_an_acknowledgement(autojump_clock: trio.testing.MockClock) -> None:
    """After EIO from a sync, waiting puts get FLUSH_DISK_TIMEOUT and new ones are refused until the bytes are safe."""
    disk = SimDisk()
    async with simulated_store(disk, flush_disk_type="SYNC_FLUSH") as store:
        await store.put_one(incoming())
        disk.faults.sync_error = 1.0
        failed = await store.put_one(incoming())
        refused = await store.put_one(incoming())
        disk.faults.sync_error = 0.0
        await trio.sleep(5)
        healed = await store.put_one(incoming())

    assert failed.status is PutStatus.FLUSH_DISK_TIMEOUT
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "failed to sync" in refused.remark
    assert (healed.status, healed.queue_offset) == (PutStatus.PUT_OK, 2)


async def test_sync_flush_groups_waiting_puts_into_one_sync(autojump_clock: trio.testing.MockClock) -> None:
    """A hundred puts that come while a sync is under way cost two or three syncs of the log, not a hundred."""
    disk = SimDisk()
    async with simulated_store(disk, flush_disk_type="SYNC_FLUSH") as store:
        await store.put_one(incoming())
        before = disk.syncs
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(store.put_one, incoming())
        used = disk.syncs - before

    assert used <= 8


async def test_consumers_see_nothing_that_a_power_cut_could_take_back(autojump_clock: trio.testing.MockClock) -> None:
    """Under SYNC_FLUSH a message becomes visible only after its sync."""
    disk = SimDisk()
    async with simulated_store(disk, flush_disk_type="SYNC_FLUSH") as store:
        store.put([incoming()])
        store.dispatcher.round()
        hidden = store.max_offset("TopicTest", 1)
        await trio.sleep(1)
        shown = store.max_offset("TopicTest", 1)

    assert (hidden, shown) == (0, 1)


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [("role_refusal", "the broker is a slave", "slave"), ("shut_down", True, "shutting down")],
)
async def test_a_store_that_must_not_take_messages_says_why(tmp_path: Path, flag: str, value: object, expected: str) -> None:
    """A slave and a stopping broker refuse puts with SERVICE_NOT_AVAILABLE and their reason."""
    async with small_store(tmp_path) as store:
        setattr(store.writability, flag, value)
        store.writability.disk_full = True  # whose reason it is not
        batch = store.put([incoming()])

        assert batch.statuses == [PutStatus.SERVICE_NOT_AVAILABLE]
        assert expected in batch.remark


async def test_a_clock_that_was_a_year_ahead_stamps_no_message_after_its_correction(tmp_path: Path) -> None:
    """Small steps back are hidden, so that searches by time find their way; a long lead would hide the time of all messages."""
    clock = SetClock()
    start, year = clock.wall, 365 * 86_400_000
    async with small_store(tmp_path, clock) as store:
        for wall in (start, start + year, start + 1, start + 2, start + 2 - TIMESTAMP_LEAD_MS_MAX, start + 3):
            clock.wall = wall
            store.put([incoming()])
        derive_all(store)

        expected = [start, start + year, start + 1, start + 2, start + 2, start + 3]
        assert [store.store_time("TopicTest", 1, offset) for offset in range(6)] == expected
        clock.wall = start + year
        store.put([incoming()])
    clock.wall = start + 4
    async with small_store(tmp_path, clock) as store:
        store.put([incoming()])
        derive_all(store)
        assert store.store_time("TopicTest", 1, 7) == start + 4
