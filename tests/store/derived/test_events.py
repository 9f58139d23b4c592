"""A deletion is an event of the log: what it hides stays hidden, and what comes after it is never hidden."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from ledgermq.message.control import CONTROL_TOPIC, Control, control_message, decode_control, deletion_of
from ledgermq.message.errors import CorruptRecord
from ledgermq.message.flags import TRANSACTION_ROLLBACK
from ledgermq.message.layout import decode_record, encode_records, topic_field
from ledgermq.message.message import IncomingMessage
from ledgermq.store.derived import deletions as deletions_module
from ledgermq.store.derived import events as events_module
from ledgermq.store.derived.deletions import Deletion, QueueEnd
from ledgermq.store.errors import NotWritable
from ledgermq.store.message_store import MessageStore
from ledgermq.store.offline import verify
from ledgermq.store.opening import open_message_store
from ledgermq.store.statuses import GetStatus, PutStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.disk import RealDisk
from ledgermq.world.real import World

from ...turns import counted
from ..stores import BORN_HOST, derive_all, incoming, small_config, small_store

QUEUES = (0, 1)


def numbered(number: int, queue_id: int, topic: str = "TopicTest") -> IncomingMessage:
    return incoming(b"%d" % number, topic=topic, queue_id=queue_id, properties=f"KEYS\x01k{number}\x02")


def put_some(store: MessageStore, numbers: range) -> None:
    """Put messages in turn to two queues; queue offsets follow the numbers."""
    for number in numbers:
        batch = store.put([numbered(number, number % 2)])
        assert batch.statuses == [PutStatus.PUT_OK]
        assert batch.queue_offsets == [number // 2]


def bodies(store: MessageStore, topic: str = "TopicTest") -> list[int]:
    """The numbers of all messages that a consumer of the topic can get."""
    found: list[int] = []
    for queue_id in store.queue_ids(topic):
        offset = store.min_offset(topic, queue_id)
        while (result := store.get(topic, queue_id, offset, 32)).status is GetStatus.FOUND:
            found += [int(decode_record(record).body) for record in result.slices]
            offset = result.next_offset
    return sorted(found)


def by_keys(store: MessageStore, numbers: range) -> list[int]:
    """Those of the numbers that are found by their key."""
    found = (store.query("TopicTest", f"k{number}", 32, 0, 1 << 60).slices for number in numbers)
    return [int(decode_record(records[0]).body) for records in found if records]


@asynccontextmanager
async def simulated(disk: SimDisk, **changes: object) -> AsyncGenerator[MessageStore]:
    world = World(disk, SimFabric().machine("10.0.0.1"), SimClock(), random.Random(1), SimWorkers(random.Random(2)))
    async with open_message_store(world, small_config(Path("store"), **changes)) as store:
        yield store


async def delete(store: MessageStore, topic: str = "TopicTest") -> None:
    await store.event_done(store.delete_topic(topic))


async def test_what_comes_after_a_deletion_is_read_and_what_was_before_is_not(tmp_path: Path) -> None:
    """Queue offsets go on; neither consumers nor key queries find what was deleted."""
    async with small_store(tmp_path) as store:
        put_some(store, range(10))
        derive_all(store)

        await delete(store)

        assert store.topics() == set()
        assert [(store.min_offset("TopicTest", each), store.max_offset("TopicTest", each)) for each in QUEUES] == [(5, 5)] * 2
        put_some(store, range(10, 16))
        derive_all(store)
        assert bodies(store) == list(range(10, 16))
        assert by_keys(store, range(16)) == list(range(10, 16))


async def test_messages_that_are_put_while_older_ones_are_still_to_be_derived_are_kept(tmp_path: Path) -> None:
    """What is put right after the deletion is not taken for a duplicate of what is derived only afterwards."""
    async with small_store(tmp_path) as store:
        put_some(store, range(10))
        end = store.delete_topic("TopicTest")
        put_some(store, range(10, 20))
        await store.event_done(end)
        derive_all(store)

        assert bodies(store) == list(range(10, 20))


@pytest.mark.parametrize("lost", ["nothing", "consumequeue", "index", "abort", "checkpoint"])
async def test_a_deletion_holds_after_a_clean_stop(tmp_path: Path, lost: str) -> None:
    """Also where queues or index are derived anew."""
    async with small_store(tmp_path) as store:
        put_some(store, range(300))
        await delete(store)
        put_some(store, range(300, 306))
    if lost in ("consumequeue", "index"):
        for path in sorted((tmp_path / lost).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / lost).rmdir()
    elif lost == "abort":
        (tmp_path / "abort").touch()
    elif lost == "checkpoint":
        (tmp_path / "checkpoint").unlink()

    async with small_store(tmp_path) as store:
        assert bodies(store) == list(range(300, 306))
        assert store.put([numbered(306, 0)]).queue_offsets == [153]
        assert by_keys(store, range(306)) == list(range(300, 306))
    report = verify(RealDisk(), str(tmp_path))
    assert (report.problems, report.units_missing) == ([], 0)


@pytest.mark.parametrize("wait", [0.0, 0.3, 1.5, 12.0])
@pytest.mark.parametrize("end", ["kill", "power"])
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_deletion_holds_after_a_crash(
    autojump_clock: trio.testing.MockClock, flush: str, end: str, wait: float
) -> None:
    """Whenever the crash comes, what had been promised is there, and what was deleted for good is not."""
    for seed in range(10):
        disk = SimDisk(random.Random(seed))
        async with simulated(disk, flush_disk_type=flush, mapped_file_size_consume_queue=200) as store:
            for number in range(33):
                await store.put_one(numbered(number, 0))
            await trio.sleep(random.Random(seed).choice((0, 8)))
            await delete(store)
            for number in range(33, 40):
                await store.put_one(numbered(number, 0))
            await trio.sleep(wait)
            disk = disk.kill() if end == "kill" else disk.power_cut(seed)
        async with simulated(disk, flush_disk_type=flush, mapped_file_size_consume_queue=200) as store:
            found = bodies(store)
            if end == "kill" or flush == "SYNC_FLUSH" or wait > 10:
                assert found == list(range(33, 40)), seed
            else:  # the power cut may have taken the deletion, and what came before it with it
                assert found in ([*range(33, stop)] for stop in range(33, 41)) or found == list(range(len(found))), seed
            after = store.max_offset("TopicTest", 0)
            assert store.put([numbered(99, 0)]).queue_offsets == [after]


async def test_a_deletion_that_is_cut_from_the_log_has_not_happened(tmp_path: Path) -> None:
    """A log that loses the deletion, by its operator's command or its master's, has the messages again, but no older ones."""
    async with small_store(tmp_path) as store:
        put_some(store, range(6))
        await delete(store)
        put_some(store, range(6, 10))
        offset = store.log.max_offset
        await delete(store)
        put_some(store, range(10, 12))
    async with small_store(tmp_path) as store:
        assert bodies(store) == [10, 11]
        await store.cut(offset)
        derive_all(store)

        assert bodies(store) == list(range(6, 10))
    async with small_store(tmp_path) as store:
        assert bodies(store) == list(range(6, 10))


async def test_a_kind_of_event_that_nobody_knows_changes_nothing(tmp_path: Path) -> None:
    """A later version's events do not disturb this one, nor do they come into a queue or the index."""
    async with small_store(tmp_path) as store:
        put_some(store, range(4))
        await store.event_done(store.append_event(Control("barrier", {"term": 7})))
        put_some(store, range(4, 6))
        derive_all(store)

        assert bodies(store) == list(range(6))
        assert CONTROL_TOPIC not in store.topics()


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"topic": 5},
        {"topic": "../x", "queues": {"0": 3}},
        {"topic": "t", "queues": {"0": 1 << 62}},
        {"topic": "t", "queues": {"-1": 5}},
    ],
)
async def test_an_event_that_makes_no_sense_changes_nothing(tmp_path: Path, content: dict[str, object]) -> None:
    """A master's records may hold anything: it is logged, and nothing outside the queues' directory is touched."""
    async with small_store(tmp_path / "s") as store:
        put_some(store, range(4))
        with capture_logs() as events:
            await store.event_done(store.append_event(Control("topic_deleted", content)))

        assert "control_record_unreadable" in [event["event"] for event in events]
        assert bodies(store) == list(range(4))
    assert RealDisk().list_directory(str(tmp_path)) == ["s"]


async def test_no_client_can_write_an_event(tmp_path: Path) -> None:
    """The store takes no message of the control topic, whatever its flags are."""
    async with small_store(tmp_path) as store:
        batch = store.put([incoming(b"{}", topic=CONTROL_TOPIC, sys_flag=TRANSACTION_ROLLBACK)])

        assert batch.statuses == [PutStatus.MESSAGE_ILLEGAL]


async def test_a_slave_or_a_full_store_takes_no_event(tmp_path: Path) -> None:
    """Nothing is deleted where the log cannot say so."""
    async with small_store(tmp_path) as store:
        put_some(store, range(4))
        store.writability.role_refusal = "the broker is a slave"
        with pytest.raises(NotWritable, match="slave"):
            store.delete_topic("TopicTest")
        derive_all(store)

        assert bodies(store) == list(range(4))


def test_events_are_read_back_as_they_were_written() -> None:
    """Kind and content survive the record; other records are no events."""
    control = deletion_of("Tä", {0: 7, 3: 1})
    message = control_message(control, 5, BORN_HOST)
    (record,) = encode_records([message], [topic_field(CONTROL_TOPIC.encode())], [0], 6, BORN_HOST)
    assert decode_control(record) == control
    (other,) = encode_records([incoming()], [topic_field(b"TopicTest")], [0], 6, BORN_HOST)
    with pytest.raises(CorruptRecord):
        decode_control(other)


async def test_a_deletion_that_is_met_again_hides_no_later_message_of_a_queue_that_was_empty_then(tmp_path: Path) -> None:
    """The key index was taken away, so the whole log is read again, while the queues are where they were."""
    async with small_store(tmp_path) as store:
        store.put([numbered(0, 0)])
        await delete(store)
        for number in range(1, 30):
            store.put([numbered(number, 1)])
        derive_all(store)
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    (tmp_path / "index").rmdir()

    async with small_store(tmp_path) as store:
        assert bodies(store) == list(range(1, 30))


def put_wide(store: MessageStore) -> None:
    """Put a message to each of ten queues."""
    for queue_id in range(10):
        store.put([numbered(queue_id, queue_id, "Wide")])
    derive_all(store)


async def test_a_wide_topic_is_deleted_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers wait for none of them, the task that derives goes on by itself, and what is behind the event is kept."""
    monkeypatch.setattr(events_module, "QUEUES_DELETED_PER_TURN", 3)
    async with small_store(tmp_path) as store:
        put_wide(store)

        end = store.delete_topic("Wide")
        store.put([numbered(11, 1, "Wide")])
        store.catch_up()
        assert sum(store.min_offset("Wide", queue_id) for queue_id in range(10)) == 3
        store.catch_up()
        assert sum(store.min_offset("Wide", queue_id) for queue_id in range(10)) == 6
        with trio.fail_after(60):
            await store.event_done(end)
        derive_all(store)

        assert [store.min_offset("Wide", queue_id) for queue_id in range(10)] == [1] * 10
        assert bodies(store, "Wide") == [11]


async def test_a_cut_forgets_a_deletion_that_is_half_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another event may begin at the same place."""
    monkeypatch.setattr(events_module, "QUEUES_DELETED_PER_TURN", 3)
    async with small_store(tmp_path) as store:
        put_wide(store)
        before = store.log.max_offset
        store.delete_topic("Wide")
        store.catch_up()
        await store.cut(before)
        assert [store.min_offset("Wide", queue_id) for queue_id in range(10)] == [0] * 10

        store.delete_topic("Else")
        derive_all(store)
        assert sorted(bodies(store, "Wide")) == [*range(10)]


async def test_many_deletions_are_written_and_summed_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the file nor the recovery mark takes a turn that grows with their number."""
    made = 0

    def row_of(end: QueueEnd) -> list[int]:
        nonlocal made
        made += 1
        return deletions_module.row_of(end)

    async with small_store(tmp_path) as store:
        monkeypatch.setattr(events_module, "row_of", row_of)
        monkeypatch.setattr(events_module, "ROWS_PER_SLICE", 10)
        events = store.events
        for number in range(50):
            events.deletions["TopicTest", number] = [Deletion(0, 100, number + 1)]

        with counted(lambda: made) as turns:
            written = await events.to_json()
            total = await events.crc()

        assert turns.most <= 2 * 10, "a turn may end one slice and begin another"
        assert len(written["deletedQueues"]["TopicTest"]) == 50
        assert total == events.crc_of(events.deletions.items()) != events.crc_of(list(events.deletions.items())[1:])
        events.deletions.clear()
