"""Write `docs/formats.md` from the field tables that the code itself encodes and decodes with.

`python docs/formats.py` writes the page; with `--check` it only tells, by its status, whether the page is up to date.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from ledgermq.ha import envelopes
from ledgermq.ha.classic import layout as ha_layout
from ledgermq.ha.dledger.ledger import layout as ledger_layout
from ledgermq.ha.dledger.native import layout as native_layout
from ledgermq.message.batch import ITEM_HEAD
from ledgermq.message.fields import Layout
from ledgermq.message.layout import BLANK, HEADS
from ledgermq.store.checkpoint import FIELDS, MARK_AT, NOTE_AT
from ledgermq.store.derived.consumequeue import UNIT
from ledgermq.store.derived.index_file import ENTRY, HEADER
from ledgermq.store.recovery_mark import MARK

PAGE = Path(__file__).with_name("formats.md")

_TYPES = {"b": "i8", "B": "u8", "h": "i16", "H": "u16", "i": "i32", "I": "u32", "q": "i64", "Q": "u64"}

_INTRODUCTION = """# Formats

Made by `python docs/formats.py` from the tables in the code; do not edit. All integers are big-endian.
"""

_STORE = [
    (HEADS[0], "Both hosts IPv4. Body, topic (1-byte length) and properties (2-byte length) follow. RocketMQ's CommitLog, v1."),
    (BLANK, "The last 8 bytes of a segment are never part of a record. RocketMQ's CommitLog."),
    (ITEM_HEAD, "Body and properties (2-byte length) follow. RocketMQ's batch send."),
    (UNIT, "Unit n of a queue is at byte 20 n. RocketMQ's ConsumeQueue."),
    (HEADER, "Slots of 4 bytes and entries follow. RocketMQ's IndexFile."),
    (ENTRY, "Entry 0 is never used. RocketMQ's IndexFile."),
    (FIELDS, "The first bytes of the 4096 of the file. RocketMQ's StoreCheckpoint."),
    (
        ledger_layout.ENTRY,
        "In the data files. The last 8 bytes of a file are never part of an entry. DLedger 0.3.1.2's DLedgerEntryCoder.",
    ),
    (ledger_layout.BLANK, "Where the next entry does not fit the rest of a data file. DLedger's MmapFileList."),
    (ledger_layout.INDEX, "That of entry n lies at byte 32 n of the index files. DLedger's DLedgerMmapFileStore."),
    (
        MARK,
        (
            f"At byte {MARK_AT} of the checkpoint, which RocketMQ leaves unused. Ours. At byte {NOTE_AT} lies a note "
            "of the same form, of what has been written, whether or not it is on the medium; it counts until the next boot."
        ),
    ),
]


def _type(code: str) -> str:
    return _TYPES.get(code) or f"{struct.calcsize('>' + code)} bytes"


def _section(layout: Layout, remark: str) -> str:
    rows = [
        f"| {layout.offsets[field.name]} | {_type(field.code)} | `{field.name}` | {field.reason} |" for field in layout.fields
    ]
    head = [f"## {layout.name[0].upper()}{layout.name[1:]}", "", f"{layout.size} bytes. {remark}".rstrip(), ""]
    return "\n".join([*head, "| offset | type | field | why |", "|---|---|---|---|", *rows, ""])


def page() -> str:
    """The whole page."""
    replication = [
        (value, "")
        for module in (envelopes, ha_layout, native_layout)
        for value in vars(module).values()
        if isinstance(value, Layout)
    ]
    return "\n".join([_INTRODUCTION, *(_section(layout, remark) for layout, remark in [*_STORE, *replication])])


def main() -> None:
    """Write or check the page."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE} is not what the field tables say: run python {__file__}")


if __name__ == "__main__":
    main()
