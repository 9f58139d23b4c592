"""The message store as a whole; its two sides have tests of their own."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from ledgermq.message.layout import decode_record
from ledgermq.message.properties import KEYS, encode_properties
from ledgermq.store import message_store
from ledgermq.store.derived import events as store_events
from ledgermq.store.errors import DamagedLog, NotWritable
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.message_store import MessageStore
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk

from .derived.test_queue_ends import let_idle_messages_expire, opened
from .stores import derive_all, incoming, small_store


async def test_what_is_put_is_derived_and_read_back(tmp_path: Path) -> None:
    """Topics, queues and the distance to the log's end agree, before and after deriving."""
    async with small_store(tmp_path) as store:
        batch = store.put([incoming(b"one"), incoming(b"two")])
        assert store.dispatch_behind_bytes == batch.end
        derive_all(store)

        assert store.dispatch_behind_bytes == 0
        assert store.topics() == {"TopicTest"}
        assert store.queue_ids("TopicTest") == [1]
        assert store.writability.refusal is None
        assert len(store.get("TopicTest", 1, 0, 32).slices) == 2


async def test_a_store_that_becomes_writable_goes_on_behind_what_it_holds(tmp_path: Path) -> None:
    """Everything is derived first, and the queue offsets are those of the queues."""
    async with small_store(tmp_path) as store:
        store.put([incoming(), incoming(), incoming()])
        store.next_offsets.clear()

        await store.become_writable()

        assert store.dispatch_behind_bytes == 0
        assert store.next_offsets == {("TopicTest", 1): 3}


async def test_keys_of_a_log_that_begins_anew_are_found(tmp_path: Path) -> None:
    """Its offsets are below those that the index had, and count as indexed no longer."""
    keyed = encode_properties({KEYS: "k"})
    async with small_store(tmp_path) as store:
        store.put([incoming(b"x" * 500), incoming(b"old", properties=keyed)])
        derive_all(store)
        await store.clear()

        store.put([incoming(b"new", properties=keyed)])
        derive_all(store)

        assert [decode_record(found).body for found in store.query("TopicTest", "k", 10, 0, 1 << 60).slices] == [b"new"]


@pytest.mark.parametrize("end", ["kill", "power"])
async def test_a_store_that_ends_between_clearing_its_log_and_its_queues_keeps_no_queue_of_the_old_log(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Queues that began in a later file would go on behind their old messages, and those of the new log be duplicates."""
    disk = SimDisk()
    async with opened(disk) as store:
        for _ in range(150):
            store.put([incoming(b"x" * 100)])
        await let_idle_messages_expire(store, idle=2)
        store.put([incoming()])
        derive_all(store)
        assert store.queues.table["TopicTest", 1].segments.min_offset > 0
        await trio.sleep(12)

        async def clear(log: LocalCommitLog) -> None:
            await cleared(log)
            nonlocal disk
            disk = disk.kill() if end == "kill" else disk.power_cut(1)

        cleared = LocalCommitLog.clear
        monkeypatch.setattr(LocalCommitLog, "clear", clear)
        with suppress(OSError):
            await store.clear()
    with capture_logs() as events:
        async with opened(disk) as store:
            assert store.queue_ids("TopicTest") == []
            assert store.put([incoming()]).queue_offsets == [0]
    assert "derived_files_dropped" in [event["event"] for event in events]
    async with opened(disk) as store:
        assert store.max_offset("TopicTest", 1) == 1


async def test_the_next_offsets_of_many_queues_are_taken_up_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile readers find those of before."""
    monkeypatch.setattr(message_store, "QUEUES_PER_TURN", 10)
    async with small_store(tmp_path) as store:
        store.put([incoming(queue_id=queue_id) for queue_id in range(95)])
        before, seen = dict(store.next_offsets), list[int]()

        async def look() -> None:
            while True:
                seen.append(store.max_offset("TopicTest", 94))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await store.become_writable()
            nursery.cancel_scope.cancel()

        assert len(seen) >= 9
        assert set(seen) == {1}
        assert store.next_offsets == before


async def test_a_store_that_becomes_writable_with_more_queues_than_files_may_be_open_cuts_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Deriving waits for a checkpoint, which closes files, and goes on; what follows is no incomplete record."""
    async with opened(SimDisk()) as store:
        store.queues.open_files.most = 4
        store.put([incoming(queue_id=queue_id) for queue_id in range(60)])
        end = store.log.max_offset

        await store.become_writable()

        assert (store.log.max_offset, store.dispatch_behind_bytes) == (end, 0)
        assert store.next_offsets == {("TopicTest", queue_id): 1 for queue_id in range(60)}


@pytest.mark.parametrize("limited", [False, True], ids=["alone", "with a limit of other nodes"])
async def test_a_store_that_becomes_writable_behind_the_deletion_of_a_wide_topic_cuts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, limited: bool
) -> None:
    """The deletion is applied in several turns; an offset taken up in between would be given out twice."""
    monkeypatch.setattr(store_events, "QUEUES_DELETED_PER_TURN", 1)
    async with small_store(tmp_path) as store:
        store.put([incoming(queue_id=queue_id) for queue_id in range(60)])
        derive_all(store)
        store.delete_topic("TopicTest")
        store.put([incoming(topic="Other", queue_id=1)])
        end = store.log.max_offset
        assert isinstance(store.log, LocalCommitLog)
        store.log.readable_limit = end if limited else None
        store.next_offsets.clear()

        await store.become_writable()

        assert (store.log.max_offset, store.dispatch_behind_bytes) == (end, 0)
        assert store.next_offsets == {("Other", 1): 1, **{("TopicTest", queue_id): 1 for queue_id in range(60)}}


@pytest.mark.parametrize("limited", [False, True], ids=["alone", "with a limit of other nodes"])
async def test_a_store_that_becomes_writable_goes_on_behind_what_it_has_not_synced(tmp_path: Path, *, limited: bool) -> None:
    """With synchronous flush that cannot be read before; the offset of a message that other nodes hold was given out twice."""
    async with small_store(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        assert isinstance(store.log, LocalCommitLog)
        store.put([incoming(), incoming()])
        store.log.readable_limit = store.log.max_offset if limited else None
        store.next_offsets.clear()
        assert store.log.flushed_offset < store.log.max_offset

        await store.become_writable()

        assert store.dispatch_behind_bytes == 0
        assert store.next_offsets == {("TopicTest", 1): 2}


@pytest.mark.parametrize("limited", [False, True], ids=["alone", "with a limit of other nodes"])
async def test_a_store_whose_disk_refuses_to_sync_the_end_of_its_log_does_not_become_writable(*, limited: bool) -> None:
    """It becomes writable once the disk has synced that end."""
    disk = SimDisk()
    async with opened(disk, flush_disk_type="SYNC_FLUSH") as store:
        assert isinstance(store.log, LocalCommitLog)
        store.put([incoming(), incoming()])
        end = store.log.max_offset
        store.log.readable_limit = end if limited else None
        store.next_offsets.clear()
        disk.faults.sync_error = 1.0

        with pytest.raises(NotWritable, match=f"the log cannot be read from physical offset 0 to its end at {end}"):
            await store.become_writable()

        disk.faults.calm()
        await store.log.heal()
        await store.become_writable()
        assert (store.log.max_offset, store.next_offsets) == (end, {("TopicTest", 1): 2})


@pytest.mark.parametrize("missing", ["one byte", "all but seven bytes", "half", "a part of the filler"])
async def test_the_first_bytes_of_a_record_are_dropped_before_another_one_follows(tmp_path: Path, missing: str) -> None:
    """A slave has them if its master ended before it sent the rest; nobody would read what is appended behind them."""
    async with small_store(tmp_path / "master") as master, small_store(tmp_path / "slave") as store:
        for _ in range(200):
            master.put([incoming(b"x" * 1000)])
            if missing == "a part of the filler" and len(master.log.files()) > 1:
                break
        sound, end = ends_of_records(master, missing)
        received = master.log.slice_from(0, end)
        assert isinstance(store.log, LocalCommitLog)
        store.log.append_raw(0, received)

        await store.drop_incomplete_record()

        assert store.log.max_offset == sound
        assert store.put([incoming(b"after")]).statuses == [PutStatus.PUT_OK]
        derive_all(store)
        assert store.dispatch_behind_bytes == 0


def ends_of_records(master: MessageStore, missing: str) -> tuple[int, int]:
    """Where a whole record of the first segment ends, and where a copy ends that lacks a part of what follows."""
    ends = [0, *(end for end, parts in master.log.records(0, master.log.segment_end(0)) if parts is not None)]
    if missing == "a part of the filler":
        return ends[-1], ends[-1] + 8
    size = ends[3] - ends[2]
    return ends[2], ends[2] + {"one byte": size - 1, "all but seven bytes": 7, "half": size // 2}[missing]


async def test_a_damaged_record_is_never_taken_for_an_incomplete_one(tmp_path: Path) -> None:
    """What follows it may have been acknowledged: nothing is cut, and the store does not become writable."""
    async with small_store(tmp_path / "master") as master, small_store(tmp_path / "slave") as store:
        master.put([incoming(b"x" * 100) for _ in range(10)])
        end = master.log.max_offset
        received = bytearray(master.log.slice_from(0, end))
        at = next(end for end, _ in master.log.records(0, end))
        received[at + 4 : at + 8] = b"rot!"
        assert isinstance(store.log, LocalCommitLog)
        store.log.append_raw(0, received)

        with pytest.raises(DamagedLog, match=f"physical offset {at} is damaged"):
            await store.become_writable()

        assert store.log.max_offset == end
