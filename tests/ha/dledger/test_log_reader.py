"""What is read from a ledger for the core of the java dialect."""

from __future__ import annotations

import pytest

from ledgermq.ha.dledger.ledger.layout import ENTRY, HEADER_SIZE
from ledgermq.ha.dledger.log_reader import JavaEntryReader
from ledgermq.ha.errors import CorruptLedger
from ledgermq.world.memory_disk import MemoryDisk

from .ledgers import messages, open_small


@pytest.mark.parametrize(
    ("field", "value"),
    [("magic", 0), ("size", 0), ("size", 40), ("size", 1 << 30), ("index", 7), ("term", 2), ("term", 0), ("position", 0)],
)
@pytest.mark.parametrize("alone", [False, True])
def test_an_entry_with_a_damaged_header_is_not_read(field: str, value: int, *, alone: bool) -> None:
    """A Java follower that got it would never append again, and the size of an entry decides where the next one begins."""
    ledger = open_small(MemoryDisk())
    ledger.append(1, messages(0, 5))
    reader = JavaEntryReader(ledger)
    assert [entry.nbytes for entry in reader.entries(0, 4, 1 << 20)] == [ledger.place_of(index)[1] for index in range(5)]
    position, _ = ledger.place_of(3)
    header = dict(zip(ENTRY.offsets, ENTRY.codec.unpack(ledger.entry(3)[:HEADER_SIZE]), strict=True)) | {field: value}
    ledger.data.files[0].file.write(ENTRY.pack(**header), position)

    with pytest.raises(CorruptLedger, match="dledger-n0"):
        reader.entries(3 if alone else 0, 4, 0 if alone else 1 << 20)
