"""Events of the log: control records, applied in log order on master, slave and at recovery.

Invariant: what an event changes in the store follows from the log alone, so every node that derives the same log has the same
queues. The dispatcher calls `LogEvents.apply` between the records before and behind an event. Tables outside the store (topics,
groups, offsets) follow through `on_event`; events that recovery found wait in `recovered` until they are loaded.

A deletion leaves the units of deleted messages in the queue's files; it only sets the queue offset from which on units count. A
queue end gives the next offset of a queue to a node that has no message of it. Both are kept in `deletedQueues.json`, which is
written before the recovery mark passes the event. A deletion counts as long as its control record is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any
from zlib import crc32

import attrs
import orjson

from ...message.control import QUEUES_END, TOPIC_DELETED, Control, decode_control, deleted_topic_of, ended_queues_of
from ...message.errors import CorruptRecord
from ...world.events import get_logger
from ...world.processor import Processor, RealProcessor
from ...world.slices import ROWS_PER_SLICE, in_slices, rows_of
from ..json_file import JsonFile
from ..log.commitlog import LogRecords
from ..names import queue_fault, queue_offset_fault
from .consumequeue import ConsumeQueues
from .deletions import Deletion, QueueEnd, Row, deletions_of, ends_of, row_of, topics_of

log = get_logger(__name__)

APPLY_SECONDS_PER_BYTE = 5e-8
"""How long it takes to decode and apply a byte of an event, measured with commits."""
OnEvent = Callable[[int, Control], None]
_Table = dict[str, dict[str, list[Row]]]
"""Rows of control records in the file, by topic and queue id."""
DELETED_TOPICS_MAX = 10_000
"""How many deleted topics are kept by name; then the oldest is forgotten, and its delayed messages would be delivered."""
QUEUES_DELETED_PER_TURN = 2000
"""How many queues of a deleted topic one turn of the event loop looks at, in some 10 ms."""
NEW_ROWS_PER_SLICE = 2_000
"""How many new rows one turn adds to what is to be written: they are lists, which the garbage collector looks at as well."""


@attrs.define(eq=False)
class _Applying:
    """An event that is being applied: the deletion of a topic takes several turns, all others one."""

    control: Control
    end: QueueEnd
    topic: str = ""
    queues: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    """The queues whose messages are still to be deleted, and where each goes on; none for other events."""


@attrs.define(eq=False, repr=False)
class LogEvents:
    """Applies events to the queues of one store, and notifies listeners of them."""

    log: LogRecords
    queues: ConsumeQueues
    processor: Processor = attrs.field(factory=RealProcessor)
    on_event: list[OnEvent] = attrs.field(factory=list[OnEvent])
    """Called with the physical offset and the content of each event once the store is open."""
    recovered: list[tuple[int, Control]] = attrs.field(factory=list[tuple[int, Control]])
    """Physical offsets and contents of the events that recovery found, in log order."""
    recovering: bool = True
    deletions: dict[tuple[str, int], list[Deletion]] = attrs.field(factory=dict[tuple[str, int], list[Deletion]])
    """By topic and queue id, the deletions whose messages are still in the log, in log order; the last one counts."""
    _changes: int = 0
    """Counts changes of `deletions`."""
    _applying: _Applying | None = None
    """The event that the next call goes on with."""
    _crc: tuple[tuple[int, int], int] | None = None
    """The last checksum of the deletions, and when it was computed: the log's min offset and `_changes`."""
    topics: dict[str, QueueEnd] = attrs.field(factory=dict[str, QueueEnd])
    """The last deletion of each topic, oldest first. A message that was delayed before it is not delivered."""
    unsaved_end: int = 0
    """The end of the last control record about queues that is applied and not in the file yet; 0 if the file has all."""

    def apply(self, physical_offset: int, size: int) -> bool:
        """Apply the event whose control record is at `physical_offset`; one that is unreadable or unknown changes nothing.

        Returns:
            Whether it is applied; if not, the next call goes on with it.

        Raises:
            OSError: the disk refused. The event may be applied again.
        """
        applying = self._applying
        if applying is None or applying.end.physical_offset != physical_offset:
            self.processor.charge(size * APPLY_SECONDS_PER_BYTE)
            record = self.log.record(physical_offset, size)
            try:
                control = decode_control(record if record is not None else b"")
                applying = self._applying = self._begin(control, physical_offset, size)
            except CorruptRecord as error:
                log.error("control_record_unreadable", physical_offset=physical_offset, reason=str(error))
                return True
        if not self._delete_some(applying):
            return False
        self._applying = None
        if self.recovering:
            self.recovered.append((physical_offset, applying.control))
        for notify in self.on_event:
            notify(physical_offset, applying.control)
        return True

    def _begin(self, control: Control, physical_offset: int, size: int) -> _Applying:
        """Apply an event, but for the queues that it deletes."""
        end = QueueEnd(physical_offset, size, 0)
        if control.kind == TOPIC_DELETED:
            return self._begin_deletion(control, end)
        if control.kind == QUEUES_END:
            self._end_queues(control, physical_offset, size)
        return _Applying(control, end)

    def _begin_deletion(self, control: Control, end: QueueEnd) -> _Applying:
        topic, next_offsets = deleted_topic_of(control)
        offsets = next_offsets.values()
        if fault := (
            queue_fault(topic, max(next_offsets, default=0))  # ids are digits, so none is negative
            or queue_offset_fault(min(offsets, default=0))
            or queue_offset_fault(max(offsets, default=0))
        ):
            raise CorruptRecord(fault)
        for queue_id in self.queues.ids(topic):
            if queue_id not in next_offsets:
                # If the log is derived again for the index only, the queues may already be far beyond the event.
                next_offsets[queue_id] = self.queues.table[topic, queue_id].end_before(end.physical_offset)
        return _Applying(control, end, topic, [(queue_id, offset) for queue_id, offset in next_offsets.items() if offset > 0])

    def _delete_some(self, applying: _Applying) -> bool:
        """Delete the messages of so many queues as one turn takes; returns whether these were the last ones."""
        end, queues = applying.end, applying.queues
        for queue_id, offset in queues[: -QUEUES_DELETED_PER_TURN - 1 : -1]:
            self._add(applying.topic, queue_id, Deletion(end.physical_offset, end.size, offset))
            queues.pop()
        if queues:
            return False
        if applying.topic:
            self._add_topic(applying.topic, end)
            self.unsaved_end = end.physical_end
            log.info("topic_ended", topic=applying.topic, physical_offset=end.physical_offset)
        return True

    def _add_topic(self, topic: str, end: QueueEnd) -> None:
        self.topics.pop(topic, None)
        self.topics[topic] = end
        if len(self.topics) > DELETED_TOPICS_MAX:
            del self.topics[next(iter(self.topics))]

    def is_deleted(self, topic: str, physical_offset: int) -> bool:
        """Whether the topic was deleted after the record at `physical_offset`, which may be a delayed message for it."""
        deleted = self.topics.get(topic)
        return deleted is not None and physical_offset < deleted.physical_offset

    def _end_queues(self, control: Control, physical_offset: int, size: int) -> None:
        ends = ended_queues_of(control)
        for topic, queue_id, offset in ends:
            if fault := queue_fault(topic, queue_id) or queue_offset_fault(offset):
                raise CorruptRecord(fault)
        for topic, queue_id, offset in ends:
            self.queues.of(topic, queue_id).go_on_at(QueueEnd(physical_offset, size, offset))
        self.unsaved_end = physical_offset + size

    # ---------------------------------------------------------------- the file

    def load(self, file: JsonFile) -> None:
        """Read the deletions of a store that is being opened; those that the log no longer has do not count.

        Raises:
            OSError: the file exists and cannot be read.
        """
        kept = file.load()
        if kept is None and file.exists:
            log.error("deletions_unreadable", path=file.path)
        for topic, queue_id, deletion in deletions_of(kept):
            if deletion.physical_offset < self.log.min_offset:
                self._note_expired(topic, queue_id, deletion)
            elif self._is_in_log(topic, deletion):
                self._add(topic, queue_id, deletion)
        for topic, end in topics_of(kept):
            if end.physical_offset >= self.log.min_offset and self._is_in_log(topic, end):
                self._add_topic(topic, end)
        named: dict[int, Collection[tuple[str, int, int]]] = {}
        for topic, queue_id, end in ends_of(kept):
            at = end.physical_offset
            if at >= self.log.min_offset:  # an expired record cannot be checked any more
                if at not in named:
                    named[at] = self._ended_queues(end)
                if (topic, queue_id, end.queue_offset) not in named[at]:
                    continue
            self.queues.of(topic, queue_id).note_end(end)

    def _note_expired(self, topic: str, queue_id: int, deletion: Deletion) -> None:
        """Let the last file of a queue be freed whose deletion has left the log, and all of its messages before it."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is not None and queue.physical_end <= deletion.physical_offset:
            queue.deletion = deletion

    def _add(self, topic: str, queue_id: int, deletion: Deletion) -> None:
        self._changes += 1
        known = self.deletions.setdefault((topic, queue_id), [])
        while known and known[-1].physical_end > deletion.physical_offset:  # the log is derived again from there
            known.pop()
        known.append(deletion)
        self.queues.of(topic, queue_id).restart(deletion)

    def _is_in_log(self, topic: str, deletion: QueueEnd) -> bool:
        record = self.log.record(deletion.physical_offset, deletion.size)
        try:
            return record is not None and deleted_topic_of(decode_control(record))[0] == topic
        except CorruptRecord:
            return False

    def _ended_queues(self, end: QueueEnd) -> Collection[tuple[str, int, int]]:
        """The queue ends in the control record that a row of the file names; none if the record is not in the log."""
        record = self.log.record(end.physical_offset, end.size)
        try:
            return frozenset(ended_queues_of(decode_control(record))) if record is not None else ()
        except CorruptRecord:
            return ()

    async def to_json(self) -> dict[str, Any]:
        """The content to be written to the file, put together in several turns of the event loop.

        What is applied meanwhile may be missing; `unsaved_end` is then another one, and the file has to be written again.
        """
        low, table = self.log.min_offset, self.queues.table
        deleted, ended = _Table(), _Table()
        async for piece in in_slices(list(self.deletions.items()), NEW_ROWS_PER_SLICE, rows_of):
            for (topic, queue_id), deletions in piece:
                if rows := _rows_in_log(deletions, low):
                    deleted.setdefault(topic, {})[str(queue_id)] = rows
        async for queues in in_slices(list(table.items()), NEW_ROWS_PER_SLICE):
            for (topic, queue_id), queue in queues:
                if table.get((topic, queue_id)) is not queue:
                    continue
                if rows := [row_of(end) for end in queue.ends if not isinstance(end, Deletion) or end.physical_offset < low]:
                    ended.setdefault(topic, {})[str(queue_id)] = rows
                last = queue.deletion
                if last is not None and last.physical_offset < low and queue.is_deleted and queue.segments.files:
                    deleted.setdefault(topic, {})[str(queue_id)] = [row_of(last)]  # until the files of the queue are freed
        topics = {topic: row_of(end) for topic, end in self.topics.items() if end.physical_offset >= low}
        return {"deletedQueues": deleted, "deletedTopics": topics, "endedQueues": ended}

    def crc_of(self, deletions: Iterable[tuple[tuple[str, int], Sequence[Deletion]]]) -> int:
        """A checksum of some of `deletions`, as far as they are in the log; that of all of them is the sum of their parts."""
        low = self.log.min_offset
        rows = ((topic, queue_id, _rows_in_log(listed, low)) for (topic, queue_id), listed in deletions)
        return sum(crc32(orjson.dumps(row)) for row in rows if row[2]) & 0xFFFFFFFF

    async def crc(self) -> int:
        """The checksum of all deletions, in several turns. Lost queue ends are noticed by the number of units."""
        while self._crc is None or self._crc[0] != (self.log.min_offset, self._changes):
            state, total = (self.log.min_offset, self._changes), 0
            async for piece in in_slices(list(self.deletions.items()), ROWS_PER_SLICE):
                total += self.crc_of(piece)
            self._crc = state, total & 0xFFFFFFFF
        return self._crc[1]

    def clear(self) -> None:
        """Forget all deletions, because the log begins anew."""
        self.deletions.clear()
        self.topics.clear()
        self._applying = None
        self._changes += 1
        self.unsaved_end = 1  # the file is about another log and must be written again

    def cut(self, physical_offset: int) -> None:
        """Forget the deletions at or behind `physical_offset`, because the log was cut there."""
        self._applying = None
        self.unsaved_end = min(self.unsaved_end, physical_offset)
        self._changes += 1
        for topic in [topic for topic, end in self.topics.items() if end.physical_end > physical_offset]:
            del self.topics[topic]
            self.unsaved_end = physical_offset
        for key, deletions in list(self.deletions.items()):
            left = [deletion for deletion in deletions if deletion.physical_end <= physical_offset]
            if len(left) < len(deletions):
                self.deletions[key] = left
                self.unsaved_end = physical_offset
                if queue := self.queues.table.get(key):
                    queue.deletion = left[-1] if left else None
                    queue.correct_min_offset(self.log.min_offset)


def _rows_in_log(deletions: Iterable[Deletion], low: int) -> list[Row]:
    """The rows of the deletions whose control records the log still has; the messages of earlier ones have expired."""
    return [row_of(deletion) for deletion in deletions if deletion.physical_offset >= low]
