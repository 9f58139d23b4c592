"""The entry and the index record of a ledger, byte for byte (DLedgerEntryCoder, DLedgerMmapFileStore of DLedger 0.3.1.2).

An entry is a header of 48 bytes and its body, which is one message record. The header has the entry's own index, term and
position, so that a walk over headers can distinguish an entry from other bytes. Java leaves both CRC fields 0 and never reads
them; we write the CRC-32 of the body into one of them and verify it where it is not 0.
"""

from __future__ import annotations

from ....message.fields import Field, Layout
from ....message.layout import PHYSICAL_OFFSET_AT

ENTRY = Layout(
    "DLedger entry header; then the body",
    (
        Field("magic", "i", "1 = an entry, -1 = the blank block at a file's end"),
        Field("size", "i", "whole entry, this header included"),
        Field("index", "q", "number of the entry in the log, from 0"),
        Field("term", "q", "term in which a leader appended it; never decreases along the log"),
        Field("position", "q", "own position in the data files"),
        Field("channel", "i", "0; 1 where the body carries a configuration of the group, which only our own groups have"),
        Field("chain_crc", "i", "reserved, 0"),
        Field("body_crc", "I", "CRC-32 of the body; 0 where a Java node appended the entry"),
        Field("body_size", "i", "bytes of body that follow"),
    ),
)
INDEX = Layout(
    "DLedger index record",
    (
        Field("magic", "i", "as in the entry"),
        Field("position", "q", "where the entry begins in the data files"),
        Field("size", "i", "whole entry, header included"),
        Field("index", "q", "number of the entry; the record lies at 32 times this"),
        Field("term", "q", "as in the entry"),
    ),
)
BLANK = Layout(
    "DLedger blank block",
    (
        Field("magic", "i", "-1"),
        Field("remaining", "i", "bytes from here to the end of the file, all others 0"),
    ),
)

HEADER_SIZE = ENTRY.size
INDEX_SIZE = INDEX.size
BLANK_SIZE = BLANK.size
"""How many bytes at the end of a data file no entry uses, so that a blank block always fits."""

MAGIC_ENTRY = 1
MAGIC_BLANK = -1
CHANNEL_MESSAGE, CHANNEL_CONFIGURATION = 0, 1
NO_INDEX = -1
"""The index that means no entry; it is the last index of an empty log."""
NO_TERM = -1
"""The term that means no entry; DLedger uses it in votes."""

POSITION_MAX = 1 << 62
"""The highest position that is accepted from a peer; later ones would soon not fit into the 8 bytes of a position."""
INDEX_MAX = POSITION_MAX // INDEX_SIZE
"""The highest index that is accepted from a peer, because its index record must have a position too."""

ENTRY_SIZE_MAX = 4 * 1024 * 1024
"""The most bytes of an entry. Java encodes entries in a buffer of this size and cannot append a larger one."""
BODY_SIZE_MAX = ENTRY_SIZE_MAX - HEADER_SIZE

DATA_FILE_SIZE = 1024 * 1024 * 1024
INDEX_FILE_SIZE = 5 * 1024 * 1024 * INDEX_SIZE

PATCH_AT = HEADER_SIZE + PHYSICAL_OFFSET_AT
"""The place of the message record's physical offset, in bytes from the beginning of its entry."""

assert HEADER_SIZE == 48
assert INDEX_SIZE == 32
assert BLANK_SIZE == 8
assert ENTRY.offsets["position"] == 24
assert ENTRY.offsets["body_size"] == 44
