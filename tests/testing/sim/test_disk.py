from __future__ import annotations

import errno
import random

import pytest

from ledgermq.testing.sim.disk import SimDisk, SimDiskFile
from ledgermq.testing.sim.medium import SECTOR

SEEDS = range(60)


def file_on(disk: SimDisk, path: str = "d/a", size: int = 4 * SECTOR) -> SimDiskFile:
    disk.make_directories("d")
    file = disk.open(path, create_size=size)
    file.sync()
    disk.sync_directory("d")
    disk.sync_directory("")
    return file


def content_after_cut(disk: SimDisk, seed: int, path: str = "d/a") -> bytes:
    after = disk.power_cut(seed)
    return after.open(path).read(0, 1 << 20)


def test_synced_bytes_survive_every_power_cut() -> None:
    for seed in SEEDS:
        disk = SimDisk()
        file = file_on(disk)
        file.write(b"x" * 1000, 100)
        file.sync()
        file.write(b"y" * 512, 1536)

        content = content_after_cut(disk, seed)

        assert content[100:1100] == b"x" * 1000


def test_a_file_without_a_directory_survives_every_power_cut_once_the_current_directory_is_synced() -> None:
    for seed in SEEDS:
        disk = SimDisk()
        file = disk.open("a", create_size=SECTOR)
        file.sync()
        disk.sync_directory(".")

        assert disk.power_cut(seed).exists("a")


def test_unsynced_bytes_survive_some_power_cuts_and_are_torn_and_reordered_by_others() -> None:
    found = set[tuple[bool, bool]]()
    for seed in SEEDS:
        disk = SimDisk()
        file = file_on(disk)
        file.write(b"x" * SECTOR, 0)
        file.write(b"y" * SECTOR, 3 * SECTOR)

        content = content_after_cut(disk, seed)

        found.add((content[0] == ord("x"), content[3 * SECTOR] == ord("y")))
        assert content[SECTOR : 3 * SECTOR] == bytes(2 * SECTOR)
    assert found == {(True, True), (True, False), (False, True), (False, False)}


def test_a_power_cut_may_leave_a_state_between_two_writes() -> None:
    found = set[bytes]()
    for seed in SEEDS:
        disk = SimDisk()
        file = file_on(disk)
        for byte in (b"a", b"b", b"c"):
            file.write(byte, 0)
        found.add(content_after_cut(disk, seed)[:1])

    assert found == {b"\0", b"a", b"b", b"c"}


def test_cut_off_bytes_may_come_back_until_the_cut_is_synced() -> None:
    found = set[bytes]()
    for seed in SEEDS:
        disk = SimDisk()
        file = file_on(disk)
        file.write(b"x" * 2048, 0)
        file.sync()
        file.clear(700)
        if seed % 2:
            file.sync()
            assert content_after_cut(disk, seed) == b"x" * 700 + bytes(1348)
        else:
            found.add(content_after_cut(disk, seed)[1024:1025])

    assert found == {b"x", b"\0"}


def test_a_power_cut_at_edges_takes_one_part_of_a_write_and_leaves_what_was_written_around_it() -> None:
    """Among the parts: the first and the last sector, the last whole one, what lies before or behind an edge."""
    found = set[str]()
    for seed in range(300):
        disk = SimDisk()
        file = file_on(disk, size=8 * SECTOR)
        file.write(b"a" * SECTOR, 0)
        file.write(b"b" * (5 * SECTOR + 100), SECTOR)
        file.write(b"c" * SECTOR, 7 * SECTOR)

        content = disk.power_cut(seed, at_edges=True).open("d/a").read(0, 1 << 20)

        found.add("".join(chr(content[at] or ord("-")) for at in range(0, 8 * SECTOR, SECTOR)))
    assert {"a-bbbbbc", "abbbbb-c", "abbbb-bc", "abbbb--c", "a--bbbbc"} <= found


def test_a_power_cut_at_edges_takes_nothing_that_was_synced() -> None:
    for seed in SEEDS:
        disk = SimDisk()
        file = file_on(disk)
        file.write(b"x" * 1000, 0)
        file.sync()
        file.write(b"y" * 600, 1000)

        assert disk.power_cut(seed, at_edges=True).open("d/a").read(0, 1000) == b"x" * 1000


def test_after_a_failed_sync_a_later_one_does_not_write_what_the_first_covered() -> None:
    lost = False
    for seed in SEEDS:
        disk = SimDisk(rng=random.Random(seed))
        file = file_on(disk)
        file.write(b"x", 0)
        disk.faults.sync_error = 1.0
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        disk.faults.sync_error = 0.0
        file.sync()
        lost = lost or content_after_cut(disk, seed)[0] == 0
    assert lost


def test_rewriting_after_a_failed_sync_makes_the_next_sync_whole() -> None:
    for seed in SEEDS:
        disk = SimDisk(rng=random.Random(seed))
        file = file_on(disk)
        file.write(b"x" * 1000, 0)
        disk.faults.sync_error = 1.0
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        disk.faults.sync_error = 0.0
        file.write(b"x" * 1000, 0)
        file.sync()

        assert content_after_cut(disk, seed)[:1000] == b"x" * 1000


def test_names_survive_from_their_directorys_sync_on_and_before_it_as_a_prefix() -> None:
    found = set[tuple[str, ...]]()
    for seed in SEEDS:
        disk = SimDisk()
        file_on(disk, "d/a")
        disk.open("d/b", create_size=1)
        disk.replace("d/b", "d/a")
        disk.remove("d/a")

        after = disk.power_cut(seed)

        found.add(tuple(f"{name}:{after.size(f'd/{name}')}" for name in after.list_directory("d")))
    assert {len(names) for names in found} == {0, 1, 2}
    assert all(names in {("a:2048",), ("a:2048", "b:0"), ("a:2048", "b:1"), ("a:1",), ()} for names in found)


def test_a_killed_process_loses_no_bytes_and_no_locks_stay() -> None:
    disk = SimDisk()
    file = file_on(disk)
    file.write(b"x", 0)
    disk.lock("d/lock")

    after = disk.kill()

    assert after.open("d/a").read(0, 1) == b"x"
    after.lock("d/lock")
    assert after.boot_id() == disk.boot_id()
    with pytest.raises(OSError, match="off"):
        file.write(b"y", 0)


def test_a_view_of_a_dead_disk_stays_readable() -> None:
    disk = SimDisk()
    file = file_on(disk)
    file.write(b"x", 0)
    view = file.view()

    disk.power_cut(1)

    assert view[0] == ord("x")


def test_a_full_disk_takes_what_fits_and_recovers_when_space_is_freed() -> None:
    disk = SimDisk()
    file = file_on(disk, size=10 * SECTOR)
    other = disk.open("d/b", create_size=SECTOR)
    other.write(b"o", 0)
    disk.faults.capacity = 3 * SECTOR

    with pytest.raises(OSError, match="No space") as caught:
        file.write(b"x" * (4 * SECTOR), 0)

    assert caught.value.errno == errno.ENOSPC
    assert file.read(0, 4 * SECTOR) == b"x" * (2 * SECTOR) + bytes(2 * SECTOR)
    assert disk.usage("d").ratio == 1.0
    disk.remove("d/b")
    file.write(b"x" * (3 * SECTOR), 0)
    file.write(b"z" * SECTOR, 0)


def test_a_length_is_cut_as_the_journal_says_until_the_file_is_synced() -> None:
    found = set[int]()
    for seed in SEEDS:
        disk = SimDisk()
        file = file_on(disk)
        file.truncate(700)
        file.truncate(2048)
        found.add(len(content_after_cut(disk, seed)))

    assert found == {700, 2048}


def test_each_fault_is_counted() -> None:
    disk = SimDisk()
    file = file_on(disk)
    disk.faults.write_error = disk.faults.read_error = disk.faults.create_error = 1.0

    for call in (lambda: file.write(b"x", 0), lambda: file.read(0, 1), lambda: disk.remove("d/a"), lambda: file.truncate(0)):
        with pytest.raises(OSError, match="Input/output"):
            call()
    with disk.no_faults():
        disk.rot("d/a", 5, bit=3)
        assert file.read(5, 1) == b"\x08"

    assert disk.faults.injected == {"write_eio": 1, "read_eio": 1, "remove_eio": 1, "truncate_eio": 1, "bit_rot": 1}


def test_a_gibibyte_file_costs_only_what_is_written() -> None:
    disk = SimDisk()
    file = file_on(disk, size=1 << 30)
    file.write(b"x", (1 << 30) - 1)
    file.truncate(1 << 20)
    file.truncate(1 << 30)
    file.sync()

    assert disk.power_cut(1).open("d/a").read((1 << 30) - 1, 1) == b"\0"


def test_bytes_are_durable_when_every_state_that_a_power_cut_may_leave_has_them() -> None:
    """A later write to the same sector takes nothing from what a sync has secured before it."""
    disk = SimDisk()
    file = file_on(disk)
    file.write(b"x" * 100, 0)
    assert not disk.is_durable("d/a", 0, 100)

    file.sync()
    file.write(b"y" * 100, 100)

    assert disk.is_durable("d/a", 0, 100)
    assert not disk.is_durable("d/a", 0, 101)
    assert not disk.is_durable("d/b", 0, 1)
