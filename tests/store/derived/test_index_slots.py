"""The slot table in memory against the slots of the file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.store.derived.index_slots import PAGE_SLOTS, SlotTable
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import DiskFile

from ..watched_disk import WatchedDisk, WatchedFile

AT = 40
COUNT = 3 * PAGE_SLOTS + 7


@pytest.fixture
def file(tmp_path: Path) -> WatchedFile:
    disk = WatchedDisk()
    disk.open(str(tmp_path / "index"), create_size=AT + COUNT * 4 + 100)
    return disk.opened[0]


def none_counts(entry: int) -> int:
    return 0


def new_table(file: DiskFile) -> SlotTable:
    return SlotTable(file, AT, COUNT, None, none_counts)


def slots_of(file: DiskFile) -> dict[int, int]:
    values = struct.unpack(f">{COUNT}i", file.read(AT, COUNT * 4))
    return {slot: value for slot, value in enumerate(values) if value}


def test_a_push_returns_what_was_newest_before_within_one_push_too(file: WatchedFile) -> None:
    table = new_table(file)

    assert table.push([5, 9, 5], 1) == [0, 0, 1]
    assert table.push([9, 5, 5], 4) == [2, 3, 5]
    assert [table.newest(slot) for slot in (5, 9, 7)] == [6, 4, 0]


def test_a_push_taken_back_never_was(file: WatchedFile) -> None:
    table = new_table(file)
    table.push([5, 9], 1)

    table.take_back([5, 6, 5], table.push([5, 6, 5], 3))

    assert [table.newest(slot) for slot in (5, 9, 6)] == [1, 2, 0]
    table.flush()
    assert slots_of(file) == {5: 1, 9: 2}


def test_only_pages_that_changed_are_written_neighbours_together(file: WatchedFile) -> None:
    table = new_table(file)
    table.push([0, PAGE_SLOTS, COUNT - 1], 1)
    assert table.gathered == 3

    assert table.flush()

    page = PAGE_SLOTS * 4
    assert file.writes == [(AT, 2 * page), (AT + 3 * page, 7 * 4)]
    assert slots_of(file) == {0: 1, PAGE_SLOTS: 2, COUNT - 1: 3}
    assert table.gathered == 0
    file.writes.clear()
    assert table.flush()
    assert file.writes == []


def test_a_flush_of_some_pages_says_that_there_are_more(file: WatchedFile) -> None:
    table = new_table(file)
    table.push([0, PAGE_SLOTS, 2 * PAGE_SLOTS], 1)

    assert [table.flush(2), table.flush(2)] == [False, True]
    assert slots_of(file) == {0: 1, PAGE_SLOTS: 2, 2 * PAGE_SLOTS: 3}


@pytest.mark.parametrize("fail_at", [1, 2])
def test_pages_that_the_disk_refused_are_written_by_the_next_flush(file: WatchedFile, fail_at: int) -> None:
    table = new_table(file)
    table.push([0, 2 * PAGE_SLOTS], 1)
    file.fail_at = fail_at

    with pytest.raises(OSError, match="No space"):
        table.flush()

    assert table.flush()
    assert slots_of(file) == {0: 1, 2 * PAGE_SLOTS: 2}
    assert len(file.writes) == 2


def test_the_slots_of_a_file_that_was_there_before_go_on(file: WatchedFile) -> None:
    first = new_table(file)
    first.push([0, 1, PAGE_SLOTS], 1)
    first.flush()

    table = SlotTable(file, AT, COUNT, 4, none_counts)

    assert table.push([1, 2], 4) == [2, 0]
    assert table.newest(PAGE_SLOTS) == 3
    table.flush()
    assert slots_of(file) == {0: 1, 1: 4, 2: 5, PAGE_SLOTS: 3}


@pytest.mark.parametrize("named", [4, 0x7FFFFFFF, -1])
def test_a_slot_of_the_file_that_names_no_entry_that_counts_is_looked_into(file: WatchedFile, named: int) -> None:
    file.write(struct.pack(">3i", 1, named, 3), AT)

    table = SlotTable(file, AT, COUNT, 4, lambda entry: entry if entry < 4 else 2)

    assert table.push([1, 0, 2], 4) == [2, 1, 3]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["push", "flush", "reopen"]), st.lists(st.integers(0, COUNT - 1), max_size=8))))
def test_whatever_is_pushed_written_and_opened_again_the_newest_is_known(steps: list[tuple[str, list[int]]]) -> None:
    """The table against a dictionary."""
    file = SimDisk().open("index", create_size=AT + COUNT * 4)
    table, model, number = new_table(file), dict[int, int](), 1
    for step, slots in steps:
        if step == "push":
            before = list[int]()
            for at, slot in enumerate(slots, number):
                before.append(model.get(slot, 0))
                model[slot] = at
            assert table.push(slots, number) == before
            number += len(slots)
        else:
            table.flush()
            assert slots_of(file) == model
            if step == "reopen":
                table = SlotTable(file, AT, COUNT, number, none_counts)
    assert {slot: table.newest(slot) for slot in model} == model
