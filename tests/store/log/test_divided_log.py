"""A commit log of two spans; its contract is checked with all other logs' in `tests/testing/test_commitlog_contract.py`."""

from __future__ import annotations

import attrs
import pytest

from ledgermq.message.layout import encode_record
from ledgermq.store.errors import DamagedLog, MissingLog
from ledgermq.store.log.divided_log import DividedCommitLog
from ledgermq.store.log.local_commitlog import LocalCommitLog, open_local_commit_log
from ledgermq.testing.sim.disk import SimDisk

from .test_older_log import CLEAN, CONFIG, HOST, SIZE, left_by_a_broker, older_log, world_of


def divided(disk: SimDisk, *, sealed: bool = False) -> DividedCommitLog:
    """The log that a broker has left, continued by one in classic segments too, elsewhere."""
    older = older_log(disk)
    newer = open_local_commit_log(world_of(disk), attrs.evolve(CONFIG, store_path_commit_log="store/newer"))

    def continue_from(position: int) -> None:
        newer.append_raw(position, b"")
        newer.max_offset = newer.flushed_offset = position

    return DividedCommitLog(newer, older, continue_from, older.files_end, sealed=sealed)


def recovered(disk: SimDisk) -> tuple[DividedCommitLog, int]:
    log = divided(disk)
    end = max(position for position, _ in log.read_back(0, CLEAN))
    log.end_at(end, 0, CLEAN)
    return log, end


def put(log: DividedCommitLog, count: int) -> list[int]:
    records = [encode_record(b"T", 0, 100 + number, b"n" * 300, b"", 0, 0, 0, HOST, 1, HOST) for number in range(count)]
    return log.append(records).offsets


def test_the_newer_log_begins_where_the_files_of_the_older_one_end() -> None:
    disk, end = left_by_a_broker()

    log, found = recovered(disk)

    assert found == end
    assert log.divided_offset == log.max_offset == log.readable_offset == -(-end // SIZE) * SIZE
    assert put(log, 1) == [log.divided_offset]


def test_a_walk_goes_over_from_one_span_to_the_next_from_any_position() -> None:
    disk, _ = left_by_a_broker()
    log, _ = recovered(disk)
    put(log, 20)
    walked = list(log.records(0, log.max_offset))
    expected = [*range(30), *range(100, 120)]
    assert [parts[2] for _, parts in walked if parts is not None] == expected

    for position, _ in walked[:-1]:
        found = [parts[2] for _, parts in log.records(position, log.max_offset) if parts is not None]
        assert found == [parts[2] for at, parts in walked if parts is not None and at > position]


def test_an_offset_names_its_span() -> None:
    disk, _ = left_by_a_broker()
    log, _ = recovered(disk)
    (offset,) = put(log, 1)

    assert isinstance(log.inner, LocalCommitLog)
    assert log.record(0, 200) == log.older.local.record(0, 200) is not None
    assert log.record(offset, 200) == log.inner.record(offset, 200) is not None
    assert log.slice_from(offset - 8, 100) == bytes(8)
    assert log.segment_end(offset - 8) == offset


def test_damage_in_the_older_span_is_no_end_of_the_log() -> None:
    """A record that cannot be read back stops the start: what follows in the newer log is whole."""
    disk, end = left_by_a_broker()
    recovered(disk)[0].close()
    disk.rot("store/commitlog/00000000000000000000", 500)
    log = divided(disk, sealed=True)
    found = max((position for position, _ in log.read_back(0, CLEAN)), default=0)

    assert found < end
    with pytest.raises(DamagedLog):
        log.end_at(found, 0, CLEAN)


def test_queues_of_a_ledger_that_is_gone_are_no_classic_store() -> None:
    """Whoever copies queues and checkpoint, but not the ledger, would otherwise begin a second log behind them."""
    disk, _ = left_by_a_broker()
    log = divided(disk)

    with pytest.raises(MissingLog):
        log.end_at(log.divided_offset + 100, log.divided_offset + 100, CLEAN)

    assert recovered(disk)[0].older.end is not None


def test_the_start_is_looked_for_in_the_newer_span_first_and_then_in_the_older_one() -> None:
    disk, _ = left_by_a_broker()
    log, _ = recovered(disk)
    put(log, 1)

    assert log.start_below(lambda _offset, _time: True) == log.divided_offset
    assert log.start_below(lambda offset, _time: offset < 2 * SIZE) == SIZE
    assert log.start_below(lambda _offset, _time: False) == 0


async def test_older_files_go_first_and_the_last_of_them_too() -> None:
    disk, _ = left_by_a_broker()
    log, _ = recovered(disk)
    put(log, 20)
    files = log.files()
    assert [file.start for file in files] == list(range(0, files[-1].start + SIZE, SIZE))

    for file in files[1:]:
        await log.remove_oldest()
        assert log.min_offset == file.start
    assert log.older.expired
