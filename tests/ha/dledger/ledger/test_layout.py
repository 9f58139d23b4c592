"""The bytes of DLedger 0.3.1.2: files that it wrote are read, and written again byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

from ledgermq.ha.dledger.ledger.checkpoint import CheckpointFile
from ledgermq.ha.dledger.ledger.layout import ENTRY, HEADER_SIZE
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles, open_ledger
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.disk import RealDisk

from ..ledgers import data_of

GOLDEN = Path(__file__).parents[3] / "golden" / "dledger"
FILE_SIZE, INDEX_FILE_SIZE = 1024, 32 * 1024
BODIES = [bytes([number]) * 100 for number in range(10)] + [bytes([number]) * 5 for number in range(3)]
"""What the Java node was given."""


def golden_data() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((GOLDEN / "data").iterdir())}


def test_an_entry_is_that_of_java() -> None:
    """Observed with DLedger 0.3.1.2: index 0, term 1, 100 bytes."""
    entry = bytes.fromhex(
        "00000001 00000094 0000000000000000 0000000000000001 0000000000000000 00000000 00000000 00000000 00000064"
    )
    fields = {"magic": 1, "size": 148, "index": 0, "term": 1, "position": 0, "body_size": 100}
    assert ENTRY.pack(**fields, channel=0, chain_crc=0, body_crc=0) == entry
    assert ENTRY.unpack(entry) == {**fields, "channel": 0, "chain_crc": 0, "body_crc": 0}


def test_files_of_a_java_node_are_read(tmp_path: Path) -> None:
    """Entries, blank block, index and checkpoint."""
    shutil.copytree(GOLDEN, tmp_path / "dledger-n0")
    shutil.rmtree(tmp_path / "dledger-n0" / "index", ignore_errors=True)
    (tmp_path / "dledger-n0" / "index").unlink(missing_ok=True)
    index = tmp_path / "dledger-n0" / "index"
    index.mkdir()
    (index / ("0" * 20)).write_bytes((GOLDEN / "index").read_bytes().ljust(INDEX_FILE_SIZE, b"\0"))
    ledger = open_ledger(RealDisk(), LedgerFiles(str(tmp_path / "dledger-n0"), FILE_SIZE, INDEX_FILE_SIZE))

    assert [bytes(ledger.body(number)) for number in range(13)] == BODIES
    assert (ledger.begin_index, ledger.end_index, ledger.end_term, ledger.end_position) == (0, 12, 0, 1775)
    assert ledger.committed_index == 12
    ledger.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "dledger-n0" / "data").iterdir()} == golden_data()


def test_the_same_entries_give_the_same_files() -> None:
    """All but the CRC of each body, which Java leaves 0 and passes over."""
    disk = SimDisk()
    ledger = open_ledger(disk, LedgerFiles("store/dledger-n0", FILE_SIZE, INDEX_FILE_SIZE))
    for body in BODIES:
        ledger.append(0, [body], patch=False)
    written = data_of(disk)
    crc_at = ENTRY.offsets["body_crc"]
    for index in range(13):
        position, _ = ledger.place_of(index)
        name = f"{position - position % FILE_SIZE:020d}"
        at = position % FILE_SIZE + crc_at
        assert any(written[name][at : at + 4])
        written[name] = written[name][:at] + bytes(4) + written[name][at + 4 :]

    assert written == golden_data()
    assert bytes(ledger.index.files[0].view)[: 13 * 32] == (GOLDEN / "index").read_bytes()
    assert HEADER_SIZE == 48


def test_the_checkpoint_of_a_java_node_is_a_hint() -> None:
    """It says what was committed, and nothing of what was synced."""
    checkpoint = CheckpointFile(RealDisk(), str(GOLDEN)).load()
    assert (checkpoint.committed_index, checkpoint.end_index, checkpoint.synced_index) == (12, 12, -1)
