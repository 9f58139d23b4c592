"""Deriving consume queues and the key index from the log (RocketMQ ReputMessageService).

Invariant: records reach the queues in log order, each once, and none at or beyond the log's readable offset. What a put has
just encoded is passed on (`offer`) so that it need not be parsed again; whatever was not offered (recovery, a slave's raw
bytes, an overrun) is read back from the log. Both ways end in the same `derive`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Protocol

import attrs
import trio

from ...message.control import CONTROL_TOPIC
from ...message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ...message.layout import DerivedParts
from ...message.numbers import LONG_MAX, is_digits
from ...message.properties import DELAY_MARK, KEYS_MARK, SEND_NUMBER_MARK, TAGS_MARK, UNIQUE_KEY_MARK, find_marked
from ...message.strings import string_hash
from ...native import GroupRecords, group_records
from ...world.events import get_logger
from ..config import SCHEDULE_TOPIC
from ..errors import BadQueueName
from ..log.commitlog import LogRecords
from ..log.queue_files import NEW_FILES_PER_TURN_MAX, OpenFiles
from .consumequeue import UNIT_SIZE, ConsumeQueue
from .index_keys import IndexEntry

events = get_logger(__name__)

OFFERED_MAX = 65_536
"""How many offered records may wait until they are readable; further ones are read back from the log instead."""
CATCH_UP_SECONDS_MAX = 0.02
"""After this time a reader begins no further round."""
ROUND_RECORDS_MAX = 1024
"""How many records are derived in one turn of the event loop, which takes a few milliseconds."""
ROUND_KEY_CHARS_MAX = 32_768
"""How many characters of keys are indexed in one turn, which takes up to 35 ms. One message has at most as many, so a round
always has room for one."""
EVENT_BYTES_PER_KEY_CHAR = 8
"""How many bytes of an event take as long to apply as a character of a key takes to be indexed. An event may change a thousand
rows of a table, so events are limited like keys: a round applies about 256 KiB of them."""
EVENT_KEY_CHARS_MIN = 256
"""How many characters of keys an event counts as at least, so that a round applies at most 128 events."""
PAUSE_SECONDS = 0.003
"""The pause between rounds of a busy log, in which a batch gathers, so that each queue is written once for many records
(RocketMQ: 1 ms)."""
UNREAD_PAUSE_SECONDS = 0.01
"""The pause between rounds while no queue is read."""
ROUND_BYTES = 128 * 1024
"""This many bytes that are not derived yet end the pause early: they have just arrived, and their sender waits for answers
before it sends more."""
BULK_SHARE = 0.05
"""The share of time that deriving gets while bulk data arrives. Receiving has priority, but consumers of a slave that lags for
hours must make progress too."""
BULK_ROUND_RECORDS_MAX = 128
"""How many records are derived in one turn while bulk data arrives. During a longer turn the socket's buffer would fill, and
the master would stop sending."""
BULK_SECONDS = 0.1
"""For how long after its last piece bulk data counts as still arriving."""
TAGS_CACHED_MAX = 10_000
"""How many hashes of tags are cached; a full cache is emptied."""
TAG_CHARACTERS_MAX = 64
"""The hash of a longer tag is computed each time: a tag may have as many bytes as all properties of a message together."""
REFUSED_QUEUES_MAX = 100
"""How many queues that cannot have files are logged; records of further ones are skipped silently."""


Derivable = tuple[str, int, int, int, int, int, int, int, str, str, str]
"""What is derived from one record: topic, queue id, queue offset, physical offset, size, tags code, store timestamp, sys flag,
unique key, keys, send number. A plain tuple, because one is made for every message."""


class KeyIndex(Protocol):
    """The index of keys, as the dispatcher uses it."""

    def put_batch(self, entries: Sequence[IndexEntry]) -> None:
        """Add entries; each is (topic, unique key, keys, physical offset, store timestamp)."""
        ...


@attrs.define(eq=False)
class TagsCodes:
    """The tags code of a record: the hash of its tag, or in the delay topic its due time."""

    delay_levels_ms: tuple[int, ...]
    hashes: dict[str, int] = attrs.field(factory=dict[str, int])
    """The cached hashes."""

    def of(self, topic: str, tag: str, delay: str, store_timestamp: int) -> int:
        """Compute the tags code; `tag` and `delay` are properties, "" if absent."""
        if delay and topic == SCHEDULE_TOPIC:
            level = min(int(delay), self.level_max) if is_digits(delay) else 0
            return min(store_timestamp + self.delay_ms(level), LONG_MAX)
        if not tag:
            return 0
        code = self.hashes.get(tag)
        if code is None:
            code = string_hash(tag)
            if len(tag) <= TAG_CHARACTERS_MAX:
                if len(self.hashes) >= TAGS_CACHED_MAX:
                    self.hashes.clear()
                self.hashes[tag] = code
        return code

    @property
    def level_max(self) -> int:
        """The highest delay level there is."""
        return len(self.delay_levels_ms)

    def delay_ms(self, level: int) -> int:
        """The delay of a level; a level above the highest counts as the highest, and the delay of one below 1 is a second."""
        return self.delay_levels_ms[min(level, len(self.delay_levels_ms)) - 1] if level > 0 else 1000


def derivable_of(parts: DerivedParts, tags_codes: TagsCodes) -> Derivable:
    """What queues and index need of a record that was read back."""
    size, queue_id, queue_offset, physical_offset, sys_flag, timestamp, topic, properties = parts
    tags_code = 0
    if topic == SCHEDULE_TOPIC or TAGS_MARK in properties:  # the mark may also be part of another property's value
        delay = find_marked(properties, DELAY_MARK) if topic == SCHEDULE_TOPIC else ""
        tags_code = tags_codes.of(topic, find_marked(properties, TAGS_MARK), delay, timestamp)
    return (
        topic,
        queue_id,
        queue_offset,
        physical_offset,
        size,
        tags_code,
        timestamp,
        sys_flag,
        find_marked(properties, UNIQUE_KEY_MARK),
        find_marked(properties, KEYS_MARK) if KEYS_MARK in properties else "",
        find_marked(properties, SEND_NUMBER_MARK) if SEND_NUMBER_MARK in properties else "",
    )


def records_at_once(since_bulk: float) -> int:
    """How many records a round derives if bulk data last arrived `since_bulk` seconds ago."""
    return ROUND_RECORDS_MAX if since_bulk > BULK_SECONDS else BULK_ROUND_RECORDS_MAX


def pause_after(took: float, since_bulk: float, *, wanted: bool) -> float:
    """The pause after a round, in seconds.

    Args:
        took: how long the round took, in seconds.
        since_bulk: how long ago bulk data last arrived, in seconds.
        wanted: queues have been read since the round before, or enough bytes for another round have arrived.
    """
    if since_bulk > BULK_SECONDS:
        return PAUSE_SECONDS if wanted else UNREAD_PAUSE_SECONDS
    return max(PAUSE_SECONDS, took * (1 - BULK_SHARE) / BULK_SHARE)


@attrs.define(eq=False, repr=False)
class Dispatcher:
    """Derives queues and index from the log, and records how far it is."""

    log: LogRecords
    tags_codes: TagsCodes
    queue_of: Callable[[str, int], ConsumeQueue]
    index: KeyIndex | None
    open_files: OpenFiles = attrs.field(factory=OpenFiles)
    dispatched_offset: int = 0
    """Every record before it is in its queue and in the index."""
    last_store_timestamp: int = 0
    reads: int = 0
    """How often queues were read so far, as counted by the readers."""
    on_arrival: list[Callable[[list[Derivable]], None]] = attrs.field(factory=list[Callable[[list[Derivable]], None]])
    """Listeners for records that are new in queues. None may raise, because an OSError would count as one of a queue."""
    on_control: Callable[[int, int], bool] = lambda _offset, _size: True
    """Called with physical offset and size of a control record, after the records before it are in their queues; returns
    whether it is applied, else it is called again in the next round."""
    on_numbered: Callable[[Derivable], None] = lambda _: None
    """Called with each record that has a send number, in log order with control records; after a failure called again."""
    on_cut: list[Callable[[int], None]] = attrs.field(factory=list[Callable[[int], None]])
    """Called with a physical offset from which on everything that was derived is forgotten."""
    on_failure: Callable[[OSError], None] = lambda _: None
    on_success: Callable[[], None] = lambda: None
    group_records: GroupRecords | None = group_records
    """Gathers the units of records by queue in compiled code; None if each record is looked at in Python."""
    dirty: dict[ConsumeQueue, None] = attrs.field(factory=dict[ConsumeQueue, None])
    """Queues with units not yet synced."""
    _offered: deque[tuple[int, int, list[Derivable]]] = attrs.field(factory=deque[tuple[int, int, list[Derivable]]])
    _offered_count: int = 0
    _unannounced: list[Derivable] = attrs.field(factory=list[Derivable])
    """Records that are new in queues and of which listeners were not notified: a later round does that if one fails."""
    _put_end: int = 0
    """The end of the last append of this node; that may not be readable yet."""
    _touched: dict[ConsumeQueue, None] = attrs.field(factory=dict[ConsumeQueue, None])
    _refused: set[tuple[str, int]] = attrs.field(factory=set[tuple[str, int]])
    """Queues that cannot have files and were logged."""
    _half_applied: bool = False
    """Whether the next record is an event that takes several rounds."""
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _pause_over: trio.Event = attrs.field(factory=trio.Event)
    _notifying: bool = False
    """Whether listeners are being called. They read the store, which must not begin another round within this one."""
    _bulk_at: float = -inf
    """When the last piece of bulk data arrived."""
    _ended: float = -inf
    """When the last round ended."""
    _reads_before: int = 0
    """The value of `reads` when the last round ended."""

    @property
    def behind_bytes(self) -> int:
        """Readable bytes that are not derived yet."""
        return max(self.log.readable_offset - self.dispatched_offset, 0)

    @property
    def goes_on_later(self) -> bool:
        """Whether a round that made no progress was in front of a record all the same.

        Rounds go on with it in later turns of the event loop, or after a checkpoint, which closes files.
        """
        return self._half_applied or self.open_files.awaited

    def offer(self, start: int, end: int, records: list[Derivable]) -> None:
        """Pass the records of one append, which covers the log from `start` to `end`."""
        self._put_end = end
        if self._offered_count < OFFERED_MAX:
            self._offered.append((start, end, records))
            self._offered_count += len(records)
        self.wake()

    def wake(self, *, more_coming: bool = False) -> None:
        """Wake the task, because more of the log has become readable.

        Args:
            more_coming: bulk data is arriving, and receiving the rest of it has priority.
        """
        if more_coming:
            self._bulk_at = trio.current_time()
        self._wake.set()
        if self.behind_bytes >= ROUND_BYTES:
            now = trio.current_time()
            if now - self._ended >= PAUSE_SECONDS and now - self._bulk_at > BULK_SECONDS:
                self._pause_over.set()

    def sync_began(self) -> None:
        """Start the next round now, while the log waits for the disk; later it would delay the puts that follow."""
        if trio.current_time() - self._bulk_at > BULK_SECONDS:
            self._pause_over.set()

    def cut(self, offset: int) -> None:
        """Forget everything from `offset` on: the log has been cut there."""
        self._offered.clear()
        self._offered_count = 0
        self._put_end = min(self._put_end, offset)
        self._unannounced = [record for record in self._unannounced if record[3] < offset]
        for notify in self.on_cut:
            notify(offset)
        self.dispatched_offset = min(self.dispatched_offset, offset)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Derive whatever becomes readable, until cancelled."""
        task_status.started()
        while True:
            # One scope serves all pauses that end early: creating one and having it cancelled costs as much as ten records.
            with trio.CancelScope() as pause:
                await self._keep_deriving(pause)

    async def _keep_deriving(self, pause: trio.CancelScope) -> None:
        """Derive whatever becomes readable, until a pause is not ended early: then the deadline of `pause` passes."""
        while True:
            while self.behind_bytes:
                began = trio.current_time()
                try:
                    if not self.round(records_at_once(began - self._bulk_at)):
                        break  # a part of a record: the bytes that complete it will wake us
                except OSError as error:
                    self.on_failure(error)
                    await trio.sleep(1.0)
                self._pause_over = trio.Event()
                pause.deadline = self._pause_until(began)
                await self._pause_over.wait()
                pause.deadline = inf
            await self._wake.wait()
            self._wake = trio.Event()

    def _pause_until(self, began: float) -> float:
        """The latest time at which to continue after a round that began at `began` and ends now."""
        wanted = self.reads != self._reads_before or self.behind_bytes >= ROUND_BYTES
        self._ended, self._reads_before = trio.current_time(), self.reads
        return self._ended + pause_after(self._ended - began, self._ended - self._bulk_at, wanted=wanted)

    def catch_up(self, rounds_max: float = inf) -> None:
        """Derive a round of what is readable now, and all of it that was put on this node, unless that takes too long.

        A reader may know of any message that was put here, although it is not in its queue yet. What is behind for another
        reason, such as the start of a node that has been away, may be the whole log: the task derives the rest of that, and
        of thousands of events that were put together.
        """
        ends = trio.current_time() + CATCH_UP_SECONDS_MAX
        with suppress(OSError):  # the next round will fail too, and report it
            while rounds_max > 0 and self.behind_bytes and not self._notifying and self.round():
                rounds_max -= 1
                if self.dispatched_offset >= self._put_end or trio.current_time() > ends:
                    return

    def round(self, records_max: int = ROUND_RECORDS_MAX) -> bool:
        """Derive one slice; returns whether it made progress.

        Raises:
            OSError: a queue or the index could not be written. The slice is derived again by the next round; entries that
                did get through are then recognised as duplicates.
        """
        if self.open_files.awaited and self.open_files.room <= 0:
            return False  # every reader asks for a round, and none of them can open a file before the next checkpoint
        # The log may begin behind what was dispatched, in a slave that was filled again, or by retention after a long stop.
        start, readable = max(self.dispatched_offset, self.log.min_offset), self.log.readable_offset
        records: list[Derivable] = []
        position = start
        offered = self._offered
        while offered and len(records) < records_max:
            batch_start, batch_end, batch = offered[0]
            if batch_start > position or batch_end > readable:
                break
            offered.popleft()
            self._offered_count -= len(batch)
            if batch_end > position:  # else it has been read back meanwhile
                position = batch_end
                records += batch
        if len(records) > records_max:
            position = self._leave(records, records_max, start, position)
        if not records:
            if offered and offered[0][0] <= start:
                return False  # a part of one append is readable, and the next segment may begin in it
            stop = min(readable, offered[0][0]) if offered else readable
            tags_codes = self.tags_codes
            for after, parts in self.log.records(start, stop):
                position = after
                if parts is not None:
                    records.append(derivable_of(parts, tags_codes))
                    if len(records) >= records_max:
                        break
        if position == start:
            self.open_files.awaited = self._half_applied = False
            return self._skip_damaged(start)
        if position - start > ROUND_KEY_CHARS_MAX:  # fewer bytes cannot hold more characters of keys
            position = self._keep_round_short(records, start, position)
        try:
            left = self._derive(records, NEW_FILES_PER_TURN_MAX, self.open_files.room)
        except OSError:
            self._offered.clear()
            self._offered_count = 0
            raise
        if left:
            position = self._leave(records, len(records) - left, start, position)
            if position == start and self.open_files.awaited:
                return False  # a checkpoint closes files, and wakes us
            if position == start and self._half_applied:
                self.wake()
                return False  # a reader does not wait for the rest of the event
        self.dispatched_offset = position
        self.on_success()
        arrived, self._unannounced = self._unannounced, []
        if arrived:
            self._notifying = True
            try:
                for listener in self.on_arrival:
                    listener(arrived)
            finally:
                self._notifying = False
        return True

    def _keep_round_short(self, records: list[Derivable], start: int, end: int) -> int:
        """Leave records to later rounds if their keys or events take too long; returns where the round ends in the log.

        Args:
            records: the records of the round; those that are left are removed from it.
            start: where the round begins in the log.
            end: where the last of them ends in the log.
        """
        chars = 0
        for at, record in enumerate(records):
            chars += len(record[8]) + len(record[9])
            if not record[8] and record[0] == CONTROL_TOPIC:  # most messages have a unique key, and need no comparison
                chars += max(record[4] // EVENT_BYTES_PER_KEY_CHAR, EVENT_KEY_CHARS_MIN)
            if chars > ROUND_KEY_CHARS_MAX and at:
                return self._leave(records, at, start, end)
        return end

    def _leave(self, records: list[Derivable], at: int, start: int, end: int) -> int:
        """Move the records of a round from the index `at` on to later rounds; returns where the round ends."""
        left = records[at:]
        if at:
            _, _, _, physical_offset, size, *_ = records[at - 1]
            start = physical_offset + size
        del records[at:]
        self._offered.appendleft((start, end, left))
        self._offered_count += len(left)
        return start

    def derivable(self, parts: DerivedParts) -> Derivable:
        """Convert a record that was read back to what `derive` needs."""
        return derivable_of(parts, self.tags_codes)

    def derive(self, records: list[Derivable]) -> None:
        """Add records to their queues and the index, and write these; listeners are not called.

        Blocks, also for syncs of queues if these records need more files than may be open.
        """
        left = len(records)
        while left:
            left = self._derive(records[len(records) - left :], len(records), max(self.open_files.room, 1))
            self._unannounced.clear()
            if self.open_files.room <= 0:
                for queue in [*self.dirty]:
                    queue.sync()
                    queue.segments.park()
                    del self.dirty[queue]

    def _derive(self, records: list[Derivable], new_files_max: int, opens_max: int) -> int:
        """Derive records up to a gap that takes turns, or as many as these numbers allow.

        Args:
            records: what to derive.
            new_files_max: how many files may be created; one may be in any case.
            opens_max: how many files may be opened.

        Returns:
            How many of the last records were not derived.
        """
        left = 0
        self.open_files.awaited = self._half_applied = False
        indexed = self._gather_together(records, new_files_max, opens_max)
        if indexed is None:
            indexed = list[IndexEntry]()
            left = self._gather(records, new_files_max, opens_max, indexed)
        touched = self._touched
        for queue in list(touched):
            queue.write()
            del touched[queue]
            self.dirty[queue] = None
        if self.index is not None and indexed:
            self.index.put_batch(indexed)
        if len(records) > left:
            self.last_store_timestamp = records[len(records) - left - 1][6]
        return left

    def _gather_together(self, records: list[Derivable], new_files_max: int, opens_max: int) -> list[IndexEntry] | None:
        """Gather the units of all records; returns what is to be indexed, or None if one of the records needs a closer look."""
        grouped = self.group_records(records) if self.group_records is not None else None
        if grouped is None:
            return None
        groups, indexed = grouped
        queues: list[ConsumeQueue] = []
        for topic, queue_id, first, physical_offset, _, _ in groups:
            queue = self._queue_of(topic, queue_id, physical_offset)
            if queue is None or queue.max_offset != first:
                return None
            new_files_max -= queue.segments.is_full
            opens_max -= queue.segments.opens_file
            queues.append(queue)
        if new_files_max < 0 or opens_max < 0:
            return None
        for queue, (_, _, _, _, physical_end, units) in zip(queues, groups, strict=True):
            self._touched[queue] = None
            queue.put_units(units, len(units) // UNIT_SIZE, physical_end)
        self._unannounced += records
        return indexed

    def _gather(self, records: list[Derivable], new_files_max: int, opens_max: int, indexed: list[IndexEntry]) -> int:
        """Gather the units of records one by one, and add to `indexed` what is to be indexed.

        Returns:
            How many of the last records were left, because they need more files, or a gap that takes turns is before them.
        """
        touched, queues = self._touched, dict[tuple[str, int], ConsumeQueue]()
        for at, record in enumerate(records):
            (topic, queue_id, queue_offset, physical_offset, size, tags_code, timestamp, sys_flag, unique_key, keys, number) = (
                record
            )
            kind = sys_flag & TRANSACTION_MASK
            if not kind or kind == TRANSACTION_COMMIT:
                key = (topic, queue_id)
                queue = queues.get(key)
                if queue is None:
                    queue = self._queue_of(topic, queue_id, physical_offset)
                    if queue is None:
                        continue
                    new_files_max -= queue.segments.is_full
                    opens_max -= queue.segments.opens_file
                    self.open_files.awaited = opens_max < 0
                    if opens_max < 0 or (new_files_max < 0 and at):
                        return len(records) - at
                    queues[key] = queue
                    touched[queue] = None
                new = queue.put(queue_offset, physical_offset, size, tags_code)
                if new:
                    self._unannounced.append(record)
                elif new is None:
                    return len(records) - at
            elif kind == TRANSACTION_ROLLBACK and topic == CONTROL_TOPIC and not self.on_control(physical_offset, size):
                self._half_applied = True
                return len(records) - at
            if number:
                self.on_numbered(record)
            if kind != TRANSACTION_ROLLBACK and (unique_key or keys):
                indexed.append((topic, unique_key, keys, physical_offset, timestamp))
        return 0

    def _queue_of(self, topic: str, queue_id: int, physical_offset: int) -> ConsumeQueue | None:
        """The queue of a record; None if it cannot have files, since a peer's record may contain anything."""
        try:
            return self.queue_of(topic, queue_id)
        except BadQueueName as error:
            if (topic, queue_id) not in self._refused and len(self._refused) < REFUSED_QUEUES_MAX:
                self._refused.add((topic, queue_id))
                events.error("record_without_queue", physical_offset=physical_offset, reason=str(error))
            return None

    def _skip_damaged(self, start: int) -> bool:
        # These readable bytes are no record. On a slave they may be a part of one, which more bytes will complete. On a master
        # they were damaged after recovery; like RocketMQ, we continue behind them, at the next segment, and log it.
        end = self.log.segment_end(start)
        if self.log.readable_offset < end:
            return False
        events.error("damaged_record_skipped", physical_offset=start, next_offset=end)
        self.dispatched_offset = end
        return True
