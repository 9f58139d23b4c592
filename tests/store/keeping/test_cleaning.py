"""Retention carried out on a store."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ledgermq.store.derived.consumequeue import ConsumeQueue
from ledgermq.store.keeping.cleaning import FILES_PER_TURN_MAX, Cleaner
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.store.recovery.checkpointing import CheckpointKeeper
from ledgermq.store.statuses import GetStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.slices import SLICE_ITEMS

from ...turns import counted
from ..stores import SetClock, derive_all, incoming, sim_world, small_config, small_store


async def test_files_that_are_deleted_early_are_logged_as_a_warning(tmp_path: Path) -> None:
    """With RocketMQ's rule a disk that is nearly full loses what is oldest; an operator must be able to see what that took."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk, clean_file_forcibly_enable="true") as store:
        assert isinstance(store.log, LocalCommitLog)
        for _ in range(8):
            store.put([incoming(b"x" * 1500)])
        derive_all(store)
        await store.log.flush()
        first = store.log.segments.files[0]
        disk.faults.capacity = disk.allocated_bytes() * 10 // 9

        with capture_logs() as events:
            await Cleaner(store).clean()

        assert store.log.min_offset > 0
        assert events[0] == {
            "event": "unexpired_segment_deleted",
            "log_level": "warning",
            "path": first.path,
            "used_ratio": events[0]["used_ratio"],
        }
        assert 0.85 < events[0]["used_ratio"] < 0.95


async def test_what_a_replica_removes_while_it_becomes_master_is_reported_once_it_leads(tmp_path: Path) -> None:
    """Else the log would not say where queues go on that have no message in it any more."""
    async with small_store(tmp_path, disk=SimDisk(), file_reserved_time=0) as store:
        store.put([incoming(topic="Idle"), *(incoming(b"x" * 1500) for _ in range(8))])
        await _derive_flushed(store)
        assert store.cleaner is not None

        async def lead_meanwhile(_end: int) -> bool:
            await store.become_writable()
            store.writability.role_refusal = None
            await store.queue_ends.append_pending()
            return True

        store.writability.role_refusal = "it is a replica"
        store.cleaner.may_remove = lead_meanwhile
        await store.cleaner.delete_expired()
        assert store.log.min_offset > 0

        await store.queue_ends.append_pending()

        assert store.queue_ends.missing([("Idle", 1)], store.log.min_offset) == []


async def test_files_expire_on_a_disk_without_a_free_byte(tmp_path: Path) -> None:
    """What has to be written before a file may go finds room."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        for _ in range(8):
            store.put([incoming(b"x" * 1500)])
        await _derive_flushed(store)
        assert store.cleaner is not None
        reserve = store.cleaner.reserve
        assert reserve is not None
        with trio.fail_after(60):  # another task writes it when the store has started
            while not disk.exists(reserve.path) or disk.size(reserve.path) < reserve.size:  # noqa: ASYNC110 - a file has no event
                await trio.sleep(0.001)
        disk.faults.capacity = disk.allocated_bytes()

        await store.cleaner.delete_expired()

        assert store.log.min_offset > 0


async def test_nothing_is_removed_that_only_the_log_has(tmp_path: Path) -> None:
    """Whoever derives something from the log and could not write it yet says no."""
    asked: list[int] = []

    async def refuse(end: int) -> bool:
        asked.append(end)
        await trio.lowlevel.checkpoint()
        return False

    async with small_store(tmp_path, disk=SimDisk(), file_reserved_time=0) as store:
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        await _derive_flushed(store)
        segments = store.log.files()
        assert store.cleaner is not None
        store.cleaner.may_remove = refuse

        await store.cleaner.delete_expired()

        assert asked == [segments[-2].end]
        assert [each.path for each in store.log.files()] == [each.path for each in segments]


async def test_queues_begin_where_the_log_does_although_a_later_segment_could_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a group would be given offsets whose messages are gone."""
    disk, remove = SimDisk(), SimDisk.remove
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        await _derive_flushed(store)
        kept = store.log.files()[2].path
        assert store.cleaner is not None

        def fail(disk: SimDisk, path: str) -> None:
            if path == kept:
                raise OSError(errno.EIO, "Input/output error", path)
            remove(disk, path)

        with monkeypatch.context() as patched:
            patched.setattr(SimDisk, "remove", fail)
            with pytest.raises(OSError, match="Input/output"):
                await store.cleaner.delete_expired()

        ((topic, queue_id), queue), *_ = store.queues.table.items()
        first = queue.unit(store.min_offset(topic, queue_id))
        assert first is not None
        assert store.log.files()[0].path == kept
        assert first[0] >= store.log.min_offset


async def test_queues_that_could_not_follow_the_log_do_so_at_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although that one removes nothing; and a start does not believe where they began at a clean stop before it."""
    disk = SimDisk()

    def fail(_queue: ConsumeQueue, _low: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    for at_once in (True, False):
        async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
            store.put([incoming(b"x" * 1500) for _ in range(8)])
            await _derive_flushed(store)
            assert store.cleaner is not None
            with monkeypatch.context() as patched:
                patched.setattr(ConsumeQueue, "expire", fail)
                with pytest.raises(OSError, match="Input/output"):
                    await store.cleaner.delete_expired()
            if at_once:
                await store.cleaner.clean()
                assert not store.cleaner.is_behind
        async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
            ((topic, queue_id), queue), *_ = store.queues.table.items()
            first = queue.unit(store.min_offset(topic, queue_id))
            assert first is not None
            assert first[0] >= store.log.min_offset > 0


@pytest.mark.parametrize("seed", range(5))
async def test_queues_end_where_they_did_when_a_power_cut_follows_the_removal_of_young_segments(
    tmp_path: Path, seed: int
) -> None:
    """Only records behind the recovery mark say where a queue ends whose units are not synced, so these records are kept."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH", file_reserved_time=0) as store:
        keeper = store.checkpoints
        assert isinstance(keeper, CheckpointKeeper)
        store.put([incoming(b"first", queue_id=2), incoming(b"first")])
        await _derive_flushed(store)
        await keeper.save()
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        store.put([incoming(b"last"), incoming(b"last", queue_id=2)])
        await _derive_flushed(store)
        assert store.cleaner is not None

        await store.cleaner.delete_expired()
        disk = disk.power_cut(seed)

        assert store.log.min_offset > 0
    async with small_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH", file_reserved_time=0) as store:
        derive_all(store)
        assert (store.max_offset("TopicTest", 1), store.max_offset("TopicTest", 2)) == (10, 2)
        assert store.get("TopicTest", 2, 1, 1).status is GetStatus.FOUND


async def _derive_flushed(store: MessageStore) -> None:
    await store.log.flush()
    derive_all(store)


async def test_a_segment_that_could_not_be_removed_stays_a_part_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the following ones would be removed before it, and the next start would find a gap."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        await _derive_flushed(store)
        segments = len(store.log.files())
        assert store.cleaner is not None

        def fail(_disk: SimDisk, path: str) -> None:
            raise OSError(errno.EIO, "Input/output error", path)

        with monkeypatch.context() as patched:
            patched.setattr(SimDisk, "remove", fail)
            with pytest.raises(OSError, match="Input/output"):
                await store.log.remove_oldest()

        assert len(store.log.files()) == segments
        await store.cleaner.delete_expired()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        assert len(store.log.files()) == 1


@pytest.mark.parametrize("seed", range(5))
async def test_a_power_cut_brings_back_no_removed_segment_with_a_gap_behind_it(tmp_path: Path, seed: int) -> None:
    """A removal is on the medium before the next segment is removed."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        store.put([incoming(b"x" * 1500) for _ in range(12)])
        await _derive_flushed(store)
        assert store.cleaner is not None
        await store.cleaner.delete_expired()
        assert len(store.log.files()) == 1
        disk = disk.power_cut(seed)
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        assert len(store.log.files()) <= 2


async def _save_while(monkeypatch: pytest.MonkeyPatch, keeper: CheckpointKeeper, act: Callable[[], Awaitable[None]]) -> None:
    """Save the checkpoint, and act when its queues have been synced but it is not written yet."""
    sync_queues = CheckpointKeeper._sync_queues  # pyright: ignore[reportPrivateUsage]

    async def sync_and_act(keeper: CheckpointKeeper, *, in_haste: bool) -> None:
        await sync_queues(keeper, in_haste=in_haste)
        await act()

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointKeeper, "_sync_queues", sync_and_act)
        await keeper.save()


async def test_a_mark_does_not_say_that_segments_are_there_which_were_removed_while_it_was_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With such a mark, the next start would refuse the log because of the missing segments."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        keeper, cleaner = store.checkpoints, store.cleaner
        assert isinstance(keeper, CheckpointKeeper)
        assert cleaner is not None
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        await _derive_flushed(store)
        await keeper.save()
        store.put([incoming(b"x")])
        await _derive_flushed(store)

        await _save_while(monkeypatch, keeper, cleaner.delete_expired)
        disk = disk.kill()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        assert len(store.log.files()) == 1


async def test_a_mark_that_is_counted_between_two_removals_does_not_say_that_the_later_ones_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is saved while several segments are removed one after the other, and written after the last of them."""
    disk, sync_queues = SimDisk(), CheckpointKeeper._sync_queues  # pyright: ignore[reportPrivateUsage]
    remove_oldest = LocalCommitLog.remove_oldest
    counted, removed, saved = trio.Event(), trio.Event(), trio.Event()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store, trio.open_nursery() as nursery:
        keeper, cleaner = store.checkpoints, store.cleaner
        assert isinstance(keeper, CheckpointKeeper)
        assert cleaner is not None
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        await _derive_flushed(store)
        await keeper.save()

        async def wait_for_removals(keeper: CheckpointKeeper, *, in_haste: bool) -> None:
            counted.set()
            await removed.wait()
            await sync_queues(keeper, in_haste=in_haste)

        async def save() -> None:
            await keeper.save()
            saved.set()

        async def save_meanwhile(log: LocalCommitLog) -> None:
            await remove_oldest(log)
            if not counted.is_set():
                store.put([incoming(b"x")])
                await _derive_flushed(store)
                nursery.start_soon(save)
                await counted.wait()
            elif len(log.files()) == 1:
                removed.set()
                await saved.wait()
                raise OSError(errno.EIO, "the process is killed now")

        with monkeypatch.context() as patched:
            patched.setattr(CheckpointKeeper, "_sync_queues", wait_for_removals)
            patched.setattr(LocalCommitLog, "remove_oldest", save_meanwhile)
            with pytest.raises(OSError, match="killed now"):
                await cleaner.delete_expired()
        disk = disk.kill()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        assert len(store.log.files()) == 1


async def test_a_mark_does_not_count_files_of_queues_that_were_removed_while_it_was_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With such a mark, the next start would believe that files of queues were lost, and derive all queues anew."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk, file_reserved_time=0) as store:
        keeper, cleaner = store.checkpoints, store.cleaner
        assert isinstance(keeper, CheckpointKeeper)
        assert cleaner is not None
        store.put([incoming(b"x" * 1500) for _ in range(400)])
        await _derive_flushed(store)
        await keeper.allow_removal(store.log.files()[-1].start)
        while len(store.log.files()) > 1:
            await store.log.remove_oldest()
        assert store.queues.of("TopicTest", 1).first_number == 0

        await _save_while(monkeypatch, keeper, cleaner.follow_log)
        assert store.queues.of("TopicTest", 1).first_number > 0
        disk = disk.kill()
    with capture_logs() as events:
        async with small_store(tmp_path, disk=disk, file_reserved_time=0):
            pass

    assert [event["event"] for event in events if event["log_level"] != "info"] == []


async def test_files_of_many_queues_are_deleted_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue whose topic is deleted between two turns is left alone, because its files are closed."""
    turns, expired = 0, list[tuple[int, int]]()
    async with small_store(tmp_path, disk=SimDisk()) as store, trio.open_nursery() as nursery:
        for queue_id in range(2 * SLICE_ITEMS):
            store.queues.of("T", queue_id)
        last = store.queues.of("U", 0)

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                store.drop_queues("U")
                await trio.lowlevel.checkpoint()

        def expire(queue: ConsumeQueue, log_min_offset: int) -> int:
            assert queue is not last
            expired.append((turns, queue.queue_id))
            return 0

        assert store.cleaner is not None
        with monkeypatch.context() as patched:
            patched.setattr(ConsumeQueue, "expire", expire)
            nursery.start_soon(count_turns)
            await store.cleaner.follow_log()
        nursery.cancel_scope.cancel()

    assert len({queue_id for _, queue_id in expired}) == 2 * SLICE_ITEMS
    assert max(Counter(turn for turn, _ in expired).values()) == SLICE_ITEMS


async def test_files_of_a_deleted_topic_with_many_queues_are_removed_in_several_turns(tmp_path: Path) -> None:
    """To remove a file takes a hundred times as long as to look at a queue that has none to remove."""
    queues = 2 * FILES_PER_TURN_MAX
    async with small_store(tmp_path, disk=SimDisk(), flush_disk_type="SYNC_FLUSH", file_reserved_time=0) as store:
        for queue_id in range(queues):
            store.put([incoming(queue_id=queue_id)])
        await _derive_flushed(store)
        await store.event_done(store.delete_topic("TopicTest"))
        store.put([incoming(b"x" * 1500, topic="Other") for _ in range(8)])
        await _derive_flushed(store)
        assert store.cleaner is not None

        with counted(lambda: -sum(len(queue.segments.files) for queue in store.queues.table.values())) as turns:
            await store.cleaner.delete_expired()

        assert not any(queue.segments.files for (topic, _), queue in store.queues.table.items() if topic == "TopicTest")
        assert turns.most == FILES_PER_TURN_MAX


async def test_an_operator_and_the_interval_together_delete_no_more_than_has_expired(tmp_path: Path) -> None:
    """Both would choose the same segments, and each removes the oldest one as often as it has chosen one."""
    clock = SetClock()
    disk = SimDisk(wall_ms=clock.wall_ms)
    async with small_store(tmp_path, clock, disk, file_reserved_time=1) as store:
        store.put([incoming(b"x" * 1500) for _ in range(6)])
        clock.wall += 2 * 3_600_000
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        await _derive_flushed(store)
        young = next(segment for segment in store.log.files() if clock.wall - disk.modified_ms(segment.path) < 3_600_000)
        assert young is not store.log.files()[0]
        assert store.cleaner is not None

        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.cleaner.delete_expired)
            nursery.start_soon(store.cleaner.delete_expired)

        assert store.log.min_offset == young.start


async def test_queues_that_follow_the_log_do_not_put_its_old_beginning_back_into_the_mark(
    tmp_path: Path, autojump_clock: object
) -> None:
    """They follow it at an operator's request, while segments are removed. The next start would demand the removed ones."""
    assert autojump_clock
    disk, config = SimDisk(), small_config(tmp_path, file_reserved_time=0)
    follows, removed = trio.Event(), trio.Event()
    async with open_message_store(sim_world(disk), config) as store, trio.open_nursery() as nursery:
        cleaner = store.cleaner
        assert cleaner is not None
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        await _derive_flushed(store)
        allow_removal = cleaner.before_removal

        async def be_slow_once(log_min_offset: int) -> None:
            if not follows.is_set():
                follows.set()
                with trio.move_on_after(1):
                    await removed.wait()
            await allow_removal(log_min_offset)

        cleaner.before_removal = be_slow_once
        nursery.start_soon(cleaner.follow_log)
        await follows.wait()
        await cleaner.delete_expired()
        removed.set()
        await cleaner.follow_log()
        await trio.testing.wait_all_tasks_blocked()
        assert len(store.log.files()) == 1
        disk = disk.kill()
    async with open_message_store(sim_world(disk), config) as store:
        assert len(store.log.files()) == 1


@pytest.mark.parametrize("received", [False, True])
async def test_removing_expired_segments_ends_when_the_log_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, received: bool
) -> None:
    """A slave that was away for long does that, and its oldest segment is soon the one that it is receiving."""
    remove_oldest = LocalCommitLog.remove_oldest
    async with small_store(tmp_path, disk=SimDisk(), file_reserved_time=0) as store:
        log = store.log
        assert isinstance(log, LocalCommitLog)
        store.put([incoming(b"x" * 1500) for _ in range(8)])
        await _derive_flushed(store)
        last = log.files()[-1]
        content = bytes(log.slice_from(last.start, last.size))
        assert store.cleaner is not None

        async def give_up_behind(log: LocalCommitLog) -> None:
            await remove_oldest(log)
            if not log.empty and log.files()[0] != last:
                await store.clear()
                if received:
                    log.append_raw(last.start, content)

        with monkeypatch.context() as patched:
            patched.setattr(LocalCommitLog, "remove_oldest", give_up_behind)
            await store.cleaner.delete_expired()

        assert log.files() == [last][:received]
        if received:
            derive_all(store)
            assert store.get("TopicTest", 1, store.min_offset("TopicTest", 1), 1).status is GetStatus.FOUND


@pytest.mark.parametrize("how", ["cleared", "cut"])
async def test_a_segment_is_not_removed_that_has_become_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The removal waits until the last one is on the medium, and the log of a slave may be cut meanwhile."""
    disk, run = SimDisk(), SimWorkers.run
    async with open_message_store(sim_world(disk), small_config(tmp_path)) as store:
        log = store.log
        assert isinstance(log, LocalCommitLog)
        _, second, *_ = store.put([incoming(b"x" * 1500) for _ in range(8)]).physical_offsets
        await _derive_flushed(store)
        first, last = log.files()[0], log.files()[-1]
        content = bytes(log.slice_from(last.start, last.size))

        async def cut_meanwhile(workers: SimWorkers, function: Callable[..., Any], *args: Any) -> Any:
            result = await run(workers, function, *args)
            if args == (log.directory,):
                await (store.cut(second) if how == "cut" else store.clear())
                if how == "cleared":
                    log.append_raw(last.start, content)
            return result

        with monkeypatch.context() as patched:
            patched.setattr(SimWorkers, "run", cut_meanwhile)
            with pytest.raises(OSError, match="was cut"):
                await log.remove_oldest()

        assert [file.path for file in log.files()] == [first.path if how == "cut" else last.path]


@pytest.mark.parametrize("created_again", [False, True])
@pytest.mark.parametrize("power_cut", [False, True])
async def test_the_files_of_a_deleted_queue_go_when_its_messages_have_expired(
    tmp_path: Path, *, created_again: bool, power_cut: bool
) -> None:
    """Its offsets go on nevertheless, also after a restart; the last file of another queue stays."""
    disk = SimDisk()
    async with small_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH", file_reserved_time=0) as store:
        store.put([incoming(queue_id=queue_id) for queue_id in (1, 2, 2)])
        store.put([incoming(topic="Idle")])
        await store.event_done(store.delete_topic("TopicTest"))
        if created_again:
            store.put([incoming(queue_id=2)])
        store.put([incoming(b"x" * 1500, topic="Other") for _ in range(8)])
        await _derive_flushed(store)
        assert isinstance(store.checkpoints, CheckpointKeeper)
        assert store.cleaner is not None
        await store.checkpoints.save()

        await store.cleaner.delete_expired()

        assert store.log.min_offset > 0
        queues = f"{tmp_path}/consumequeue"
        assert disk.list_directory(f"{queues}/TopicTest/1") == []
        assert len(disk.list_directory(f"{queues}/TopicTest/2")) == created_again
        assert len(disk.list_directory(f"{queues}/Idle/1")) == 1
        if power_cut:
            disk = disk.power_cut(1)
    for number in range(2):
        async with small_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH", file_reserved_time=0) as store:
            assert not store.checkpoints or not store.writability.refusal
            batch = store.put([incoming(queue_id=1), incoming(queue_id=2)])
            await _derive_flushed(store)
            assert batch.queue_offsets == [1 + number, 2 + created_again + number]
            assert store.get("TopicTest", 1, 1 + number, 1).status is GetStatus.FOUND


async def test_the_files_of_a_deleted_queue_go_although_its_deletion_expired_before_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could not be deleted at once. The file of deletions is written twice meanwhile, and another queue keeps its file."""
    disk = SimDisk()
    queues = f"{tmp_path}/consumequeue"

    def refuse(_queue: ConsumeQueue, _low: int) -> bool:
        return False

    with monkeypatch.context() as patched:
        patched.setattr(ConsumeQueue, "_is_freed_at", refuse)
        for number in range(3):
            async with small_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH", file_reserved_time=0) as store:
                if not number:
                    store.put([incoming(), incoming(topic="Idle")])
                    await store.event_done(store.delete_topic("TopicTest"))
                store.put([incoming(b"x" * 1500, topic="Other") for _ in range(8)])
                await store.event_done(store.delete_topic("Other"))
                await _derive_flushed(store)
                assert store.cleaner is not None
                await store.cleaner.delete_expired()
    assert len(disk.list_directory(f"{queues}/TopicTest/1")) == 1

    async with small_store(tmp_path, disk=disk, flush_disk_type="SYNC_FLUSH", file_reserved_time=0) as store:
        assert store.cleaner is not None
        await store.cleaner.follow_log()
        assert disk.list_directory(f"{queues}/TopicTest/1") == []
        assert len(disk.list_directory(f"{queues}/Idle/1")) == 1
        assert store.put([incoming()]).queue_offsets == [1]
        await _derive_flushed(store)
        assert store.get("TopicTest", 1, 1, 1).status is GetStatus.FOUND
