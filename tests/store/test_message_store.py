"""The message store as a whole; its two sides have tests of their own."""

from __future__ import annotations

from pathlib import Path

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
