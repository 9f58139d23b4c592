"""What a power cut may leave of one simulated file, and of the names."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ledgermq.testing.sim.medium import SECTOR, VERSIONS_MAX, Inode, Names


def written(*contents: bytes) -> Inode:
    """A file whose content was overwritten, and synced after the first time."""
    inode = Inode()
    for number, content in enumerate(contents):
        inode.put(content, 0)
        if number == 0:
            inode.synced()
    return inode


def left_of(inode: Inode, seed: int, *, at_edges: bool = False, losses: Counter[str] | None = None) -> bytes:
    counted = losses if losses is not None else Counter[str]()
    after = inode.survivor(random.Random(seed), inode.size, lambda kind: counted.update([kind]), at_edges=at_edges)
    return b"".join(after.sector(number) for number in range(-(-inode.size // SECTOR)))[: inode.size]


@pytest.mark.parametrize("at_edges", [False, True])
def test_each_sector_is_left_in_one_of_its_versions(at_edges: bool) -> None:
    """All kinds of loss happen, and what was synced is never older than its sync."""
    versions = [bytes([number]) * 4 * SECTOR for number in (1, 2, 3)]
    inode = written(*versions)

    losses, found = Counter[str](), set[bytes]()
    for seed in range(200):
        left = left_of(inode, seed, at_edges=at_edges, losses=losses)
        sectors = [left[at : at + SECTOR] for at in range(0, len(left), SECTOR)]
        assert all(len(set(sector)) == 1 and sector[0] in (1, 2, 3) for sector in sectors)
        found.add(bytes(sector[0] for sector in sectors))

    assert bytes([1] * 4) in found
    assert bytes([3] * 4) in found
    assert losses["lost_write"] > losses["torn_write"] > 0
    assert losses["reordered_write"] > 0
    assert (losses["lost_edge"] > 0) == at_edges


def test_what_was_synced_survives() -> None:
    inode = written(b"a" * 1000, b"b" * 1000)
    inode.synced()

    assert {left_of(inode, seed) for seed in range(50)} == {b"b" * 1000}


def test_after_a_sync_that_failed_the_next_one_writes_nothing_of_it() -> None:
    """The sectors count as clean, as in Linux, and yet a power cut may take them."""
    inode = written(b"a" * 8 * SECTOR, b"b" * 8 * SECTOR)
    inode.sync_failed(random.Random(1))
    inode.synced()

    assert any(b"a" in left_of(inode, seed) for seed in range(50))


def test_few_versions_of_a_sector_are_remembered() -> None:
    """The oldest, which alone is certain, is always among them."""
    inode = written(*(bytes([number]) * SECTOR for number in range(1, 40)))

    assert len(inode.versions[0]) <= VERSIONS_MAX
    assert inode.versions[0][0][0] == 1


def test_what_is_cleared_reads_as_zeros_and_may_return() -> None:
    """Until the next sync."""
    inode = written(b"a" * 3 * SECTOR)
    inode.clear(SECTOR + 10)

    assert inode.sector(1) == b"a" * 10 + bytes(SECTOR - 10)
    assert inode.sector(2) == bytes(SECTOR)
    assert {left_of(inode, seed)[-1:] for seed in range(50)} == {b"a", b"\0"}


def test_a_directory_takes_its_files_along() -> None:
    """And nothing whose name only begins like it."""
    names = Names({"/a/x": Inode(), "/ab/x": Inode()}, {"/a", "/ab"})
    names.rename("/a", "/b")

    assert set(names.files) == {"/b/x", "/ab/x"}
    assert names.directories == {"/b", "/ab"}
