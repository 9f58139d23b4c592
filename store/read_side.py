"""Reading messages: by queue offset, by physical offset, by time and by key (RocketMQ DefaultMessageStore getMessage).

Answers are slices of the log, never decoded records; they are valid until the event loop runs on.
"""

from __future__ import annotations

import attrs

from ..message.fields import Buffer
from ..message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from ..message.layout import Check, check_record, span_of, topic_of
from ..world.events import get_logger
from .derived.consumequeue import UNIT, UNIT_SIZE, ConsumeQueue, Unit
from .derived.index import IndexSearch
from .errors import UnreadableLog
from .parts import StoreParts
from .statuses import GetStatus

log = get_logger(__name__)

READ_AHEAD_BYTES = 64 * 1024
"""How much behind a record of an older file is read with it; it is often the next record of the queue, too."""
RECORD_BYTES_MAX = 16 * 1024 * 1024
"""The largest record that is read by its position: a larger one does not fit the frame of an answer."""


@attrs.define(eq=False)
class GetResult:
    """What a get found; `slices` are whole records, valid until the event loop runs on."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    slices: list[memoryview] = attrs.field(factory=list[memoryview])
    size: int = 0
    suggest_slave: bool = False


@attrs.frozen
class QueryResult:
    """Records found by key, and how far the index is."""

    slices: list[memoryview]
    last_update_ms: int
    last_update_offset: int


@attrs.define(eq=False, kw_only=True)
class ReadSide(StoreParts):
    """The part of a message store that reads."""

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        tags: frozenset[int] | None = None,
        max_bytes: int = 128 << 20,
    ) -> GetResult:
        """Read messages of one queue from `offset` on (RocketMQ getMessage).

        Args:
            tags: hashes of wanted tags; None wants all.
            max_bytes: the most bytes of records; the first record is always returned, however large.
        """
        self.dispatcher.reads += 1
        queue = self.queues.table.get((topic, queue_id))
        if offset > (queue.max_offset if queue is not None else 0):
            # A slave may have derived and exposed what is not derived here yet: a consumer that is ahead is no error.
            self.dispatcher.catch_up()
            queue = self.queues.table.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            status = GetStatus.NO_MATCHED_LOGIC_QUEUE if queue is None else GetStatus.NO_MESSAGE_IN_QUEUE
            return GetResult(status, self._corrected(offset, 0), 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, self._corrected(offset, low), low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, self._corrected(offset, high), low, high)
        units_max = max(self.config.max_filter_message_size, max_messages * UNIT_SIZE) // UNIT_SIZE
        raw = queue.units(offset, max_messages if tags is None else units_max)
        if not raw:
            next_file = queue.segments.segment_size // UNIT_SIZE
            next_offset = offset - offset % next_file + next_file
            return GetResult(GetStatus.OFFSET_FOUND_NULL, self._corrected(offset, next_offset), low, high)
        result = GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, low, high)
        return self._walk(result, queue, raw, max_messages, max_bytes, tags)

    def _walk(
        self,
        result: GetResult,
        queue: ConsumeQueue,
        raw: bytes,
        max_messages: int,
        max_bytes: int,
        tags: frozenset[int] | None,
    ) -> GetResult:
        config, slices = self.config, result.slices
        log_end = self.log.max_offset
        memory = config.memory_bytes * config.access_message_in_memory_max_ratio // 100
        in_memory_from, mapped_from = log_end - memory, log_end - config.mapped_file_size_commit_log
        of_memory = (
            min(max_messages, config.max_transfer_count_on_message_in_memory),
            min(max_bytes, config.max_transfer_bytes_on_message_in_memory),
        )
        of_disk = (
            min(max_messages, config.max_transfer_count_on_message_in_disk),
            min(max_bytes, config.max_transfer_bytes_on_message_in_disk),
        )
        size_sum, visited, physical_offset = 0, 0, log_end
        start, known, raw_log = 0, 0, memoryview(b"")  # the log from where it was looked up last
        removed, damaged, is_damaged = False, self.damaged, False
        for physical_offset, size, code in UNIT.codec.iter_unpack(raw):
            if slices:
                count_max, bytes_max = of_memory if physical_offset >= in_memory_from else of_disk
                if len(slices) >= count_max or size_sum + size > bytes_max:
                    break
            visited += 1
            if tags is not None and code not in tags:
                continue
            if damaged and physical_offset in damaged:
                is_damaged = True
                break
            at = physical_offset - start
            if at < 0 or at + size > known:
                try:
                    if physical_offset >= mapped_from:
                        raw_log = self.log.slice_from(physical_offset, config.mapped_file_size_commit_log)
                    else:
                        raw_log = self.log.read(physical_offset, size, READ_AHEAD_BYTES)
                except UnreadableLog as error:
                    log.error("log_not_readable", path=error.filename, physical_offset=error.offset, reason=str(error))
                    self.note_damaged(physical_offset)
                    is_damaged = True
                    break
                start, at, known = physical_offset, 0, len(raw_log)
                if size > known:
                    removed = True
                    if not 0 <= physical_offset < self.log.min_offset:  # else its file has just been deleted
                        log.error(
                            "queue_entry_damaged",
                            topic=queue.topic,
                            queue_id=queue.queue_id,
                            queue_offset=result.next_offset + visited - 1,
                            physical_offset=physical_offset,
                            size=size,
                        )
                    continue
            slices.append(raw_log[at : at + size])
            size_sum += size
        if is_damaged:
            visited -= 1
            if not visited:
                result.status = GetStatus.MESSAGE_DAMAGED
                return result
        result.size = size_sum
        result.next_offset += visited
        result.suggest_slave = log_end - physical_offset > memory
        if slices:
            result.status = GetStatus.FOUND
        elif removed:
            result.status = GetStatus.MESSAGE_WAS_REMOVING
        return result

    def _corrected(self, asked: int, right: int) -> int:
        # A replica may be behind its master, so it does not correct a consumer that is ahead.
        return asked if self.is_replica and not self.config.offset_check_in_slave else right

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First queue offset whose message is still there; 0 for an unknown queue."""
        queue = self.queues.table.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Next queue offset to become visible; 0 for an unknown queue."""
        queue = self.queues.table.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the next message of a queue; 0 for an unknown queue."""
        return self.next_offsets.get((topic, queue_id), 0)

    def unit(self, topic: str, queue_id: int, offset: int) -> Unit | None:
        """Physical offset, size and tags code of one message."""
        queue = self.queues.table.get((topic, queue_id))
        return queue.unit(offset) if queue else None

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[Unit]:
        """Units from `offset` on, at most `count`; fewer at the end of a queue file."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return []
        return list(UNIT.codec.iter_unpack(queue.units(offset, count)))

    def message_at(self, physical_offset: int) -> memoryview | None:
        """The record at a physical offset, or None if there is none; raises UnreadableLog."""
        if not self.log.min_offset <= physical_offset < self.log.readable_offset:
            return None
        size = int.from_bytes(self.log.read(physical_offset, 4), "big")
        view = self.log.read(physical_offset, min(size, RECORD_BYTES_MAX))
        span = span_of(view, 0, len(view))
        # An offset that a client made up may point into a body that looks like a record.
        if span is None or span.physical_offset != physical_offset:
            return None
        if span.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT):
            queue = self.queues.table.get((topic_of(view, span), span.queue_id))
            if queue is not None and span.queue_offset < queue.min_offset:
                return None  # its topic was deleted
        return view[: span.size]

    def is_sound(self, physical_offset: int, record: Buffer) -> bool:
        """Whether a record may be copied: it is not known to be damaged, and its body has the CRC that it was stored with."""
        return physical_offset not in self.damaged and check_record(record, 0, len(record))[0] is Check.RECORD

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, ms; -1 if it is not there or the disk does not give it."""
        try:
            return self._store_time(topic, queue_id, offset)
        except UnreadableLog:
            return -1

    def _store_time(self, topic: str, queue_id: int, offset: int) -> int:
        unit = self.unit(topic, queue_id, offset)
        if unit is None:
            return -1
        view = self.log.read(*unit[:2])
        span = span_of(view, 0, len(view))
        return span.store_timestamp if span else -1

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the oldest message of a queue, or without a topic of the whole log; -1 if there is none."""
        if topic is not None:
            return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))
        walk = self.log.records(self.log.min_offset, self.log.readable_offset)
        return next((parts[5] for _, parts in walk if parts is not None), -1)

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """Queue offset by store time (RocketMQ 5.x rules).

        Returns:
            The first message stored at or after `timestamp` (after all: the max offset); with `upper` the last one stored at
            or before it (before all: 0).

        Raises:
            UnreadableLog: the disk does not give a message whose time decides.
        """
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        limit = timestamp + 1 if upper else timestamp
        while low < high:
            middle = (low + high) // 2
            if self._store_time(topic, queue_id, middle) < limit:
                low = middle + 1
            else:
                high = middle
        if upper:
            return low - 1 if low > queue.min_offset else 0
        return low

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is young enough to count as being in the page cache."""
        unit = self.unit(topic, queue_id, offset)
        memory = self.config.memory_bytes * self.config.access_message_in_memory_max_ratio // 100
        return unit is not None and self.log.max_offset - unit[0] <= memory

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records by key, oldest first; hash collisions are left in, as RocketMQ does, for the client to drop."""
        search = self.search(topic, key, count_max, begin_ms, end_ms)
        while search is not None and not search.step():
            pass
        return self.found(search)

    def search(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> IndexSearch | None:
        """Begin to search as `query` does, in steps; None if this store has no index. `found` returns the records."""
        count_max = min(count_max, self.config.max_msgs_num_batch)
        return self.index.search(topic, key, count_max, begin_ms, end_ms) if self.index is not None else None

    def found(self, search: IndexSearch | None) -> QueryResult:
        """The records that a search has found and that are still in the log."""
        if self.index is None or search is None:
            return QueryResult([], 0, 0)
        records = [record for offset in search.offsets if (record := self.message_at(offset)) is not None]
        return QueryResult(records, self.index.end_timestamp, self.index.end_physical_offset)
