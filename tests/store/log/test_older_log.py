"""The classic segments that another log continues: sealed once, read on, expired from the front."""

from __future__ import annotations

import random

import pytest

from ledgermq.message.layout import BLANK, MAGIC_BLANK, encode_host, encode_record
from ledgermq.store.config import StoreConfig
from ledgermq.store.errors import DamagedLog
from ledgermq.store.json_file import JsonFile
from ledgermq.store.log.commitlog import Evidence
from ledgermq.store.log.local_commitlog import open_local_commit_log
from ledgermq.store.log.older_log import OlderEnd, OlderLog
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.workers import SimWorkers
from ledgermq.world.real import World

SIZE = 4096
CONFIG = StoreConfig(store_path_root_dir="store", mapped_file_size_commit_log=SIZE)
HOST = encode_host("10.0.0.1", 10911)
CLEAN = Evidence(clean_exit=True, page_cache_intact=True, synced_offset=-1, verified_offset=-1, check_crc=True)


def world_of(disk: SimDisk) -> World:
    rng = random.Random(1)
    return World(disk, SimFabric(rng).machine("10.0.0.1"), SimClock(), rng, SimWorkers(rng, 0.0, disk.faults.injected))


def older_log(disk: SimDisk) -> OlderLog:
    older = OlderLog(open_local_commit_log(world_of(disk), CONFIG), JsonFile(disk, "store/dividedLog.json"))
    older.load()
    return older


def left_by_a_broker(records: int = 30, *, seed: int = 0) -> tuple[SimDisk, int]:
    """A disk with a classic log, and where that ends."""
    disk = SimDisk()
    disk.make_directories("store/commitlog")
    log = open_local_commit_log(world_of(disk), CONFIG)
    for number in range(records):
        body = random.Random(seed + number).randbytes(300)
        log.append([encode_record(b"T", 0, number, body, b"", 0, 0, 0, HOST, 1, HOST)])
    end = log.max_offset
    log.segments.sync(0, end)
    log.close()
    return disk, end


def numbers(older: OlderLog, start: int = 0) -> list[int]:
    return [parts[2] for _, parts in older.records(start, older.files_end) if parts is not None]


def recovered_end(older: OlderLog) -> int:
    return max(position for position, parts in older.local.read_back(0, CLEAN) if parts is not None)


def test_a_log_is_sealed_behind_its_last_record() -> None:
    """With RocketMQ's filler, on the medium, so that a walk leads to where the newer log begins."""
    disk, end = left_by_a_broker()
    older = older_log(disk)

    assert not older.recover_end(end, 0, CLEAN)

    last = older.local.segments.files[-1]
    assert BLANK.codec.unpack_from(last.view, end - last.start) == (older.files_end - end, MAGIC_BLANK)
    again = older_log(disk.power_cut(1))
    assert list(again.read_back(0, CLEAN))[-1] == (again.files_end, None)
    assert numbers(again) == list(range(30))
    assert again.end == older.end is not None


def test_sealing_again_changes_nothing_and_reports_nothing_torn() -> None:
    disk, end = left_by_a_broker()
    first = older_log(disk)
    first.recover_end(end, 0, CLEAN)
    sealed = first.end

    again = older_log(disk)
    found = recovered_end(again)

    assert found == end
    assert not again.recover_end(found, 0, CLEAN)
    assert again.end == sealed
    assert numbers(again) == list(range(30))


def test_a_second_start_before_the_newer_log_has_a_record_finds_the_same_end() -> None:
    """The recovery mark of the first start is at the end of the last file, so nothing before it is read back."""
    disk, end = left_by_a_broker()
    first = older_log(disk)
    first.recover_end(end, 0, CLEAN)
    sealed = first.end

    again = older_log(disk)

    assert not again.recover_end(again.files_end, again.files_end, CLEAN)
    assert again.end == sealed
    assert numbers(again) == list(range(30))
    assert older_log(disk.power_cut(1)).end == sealed


def test_a_torn_tail_is_cut_before_the_log_is_sealed() -> None:
    disk, end = left_by_a_broker()
    log = open_local_commit_log(world_of(disk), CONFIG)
    last = log.segments.files[-1]
    last.file.write(b"torn", end - last.start)
    log.close()
    older = older_log(disk)

    assert older.recover_end(end, 0, CLEAN)

    assert numbers(older) == list(range(30))
    assert list(older.read_back(0, CLEAN))[-1] == (older.files_end, None)


def test_copies_with_the_same_messages_have_the_same_end_and_others_do_not() -> None:
    ends: list[OlderEnd | None] = []
    for records, seed in ((30, 0), (30, 0), (29, 0), (30, 7)):
        disk, end = left_by_a_broker(records, seed=seed)
        older = older_log(disk)
        older.recover_end(end, 0, CLEAN)
        ends.append(older.end)

    assert ends[0] == ends[1]
    assert ends[0] != ends[2]
    assert ends[0] != ends[3]


def test_a_log_that_another_broker_has_sealed_is_identified_by_reading_it() -> None:
    """RocketMQ writes no `dividedLog.json`."""
    disk, end = left_by_a_broker()
    older = older_log(disk)
    older.recover_end(end, 0, CLEAN)
    sealed = older.end
    disk.remove("store/dividedLog.json")
    again = older_log(disk)
    assert again.end is None

    again.identify_again()

    assert again.end == sealed


def test_a_last_segment_without_filler_is_damage_where_a_newer_log_follows() -> None:
    disk, _ = left_by_a_broker()

    with pytest.raises(DamagedLog):
        older_log(disk).identify_again()


def test_what_a_crash_leaves_of_a_dropped_log_still_reaches_to_the_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, end = left_by_a_broker(60)
    older = older_log(disk)
    older.recover_end(end, 0, CLEAN)
    files_end, names = older.files_end, disk.list_directory("store/commitlog")
    removed: list[str] = []
    remove = SimDisk.remove

    def watched(self: SimDisk, path: str) -> None:
        removed.append(path.rpartition("/")[2])
        left = [int(name) for name in self.list_directory("store/commitlog")]
        assert left == list(range(left[0], files_end, SIZE))
        remove(self, path)

    monkeypatch.setattr(SimDisk, "remove", watched)
    older.drop()

    assert removed == names
    assert len(names) > 3
    assert older.expired
