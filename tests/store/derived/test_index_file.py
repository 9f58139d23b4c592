"""One file of the key index."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.store.derived.index_file import ENTRY, HEADER, IndexFile
from ledgermq.store.derived.index_slots import SLOT
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


@pytest.mark.parametrize("counted", [0, 3])
def test_records_are_found_although_a_write_of_the_header_failed_after_any_byte(tmp_path: Path, counted: int) -> None:
    """The process dies before another write succeeds, so its successor indexes again what the file lacks."""
    records = [(1, 0, 1000), (2, 0x1FF, 2000), (1, 0x2FE, 3000), (1, 0x2FF, 4000), (2, 0x300, 70_000), (1, 0x10000, 80_000)]
    file = _file(tmp_path)
    headers = list[bytes]()
    for part in (records[:counted], records[counted:]):
        if part:
            file.append(*map(list, zip(*part, strict=True)))
        file.flush()
        headers.append(bytes(file.view[: HEADER.size]))
    content = bytes(file.view[HEADER.size :])
    file.close()

    for written in range(HEADER.size + 1):
        (tmp_path / "1").write_bytes(headers[1][:written] + headers[0][written:] + content)
        file = IndexFile("1", RealDisk().open(str(tmp_path / "1")), SLOTS, ENTRIES)
        again = [record for record in records if record[1] >= file.end_physical_offset]
        file.append(*map(list, zip(*again, strict=True)))
        assert set(_offsets(file, 1)) == {0, 0x2FE, 0x2FF, 0x10000}
        assert set(_offsets(file, 2)) == {0x1FF, 0x300}
        file.close()
