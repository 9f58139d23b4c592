"""The recovery mark: up to where log, queues and index are known to be on the medium, byte for byte.

Recovery starts from it (`recovery.py`), and readers of a store's files learn from it how far the store's tables are complete.
"""

from __future__ import annotations

import zlib

import attrs

from ..message.fields import Field, Layout

MARK = Layout(
    "recovery mark",
    (
        Field("flushed_offset", "q", "all bytes of the log before it are on the medium"),
        Field("dispatched_offset", "q", "all queue units of records before it are too"),
        Field("record_offset", "q", "a record that ends at or before both, to recognise the log by; -1 for none"),
        Field("record_size", "i", "its size"),
        Field("record_store_timestamp", "q", "and its store timestamp"),
        Field("indexed_offset", "q", "index files whose last record is before it, or it, are on the medium whole"),
        Field("boot_id", "36s", "start of the machine under which all this was written"),
        Field("log_min_offset", "q", "the log has every segment from there on"),
        Field("queue_begins", "q", "sum of the first unit numbers of all queues; -1 where files are being deleted"),
        Field("queue_ends", "q", "sum over all queues of the unit number that follows the records before dispatched_offset"),
        Field("index_files", "i", "index files; -1 where files are being deleted, -2 while messageIndexEnable is false"),
        Field("full_index_files", "i", "index files on the medium that are full"),
        Field("deletions_crc", "q", "CRC-32 of the deletions; -1 where files are being deleted"),
        Field("partial_name", "q", "the index file, as a number, that is on the medium in part; 0 for none"),
        Field("partial_entries", "i", "number of the entry of that file before which all are on the medium"),
        Field("partial_end_offset", "q", "the record of the last of these entries"),
        Field("partial_position", "q", "records before it are in these entries, or in files that are full"),
        Field("crc", "I", "CRC-32 of the fields before"),
    ),
)
INDEX_OFF = -2
"""The value of `index_files` while `messageIndexEnable` is false: records are missing in the files of the index."""
_CRC_AT = MARK.offsets["crc"]


@attrs.frozen
class PartialIndex:
    """How much of the last index file, which is not full, is on the medium; a part of the recovery mark."""

    name: int
    """The name of the file, as a number."""
    next_entry: int
    """The entries before it are on the medium."""
    end_physical_offset: int
    """The physical offset of the record of the last of these entries."""
    position: int
    """The records before this physical offset are in the index."""


@attrs.frozen
class RecoveryMark:
    """What is known to be on the medium. The checkpoint file stores it behind RocketMQ's fields, which have no room for it."""

    flushed_offset: int
    dispatched_offset: int
    record_offset: int
    record_size: int
    record_store_timestamp: int
    indexed_offset: int
    boot_id: str
    """The boot of the machine. Until the next one, everything that was written is still there, synced or not."""
    log_min_offset: int = 0
    queue_begins: int = -1
    queue_ends: int = 0
    index_files: int = -1
    full_index_files: int = 0
    deletions_crc: int = -1
    partial_name: int = 0
    partial_entries: int = 0
    partial_end_offset: int = -1
    partial_position: int = -1

    @property
    def partial_index(self) -> PartialIndex | None:
        """How much of the index file that is being filled is on the medium."""
        if not self.partial_name:
            return None
        return PartialIndex(self.partial_name, self.partial_entries, self.partial_end_offset, self.partial_position)

    def with_partial(self, partial: PartialIndex | None) -> RecoveryMark:
        """The mark with `partial` in place of its own partial index."""
        if partial is None:
            return attrs.evolve(self, partial_name=0, partial_entries=0, partial_end_offset=-1, partial_position=-1)
        return attrs.evolve(
            self,
            partial_name=partial.name,
            partial_entries=partial.next_entry,
            partial_end_offset=partial.end_physical_offset,
            partial_position=partial.position,
        )

    @classmethod
    def decode(cls, encoded: bytes) -> RecoveryMark | None:
        """Read a mark; None if the bytes are not one."""
        if len(encoded) < MARK.size or not any(encoded):
            return None
        fields = MARK.unpack(encoded)
        if fields.pop("crc") != zlib.crc32(encoded[:_CRC_AT]):
            return None
        boot_id = fields.pop("boot_id").rstrip(b"\0").decode("ascii", "replace")
        return cls(**fields, boot_id=boot_id)

    def encode(self) -> bytes:
        """Encode the mark with its checksum."""
        fields = attrs.asdict(self) | {"boot_id": self.boot_id.encode("ascii"), "crc": 0}
        encoded = MARK.pack(**fields)[:_CRC_AT]
        return encoded + zlib.crc32(encoded).to_bytes(4, "big")

    def as_evidence(self, flushed_offset: int) -> RecoveryMark:
        """A mark by which no start recognises the log or its queues, and which says only what bytes the log must have.

        Recovery leaves it while it changes queues: a later start that finds the log damaged refuses as this one does.
        """
        return RecoveryMark(flushed_offset, 0, -1, 0, self.record_store_timestamp, -1, "", log_min_offset=self.log_min_offset)

    @property
    def start(self) -> int:
        return min(self.flushed_offset, self.dispatched_offset)
