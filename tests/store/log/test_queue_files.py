"""Files of queues, and the descriptors that they take."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from shutil import copytree

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgermq.message.message import IncomingMessage
from ledgermq.store.derived.consumequeue import UNIT_SIZE
from ledgermq.store.log.queue_files import OpenFiles, QueueFile
from ledgermq.store.message_store import MessageStore
from ledgermq.store.recovery.checkpointing import CheckpointKeeper
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.world.disk import DiskFile, RealDisk

from ..stores import derive_all, incoming, small_store

QUEUES = 20


def descriptors_of(path: Path) -> int:
    """How many descriptors of this process are open below a directory."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(path))
        except FileNotFoundError:
            continue  # the descriptor of this listing
    return found


def to(topic: str, queue_id: int, body: bytes = b"x") -> IncomingMessage:
    return incoming(body, topic=topic, queue_id=queue_id)


async def save(store: MessageStore) -> None:
    """Bring the units of all queues onto the medium."""
    assert isinstance(store.checkpoints, CheckpointKeeper)
    await store.checkpoints.save()


def bodies(store: MessageStore, topic: str, queue_id: int) -> list[tuple[int, int]]:
    """The first and the next offset of a queue, and that all messages between them can be read."""
    low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    assert low == high or len(store.get(topic, queue_id, low, 100).slices) == high - low
    return [(low, high)]


async def test_queues_of_deleted_topics_hold_no_descriptors(tmp_path: Path) -> None:
    """As soon as their units are on the medium, and after a restart; created again, a queue goes on at its old offset."""
    async with small_store(tmp_path) as store:
        for queue_id in range(QUEUES):
            store.put([to("T", queue_id), to("Kept", queue_id)])
        derive_all(store)
        assert descriptors_of(tmp_path / "consumequeue") == 2 * QUEUES

        await store.event_done(store.delete_topic("T"))
        await save(store)

        assert descriptors_of(tmp_path / "consumequeue") == QUEUES
        store.put([to("T", 0)])
        derive_all(store)
        assert bodies(store, "T", 0) == [(1, 2)]
        assert descriptors_of(tmp_path / "consumequeue") == QUEUES + 1
    async with small_store(tmp_path) as store:
        assert descriptors_of(tmp_path / "consumequeue") == 0
        assert bodies(store, "T", 0) == [(1, 2)]
        assert [bodies(store, "Kept", queue_id) for queue_id in range(QUEUES)] == [[(0, 1)]] * QUEUES
        store.put([to("T", 1)])
        derive_all(store)
        assert bodies(store, "T", 1) == [(1, 2)]


async def test_records_of_more_queues_than_may_be_open_wait_for_the_next_checkpoint(tmp_path: Path) -> None:
    """The task that derives goes on by itself then, and the checkpoint does not wait for its usual number of messages."""
    async with small_store(tmp_path, flush_interval_consume_queue=50) as store:
        store.queues.open_files.most = 3
        for queue_id in range(QUEUES):
            store.put([to("T", queue_id)])
        with trio.fail_after(60):
            while store.dispatch_behind_bytes:
                assert store.queues.open_files.count <= 4
                await trio.sleep(0.01)

        for queue_id in range(QUEUES):
            assert bodies(store, "T", queue_id) == [(0, 1)]


async def test_readers_do_not_look_at_records_again_that_wait_for_files(tmp_path: Path) -> None:
    """There may be thousands of both."""
    async with small_store(tmp_path, flush_interval_consume_queue=3_600_000) as store:
        store.queues.open_files.most = 3
        for queue_id in range(QUEUES):
            store.put([to("T", queue_id)])
        looked_at: list[int] = []
        store.dispatcher.group_records = lambda records: looked_at.append(len(records))
        for _ in range(5):
            store.catch_up()

        assert looked_at == [QUEUES]
        assert bodies(store, "T", 3) == [(0, 1)]

        await save(store)
        store.catch_up()
        assert looked_at == [QUEUES, QUEUES - 4]
        store.dispatcher.group_records = None


async def test_a_start_derives_records_of_more_queues_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    async with small_store(before, flush_interval_consume_queue=3_600_000) as store:
        for queue_id in range(QUEUES):
            store.put([to("T", queue_id)])
        copytree(before, after)  # as a kill would leave it
    monkeypatch.setattr("ledgermq.store.log.queue_files.descriptors_max", lambda: 12)
    async with small_store(after) as store:
        assert store.queues.open_files.count == descriptors_of(after / "consumequeue") <= 4
        assert not store.queues.open_files.awaited
        for queue_id in range(QUEUES):
            assert bodies(store, "T", queue_id) == [(0, 1)]


async def test_queues_work_with_fewer_descriptors_than_there_are_queues(tmp_path: Path) -> None:
    """Beyond the bound a file is open while it is read, and while it has units that are not on the medium."""
    for _ in range(2):
        async with small_store(tmp_path) as store:
            files = store.queues.open_files
            files.most = 3
            before = store.max_offset("T", 0)
            for queue_id in range(QUEUES):
                store.put([to("T", queue_id)])
            while store.dispatch_behind_bytes:
                derive_all(store)
                assert files.count == descriptors_of(tmp_path / "consumequeue") <= 4
                await save(store)
            await save(store)

            assert files.count == descriptors_of(tmp_path / "consumequeue") <= 3
            for queue_id in range(QUEUES):
                assert bodies(store, "T", queue_id) == [(0, before + 1)]
            assert files.count == descriptors_of(tmp_path / "consumequeue") <= 3


def test_a_file_is_open_from_a_write_until_it_is_closed(tmp_path: Path) -> None:
    """Whether others may be open or not, because a later descriptor may not report a write-back that has failed."""
    disk, files = RealDisk(), OpenFiles(most=0)
    file = QueueFile(disk, str(tmp_path / "f"), 100, files, disk.open(str(tmp_path / "f"), create_size=100))
    assert files.count == 1
    file.close()

    assert (file.read(0, 3), files.count) == (bytes(3), 0)
    file.sync()
    assert files.count == 0
    file.write(b"abc", 0)
    file.sync()
    assert (file.read(0, 3), files.count) == (b"abc", 1)
    file.close()
    file.close()
    assert (file.read(0, 3), files.count) == (b"abc", 0)
    files.most = 1
    assert (file.read(0, 3), files.count) == (b"abc", 1)


@attrs.define(eq=False)
class NoRoom:
    """Whether, and below which directory, no file can be created."""

    below: str = ""


@attrs.frozen
class DiskWithoutInodes(RealDisk):
    """Creates no file in one directory."""

    no_room: NoRoom = attrs.field(factory=NoRoom)

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> DiskFile:
        if create_size is not None and self.no_room.below and self.no_room.below in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return super().open(path, create_size=create_size, read_only=read_only)


@pytest.mark.parametrize("together", [False, True])
async def test_a_queue_that_cannot_be_created_refuses_its_messages_alone(tmp_path: Path, *, together: bool) -> None:
    """Nothing is appended for it; others are stored and can be read, and it takes messages when there is room again."""
    disk = DiskWithoutInodes()
    async with small_store(tmp_path, disk=disk) as store:
        disk.no_room.below = "consumequeue/New/"
        batch = store.put([to("T", 0), to("New", 1), to("T", 0)])
        refused = store.put([to("New", 1), to("New", 1)], together=together)
        derive_all(store)

        assert batch.statuses == [PutStatus.PUT_OK, PutStatus.CREATE_MAPPED_FILE_FAILED, PutStatus.PUT_OK]
        assert refused.statuses == [PutStatus.CREATE_MAPPED_FILE_FAILED] * 2
        assert refused.remark == "queue 1 of New cannot get a file (No space left on device); the message was not stored"
        assert store.writability.refusal is None
        assert bodies(store, "T", 0) == [(0, 2)]
        disk.no_room.below = ""
        assert store.put([to("New", 1)], together=together).statuses == [PutStatus.PUT_OK]
        derive_all(store)
        assert bodies(store, "New", 1) == [(0, 1)]
    async with small_store(tmp_path) as store:
        assert bodies(store, "New", 1) == [(0, 1)]


UNITS = 2000 // UNIT_SIZE
"""How many units a file of a queue has in these stores."""


async def test_a_queue_whose_next_file_cannot_be_created_refuses_its_messages_alone(tmp_path: Path) -> None:
    """What fits its files is stored, and others are stored and read; it goes on when there is room again."""
    disk = DiskWithoutInodes()
    async with small_store(tmp_path, disk=disk) as store:
        store.put([to("T", 0), *[to("T", 1)] * (UNITS - 1)])
        disk.no_room.below = "consumequeue/T/1"
        batch = store.put([to("T", 1), to("T", 1), to("T", 0), to("T", 1)])
        derive_all(store)

        refused = PutStatus.CREATE_MAPPED_FILE_FAILED
        assert batch.statuses == [PutStatus.PUT_OK, refused, PutStatus.PUT_OK, refused]
        assert store.writability.refusal is None
        assert (store.max_offset("T", 1), bodies(store, "T", 0)) == (UNITS, [(0, 2)])
        disk.no_room.below = ""
        assert store.put([to("T", 1)]).statuses == [PutStatus.PUT_OK]
        derive_all(store)
        assert store.queues.of("T", 1).max_offset == UNITS + 1


async def test_a_put_prepares_all_files_that_its_messages_need(tmp_path: Path) -> None:
    """A batch may fill several. If they cannot be created later, deriving needs none; a crash leaves nothing in the way."""
    disk = DiskWithoutInodes()
    async with small_store(tmp_path, disk=disk) as store:
        batch = store.put([to("T", 1)] * (3 * UNITS + 1))
        disk.no_room.below = "consumequeue/T/1"
        derive_all(store)

        assert batch.statuses == [PutStatus.PUT_OK] * (3 * UNITS + 1)
        assert store.dispatch_behind_bytes == 0
    async with small_store(tmp_path) as store:
        assert store.queues.of("T", 1).max_offset == 3 * UNITS + 1
        store.put([to("T", 1)] * UNITS)
        derive_all(store)
        assert store.queues.of("T", 1).max_offset == 4 * UNITS + 1


async def test_prepared_files_that_were_never_used_harm_no_start(tmp_path: Path) -> None:
    """A kill may come between the creation of a queue's next files and the first unit in them."""
    async with small_store(tmp_path) as store:
        store.put([to("T", 1)] * (UNITS - 1))
        derive_all(store)
        store.queues.of("T", 1).prepare(2 * UNITS)
        copytree(tmp_path, tmp_path.with_name("killed"))
    assert len(list((tmp_path.with_name("killed") / "consumequeue/T/1").iterdir())) == 3

    for path in (tmp_path, tmp_path.with_name("killed")):
        async with small_store(path) as store:
            store.put([to("T", 1)] * UNITS)
            derive_all(store)
            assert store.queues.of("T", 1).max_offset == 2 * UNITS - 1
        async with small_store(path) as store:
            assert store.queues.of("T", 1).max_offset == 2 * UNITS - 1


async def test_a_deleted_queue_whose_file_was_freed_and_cannot_be_created_refuses_alone(tmp_path: Path) -> None:
    """The offset of its next message is known, its file is not there: that is a new file, too."""
    disk = DiskWithoutInodes()
    async with small_store(tmp_path, disk=disk) as store:
        store.put([to("T", 1)])
        await store.event_done(store.delete_topic("T"))
        queue = store.queues.of("T", 1)
        await save(store)
        while store.log.min_offset == 0:
            store.put([to("Kept", 0)] * 10)
            await store.log.flush()
            derive_all(store)
            await save(store)
            if len(store.log.files()) > 3:
                assert await store.queue_ends.append(store.log.files()[0].end)
                await store.log.remove_oldest()
        assert store.cleaner is not None
        await store.cleaner.follow_log()
        assert not queue.segments.files

        disk.no_room.below = "consumequeue/T/1"
        statuses = store.put([to("T", 1), to("Kept", 0)]).statuses
        derive_all(store)

        assert statuses == [PutStatus.CREATE_MAPPED_FILE_FAILED, PutStatus.PUT_OK]
        assert store.writability.refusal is None


async def test_a_node_that_cannot_create_a_queue_it_derives_waits_there_and_leaves_no_gap(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It says which file it waits for, once, and goes on in the order of the log as soon as there is room."""
    assert autojump_clock.rate == 0
    disk = DiskWithoutInodes()
    async with small_store(tmp_path, disk=disk) as store:
        store.put([to("T", 0), to("New", 1), to("T", 0)])
        derive_all(store)
        store.dispatcher.cut(0)  # as on a node that has copied the log
        store.queues.clear()

        disk.no_room.below = "consumequeue/New/"
        with capture_logs() as logs:
            store.dispatcher.wake()
            await trio.sleep(10)
            assert store.dispatcher.dispatched_offset == 0
            disk.no_room.below = ""
            await trio.sleep(2)

        path = f"{tmp_path}/consumequeue/New/1/{0:020d}"
        assert [(entry["event"], entry.get("path")) for entry in logs if "dispatch" in entry["event"]] == [
            ("dispatch_failed", path),
            ("dispatch_resumed", None),
        ]
        assert (bodies(store, "T", 0), bodies(store, "New", 1)) == ([(0, 2)], [(0, 1)])
