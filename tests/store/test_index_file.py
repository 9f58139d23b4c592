"""One file of the key index."""

from __future__ import annotations

from pathlib import Path

from ledgermq.store.index_file import ENTRY, HEADER, IndexFile
from ledgermq.store.index_slots import SLOT
from ledgermq.store.recovery_mark import PartialIndex
from ledgermq.world.disk import RealDisk

SLOTS, ENTRIES = 7, 50


def _file(path: Path) -> IndexFile:
    size = HEADER.size + SLOTS * SLOT.size + ENTRIES * ENTRY.size
    return IndexFile("1", RealDisk().open(str(path / "1"), create_size=size), SLOTS, ENTRIES, created=True)


def _offsets(file: IndexFile, value: int) -> list[int]:
    found: list[int] = []
    assert file.collect(value, file.newest_entry(value % SLOTS), 100, 0, 1 << 62, found, ENTRIES) == 0
    return found


def test_a_file_that_is_rewound_has_the_chains_of_the_entries_before(tmp_path: Path) -> None:
    """Two hashes share a slot, and later entries had become the heads of both chains."""
    file = _file(tmp_path)
    file.append([3, 10, 3, 4], [100, 200, 300, 400], [1000, 2000, 3000, 4000])
    file.append([10, 3], [500, 600], [5000, 6000])
    file.flush()

    file.rewind(5)

    assert (_offsets(file, 3), _offsets(file, 10), _offsets(file, 4)) == ([300, 100], [200], [400])
    assert (file.slots_in_use, file.end_physical_offset) == (2, 400)
    file.append([10], [700], [7000])
    assert _offsets(file, 10) == [700, 200]
    file.close()


def test_a_file_is_at_a_part_only_if_that_part_ends_with_the_record_that_it_names(tmp_path: Path) -> None:
    """Another store's file, and an older copy, have another record there."""
    file = _file(tmp_path)
    file.append([1, 2, 3], [100, 200, 300], [1, 2, 3])
    file.flush()

    assert file.is_at(PartialIndex(1, 4, 300, 400))
    assert not file.is_at(PartialIndex(1, 4, 200, 400))
    assert not file.is_at(PartialIndex(1, 5, 300, 400))
    assert not file.is_at(PartialIndex(1, 1, 300, 400))
    file.close()
