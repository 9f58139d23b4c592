"""What a store is opened with, and what stops it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trio

from ledgermq.store.errors import ForeignQueues, LinkInStore
from ledgermq.store.recovery.checkpointing import CheckpointKeeper
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk

from .stores import SetClock, derive_all, incoming, small_store


async def test_a_stray_file_among_the_queues_is_passed_over(tmp_path: Path) -> None:
    """Somebody left it; it is neither a topic nor a queue."""
    async with small_store(tmp_path) as store:
        await store.put_one(incoming())
    (tmp_path / "consumequeue" / ".DS_Store").write_text("x")
    (tmp_path / "consumequeue" / "TopicTest" / "7").write_text("x")

    with capture_logs() as events:
        async with small_store(tmp_path) as store:
            assert store.max_offset("TopicTest", 1) == 1
    assert [event["event"] for event in events].count("stray_file_ignored") == 2


@pytest.mark.parametrize(
    "place", ["consumequeue/Linked", "consumequeue/TopicTest/9", f"commitlog/{4096:020d}", f"index/{17:017d}"]
)
async def test_a_symbolic_link_in_a_store_is_refused(tmp_path: Path, place: str) -> None:
    """What it leads to is not the store's to read, write or delete."""
    async with small_store(tmp_path / "s") as store:
        await store.put_one(incoming(properties="KEYS\x01k\x02"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (tmp_path / "s" / place).symlink_to(outside)

    with pytest.raises(LinkInStore, match=place.rpartition("/")[2]):
        async with small_store(tmp_path / "s"):
            pass
    assert (outside / "precious").exists()


@pytest.mark.parametrize("name", ["consumequeue_ext", "batchconsumequeue"])
async def test_queues_that_only_rocketmq_reads_are_refused(tmp_path: Path, name: str) -> None:
    """Consumers with a filter would pass over messages without a word."""
    (tmp_path / name / "T" / "0").mkdir(parents=True)
    (tmp_path / name / "T" / "0" / f"{0:020d}").write_bytes(bytes(48))

    with pytest.raises(ForeignQueues, match=f"{name}.*derived anew"):
        async with small_store(tmp_path):
            pass


async def test_a_slave_killed_inside_its_first_record_begins_where_its_master_does_by_then(tmp_path: Path) -> None:
    """It has a file and not one record; the segment that it began with has expired at the master."""
    async with small_store(tmp_path / "master") as master:
        for _ in range(12):
            await master.put_one(incoming(bytes(500)))
        raw = bytes(master.log.slice_from(0, 4096))
        later = bytes(master.log.slice_from(4096, 4096))
    async with small_store(tmp_path / "slave") as slave:
        slave.log.append_raw(0, raw[:300])  # type: ignore[attr-defined]
        killed = shutil.copytree(tmp_path / "slave", tmp_path / "killed")
    async with small_store(killed) as slave:
        assert slave.log.max_offset == slave.log.min_offset == 0
        slave.log.append_raw(4096, later)  # type: ignore[attr-defined]
        derive_all(slave)
        assert slave.min_offset("TopicTest", 1) == 6
        assert slave.max_offset("TopicTest", 1) == 12


async def test_before_the_first_message_there_is_no_last_one(tmp_path: Path) -> None:
    """Upper bound of a time before all that is left of a queue: RocketMQ says 0, not an offset that has expired."""
    clock = SetClock(wall=5000)
    async with small_store(tmp_path, clock) as store:
        for number in range(20):
            clock.wall = 5000 + number
            store.put([incoming(bytes(500))])
        derive_all(store)
        await trio.lowlevel.checkpoint()
        for queue in store.queues.table.values():
            queue.correct_min_offset(8192)
        assert store.offset_by_time("TopicTest", 1, 1000, upper=True) == 0
        assert store.offset_by_time("TopicTest", 1, 1000) == store.min_offset("TopicTest", 1) > 0


@pytest.mark.parametrize(("properties", "sys_flag"), [("INNER_MULTI_DISPATCH\x01%LMQ%a\x02", 0), ("", 0x80), ("", 0x40)])
async def test_a_message_for_queues_that_are_not_here_is_refused(tmp_path: Path, properties: str, sys_flag: int) -> None:
    """PUT_OK would promise that its readers find it."""
    async with small_store(tmp_path) as store:
        batch = store.put([incoming(properties=properties, sys_flag=sys_flag), incoming()])

        assert [status.name for status in batch.statuses] == ["MESSAGE_ILLEGAL", "PUT_OK"]
        assert "not stored" in batch.remark


@pytest.mark.parametrize("killed", [False, True])
async def test_an_index_that_was_switched_off_and_on_has_no_gap(tmp_path: Path, *, killed: bool) -> None:
    """What was stored meanwhile is indexed at the start that switches it on; otherwise no search would find it."""
    disk = SimDisk()

    async def put(number: int, *, enabled: bool) -> None:
        nonlocal disk
        async with small_store(tmp_path, disk=disk, message_index_enable=enabled) as store:
            for at in range(3):
                store.put([incoming(properties=f"KEYS\x01k{number}.{at}\x02")])
            derive_all(store)
            keeper = store.checkpoints
            assert isinstance(keeper, CheckpointKeeper)
            await keeper.save()
            if killed:
                disk = disk.kill()

    for number, enabled in enumerate((True, False, False, True, False)):
        await put(number, enabled=enabled)

    async with small_store(tmp_path, disk=disk) as store:
        keys = [f"k{number}.{at}" for number in range(5) for at in range(3)]
        assert [len(store.query("TopicTest", key, 32, 0, 1 << 60).slices) for key in keys] == [1] * 15
