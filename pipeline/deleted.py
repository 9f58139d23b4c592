"""The queue offset from which on the messages of a deleted topic are valid, read from the files of a store that may be in use.

The broker keeps deletions in `deletedQueues.json`, which it writes before the recovery mark passes them. So the file is
complete for the log before the mark. After the mark the log itself has to be read, where a deletion is a control record. Only
the part of the log is read whose records are already in consume queues, because consumers cannot see the rest yet.

A deletion in the file is valid as long as its control record is in the log, as it is for the broker.
"""

from __future__ import annotations

import struct

import attrs

from ..message.control import TOPIC_DELETED, decode_control, deleted_topic_of
from ..message.errors import CorruptRecord
from ..message.flags import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ..message.layout import MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, SYS_FLAG_AT, span_of
from ..store.checkpoint import MARK_AT, MARK_SIZE_MAX
from ..store.derived.deletions import deletions_file, deletions_of
from ..store.recovery_mark import RecoveryMark
from ..world.disk import Disk
from .log_files import SegmentFile, SegmentFiles

WALK_BYTES_MAX = 256 * 1024 * 1024
"""How much of the end of the log is searched if the store has no checkpoint yet; our broker writes one within seconds."""

_size_magic_flag = struct.Struct(f">ii{SYS_FLAG_AT - 8}xi").unpack_from
_entry_header = struct.Struct(">ii16xq").unpack_from
"""Magic number, size and position of an entry of a Raft ledger."""
_ENTRY_MAGIC = 1

Queue = tuple[str, int]
"""Topic and queue id."""


@attrs.define(eq=False)
class Deletions:
    """The deletions of one store that are visible to consumers."""

    root: str
    log: SegmentFiles
    disk: Disk
    _noted: dict[Queue, int] = attrs.field(factory=dict[Queue, int])
    """From the file: the offset of the first valid message of each queue."""
    _found: dict[str, int] = attrs.field(factory=dict[str, int])
    """From the log after the mark: the physical offset of the last deletion of each topic."""
    _walked: int = -1
    """Records before this physical offset have been searched for deletions; -1 before the first search."""

    def load(self) -> None:
        """Read the file of deletions."""
        self._noted = {}
        for topic, queue_id, deletion in deletions_of(deletions_file(self.disk, self.root).load()):
            if deletion.physical_offset < self.log.min_offset or self._topic_at(deletion.physical_offset) == topic:
                self._noted[topic, queue_id] = max(deletion.queue_offset, self._noted.get((topic, queue_id), 0))

    def refresh(self, derived_end: int) -> None:
        """Read the file of deletions, and search the new part of the log.

        Args:
            derived_end: records before this physical offset are known to be in consume queues.
        """
        start = self._mark() if self._walked < 0 else self._walked  # before the file is read: it is complete up to there
        self.load()
        self._walk(max(start, self.log.min_offset), derived_end)

    def offset_of(self, topic: str, queue_id: int) -> int:
        """The offset of the first valid message of a queue according to the file; 0 if its topic was not deleted."""
        return self._noted.get((topic, queue_id), 0)

    def position_of(self, topic: str) -> int:
        """The physical offset of a topic's deletion after the mark, before which no message is valid; 0 if there is none."""
        return self._found.get(topic, 0)

    def _mark(self) -> int:
        """The physical offset at which the search has to start."""
        end = max((file.end for file in self.log.files), default=0)
        path = f"{self.root}/checkpoint"
        if not self.disk.exists(path):
            return end - WALK_BYTES_MAX
        file = self.disk.open(path, read_only=True)
        try:
            encoded = file.read(MARK_AT, MARK_SIZE_MAX)
        finally:
            file.close()
        if not any(encoded):
            return end  # an Apache broker wrote the store; its log has no control records
        mark = RecoveryMark.decode(encoded)
        return end - WALK_BYTES_MAX if mark is None else mark.start  # None: the broker is writing it right now

    def _topic_at(self, physical_offset: int) -> str | None:
        """The topic that the record at a physical offset deletes; None if it deletes none."""
        file = self.log.find(physical_offset)
        piece = self.log.piece(file) if file is not None else None
        if file is None or piece is None:
            return None
        return self._deleted(memoryview(piece.bytes), physical_offset - file.start)

    def _deleted(self, view: memoryview, position: int) -> str | None:
        span = span_of(view, position, len(view))
        if span is None:
            return None
        try:
            control = decode_control(view[position : position + span.size])
            return deleted_topic_of(control)[0] if control.kind == TOPIC_DELETED else None
        except CorruptRecord:
            return None

    def _walk(self, start: int, end: int) -> None:
        """Search the records from `start` up to `end`."""
        self._walked = max(start, self._walked)
        for file in self.log.files:
            if file.end <= self._walked or file.start >= end:
                continue
            piece = self.log.piece(file)
            if piece is not None:
                self._walk_file(file, memoryview(piece.bytes), end)
            self._walked = max(self._walked, min(file.end, end))  # skips the filler at the end of a file, or a deleted file

    def _walk_file(self, file: SegmentFile, view: memoryview, end: int) -> None:
        header = file.header_size
        position = self._first_record(file, view)
        limit = min(len(view), end - file.start) - header - RECORD_SIZE_MIN
        while position <= limit:
            size, magic, sys_flag = _size_magic_flag(view, position + header)
            is_record = magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_SIZE_MIN
            if header:  # the entry has its size; a configuration of the group is an entry without a record
                entry_magic, size, _ = _entry_header(view, position)
                if entry_magic != _ENTRY_MAGIC or size < header:
                    return
            elif not is_record:
                return
            if is_record and sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                topic = self._deleted(view, position + header)
                if topic is not None:
                    self._found[topic] = file.start + position + header
            position += size
            self._walked = file.start + position

    def _first_record(self, file: SegmentFile, view: memoryview) -> int:
        """The position at which to start in a file: where the search ended before, if a record begins there, else 0."""
        position = self._walked - file.start
        if position <= 0 or position + file.header_size + RECORD_SIZE_MIN > len(view):
            return 0
        if file.header_size:
            magic, _, place = _entry_header(view, position)
            return position if magic == _ENTRY_MAGIC and place == file.start + position else 0
        span = span_of(view, position, len(view))
        return position if span is not None and span.physical_offset == file.start + position else 0
