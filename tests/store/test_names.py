"""What a peer, a record or a file may make into a path or an offset."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.message.layout import encode_record
from ledgermq.store.names import QUEUE_ID_MAX, QUEUE_OFFSET_MAX, queue_fault, queue_id_of, queue_offset_fault
from ledgermq.testing.logs import capture_logs
from ledgermq.world.disk import RealDisk

from .stores import BORN_HOST, derive_all, incoming, small_store


@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "a|b", "ünï", "rmq.sys", "..."])
def test_a_topic_that_names_a_directory_may_have_queues(topic: str) -> None:
    """RocketMQ uses the topic as it is, and so do we."""
    assert queue_fault(topic, 0) is None


@pytest.mark.parametrize("topic", ["", ".", "..", "../x", "/etc", "a/b", "a\0b", "x" * 256, "ü" * 128])
def test_a_topic_that_leads_elsewhere_has_no_queue(topic: str) -> None:
    """No path is made of it."""
    assert queue_fault(topic, 0) is not None


@pytest.mark.parametrize("number", [-1, QUEUE_ID_MAX + 1, 1 << 80])
def test_a_queue_id_is_a_java_int(number: int) -> None:
    """Others have no directory that RocketMQ would read."""
    assert queue_fault("T", number) is not None


@pytest.mark.parametrize("number", [-1, QUEUE_OFFSET_MAX + 1])
def test_a_queue_offset_is_one_that_messages_can_reach(number: int) -> None:
    """Beyond it the position of a unit is no long any more."""
    assert queue_offset_fault(number) is not None


def test_a_directory_of_another_name_is_no_queue() -> None:
    """Only what the store itself would call a directory is one of its queues."""
    assert [queue_id_of(name) for name in ("0", "17", "007", "-1", "٣", "x", "", "99999999999")] == [0, 17] + [None] * 6


@pytest.mark.parametrize(
    ("topic", "queue_id", "queue_offset"),
    [("../../../victim", 0, 0), ("..", 0, 0), ("/victim", 0, 0), ("Bad", -1, 0), ("T", 1, 1 << 61), ("T", 1, 1 << 40)],
)
async def test_a_masters_record_that_names_another_place_makes_nothing_there(
    tmp_path: Path, topic: str, queue_id: int, queue_offset: int
) -> None:
    """Nothing outside the queues' directory is made, the disk is not filled, and the records around it are read."""
    async with small_store(tmp_path / "s" / "t" / "o") as store:
        store.put([incoming(topic="T")])
        end = store.log.max_offset
        record = encode_record(
            topic.encode(), queue_id, queue_offset, b"body", b"", 0, 0, 5, BORN_HOST, 5, BORN_HOST, physical_offset=end
        )
        store.log.append_raw(end, record)  # type: ignore[attr-defined]
        with capture_logs() as events:
            derive_all(store)
        store.put([incoming(topic="T")])
        derive_all(store)

        assert {event["event"] for event in events} & {"record_without_queue", "queue_offset_impossible"}
        assert store.max_offset("T", 1) == 2
        await store.clear()
    disk = RealDisk()
    assert disk.list_directory(str(tmp_path)) == ["s"]
    assert disk.list_directory(str(tmp_path / "s" / "t")) == ["o"]
