"""How often queues are synced, and what a failed sync means for the checkpoint and a clean stop."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ledgermq.message.properties import KEYS, encode_properties
from ledgermq.store.checkpoint import Checkpoint
from ledgermq.store.derived.consumequeue import ConsumeQueue
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.opening import open_message_store
from ledgermq.store.recovery.checkpointing import CheckpointKeeper
from ledgermq.store.recovery_mark import RecoveryMark
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk, SimDiskFile
from ledgermq.world.slices import in_slices

from ...turns import counted
from ..stores import derive_all, incoming, sim_world, small_config, small_store


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


async def test_a_queue_that_is_removed_while_it_is_synced_holds_up_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are closed, so that its sync fails, and it could never be synced again."""
    async with small_store(tmp_path) as store:
        keeper = store.checkpoints
        assert isinstance(keeper, CheckpointKeeper)
        store.put([incoming()])
        derive_all(store)

        def sync(queue: ConsumeQueue) -> None:
            store.drop_queues(queue.topic)
            raise OSError(errno.EBADF, "the file is closed")

        with monkeypatch.context() as patched:
            patched.setattr(ConsumeQueue, "sync", sync)
            await keeper.save()

        assert not store.dispatcher.dirty


@pytest.mark.parametrize("seed", [7, 9, 12])
async def test_an_index_file_whose_sync_failed_is_whole_after_a_clean_stop_and_a_power_cut(tmp_path: Path, seed: int) -> None:
    """A second sync alone would prove nothing, so a stop writes the file again before it syncs it."""
    disk, keyed = SimDisk(), encode_properties({KEYS: "k"})
    async with small_store(tmp_path, disk=disk) as store:
        assert store.index is not None
        store.put([incoming(properties=keyed) for _ in range(5)])
        derive_all(store)
        store.index.flush()
        partial = store.index.partial(store.log.max_offset)
        assert partial is not None
        disk.faults.sync_error = 1.0
        with pytest.raises(OSError, match="Input/output"):
            store.index.sync_partial(partial)
        disk.faults.calm()
    assert not disk.exists(f"{tmp_path}/abort")

    async with small_store(tmp_path, disk=disk.power_cut(seed)) as store:
        assert len(store.query("TopicTest", "k", 10, 0, 1 << 60).slices) == 5


async def test_a_mark_counts_many_queues_in_several_turns_while_messages_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts the units before its position, although queues that were and were not counted yet get more meanwhile."""
    async with small_store(tmp_path, flush_interval_consume_queue=3_600_000) as store:
        keeper = store.checkpoints
        assert isinstance(keeper, CheckpointKeeper)
        for queue_id in range(60):
            store.put([incoming(queue_id=queue_id), incoming(queue_id=queue_id)])
        derive_all(store)
        position, counts, turn = store.dispatcher.dispatched_offset, 0, 0
        monkeypatch.setattr("ledgermq.store.recovery.checkpointing.in_slices", partial(in_slices, size=7))
        end_before = ConsumeQueue.end_before

        def counting(queue: ConsumeQueue, physical_offset: int) -> int:
            nonlocal counts
            counts += 1
            return end_before(queue, physical_offset)

        async def receive() -> None:
            nonlocal turn
            while True:
                await trio.lowlevel.checkpoint()
                turn += 1
                store.put([incoming(queue_id=turn * 11 % 60), incoming(queue_id=60 + turn)])
                derive_all(store)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            with monkeypatch.context() as patch, counted(lambda: counts) as turns:
                patch.setattr(ConsumeQueue, "end_before", counting)
                mark = await keeper._mark(position)  # pyright: ignore[reportPrivateUsage]
            nursery.cancel_scope.cancel()

        assert (mark.queue_ends, mark.queue_begins) == (120, 0)
        assert turns.most == 7
        assert mark.record_offset + mark.record_size <= position


@pytest.mark.parametrize("change", ["cut", "removal"])
async def test_no_note_is_written_of_queues_that_were_cut_while_they_were_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """It would count what was there before and after; the next note does not."""
    async with small_store(tmp_path, flush_interval_consume_queue=3_600_000) as store:
        keeper = store.checkpoints
        assert isinstance(keeper, CheckpointKeeper)
        for queue_id in range(60):
            store.put([incoming(queue_id=queue_id)])
        derive_all(store)
        await store.log.flush()
        monkeypatch.setattr("ledgermq.store.recovery.checkpointing.in_slices", partial(in_slices, size=7))
        notes: list[bytes] = []

        def write_note(_: object, note: bytes) -> None:
            notes.append(note)

        monkeypatch.setattr(type(keeper.checkpoint), "write_note", write_note)

        async def change_meanwhile() -> None:
            if change == "cut":
                await store.begin_cut()
                await store.cut(store.dispatcher.dispatched_offset - 1)
            else:
                await keeper.allow_removal(0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change_meanwhile)
            await keeper.note()

        assert not any(note.strip(b"\0") for note in notes)
        await keeper.note()
        assert notes[-1].strip(b"\0")


@pytest.mark.parametrize("everything", [False, True], ids=["cut", "clear"])
async def test_marks_are_written_after_a_cut_that_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, everything: bool
) -> None:
    """The role of a slave changes while its mark is being erased, and in the next role nothing may have to be cut."""
    begin_cut = CheckpointKeeper.begin_cut
    async with small_store(tmp_path, disk=SimDisk(), flush_interval_consume_queue=3_600_000) as store:
        keeper = store.checkpoints
        assert isinstance(keeper, CheckpointKeeper)
        *_, last = store.put([incoming() for _ in range(3)]).physical_offsets
        derive_all(store)

        async def cancel_meanwhile(keeper: CheckpointKeeper, **arguments: Any) -> None:
            await begin_cut(keeper, **arguments)
            scope.cancel()

        with monkeypatch.context() as patched, trio.CancelScope() as scope:
            patched.setattr(CheckpointKeeper, "begin_cut", cancel_meanwhile)
            await (store.clear() if everything else store.cut(last))
        assert store.max_offset("TopicTest", 1) == (0 if everything else 2)

        store.put([incoming()])
        derive_all(store)
        await keeper.save()
        assert RecoveryMark.decode(keeper.checkpoint.mark) is not None


async def test_marks_are_written_after_a_mark_could_not_be_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was cut, and nothing will be if this node is elected before it tries again."""
    async with small_store(tmp_path, disk=SimDisk(), flush_interval_consume_queue=3_600_000) as store:
        keeper = store.checkpoints
        assert isinstance(keeper, CheckpointKeeper)
        *_, last = store.put([incoming() for _ in range(3)]).physical_offsets
        derive_all(store)

        def refuse(_checkpoint: Checkpoint, **_: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(Checkpoint, "forget", refuse)
            with pytest.raises(OSError, match="Input/output"):
                await store.cut(last)
        assert store.max_offset("TopicTest", 1) == 3

        await keeper.save()
        assert RecoveryMark.decode(keeper.checkpoint.mark) is not None


async def test_no_mark_is_written_while_log_and_queues_differ_although_a_second_cut_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one could not cut a queue, so that it still has what the log has lost."""
    async with small_store(tmp_path, disk=SimDisk(), flush_interval_consume_queue=3_600_000) as store:
        keeper = store.checkpoints
        assert isinstance(keeper, CheckpointKeeper)
        *_, last = store.put([incoming() for _ in range(3)]).physical_offsets
        derive_all(store)

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        for owner, name in ((ConsumeQueue, "truncate"), (Checkpoint, "forget")):
            with monkeypatch.context() as patched:
                patched.setattr(owner, name, refuse)
                with pytest.raises(OSError, match="Input/output"):
                    await store.cut(last)

        await keeper.save()
        assert RecoveryMark.decode(keeper.checkpoint.mark) is None


async def test_log_and_queues_agree_after_a_cut_whose_sync_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what the master sends in place of the dropped records is never derived."""
    async with small_store(tmp_path, disk=SimDisk(), flush_interval_consume_queue=3_600_000) as store:
        keeper = store.checkpoints
        assert isinstance(keeper, CheckpointKeeper)
        *_, last = store.put([incoming() for _ in range(3)]).physical_offsets
        derive_all(store)
        sync = SimDiskFile.sync

        def fail_at_the_log(file: SimDiskFile) -> None:
            if "commitlog" in file.path:
                raise OSError(errno.EIO, "Input/output error")
            sync(file)

        with monkeypatch.context() as patched:
            patched.setattr(SimDiskFile, "sync", fail_at_the_log)
            with pytest.raises(OSError, match="Input/output"):
                await store.cut(last)

        assert store.log.max_offset == store.dispatcher.dispatched_offset == last
        assert store.max_offset("TopicTest", 1) == 2
        assert isinstance(store.log, LocalCommitLog)
        await store.log.heal()
        await keeper.save()
        assert RecoveryMark.decode(keeper.checkpoint.mark) is not None
