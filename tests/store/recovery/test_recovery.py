"""What a store finds again after every kind of exit."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import trio

from ledgermq.message.layout import decode_record
from ledgermq.store.checkpoint import FIELDS
from ledgermq.store.errors import DamagedLog, MissingLog, MissingSegment, NoSuchOffset, StoreInUse, WrongSegmentSize
from ledgermq.store.keeping.cutting import accept_missing, cut_log, losses_of
from ledgermq.store.log.local_commitlog import LocalCommitLog
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.store.statuses import GetStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import RealDisk

from ..stores import SetClock, derive_all, incoming, sim_world, small_config, small_store


async def put_seven(path: Path) -> None:
    """Seven records over two segments, the store then closed cleanly."""
    async with small_store(path) as store:
        for number in range(7):
            await store.put_one(incoming(bytes(500), properties=f"KEYS\x01k{number} all\x02"))
        derive_all(store)
        assert len(list((path / "commitlog").iterdir())) == 2


def queue_of(store: MessageStore, queue_id: int = 1) -> list[int]:
    """Physical offsets of what a consumer of the queue gets."""
    found: list[int] = []
    while (result := store.get("TopicTest", queue_id, len(found), 32)).status is GetStatus.FOUND:
        found += [decode_record(record).physical_offset for record in result.slices]
    return found


def change_last_record(path: Path) -> int:
    """Flip a bit in the body of the last record; returns where the record begins."""
    segment = max((path / "commitlog").iterdir())
    content = bytearray(segment.read_bytes())
    at = size = 0
    while next_size := int.from_bytes(content[at + size : at + size + 4], "big"):
        at, size = at + size, next_size
    content[at + 100] ^= 1
    segment.write_bytes(content)
    return int(segment.name) + at


async def test_queues_and_index_that_were_taken_away_are_rebuilt(tmp_path: Path) -> None:
    """Without consume queues, index and a clean exit, everything is found again from the log alone."""
    await put_seven(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "abort").touch()

    async with small_store(tmp_path) as store:
        assert len(queue_of(store)) == store.max_offset("TopicTest", 1) == 7
        assert len(store.query("TopicTest", "all", 32, 0, 1 << 60).slices) == 7


async def test_queues_taken_away_after_a_clean_stop_are_rebuilt_too(tmp_path: Path) -> None:
    """A clean exit is no reason to believe that the queues are there."""
    await put_seven(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")

    async with small_store(tmp_path) as store:
        assert len(queue_of(store)) == 7


async def test_an_index_taken_away_after_a_clean_stop_is_rebuilt(tmp_path: Path) -> None:
    """Messages are found by key again although nothing but the log knows their keys."""
    await put_seven(tmp_path)
    shutil.rmtree(tmp_path / "index")

    async with small_store(tmp_path) as store:
        assert len(store.query("TopicTest", "all", 32, 0, 1 << 60).slices) == 7
        assert len(queue_of(store)) == 7


async def test_a_log_whose_tail_never_reached_the_medium_ends_before_it_and_goes_on_there(tmp_path: Path) -> None:
    """After a crash a half-written last record is cut, and its place and its queue offset are used again."""
    async with small_store(tmp_path) as store:
        for _ in range(3):
            await store.put_one(incoming(bytes(500)))
        derive_all(store)
        shutil.copytree(tmp_path, tmp_path / "crashed", ignore=shutil.ignore_patterns("crashed", "lock"))
    torn_at = change_last_record(tmp_path / "crashed")

    async with small_store(tmp_path / "crashed") as store:
        assert (store.log.max_offset, store.max_offset("TopicTest", 1)) == (torn_at, 2)
        again = await store.put_one(incoming(b"again"))
        derive_all(store)
        assert (again.physical_offset, again.queue_offset) == (torn_at, 2)
        assert [decode_record(store.message_at(at) or b"").body for at in queue_of(store)][2] == b"again"


async def test_what_was_cut_off_never_comes_back(tmp_path: Path) -> None:
    """A sound record behind a torn one is gone for good, even when a new record of the torn one's size closes the gap."""
    async with small_store(tmp_path) as store:
        for number in range(3):
            await store.put_one(incoming(b"%d" % number * 500))
        derive_all(store)
        shutil.copytree(tmp_path, tmp_path / "crashed", ignore=shutil.ignore_patterns("crashed", "lock"))
    crashed = tmp_path / "crashed"
    segment = crashed / "commitlog" / f"{0:020d}"
    content = bytearray(segment.read_bytes())
    size = int.from_bytes(content[:4], "big")
    content[size + 100] ^= 1  # the second of three
    segment.write_bytes(content)

    async with small_store(crashed) as store:
        assert store.max_offset("TopicTest", 1) == 1
        await store.put_one(incoming(b"x" * 500))
        derive_all(store)
        (crashed / "copy").mkdir()
        shutil.copytree(crashed, crashed / "copy", ignore=shutil.ignore_patterns("copy", "lock"), dirs_exist_ok=True)
    async with small_store(crashed / "copy") as store:
        bodies = [decode_record(store.message_at(at) or b"").body[:1] for at in queue_of(store)]

    assert bodies == [b"0", b"x"]


async def test_damage_to_synced_records_is_refused_and_nothing_is_cut(tmp_path: Path) -> None:
    """A record that had been safely stored and is not whole any more is an error with a place and a cure, not a loss."""
    await put_seven(tmp_path)
    damaged_at = change_last_record(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}

    with pytest.raises(DamagedLog, match=f"offset {damaged_at} is damaged") as caught:
        async with small_store(tmp_path):
            pytest.fail("a damaged store was opened")

    assert caught.value.offset == damaged_at
    assert f"--at {damaged_at}" in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before


@pytest.mark.parametrize("emptied", [True, False])
async def test_a_log_that_is_not_where_it_was_is_missed(tmp_path: Path, emptied: bool) -> None:
    """A disk that is not mounted must not make an empty store of a full one: the queues would be cut to nothing."""
    await put_seven(tmp_path)
    (tmp_path / "commitlog").rename(tmp_path / "elsewhere")
    if emptied:
        (tmp_path / "commitlog").mkdir()

    with pytest.raises(MissingLog, match="synced up to offset 4"):
        async with small_store(tmp_path):
            pytest.fail("a store without its log was opened")

    shutil.rmtree(tmp_path / "commitlog", ignore_errors=True)
    (tmp_path / "elsewhere").rename(tmp_path / "commitlog")
    async with small_store(tmp_path) as store:
        assert len(queue_of(store)) == 7


async def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    """A segment that is not as long as configured stops the start, named with both sizes."""
    await put_seven(tmp_path)
    stray = tmp_path / "commitlog" / f"{8192:020d}"
    stray.write_bytes(bytes(100))

    with pytest.raises(WrongSegmentSize, match="100 bytes, the configuration says 4096"):
        async with small_store(tmp_path):
            pytest.fail("a store with a wrong segment was opened")

    assert stray.exists()


async def test_two_brokers_do_not_share_a_store(tmp_path: Path) -> None:
    """The error of the second one says who holds the lock, also inside one process; the first goes on."""
    async with small_store(tmp_path) as store:
        with pytest.raises(StoreInUse, match="in use by another broker"):
            async with small_store(tmp_path):
                pytest.fail("a store was opened twice")

        assert (await store.put_one(incoming())).status.stored


async def test_a_missing_checkpoint_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Without a checkpoint, and after a crash, the log is read from its beginning and nothing is missing."""
    await put_seven(tmp_path)
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "abort").touch()

    async with small_store(tmp_path) as store:
        assert len(queue_of(store)) == 7
        assert store.next_offsets == {("TopicTest", 1): 7}


async def test_an_unused_segment_behind_the_last_record_is_harmless(tmp_path: Path) -> None:
    """A segment of zeros that a Java broker made ahead of need is dropped, and the log goes on where it ended."""
    await put_seven(tmp_path)
    (tmp_path / "commitlog" / f"{8192:020d}").write_bytes(bytes(4096))

    async with small_store(tmp_path) as store:
        end = store.log.max_offset
        result = await store.put_one(incoming())

    assert end < 8192
    assert result.physical_offset == end
    assert result.queue_offset == 7


async def test_store_timestamps_never_go_back_with_the_clock(tmp_path: Path) -> None:
    """A wall clock that jumps back leaves the order of store times along the log alone."""
    clock = SetClock(wall=2000)

    async with small_store(tmp_path, clock) as store:
        await store.put_one(incoming())
        clock.wall = 1000
        await store.put_one(incoming())
        derive_all(store)

        assert [store.store_time("TopicTest", 1, offset) for offset in (0, 1)] == [2000, 2000]


async def test_a_damaged_log_can_be_given_up_from_the_damage_on(tmp_path: Path) -> None:
    """Cutting where the error says lets the store open with everything before; offsets go on from there."""
    await put_seven(tmp_path)
    damaged_at = change_last_record(tmp_path)

    segments = RealDisk().list_directory(str(tmp_path / "commitlog"))
    losses = losses_of(RealDisk(), str(tmp_path), damaged_at)
    cut = cut_log(RealDisk(), str(tmp_path), damaged_at)

    assert (losses.begin, losses.damaged, losses.queues) == (damaged_at, 1, {})
    assert RealDisk().list_directory(cut.aside) == segments[-1:]
    async with small_store(tmp_path) as store:
        assert store.log.max_offset <= damaged_at
        assert store.max_offset("TopicTest", 1) == 6
        result = await store.put_one(incoming(bytes(500)))
        derive_all(store)
        assert (result.physical_offset, result.queue_offset) == (damaged_at, 6)
        assert len(queue_of(store)) == 7


async def test_what_a_cut_would_lose_is_listed_and_moved_aside(tmp_path: Path) -> None:
    """Queue by queue; the files as they were are beside the log, also of a log that is elsewhere."""
    elsewhere = str(tmp_path / "elsewhere")
    async with small_store(tmp_path / "s", store_path_commit_log=elsewhere) as store:
        results = [await store.put_one(incoming(bytes(500))) for _ in range(9)]
    offset = results[4].physical_offset

    losses = losses_of(RealDisk(), str(tmp_path / "s"), offset, elsewhere)
    cut = cut_log(RealDisk(), str(tmp_path / "s"), offset, elsewhere)

    loss = losses.queues["TopicTest", 1]
    assert (loss.first_offset, loss.last_offset, loss.messages) == (4, 8, 5)
    assert cut.aside == f"{elsewhere}-cut-at-{offset}"
    assert len(RealDisk().list_directory(cut.aside)) == 2
    async with small_store(tmp_path / "s", store_path_commit_log=elsewhere) as store:
        assert len(queue_of(store)) == 4


async def test_a_missing_file_is_named_with_what_can_be_done(tmp_path: Path) -> None:
    """First, middle or last; given up by command, the store opens with what is there."""
    async with small_store(tmp_path) as store:
        for _ in range(30):
            await store.put_one(incoming(bytes(500)))
    kept = shutil.copytree(tmp_path, tmp_path.parent / "kept")
    names = sorted(path.name for path in (tmp_path / "commitlog").iterdir())
    for at, command in ((0, "--missing"), (1, "--at 4096"), (-1, "--missing")):
        shutil.rmtree(tmp_path)
        shutil.copytree(kept, tmp_path)
        (tmp_path / "commitlog" / names[at]).unlink()

        with pytest.raises((MissingSegment, DamagedLog)) as refused:
            async with small_store(tmp_path):
                pass
        assert command in str(refused.value)
        if command == "--missing":
            accept_missing(RealDisk(), str(tmp_path))
        else:
            cut_log(RealDisk(), str(tmp_path), 4096)
        async with small_store(tmp_path) as store:
            assert store.min_offset("TopicTest", 1) == (6 if at == 0 else 0)
            assert store.max_offset("TopicTest", 1) == {0: 30, 1: 6, -1: 24}[at]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_store_whose_oldest_files_an_apache_broker_has_deleted_opens(tmp_path: Path, *, clean: bool) -> None:
    """RocketMQ leaves our mark as it is, which counts all files. Its times in the checkpoint are newer, and so is the log."""
    clock, checkpoint, ours = SetClock(), tmp_path / "checkpoint", b""
    for _ in range(2):
        ours = checkpoint.read_bytes() if checkpoint.exists() else b""
        async with small_store(tmp_path, clock) as store:
            for _ in range(30):
                clock.wall += 1000
                await store.put_one(incoming(bytes(500)))
    checkpoint.write_bytes(checkpoint.read_bytes()[: FIELDS.size] + ours[FIELDS.size :])
    for path in sorted((tmp_path / "commitlog").iterdir())[:3]:
        path.unlink()
    if not clean:
        (tmp_path / "abort").touch()

    async with small_store(tmp_path, clock) as store:
        assert store.log.min_offset == 3 * 4096
        assert (store.min_offset("TopicTest", 1), store.max_offset("TopicTest", 1)) == (18, 60)
        assert len(store.get("TopicTest", 1, 18, 32).slices) == 32


async def test_only_what_is_there_and_not_in_use_is_cut(tmp_path: Path) -> None:
    """An offset outside the log and a store that is open are refused, and nothing changes."""
    await put_seven(tmp_path)

    with pytest.raises(NoSuchOffset, match="it goes from 0 to 8192"):
        cut_log(RealDisk(), str(tmp_path), 8192)
    async with small_store(tmp_path) as store:
        with pytest.raises(StoreInUse):
            cut_log(RealDisk(), str(tmp_path), 0)

        assert len(queue_of(store)) == 7


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("missing", [1, 11, 34])
async def test_a_slave_that_stopped_inside_a_record_takes_that_record_again(tmp_path: Path, missing: int, clean: bool) -> None:
    """A record whose properties were not received to the end does not count, although its body is whole and its CRC right."""
    async with small_store(tmp_path / "master") as master:
        for _ in range(3):
            await master.put_one(incoming(b"body", properties="KEYS\x01a-key-of-some-length\x02TAGS\x01a\x02"))
        raw = bytes(master.log.slice_from(0, 4096))
    third = len(raw) // 3 * 2

    async with small_store(tmp_path / "slave") as slave:
        assert isinstance(slave.log, LocalCommitLog)
        slave.log.append_raw(0, raw[:-missing])
        slave.dispatcher.wake()
        await slave.log.flush()
        derive_all(slave)
        shutil.copytree(tmp_path / "slave", tmp_path / "killed", ignore=shutil.ignore_patterns("lock"))

    async with small_store(tmp_path / ("slave" if clean else "killed")) as slave:
        assert isinstance(slave.log, LocalCommitLog)
        assert (slave.log.max_offset, slave.max_offset("TopicTest", 1)) == (third, 2)
        slave.log.append_raw(third, raw[third:])
        derive_all(slave)
        assert bytes(slave.log.slice_from(0, 4096)) == raw
        assert slave.max_offset("TopicTest", 1) == 3


WITHOUT_INDEX = small_config(Path("store"), message_index_enable=False)
"""An index that a power cut may have damaged is built anew, and queues with it, which would hide what they have lost."""

SAVED_SECONDS = 10.0
"""After it, the checkpoint and the note have been written, busy or not."""

NOTED_SECONDS = 1.5
"""After it, a note has been written and a sync has been tried once; with each one more that fails, more gets to the medium."""


async def put_and_wait(store: MessageStore, *counts: int, seconds: float = SAVED_SECONDS) -> None:
    """Put so many messages into queues 1, 2, ... and let the checkpoint and the note have their time."""
    store.put([incoming(queue_id=number) for number, count in enumerate(counts, start=1) for _ in range(count)])
    derive_all(store)
    await trio.sleep(seconds)


async def killed_with_syncs_that_failed(seed: int = 0) -> SimDisk:
    """Three messages of each queue are on the medium, sixty more (units of several sectors) only written, and then a kill."""
    disk = SimDisk(random.Random(seed))
    async with open_message_store(sim_world(disk), WITHOUT_INDEX) as store:
        await put_and_wait(store, 3, 3)
        disk.faults.sync_error = 1.0
        await put_and_wait(store, 0, 60, seconds=NOTED_SECONDS)
        killed = disk.kill()
        disk.faults.sync_error = 0.0
    return killed


async def test_what_a_killed_process_had_written_is_not_read_back(autojump_clock: object) -> None:
    """However far its syncs had got: after a mere kill nothing that was written is missing."""
    assert autojump_clock
    killed = await killed_with_syncs_that_failed()

    with capture_logs() as events:
        async with open_message_store(sim_world(killed), WITHOUT_INDEX) as store:
            assert (len(queue_of(store, 1)), len(queue_of(store, 2))) == (3, 63)

    opened = next(event for event in events if event["event"] == "store_opened")
    assert (opened["clean_exit"], opened["records_read"]) == (False, 0)


async def test_what_was_not_read_back_after_a_kill_is_on_the_medium_before_the_mark_says_so(autojump_clock: object) -> None:
    """A power cut later on takes none of it, although the process that wrote it never synced it."""
    assert autojump_clock
    for seed in range(30):
        killed = await killed_with_syncs_that_failed(seed)
        async with open_message_store(sim_world(killed), WITHOUT_INDEX) as store:
            await put_and_wait(store, 1, 0)
            after_power_cut = killed.power_cut(seed)

        async with open_message_store(sim_world(after_power_cut), WITHOUT_INDEX) as store:
            assert (len(queue_of(store, 1)), len(queue_of(store, 2))) == (4, 63)


async def test_a_note_of_before_a_power_cut_says_nothing(autojump_clock: object) -> None:
    """What was written may be gone then, so the log is read from the mark on."""
    assert autojump_clock
    killed = await killed_with_syncs_that_failed()

    for seed in range(30):
        async with open_message_store(sim_world(killed.power_cut(seed)), WITHOUT_INDEX) as store:
            assert len(queue_of(store, 1)) == 3
            assert 3 <= len(queue_of(store, 2)) == store.max_offset("TopicTest", 2) <= 63
