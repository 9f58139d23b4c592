"""Reading back the cold part of a log: what is found, in which order, and how much at a time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import attrs
import pytest

from ledgermq.store import offline
from ledgermq.store.keeping import scrub
from ledgermq.store.keeping.scrub import CLASSIC, Scrubber, check
from ledgermq.store.message_store import MessageStore
from ledgermq.store.offline import log_files
from ledgermq.store.opening import open_message_store
from ledgermq.testing.sim.disk import SimDisk

from ..stores import STORE_HOST, SetClock, incoming, sim_world, small_config, small_store
from ..watched_disk import WatchedDisk


def scrubber(store: MessageStore) -> tuple[Scrubber, list[int]]:
    mended: list[int] = []

    def mend(offset: int) -> bool:
        mended.append(offset)
        return True

    return Scrubber(store=store, rate=lambda: 1, framing_at=lambda _: CLASSIC, mend=mend), mended


def put(store: MessageStore, count: int) -> list[int]:
    return [offset for _ in range(count) for offset in store.put([incoming(b"x" * 300)]).physical_offsets]


def damage(store: MessageStore, offset: int, at: int) -> None:
    """Change one byte of a record."""
    file = next(file for file in store.log.files() if file.start <= offset < file.start + file.size)
    handle = store.world.disk.open(file.path)
    position = offset - file.start + at
    handle.write(bytes([handle.read(position, 1)[0] ^ 1]), position)
    handle.close()


async def scrubbed(store: MessageStore) -> Scrubber:
    """Scrub all that is cold."""
    one, _ = scrubber(store)
    await store.log.flush()
    await one.step(1 << 30)
    return one


async def test_a_pass_reads_all_files_but_the_one_that_is_written(tmp_path: Path) -> None:
    async with small_store(tmp_path) as store:
        put(store, 40)

        one = await scrubbed(store)

        files = store.log.files()
        assert len(files) > 3
        assert one.checked_bytes == files[-1].start
        assert one.found == 0


async def test_every_damaged_record_is_found(tmp_path: Path) -> None:
    """A damaged body does not hide those behind it; a copy is asked for once for each."""
    async with small_store(tmp_path) as store:
        offsets = put(store, 40)
        await store.log.flush()
        for number in (0, 3, 4, 20):
            damage(store, offsets[number], 120)
        one, mended = scrubber(store)

        await one.step(1 << 30)

        assert mended == [offsets[number] for number in (0, 3, 4, 20)]
        assert store.damaged == set(mended)


async def test_a_record_of_which_the_size_is_damaged_is_found(tmp_path: Path) -> None:
    """Those behind it in the same file cannot be; the next file is read again."""
    async with small_store(tmp_path) as store:
        offsets = put(store, 40)
        await store.log.flush()
        damage(store, offsets[2], 0)
        damage(store, offsets[20], 120)

        one = await scrubbed(store)

        assert store.damaged == {offsets[2], offsets[20]}
        assert one.found == 2


async def test_records_that_the_disk_does_not_give_are_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One is cut by the lost bytes and the next has none left, not even its size, which hides those behind it in the file."""
    disk = WatchedDisk()
    async with small_store(tmp_path, disk=disk) as store:
        offsets = put(store, 40)
        await store.log.flush()
        first, second = store.log.files()[:2]
        disk.unreadable[first.path] = range(offsets[2] + 120, offsets[2] + 130)
        at = next(offset for offset in offsets if offset > second.start) - second.start
        disk.unreadable[second.path] = range(at - 10, at + 100)
        one, mended = scrubber(store)

        await one.step(1 << 30)

        expected = [offsets[2], second.start, second.start + at]
        assert mended == expected
        assert first.path in caplog.text
        disk.unreadable.clear()
        await one.look_again()
        assert store.damaged == set()


async def test_a_disk_that_reads_nothing_ends_no_step(tmp_path: Path) -> None:
    """Also one that does not even open the file, as one that has expired meanwhile: nothing is known of it then."""
    disk = SimDisk()
    async with open_message_store(sim_world(disk), small_config(Path("store")), store_host=STORE_HOST) as store:
        put(store, 40)
        await store.log.flush()
        one, _ = scrubber(store)
        disk.faults.open_error = 1.0
        await one.step(1 << 30)
        assert one.found == one.checked_bytes == 0
        disk.faults.calm()

        disk.faults.read_error = 1.0
        await one.step(1 << 30)
        await one.look_again()

        assert store.damaged == {file.start for file in store.log.files()[:-1]}
        disk.faults.calm()


async def test_a_step_reads_no_more_than_it_may(tmp_path: Path) -> None:
    """But for the rest of the last record; steps together read everything once."""
    async with small_store(tmp_path) as store:
        put(store, 40)
        await store.log.flush()
        one, _ = scrubber(store)
        largest, cold, before = 0, store.log.files()[-1].start, 0
        for _ in range(1000):
            await one.step(500)
            largest = max(largest, one.checked_bytes - before)
            before = one.checked_bytes

        assert one.checked_bytes == cold
        assert 0 < largest < 4096


async def test_the_next_pass_begins_a_day_later(tmp_path: Path) -> None:
    clock = SetClock()
    async with small_store(tmp_path, clock) as store:
        put(store, 40)
        one = await scrubbed(store)
        once = one.checked_bytes
        await one.step(1 << 30)
        await one.step(1 << 30)
        assert one.checked_bytes == once

        clock.seconds += scrub.PASS_SECONDS_MIN
        await one.step(1 << 30)

        assert one.checked_bytes == 2 * once


async def test_what_has_expired_is_no_longer_looked_at(tmp_path: Path) -> None:
    async with small_store(tmp_path) as store:
        offsets = put(store, 40)
        await store.log.flush()
        damage(store, offsets[0], 120)
        one = await scrubbed(store)
        assert store.damaged == {0}

        await store.log.remove_oldest()
        await one.look_again()

        assert store.damaged == set()


async def test_what_is_sound_again_is_served_again(tmp_path: Path) -> None:
    """Another node's copy has replaced it; until then a copy is asked for each time."""
    async with small_store(tmp_path) as store:
        offsets = put(store, 40)
        await store.log.flush()
        damage(store, offsets[1], 120)
        one, mended = scrubber(store)
        await one.step(1 << 30)
        await one.look_again()
        assert mended == [offsets[1]] * 2

        damage(store, offsets[1], 120)
        await one.look_again()

        assert store.damaged == set()


async def test_what_nothing_replaces_is_read_again_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no more of the file than the record, until it is sound again."""
    monkeypatch.setattr(scrub, "PAUSE_SECONDS_MAX", 60.0)
    clock, disk = SetClock(), WatchedDisk()
    async with small_store(tmp_path, clock, disk=disk) as store:
        offsets = put(store, 40)
        await store.log.flush()
        damage(store, offsets[1], 120)
        asked: list[float] = []

        def mend(offset: int) -> bool:
            assert offset == offsets[1]
            asked.append(clock.seconds)
            return False

        one = Scrubber(store=store, rate=lambda: 0, framing_at=lambda _: CLASSIC, mend=mend)
        store.damaged.add(offsets[1])
        disk.opened.clear()
        for _ in range(400):
            await one.tick()
            clock.seconds += 1

        pauses = [after - before for before, after in pairwise(asked)]
        assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
        assert max(size for file in disk.opened for size in file.read_sizes) <= offsets[1] - offsets[0]

        damage(store, offsets[1], 120)
        clock.seconds += scrub.PAUSE_SECONDS_MAX
        await one.tick()
        assert store.damaged == set()


async def test_a_file_is_checked_from_the_record_at_which_a_step_begins(tmp_path: Path) -> None:
    async with small_store(tmp_path) as store:
        offsets = put(store, 40)
        first = log_files(store.world.disk, str(tmp_path))[0]

        assert check(first, offsets[2], 1, CLASSIC) == scrub.Checked(offsets[3], ())

        shifted = attrs.evolve(CLASSIC, header_size=5)
        assert check(first, offsets[2] + 1, 1, shifted).damaged == (offsets[2] + 6,)


@pytest.mark.parametrize("piece_bytes", [300, 500, 1000])
async def test_records_that_reach_beyond_a_piece_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(offline, "PIECE_BYTES", piece_bytes)
    async with small_store(tmp_path) as store:
        offsets = put(store, 40)
        await store.log.flush()
        damage(store, offsets[3], 120)

        one = await scrubbed(store)

        assert store.damaged == {offsets[3]}
        assert one.checked_bytes == store.log.files()[-1].start
