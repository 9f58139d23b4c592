"""The ledger of a Raft node, examined by its files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgermq.ha.dledger.ledger.layout import CHANNEL_CONFIGURATION, ENTRY, HEADER_SIZE, INDEX_SIZE
from ledgermq.ha.dledger.ledger.ledger import Ledger
from ledgermq.pipeline.jobs.audit import end_of
from ledgermq.pipeline.jobs.ledgers import entry_at, examine_ledgers
from ledgermq.pipeline.log_files import SegmentFiles
from ledgermq.pipeline.store_files import Store
from ledgermq.world.disk import RealDisk

from ...ha.dledger.ledgers import force, messages, open_small

COMMITTED = 40


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A ledger of 51 entries in several files, one of them a configuration, of which 41 are committed."""
    ledger = open_small(RealDisk(), str(tmp_path))
    ledger.append(1, messages(0, 30))
    ledger.append(2, [b"a configuration"], channel=CHANNEL_CONFIGURATION, patch=False)
    ledger.append(2, messages(31, 20))
    ledger.commit(COMMITTED)
    close(ledger)
    return tmp_path


def close(ledger: Ledger) -> None:
    force(ledger)
    ledger.write_checkpoint()
    ledger.close()


def header_at(path: Path, at: int) -> tuple[int, ...]:
    return ENTRY.codec.unpack_from(path.read_bytes(), at)


def find(root: Path, index: int) -> tuple[Path, int, int]:
    """File, place in it and size of an entry."""
    log = SegmentFiles(str(root))
    log.refresh()
    for file in log.files:
        at = 0
        while (entry := header_at(Path(file.path), at))[0] == 1:
            if entry[2] == index:
                return Path(file.path), at, entry[1]
            at += entry[1]
    raise AssertionError(index)


def change(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_sound_ledger_ends_behind_its_last_committed_entry(root: Path) -> None:
    """What follows may still be replaced, so replicas are not compared there."""
    path, at, size = find(root, COMMITTED)

    found = examine_ledgers(str(root), check_bodies=True)
    store = Store(str(root), "a")
    store.log.refresh()

    assert found.problems == []
    assert found.end == int(path.name) + at + size == end_of(store)


def test_a_changed_body_is_a_problem_up_to_the_committed_index(root: Path) -> None:
    """The entry is named; one that is not committed is nobody's promise."""
    path, at, size = find(root, 17)
    change(path, at + size - 40)
    later, later_at, later_size = find(root, 45)
    change(later, later_at + later_size - 40)

    (problem,) = examine_ledgers(str(root), check_bodies=True).problems

    assert problem.startswith(f"{path}, physical offset {int(path.name) + at}")
    assert "the body of entry 17 does not have the CRC" in problem


def test_a_changed_header_is_a_problem(root: Path) -> None:
    """Its index, its position and its term must follow from the entry before."""
    path, at, _ = find(root, 12)
    change(path, at + ENTRY.offsets["index"] + 7)

    (problem,) = examine_ledgers(str(root), check_bodies=False).problems

    assert "where entry 12 of at least term 1" in problem


def test_an_index_that_disagrees_with_the_data_is_a_problem(root: Path) -> None:
    """The first record that differs is named with both sides."""
    index = sorted((root / "dledger-n0" / "index").iterdir())[1]
    entry = int(index.name) // INDEX_SIZE + 3
    change(index, 3 * INDEX_SIZE + 11)

    (problem,) = examine_ledgers(str(root), check_bodies=False).problems

    assert problem.startswith(f"{index}: the record of entry {entry} says index {entry}, position ")


def test_a_byte_is_named_by_its_entry(root: Path) -> None:
    """By its message, or as a configuration of the group."""
    path, at, _ = find(root, 31)
    view, start = memoryview(path.read_bytes()), int(path.name)

    assert entry_at(view, start, start + at + HEADER_SIZE) == (
        f"entry 31 of term 2 at {start + at} (topic T, queue 0, queue offset 31)"
    )
    assert entry_at(view, start, start + len(view) - 1).startswith("no entry")
    path, at, _ = find(root, 30)
    assert "a configuration of the group" in entry_at(memoryview(path.read_bytes()), int(path.name), int(path.name) + at)


def test_a_store_without_a_ledger_has_no_end_of_one(tmp_path: Path) -> None:
    """Plain segments are examined as such."""
    (tmp_path / "commitlog").mkdir()

    assert examine_ledgers(str(tmp_path), check_bodies=True).end is None
