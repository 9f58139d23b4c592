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
from ledgermq.store.local_commitlog import LocalCommitLog
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk

from .stores import derive_all, incoming, small_store
from .test_queue_ends import let_idle_messages_expire, opened


async def test_what_is_put_is_derived_and_read_back(tmp_path: Path) -> None:
    """Topics, queues and the distance to the log's end agree, before and after deriving."""
    async with small_store(tmp_path) as store:
        batch = store.put([incoming(b"one"), incoming(b"two")])
        assert store.dispatch_behind_bytes == batch.end
        derive_all(store)

        assert store.dispatch_behind_bytes == 0
        assert store.topics() == {"TopicTest"}
        assert store.queue_ids("TopicTest") == [1]
        assert store.writable
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
