"""Stores of every mode read without a broker: ledgers, and classic segments before them."""

from __future__ import annotations

import random

import pytest

from ledgermq.ha.dledger.ledger.hard_state import HardStateFile, TermAndVote
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles, open_ledger
from ledgermq.ha.dledger.offline import all_log_files
from ledgermq.ha.dledger.reset_peers import look_at_node, reset_peers
from ledgermq.store.offline import read_log, verify
from ledgermq.testing.history import End
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.network import Address

from ...broker.modes.test_dledger import Group, scenario
from ...broker.test_older_logs import OLDER_MESSAGES, ROOT, leave_classic_stores, start_all
from .ledgers import FILE_SIZE, INDEX_FILE_SIZE, clear, force, messages, open_small, sizes


def test_the_messages_of_a_ledger_are_read_over_blank_blocks_and_other_entries() -> None:
    disk = SimDisk()
    ledger = open_small(disk)
    placed = ledger.append(1, messages(0, 40))
    ledger.append(1, [b"no message"], patch=False)
    last = ledger.append(2, messages(40, 10))
    force(ledger)

    found = [record.offset for record in read_log(all_log_files(disk, "store"))]

    assert found == [*placed.offsets, *last.offsets]
    assert len(all_log_files(disk, "store")) > 2
    assert verify(disk, "store", files=all_log_files(disk, "store")).problem_count == 0


@pytest.mark.parametrize("damage", ["header", "body", "position"])
def test_a_damaged_entry_is_found(damage: str) -> None:
    """Even where the CRC of the message in it is not touched."""
    disk = SimDisk()
    ledger = open_small(disk)
    ledger.append(1, sizes([100] * 40))
    position, size = ledger.place_of(20)
    force(ledger)
    at = {"header": 0, "body": size - 1, "position": 30}[damage]
    file = all_log_files(disk, "store")[position // 4096]
    disk.rot(file.path, position - file.start + at)

    report = verify(disk, "store", files=all_log_files(disk, "store"))

    assert report.end == position
    assert "no sound record" in report.problems[0]


def test_a_store_that_changed_its_mode_is_read_whole() -> None:
    """Messages before and behind the divided offset, with the queues of both."""

    async def story(group: Group) -> None:
        await leave_classic_stores(group)
        master = await start_all(group)
        await master.process.end(End.CLEAN)
        disk = master.machine.disk

        report = verify(disk, ROOT, files=all_log_files(disk, ROOT))

        assert report.problems == []
        assert report.records > OLDER_MESSAGES
        assert report.end > all_log_files(disk, ROOT)[-1].start

    scenario(story)


def test_the_files_of_a_ledger_are_found_where_the_node_keeps_them() -> None:
    """With storePathDLedgerCommitLog: its checkpoint says where, so no command passes over the messages."""
    disk = SimDisk()
    elsewhere = LedgerFiles("store/dledger-n0", FILE_SIZE, INDEX_FILE_SIZE, data_directory="other/data")
    ledger = open_ledger(disk, elsewhere)
    placed = ledger.append(1, messages(0, 40))
    force(ledger)
    ledger.write_checkpoint()
    ledger.close()
    HardStateFile(disk, "store/dledger-n0").save(TermAndVote(1, "n0"))

    assert [record.offset for record in read_log(all_log_files(disk, "store"))] == placed.offsets
    left = look_at_node(disk, "store")
    assert left.end_index == 39
    reset_peers(disk, "store", left, Address("10.0.0.1", 40911), 0, secrets=random.Random(1))
    assert not disk.list_directory("store/dledger-n0/data")
    assert len(read_all(disk)) == len(placed.offsets) + 1

    ledger = open_small(SimDisk())
    clear(ledger, 10, 5 * FILE_SIZE, 3)
    assert ledger.checkpoint.data_directory == ""
    ledger = open_ledger(disk, elsewhere)
    clear(ledger, 10, 5 * FILE_SIZE, 3)
    assert ledger.checkpoint.data_directory == "other/data"


def read_all(disk: SimDisk) -> list[int]:
    """The places of all records, those of the group's own among them."""
    return [record.offset for record in read_log(all_log_files(disk, "store"))]
