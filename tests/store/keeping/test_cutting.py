"""Cutting off the end of a log on purpose: what would be lost, what is moved aside, and what the next start believes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.store.checkpoint import Checkpoint
from ledgermq.store.errors import NoSuchOffset, StoreInUse
from ledgermq.store.keeping.cutting import accept_missing, cut_log, losses_of
from ledgermq.store.opening import open_message_store
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import RealDisk

from ..stores import STORE_HOST, incoming, sim_world, small_config, small_store

DISK = RealDisk()
SEGMENT = 4096


def contents(directory: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


@pytest.fixture
async def offsets(tmp_path: Path) -> list[int]:
    """The physical offsets of 40 messages of two queues, in three files."""
    found: list[int] = []
    async with small_store(tmp_path) as store:
        for number in range(40):
            found += store.put([incoming(b"%0140d" % number, queue_id=number % 2)]).physical_offsets
    assert found[-1] > 2 * SEGMENT
    return found


async def test_losses_are_counted_by_queue(tmp_path: Path, offsets: list[int]) -> None:
    """From the first to the last queue offset; nothing is changed."""
    before = contents(f"{tmp_path}/commitlog")

    losses = losses_of(DISK, str(tmp_path), offsets[30])

    found = {queue_id: (loss.first_offset, loss.last_offset, loss.messages) for (_, queue_id), loss in losses.queues.items()}
    assert found == {0: (15, 19, 5), 1: (15, 19, 5)}
    assert losses.damaged == 0
    assert contents(f"{tmp_path}/commitlog") == before


async def test_damaged_places_are_counted_and_passed_over(tmp_path: Path, offsets: list[int]) -> None:
    """The sizes of a record whose body has changed still lead to the next one."""
    at = offsets[32]
    path = tmp_path / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}"
    content = bytearray(path.read_bytes())
    content[at % SEGMENT + 90] ^= 1
    path.write_bytes(content)

    losses = losses_of(DISK, str(tmp_path), offsets[30])

    assert (losses.damaged, losses.unknown_bytes) == (1, offsets[33] - offsets[32])
    assert sum(loss.messages for loss in losses.queues.values()) == 9


async def test_what_lies_behind_zeros_in_a_file_is_not_passed_over_in_silence(tmp_path: Path, offsets: list[int]) -> None:
    """Lost sectors read as zeros, and the records behind them cannot be found; the zeros at the end of the log are no loss."""
    at = offsets[32]
    path = tmp_path / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}"
    content = bytearray(path.read_bytes())
    content[at % SEGMENT : at % SEGMENT + 200] = bytes(200)
    path.write_bytes(content)

    losses = losses_of(DISK, str(tmp_path), at)

    found = sum(loss.messages for loss in losses.queues.values())
    assert found == sum(offset // SEGMENT > at // SEGMENT for offset in offsets)  # those of the next file
    assert (losses.damaged, losses.unknown_bytes) == (1, len(content.rstrip(b"\0")) - at % SEGMENT)


@pytest.mark.parametrize("number", [30, 5, 0])
async def test_a_store_goes_on_behind_a_cut(tmp_path: Path, offsets: list[int], number: int) -> None:
    """Inside the last file, with whole files behind it, and at the very beginning; the files lie aside as they were."""
    before = contents(f"{tmp_path}/commitlog")
    touched = {name: content for name, content in before.items() if int(name) + SEGMENT > offsets[number]}

    cut = cut_log(DISK, str(tmp_path), offsets[number])

    assert contents(cut.aside) == touched
    async with small_store(tmp_path) as store:
        assert store.log.max_offset == offsets[number]
        assert [store.next_offset("TopicTest", queue_id) for queue_id in (0, 1)] == [(number + 1) // 2, number // 2]
        assert store.put([incoming(b"on", queue_id=0)]).queue_offsets == [(number + 1) // 2]


async def test_a_second_cut_at_the_same_place_keeps_the_copies_of_the_first(tmp_path: Path, offsets: list[int]) -> None:
    first = cut_log(DISK, str(tmp_path), offsets[30])
    async with small_store(tmp_path) as store:
        store.put([incoming(b"again", queue_id=0)])

    second = cut_log(DISK, str(tmp_path), offsets[30])

    assert second.aside != first.aside
    assert contents(first.aside) != contents(second.aside)


async def cut_store() -> tuple[SimDisk, int]:
    """The disk with a store of three files, and a physical offset in its first one."""
    disk = SimDisk()
    async with open_message_store(sim_world(disk), small_config(Path("store")), store_host=STORE_HOST) as store:
        offsets = [at for _ in range(40) for at in store.put([incoming(b"x" * 140)]).physical_offsets]
    return disk, offsets[5]


async def test_the_copies_are_on_the_medium_before_the_mark_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name of their directory, so that no power cut leaves the cut without them."""
    disk, offset = await cut_store()
    synced = list[str]()

    def sync_directory(_: SimDisk, path: str) -> None:
        synced.append(path)

    def forget(_: Checkpoint) -> None:
        synced.append("the mark is forgotten")

    monkeypatch.setattr(SimDisk, "sync_directory", sync_directory)
    monkeypatch.setattr(Checkpoint, "forget", forget)

    aside = cut_log(disk, "store", offset).aside

    assert synced[:3] == [aside, "store", "the mark is forgotten"]


async def test_a_cut_without_room_for_the_copies_leaves_nothing() -> None:
    """Each attempt would add copies to the full disk otherwise."""
    disk, offset = await cut_store()
    before = disk.list_directory("store")
    disk.faults.capacity = disk.allocated_bytes() + SEGMENT

    with pytest.raises(OSError, match="No space"):
        cut_log(disk, "store", offset)

    assert disk.list_directory("store") == before


async def test_an_offset_outside_the_log_cuts_nothing(tmp_path: Path, offsets: list[int]) -> None:
    """The error has the two ends."""
    with pytest.raises(NoSuchOffset):
        cut_log(DISK, str(tmp_path), 1 << 30)
    assert not any(name.startswith("commitlog-cut-at-") for name in DISK.list_directory(str(tmp_path)))


async def test_a_store_in_use_is_not_touched(tmp_path: Path) -> None:
    """Neither by a cut nor by accepting what is missing."""
    async with small_store(tmp_path) as store:
        (at,) = store.put([incoming(b"x")]).physical_offsets
        with pytest.raises(StoreInUse):
            cut_log(DISK, str(tmp_path), at)
        with pytest.raises(StoreInUse):
            accept_missing(DISK, str(tmp_path))


async def test_a_log_whose_end_is_missing_is_accepted_as_it_is(tmp_path: Path, offsets: list[int]) -> None:
    """The recovery mark, which names more, is gone; the queues end where the log does."""
    last = max((tmp_path / "commitlog").iterdir())
    last.unlink()

    accept_missing(DISK, str(tmp_path))

    checkpoint = Checkpoint(DISK, str(tmp_path / "checkpoint"))
    checkpoint.load()
    assert not checkpoint.mark.strip(b"\0")
    async with small_store(tmp_path) as store:
        kept = [offset for offset in offsets if offset < int(last.name)]
        assert sum(store.next_offset("TopicTest", queue_id) for queue_id in (0, 1)) == len(kept)
