"""Deriving consume queues and the key index from the log (RocketMQ ReputMessageService).

Invariant: records reach the queues in log order, each once, and none at or beyond the log's readable offset. What a put has
just encoded is handed over (`offer`) so that it need not be parsed again; whatever was not offered (recovery, a slave's raw
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

from ..message.control import CONTROL_TOPIC
from ..message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK
from ..message.layout import DerivedParts
from ..message.properties import DELAY_MARK, KEYS_MARK, TAGS_MARK, UNIQUE_KEY_MARK, find_marked
from ..message.strings import string_hash
from ..world.events import get_logger
from .commitlog import CommitLog
from .config import SCHEDULE_TOPIC
from .consumequeue import ConsumeQueue
from .errors import BadQueueName

events = get_logger(__name__)

OFFERED_MAX = 65_536
"""Offered records that wait to become readable; beyond it they are read back from the log instead."""
ROUND_RECORDS_MAX = 1024
"""Records of one turn of the event loop: a few milliseconds."""
PAUSE_SECONDS = 0.003
"""Pause between rounds of a busy log: a batch gathers, and each queue is written once for many records (RocketMQ: 1 ms)."""
UNREAD_PAUSE_SECONDS = 0.01
"""The longest one while nobody reads any queue."""
ROUND_BYTES = 128 * 1024
"""So much of the log ends it before that: these came just now, and their sender waits for answers before it sends more."""
BULK_SHARE = 0.05
"""Of the time while bulk data arrives: it is received first, but who reads from a slave that lags for hours must get on too."""
BULK_ROUND_RECORDS_MAX = 128
"""Records of one turn meanwhile: a longer one would fill the socket's buffer, and the master would stop to send."""
BULK_SECONDS = 0.1
"""How long after the last piece bulk data still counts as arriving."""
TAGS_CACHED_MAX = 10_000
REFUSED_QUEUES_MAX = 100
"""How many queues that cannot have files are named in the log; further ones are skipped without a word."""


Derivable = tuple[str, int, int, int, int, int, int, int, str, str]
"""What queues and index need of one record: topic, queue id, queue offset, physical offset, size, tags code, store timestamp,
sys flag, unique key, keys. A plain tuple: one is made for every message."""


class KeyIndex(Protocol):
    """Where keys of records are put down."""

    def put_batch(self, entries: Sequence[tuple[str, str, str, int, int]]) -> None:
        """Entries are (topic, unique key, keys, physical offset, store timestamp)."""
        ...


@attrs.define(eq=False)
class TagsCodes:
    """The tags code of a record: the hash of its tag, or in the delay topic its due time."""

    delay_levels_ms: tuple[int, ...]
    _hashes: dict[str, int] = attrs.field(factory=dict[str, int])

    def of(self, topic: str, tag: str, delay: str, store_timestamp: int) -> int:
        """Compute it; `tag` and `delay` are properties, "" where there is none."""
        if delay and topic == SCHEDULE_TOPIC:
            return store_timestamp + self.delay_ms(int(delay) if delay.isdecimal() else 0)
        if not tag:
            return 0
        code = self._hashes.get(tag)
        if code is None:
            if len(self._hashes) >= TAGS_CACHED_MAX:
                self._hashes.clear()
            code = self._hashes[tag] = string_hash(tag)
        return code

    @property
    def level_max(self) -> int:
        """The highest delay level there is."""
        return len(self.delay_levels_ms)

    def delay_ms(self, level: int) -> int:
        """Delay of a level; above the highest counts as the highest, an impossible one as a second."""
        return self.delay_levels_ms[min(level, len(self.delay_levels_ms)) - 1] if level > 0 else 1000


def derivable_of(parts: DerivedParts, tags_codes: TagsCodes) -> Derivable:
    """What is derived from a record that was read back."""
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
    )


def records_at_once(since_bulk: float) -> int:
    """Records of a round, when bulk data arrived so many seconds ago."""
    return ROUND_RECORDS_MAX if since_bulk > BULK_SECONDS else BULK_ROUND_RECORDS_MAX


def pause_after(took: float, since_bulk: float, *, wanted: bool) -> float:
    """Seconds to leave to others after a round that took so many, when bulk data arrived so many ago.

    Args:
        wanted: queues have been read since the round before, or there is enough for another one.
    """
    if since_bulk > BULK_SECONDS:
        return PAUSE_SECONDS if wanted else UNREAD_PAUSE_SECONDS
    return max(PAUSE_SECONDS, took * (1 - BULK_SHARE) / BULK_SHARE)


@attrs.define(eq=False)
class Dispatcher:
    """Drives the derivation and says where it stands."""

    log: CommitLog
    tags_codes: TagsCodes
    queue_of: Callable[[str, int], ConsumeQueue]
    index: KeyIndex | None
    dispatched_offset: int = 0
    """Every record before it is in its queue and in the index."""
    last_store_timestamp: int = 0
    reads: int = 0
    """Of queues, so far; counted by whoever reads them."""
    on_arrival: list[Callable[[list[Derivable]], None]] = attrs.field(factory=list[Callable[[list[Derivable]], None]])
    """Told of the records that have come into queues."""
    on_control: Callable[[int, int], None] = lambda _offset, _size: None
    """Called with physical offset and size of a control record, after the records before it are in their queues."""
    on_failure: Callable[[OSError], None] = lambda _: None
    on_success: Callable[[], None] = lambda: None
    dirty: dict[ConsumeQueue, None] = attrs.field(factory=dict[ConsumeQueue, None])
    """Queues with units not yet synced."""
    _offered: deque[tuple[int, int, list[Derivable]]] = attrs.field(factory=deque[tuple[int, int, list[Derivable]]])
    _offered_count: int = 0
    _touched: dict[ConsumeQueue, None] = attrs.field(factory=dict[ConsumeQueue, None])
    _refused: set[tuple[str, int]] = attrs.field(factory=set[tuple[str, int]])
    """Queues that cannot have files, of which the log has been told."""
    _wake: trio.Event = attrs.field(factory=trio.Event)
    _pause_over: trio.Event = attrs.field(factory=trio.Event)
    _telling: bool = False
    """Listeners are being told of arrivals; they read the store, which must not begin a round within the round."""
    _bulk_at: float = -inf
    """When the last piece of bulk data came."""
    _ended: float = -inf
    """When the last round ended."""
    _reads_before: int = 0
    """`reads` at that time."""

    @property
    def behind_bytes(self) -> int:
        """Readable bytes that are not derived yet."""
        return max(self.log.readable_offset - self.dispatched_offset, 0)

    def offer(self, start: int, end: int, records: list[Derivable]) -> None:
        """Hand over the records of one append, which covers the log from `start` to `end`."""
        if self._offered_count < OFFERED_MAX:
            self._offered.append((start, end, records))
            self._offered_count += len(records)
        self.wake()

    def wake(self, *, more_coming: bool = False) -> None:
        """More of the log has become readable; `more_coming`: and yet more, which comes first, is about to."""
        if more_coming:
            self._bulk_at = trio.current_time()
        self._wake.set()
        if self.behind_bytes >= ROUND_BYTES:
            now = trio.current_time()
            if now - self._ended >= PAUSE_SECONDS and now - self._bulk_at > BULK_SECONDS:
                self._pause_over.set()

    def sync_began(self) -> None:
        """The log waits for the disk: a good time for the next round, which would else delay the puts that come after."""
        if trio.current_time() - self._bulk_at > BULK_SECONDS:
            self._pause_over.set()

    def cut(self, offset: int) -> None:
        """Forget everything from `offset` on: the log has been cut there."""
        self._offered.clear()
        self._offered_count = 0
        self.dispatched_offset = min(self.dispatched_offset, offset)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Derive whatever becomes readable, until cancelled."""
        task_status.started()
        while True:
            # One for all the pauses that end before their time: to make one and have it cancelled costs as much as ten records.
            with trio.CancelScope() as patience:
                await self._keep_deriving(patience)

    async def _keep_deriving(self, patience: trio.CancelScope) -> None:
        """Derive whatever becomes readable, until a pause lasts to its end: then the deadline of `patience` passes."""
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
                patience.deadline = self._pause_until(began)
                await self._pause_over.wait()
                patience.deadline = inf
            await self._wake.wait()
            self._wake = trio.Event()

    def _pause_until(self, began: float) -> float:
        """When to go on at the latest after a round that began then and ends now."""
        wanted = self.reads != self._reads_before or self.behind_bytes >= ROUND_BYTES
        self._ended, self._reads_before = trio.current_time(), self.reads
        return self._ended + pause_after(self._ended - began, self._ended - self._bulk_at, wanted=wanted)

    def catch_up(self) -> None:
        """Derive now what is readable, as far as one round goes, for a reader who may know of more than the queues do."""
        if self.behind_bytes and not self._telling:
            with suppress(OSError):  # the next round meets it too, and says so
                self.round()

    def round(self, records_max: int = ROUND_RECORDS_MAX) -> bool:
        """Derive one slice; returns whether it got anywhere.

        Raises:
            OSError: a queue or the index could not be written. The slice is derived again by the next round; entries that
                did get through are then recognised as duplicates.
        """
        # A slave that was filled anew, or a long stop with retention: the log may begin behind what was dispatched.
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
        if not records:
            stop = min(readable, offered[0][0]) if offered else readable
            tags_codes = self.tags_codes
            for after, parts in self.log.records(start, stop):
                position = after
                if parts is not None:
                    records.append(derivable_of(parts, tags_codes))
                    if len(records) >= records_max:
                        break
        if position == start:
            return self._skip_damaged(start)
        try:
            arrived = self.derive(records)
        except OSError:
            self._offered.clear()
            self._offered_count = 0
            raise
        self.dispatched_offset = position
        self.on_success()
        if arrived:
            self._telling = True
            try:
                for listener in self.on_arrival:
                    listener(arrived)
            finally:
                self._telling = False
        return True

    def derivable(self, parts: DerivedParts) -> Derivable:
        """What `derive` takes, of a record that was read back."""
        return derivable_of(parts, self.tags_codes)

    def derive(self, records: list[Derivable]) -> list[Derivable]:
        """Put records into their queues and the index, and write those down; returns those that are new in a queue."""
        arrived: list[Derivable] = []
        touched, queues = self._touched, dict[tuple[str, int], ConsumeQueue]()
        indexed: list[tuple[str, str, str, int, int]] = []
        for record in records:
            topic, queue_id, queue_offset, physical_offset, size, tags_code, timestamp, sys_flag, unique_key, keys = record
            kind = sys_flag & TRANSACTION_MASK
            if not kind or kind == TRANSACTION_COMMIT:
                key = (topic, queue_id)
                queue = queues.get(key)
                if queue is None:
                    queue = self._queue_of(topic, queue_id, physical_offset)
                    if queue is None:
                        continue
                    queues[key] = queue
                    touched[queue] = None
                if queue.put(queue_offset, physical_offset, size, tags_code):
                    arrived.append(record)
            elif kind == TRANSACTION_ROLLBACK and topic == CONTROL_TOPIC:
                self.on_control(physical_offset, size)
            if kind != TRANSACTION_ROLLBACK and (unique_key or keys):
                indexed.append((topic, unique_key, keys, physical_offset, timestamp))
        for queue in list(touched):
            queue.write()
            del touched[queue]
            self.dirty[queue] = None
        if self.index is not None and indexed:
            self.index.put_batch(indexed)
        if records:
            self.last_store_timestamp = records[-1][6]
        return arrived

    def _queue_of(self, topic: str, queue_id: int, physical_offset: int) -> ConsumeQueue | None:
        """The queue of a record; None where it cannot have files: a peer's record may hold anything."""
        try:
            return self.queue_of(topic, queue_id)
        except BadQueueName as error:
            if (topic, queue_id) not in self._refused and len(self._refused) < REFUSED_QUEUES_MAX:
                self._refused.add((topic, queue_id))
                events.error("record_without_queue", physical_offset=physical_offset, reason=str(error))
            return None

    def _skip_damaged(self, start: int) -> bool:
        # Readable bytes that are no record: a slave may hold a part of one, more bytes will complete it. On the log of a master
        # it is damage done after recovery; RocketMQ goes on behind it, and so do we, at the next segment, saying so.
        end = self.log.segment_end(start)
        if self.log.readable_offset < end:
            return False
        events.error("damaged_record_skipped", physical_offset=start, next_offset=end)
        self.dispatched_offset = end
        return True
