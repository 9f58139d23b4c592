"""A log that has lost its oldest messages says where their queues go on, to whoever derives queues from it."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from ledgermq.message.control import Control, queues_end_of
from ledgermq.store.derived.queue_ends import QUEUES_PER_RECORD_MAX
from ledgermq.store.keeping.cleaning import Cleaner
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.store.statuses import GetStatus, PutStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.real import World

from ..stores import derive_all, incoming, small_config

IDLE = 3


@asynccontextmanager
async def opened(disk: SimDisk, **changes: object) -> AsyncGenerator[MessageStore]:
    world = World(disk, SimFabric().machine("10.0.0.1"), SimClock(), random.Random(1), SimWorkers(random.Random(2)))
    async with open_message_store(world, small_config(Path("store"), file_reserved_time=0, **changes)) as store:
        yield store


def put(store: MessageStore, count: int, queue_id: int, size: int = 100) -> None:
    for _ in range(count):
        assert store.put([incoming(b"x" * size, queue_id=queue_id)]).statuses == [PutStatus.PUT_OK]


async def let_idle_messages_expire(store: MessageStore, *, idle: int = IDLE) -> None:
    """Let retention delete every message of queue 1."""
    put(store, idle, 1)
    put(store, 8, 0, 1500)
    derive_all(store)
    await store.log.flush()
    await Cleaner(store).delete_expired()
    derive_all(store)
    assert store.log.min_offset > 0


def forget_derived(disk: SimDisk) -> None:
    """Leave the log alone, as on a node that another one has filled."""
    for topic in disk.list_directory("store/consumequeue"):
        disk.remove_tree(f"store/consumequeue/{topic}")
    for name in ("checkpoint", "deletedQueues.json"):
        if disk.exists(f"store/{name}"):
            disk.remove(f"store/{name}")


async def test_a_store_derived_from_a_log_without_messages_of_a_queue_gives_out_no_offset_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        await let_idle_messages_expire(store)
        assert (store.min_offset("TopicTest", 1), store.max_offset("TopicTest", 1)) == (IDLE, IDLE)
    forget_derived(disk)

    async with opened(disk) as store:
        assert (store.min_offset("TopicTest", 1), store.max_offset("TopicTest", 1)) == (IDLE, IDLE)
        assert store.get("TopicTest", 1, IDLE, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert store.put([incoming(queue_id=1)]).queue_offsets == [IDLE]
        derive_all(store)
        assert store.get("TopicTest", 1, IDLE, 1).status is GetStatus.FOUND
        assert store.get("TopicTest", 1, 0, 1).status is GetStatus.OFFSET_TOO_SMALL


@pytest.mark.parametrize("messages", [0, 1])
@pytest.mark.parametrize("wait", [0.0, 0.3, 1.5, 12.0])
@pytest.mark.parametrize("end", ["stop", "kill", "power"])
async def test_a_queue_without_units_goes_on_there_after_every_kind_of_exit(
    autojump_clock: trio.testing.MockClock, end: str, wait: float, messages: int
) -> None:
    """Nothing is derived anew for it, and nothing counts as lost."""
    idle = 150  # in the second file of the queue, whose files hold 100 units
    for seed in range(4):
        disk = SimDisk(random.Random(seed))
        async with opened(disk) as store:
            await let_idle_messages_expire(store, idle=idle)
        forget_derived(disk)
        async with opened(disk) as store:
            await trio.sleep(random.Random(seed).choice((0, 8)))
            put(store, messages, 1)
            await store.log.flush()
            await trio.sleep(wait)
            if end != "stop":
                disk = disk.kill() if end == "kill" else disk.power_cut(seed)
        with capture_logs() as events:
            async with opened(disk) as store:
                assert (store.min_offset("TopicTest", 1), store.max_offset("TopicTest", 1)) == (idle, idle + messages)
                assert store.put([incoming(queue_id=1)]).queue_offsets == [idle + messages]
        if end == "stop":
            assert not {"queue_units_lost", "queue_files_lost", "queue_offset_gap"} & {event["event"] for event in events}


async def test_what_one_record_has_said_is_said_again_before_that_record_expires(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Through many rounds of retention; a queue that is said already costs no second record in the same stretch of the log."""
    disk = SimDisk()
    async with opened(disk) as store:
        await let_idle_messages_expire(store)
        for _ in range(5):
            put(store, 6, 0, 1500)
            derive_all(store)
            await store.log.flush()
            await Cleaner(store).delete_expired()
            with capture_logs() as events:
                await Cleaner(store).delete_expired()
            assert "queue_ends_appended" not in [event["event"] for event in events]
    forget_derived(disk)

    async with opened(disk) as store:
        assert store.put([incoming(queue_id=1)]).queue_offsets == [IDLE]


async def test_the_queues_of_a_deleted_topic_go_on_when_the_deletion_has_expired(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        for _ in range(IDLE):
            store.put([incoming(topic="Gone", queue_id=0)])
        derive_all(store)
        await store.event_done(store.delete_topic("Gone"))
        await let_idle_messages_expire(store)
    forget_derived(disk)

    async with opened(disk) as store:
        assert store.put([incoming(topic="Gone", queue_id=0)]).queue_offsets == [IDLE]


async def test_more_queues_than_a_record_takes_are_said_in_several(autojump_clock: trio.testing.MockClock) -> None:
    disk, count = SimDisk(), 2 * QUEUES_PER_RECORD_MAX + 1
    async with opened(disk, mapped_file_size_commit_log=65536) as store:
        for number in range(count):
            put(store, 1, number)
        put(store, 40, count, 3000)
        derive_all(store)
        await store.log.flush()
        await Cleaner(store).delete_expired()
        assert store.log.min_offset > 0
    forget_derived(disk)

    async with opened(disk, mapped_file_size_commit_log=65536) as store:
        assert {store.max_offset("TopicTest", number) for number in range(count)} == {1}


async def test_messages_that_a_node_still_has_are_not_hidden_by_the_end_of_their_queue(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A slave may keep its log for longer than its master, whose records it takes."""
    disk = SimDisk()
    async with opened(disk) as store:
        put(store, 5, 1)
        derive_all(store)
        await store.event_done(store.append_event(queues_end_of([("TopicTest", 1, 5)])))
        assert (store.min_offset("TopicTest", 1), store.max_offset("TopicTest", 1)) == (0, 5)
        put(store, 1, 1)
    forget_derived(disk)

    async with opened(disk) as store:
        assert (store.min_offset("TopicTest", 1), store.max_offset("TopicTest", 1)) == (0, 6)


async def test_what_is_cut_from_the_log_has_not_been_said(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(SimDisk()) as store:
        put(store, 2, 0)
        await store.event_done(store.append_event(queues_end_of([("TopicTest", 1, 4)])))
        offset = store.log.max_offset
        await store.event_done(store.append_event(queues_end_of([("TopicTest", 1, 9)])))
        assert store.max_offset("TopicTest", 1) == 9

        await store.cut(offset)

        assert store.max_offset("TopicTest", 1) == 4
        await store.become_writable()
        assert store.put([incoming(queue_id=1)]).queue_offsets == [4]


async def test_a_full_disk_loses_expired_files_though_no_record_can_be_written_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """With RocketMQ's rule room comes first; what could not be said is said as soon as that is possible."""
    disk = SimDisk()
    async with opened(disk, clean_file_forcibly_enable="true") as store:
        put(store, IDLE, 1)
        put(store, 8, 0, 1500)
        derive_all(store)
        await store.log.flush()
        disk.faults.capacity, disk.faults.write_error = disk.allocated_bytes() * 10 // 9, 1.0
        cleaner = Cleaner(store)
        with capture_logs() as events:
            await cleaner.clean()
        assert "queue_ends_not_in_log" in [event["event"] for event in events]
        assert store.log.min_offset > 0
        assert store.queue_ends.pending
        disk.faults.calm()
        await trio.sleep(2)  # until the log has removed what the failed append has left
        await cleaner.clean()
        assert not store.queue_ends.pending
    forget_derived(disk)

    async with opened(disk) as store:
        assert store.put([incoming(queue_id=1)]).queue_offsets == [IDLE]


async def test_files_that_need_not_go_now_stay_until_the_ends_of_their_queues_are_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimDisk()
    async with opened(disk) as store:
        put(store, IDLE, 1)
        put(store, 8, 0, 1500)
        derive_all(store)
        await store.log.flush()
        disk.faults.write_error = 1.0
        cleaner = Cleaner(store)

        await cleaner.delete_expired()

        assert store.log.min_offset == 0
        disk.faults.calm()
        await trio.sleep(2)
        await cleaner.delete_expired()
        assert store.log.min_offset > 0


@pytest.mark.parametrize(
    "queues", [None, 5, [5], [["T"]], [["T", "0", 1]], [["T", 0, True]], [["../x", 0, 1]], [["T", 0, 1 << 62]]]
)
async def test_an_event_that_makes_no_sense_moves_no_queue(autojump_clock: trio.testing.MockClock, queues: object) -> None:
    async with opened(SimDisk()) as store:
        with capture_logs() as events:
            await store.event_done(store.append_event(Control("queues_end", {"queues": queues})))

        assert "control_record_unreadable" in [event["event"] for event in events]
        assert store.queues.table == {}


async def test_ends_stay_pending_if_the_log_begins_later_when_they_are_appended() -> None:
    """What was removed meanwhile may have held the end of another queue."""
    async with opened(SimDisk()) as store:
        put(store, 1, 1)
        begins, ends = [1], store.queue_ends

        async def remove_meanwhile(_offset: int) -> None:
            await trio.lowlevel.checkpoint()
            begins[0] = store.log.max_offset

        ends.filled_from, ends.pending = lambda: begins[0], True
        ends.restate.append(remove_meanwhile)
        await ends.append_pending()
        assert ends.pending

        ends.restate.clear()
        await ends.append_pending()
        assert not ends.pending
        assert ends.missing([("TopicTest", 1)], begins[0]) == []
