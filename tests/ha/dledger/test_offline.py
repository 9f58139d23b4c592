"""Stores of every mode read without a broker: ledgers, and classic segments before them."""

from __future__ import annotations

import pytest

from ledgermq.ha.dledger.offline import all_log_files
from ledgermq.store.offline import read_log, verify
from ledgermq.testing.history import End
from ledgermq.testing.sim.disk import SimDisk

from ...broker.test_dledger import Group, scenario
from ...broker.test_older_logs import OLDER_MESSAGES, ROOT, leave_classic_stores, start_all
from .ledgers import force, messages, open_small, sizes


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
