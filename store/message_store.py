"""The message store: put, get, query, over one log and what is derived from it (RocketMQ DefaultMessageStore).

Invariant: a queue's offsets are given out in log order, without gaps, and only to records that are in the log. `put` is
synchronous, so nothing can come between giving out an offset and appending its record. Everything runs on the event loop;
only syncing and recovery run on worker threads.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from ..message.control import CONTROL_TOPIC, Control, control_message, deletion_of
from ..message.flags import INNER_BATCH, NEED_UNWRAP, TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED
from ..message.layout import TOPIC_BYTES_MAX, encode_records, span_of, topic_field, topic_of
from ..message.message import IncomingMessage
from ..message.properties import DELAY_MARK, KEYS_MARK, PROPERTIES_BYTES_MAX, TAGS_MARK, UNIQUE_KEY_MARK, find_marked
from ..world.events import get_logger
from ..world.real import World
from .commitlog import CommitLog, Done
from .config import SCHEDULE_TOPIC, StoreConfig
from .consumequeue import UNIT, UNIT_SIZE, ConsumeQueue, ConsumeQueues, Unit
from .dispatch import Derivable, Dispatcher
from .errors import AppendUnclear, NotWritable
from .events import LogEvents
from .index import IndexFiles
from .local_recovery import SECTOR
from .names import queue_fault
from .statuses import GetStatus, PutStatus

if TYPE_CHECKING:
    from .cleaning import Cleaner

log = get_logger(__name__)

_SHORT_PROPERTIES = PROPERTIES_BYTES_MAX // 4
"""Characters that stay inside the limit however many bytes each takes."""
_LOST_SECTOR = "\0" * SECTOR
LIGHT_QUEUES_MARK = "INNER_MULTI_DISPATCH\x01"
"""Property of a message that is to come into light message queues too (RocketMQ LMQ)."""
INNER_BATCH_BITS = NEED_UNWRAP | INNER_BATCH
WHOLE_RECORD_EXTRA = 65_536
"""A record may be longer than `max_message_size` by this: topic, properties and the fixed part."""


@attrs.define(eq=False)
class PutBatch:
    """How a put went, message by message."""

    statuses: list[PutStatus]
    queue_offsets: list[int]
    physical_offsets: list[int]
    sizes: list[int]
    """Of the records; 0 where there is none."""
    end: int = 0
    """What the messages that were appended wait for; 0 if none were."""
    remark: str = ""
    """Why, where a status is not PUT_OK."""


@attrs.frozen
class PutResult:
    """How the put of one message went."""

    status: PutStatus
    queue_offset: int
    physical_offset: int
    remark: str


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


@attrs.define(eq=False)
class Writability:
    """Why the store takes no messages, if it does not (RocketMQ's running flags)."""

    shut_down: bool = False
    role_refusal: str | None = None
    """Why the broker's role takes no messages, if it does not."""
    disk_full: bool = False
    queue_error: str | None = None

    @property
    def refusal(self) -> str | None:
        """The reason, for the producer; None when puts are welcome."""
        if self.shut_down:
            return "the broker is shutting down"
        if self.role_refusal is not None:
            return self.role_refusal
        if self.disk_full:
            return "the disk is full beyond diskSpaceWarningLevelRatio; messages are taken again when space has been freed"
        if self.queue_error is not None:
            return f"consume queues cannot be written: {self.queue_error}"
        return None


@attrs.define(eq=False)
class MessageStore:
    """One broker's messages."""

    config: StoreConfig
    world: World
    log: CommitLog
    store_host: bytes
    dispatcher: Dispatcher
    queues: ConsumeQueues
    index: IndexFiles | None
    events: LogEvents
    writability: Writability = attrs.field(factory=Writability)
    is_replica: bool = False
    """What the log holds comes from another broker, which may have more, and may truncate it."""
    next_offsets: dict[tuple[str, int], int] = attrs.field(factory=dict[tuple[str, int], int])
    """The queue offset table: what the next message of each queue gets."""
    cleaner: Cleaner | None = None
    """Carries out retention while the store is open."""
    forget_mark: Callable[[], Awaitable[None]] | None = None
    """Makes the next start trust nothing of how far this one had got; the log is about to be cut behind that."""
    on_queues_cut: list[Callable[[Mapping[tuple[str, int], int]], None]] = attrs.field(
        factory=list[Callable[[Mapping[tuple[str, int], int]], None]]
    )
    """Called with the new ends of queues, by topic and queue id, that have lost messages."""
    last_timestamp: int = 0
    """Store timestamp of the last record: they never decrease along the log, whatever the clock does."""
    _topic_fields: dict[str, bytes] = attrs.field(factory=dict[str, bytes])

    # ---------------------------------------------------------------- put

    def put(self, messages: Sequence[IncomingMessage], *, together: bool = False) -> PutBatch:
        """Append messages in order, as far as each is legal.

        Args:
            together: all or none, in one segment, as the items of a client's batch.

        Returns:
            One status per message. PUT_OK means appended; whether it is also as safe as the mode promises is what
            `when_stored` answers.
        """
        batch = _unsettled(len(messages))
        refusal = self.writability.refusal
        if refusal is not None:
            return _refuse(batch, PutStatus.SERVICE_NOT_AVAILABLE, refusal)
        if not messages or not self._all_legal(messages):
            return self._put_legal(messages, self._check(messages, batch), batch, together=together)
        try:
            self._append(messages, batch, together=together)
        except (struct.error, UnicodeEncodeError):  # seldom enough to be looked for only now
            return self._put_legal(messages, self._encodable(messages, range(len(messages)), batch), batch, together=together)
        return batch

    def _put_legal(
        self, messages: Sequence[IncomingMessage], legal: Sequence[int], batch: PutBatch, *, together: bool
    ) -> PutBatch:
        """Append those of the messages that are legal, or none if they belong together and some are not."""
        if together and len(legal) < len(messages):
            return _refuse(batch, PutStatus.MESSAGE_ILLEGAL, batch.remark)
        if not legal:
            return batch
        part = _unsettled(len(legal))
        try:
            self._append([messages[at] for at in legal], part, together=together)
        except (struct.error, UnicodeEncodeError):
            return self._put_legal(messages, self._encodable(messages, legal, batch), batch, together=together)
        batch.end, batch.remark = part.end, part.remark or batch.remark
        settled = zip(part.statuses, part.queue_offsets, part.physical_offsets, part.sizes, strict=True)
        for at, (status, queue_offset, physical_offset, size) in zip(legal, settled, strict=True):
            batch.statuses[at], batch.sizes[at] = status, size
            batch.queue_offsets[at], batch.physical_offsets[at] = queue_offset, physical_offset
        return batch

    def _all_legal(self, messages: Sequence[IncomingMessage]) -> bool:
        """Whether nothing needs a closer look: small properties without U+0000, known topics, bodies inside the limit."""
        body_max, topics = self.config.max_message_size, self._topic_fields
        for message in messages:
            properties = message.properties
            if len(message.body) > body_max or len(properties) > _SHORT_PROPERTIES or message.topic not in topics:
                return False
            if "\0" in properties or LIGHT_QUEUES_MARK in properties or message.sys_flag & INNER_BATCH_BITS:
                return False
        return True

    def _check(self, messages: Sequence[IncomingMessage], batch: PutBatch) -> list[int]:
        body_max = self.config.max_message_size
        topics = self._topic_fields
        legal: list[int] = []
        for at, message in enumerate(messages):
            if len(message.body) > body_max:
                batch.remark = f"the body has {len(message.body)} bytes, maxMessageSize is {body_max}; it was not stored"
            elif len(message.properties) * 3 > PROPERTIES_BYTES_MAX < len(message.properties.encode()):
                batch.remark = (
                    f"the properties have {len(message.properties.encode())} bytes, {PROPERTIES_BYTES_MAX} are allowed; "
                    "the message was not stored"
                )
            elif message.sys_flag & INNER_BATCH_BITS:
                batch.remark = "an inner batch, which consume queues here have no entry for; the message was not stored"
            elif LIGHT_QUEUES_MARK in message.properties:
                batch.remark = "a message for light queues, which are not here (INNER_MULTI_DISPATCH); it was not stored"
            elif message.properties.endswith("\0") or _LOST_SECTOR in message.properties:
                # Recovery would take the record for one of which a power cut took a sector, and end the log with it.
                batch.remark = f"the properties end with U+0000 or hold {SECTOR} of them in a row; the message was not stored"
            elif message.topic not in topics and not self._encode_topic(message.topic):
                batch.remark = (
                    f"the topic has {len(message.topic.encode())} bytes, 1 to {TOPIC_BYTES_MAX} are allowed, it is the name of "
                    f"a directory, and {CONTROL_TOPIC} is the store's own; the message was not stored"
                )
            else:
                legal.append(at)
                continue
            batch.statuses[at] = PutStatus.MESSAGE_ILLEGAL
        return legal

    def _encodable(self, messages: Sequence[IncomingMessage], legal: Sequence[int], batch: PutBatch) -> list[int]:
        """Refuse messages with a number or text that no record can hold."""
        encodable: list[int] = []
        for at in legal:
            try:
                self._take_back([messages[at]], self._encode([messages[at]], 0)[1])
            except (struct.error, UnicodeEncodeError) as error:
                batch.statuses[at] = PutStatus.MESSAGE_ILLEGAL
                batch.remark = f"no record can hold a field of the message ({error}); the message was not stored"
            else:
                encodable.append(at)
        return encodable

    def _encode_topic(self, topic: str) -> bool:
        encoded = topic.encode()
        if not 0 < len(encoded) <= TOPIC_BYTES_MAX or topic == CONTROL_TOPIC or queue_fault(topic, 0):
            return False
        self._topic_fields[topic] = topic_field(encoded)
        return True

    def _append(self, messages: Sequence[IncomingMessage], batch: PutBatch, *, together: bool) -> None:
        clock_ms = self.world.clock.wall_ms()
        now = self.last_timestamp = max(clock_ms, self.last_timestamp)
        records, queue_offsets = self._encode(messages, now)
        try:
            appended = self.log.append(records, together=together)
        except (OSError, NotWritable) as error:
            self._take_back(messages, queue_offsets)
            self._append_failed(batch, error)
            return
        batch.end, batch.queue_offsets, batch.physical_offsets = appended.end, queue_offsets, appended.offsets
        batch.sizes = list(map(len, records))
        tags_code_of = self.dispatcher.tags_codes.of
        derivables: list[Derivable] = []
        for message, queue_offset, offset, size in zip(messages, queue_offsets, appended.offsets, batch.sizes, strict=True):
            topic, properties, tags_code = message.topic, message.properties, 0
            if topic == SCHEDULE_TOPIC or TAGS_MARK in properties:
                delay = find_marked(properties, DELAY_MARK) if topic == SCHEDULE_TOPIC else ""
                # A delayed message waits from now on, also while timestamps stand still because the clock went back.
                tags_code = tags_code_of(topic, find_marked(properties, TAGS_MARK), delay, clock_ms)
            derivables.append(
                (
                    topic,
                    message.queue_id,
                    queue_offset,
                    offset,
                    size,
                    tags_code,
                    now,
                    message.sys_flag,
                    find_marked(properties, UNIQUE_KEY_MARK),
                    find_marked(properties, KEYS_MARK) if KEYS_MARK in properties else "",
                )
            )
        self.dispatcher.offer(appended.start, appended.end, derivables)

    def _encode(self, messages: Sequence[IncomingMessage], now: int) -> tuple[list[bytes], list[int]]:
        """Give out queue offsets and encode the records.

        Raises:
            struct.error, UnicodeEncodeError: a number or text of a message that no record can hold. Nothing was given out.
        """
        next_offsets = self.next_offsets
        queue_offsets: list[int] = []
        for message in messages:
            offset = 0
            if not message.sys_flag & TRANSACTION_PREPARED:  # neither prepared nor rolled back
                key = (message.topic, message.queue_id)
                offset = next_offsets.get(key, 0)
                next_offsets[key] = offset + 1
            queue_offsets.append(offset)
        topic_fields = [self._topic_fields[message.topic] for message in messages]
        try:
            return encode_records(messages, topic_fields, queue_offsets, now, self.store_host), queue_offsets
        except (struct.error, UnicodeEncodeError):
            self._take_back(messages, queue_offsets)
            raise

    def _take_back(self, messages: Sequence[IncomingMessage], queue_offsets: Sequence[int]) -> None:
        """Give the queue offsets of messages that did not come into the log to the next ones."""
        for message, queue_offset in zip(reversed(messages), reversed(queue_offsets), strict=True):
            if not message.sys_flag & TRANSACTION_PREPARED:
                self.next_offsets[message.topic, message.queue_id] = queue_offset

    def _append_failed(self, batch: PutBatch, error: Exception) -> None:
        status = PutStatus.SERVICE_NOT_AVAILABLE
        if isinstance(error, OSError):
            log.error("append_failed", reason=error.strerror or str(error), errno=error.errno)
            batch.remark = f"the log could not be written ({error.strerror or error}); the message was not stored"
            if isinstance(error, AppendUnclear):
                status = PutStatus.UNKNOWN_ERROR
                batch.remark = (
                    f"the log could not be written ({error.strerror or error}); whether the message is stored is unknown"
                )
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.writability.disk_full = True
        else:
            batch.remark = f"the log takes no messages: {error}; the message was not stored"
            if isinstance(error, NotWritable):
                status = error.status
        batch.statuses = [status] * len(batch.statuses)

    async def put_one(self, message: IncomingMessage, *, wait: bool = True) -> PutResult:
        """Put one message and wait for what the mode promises.

        Durability: on return, what `status` says.
        Cancellation: may leave the message in the log, whole.
        """
        batch = self.put([message])
        status = batch.statuses[0]
        if status is PutStatus.PUT_OK and wait:
            status = await self._done(batch.end)
        else:
            await trio.lowlevel.checkpoint()
        return PutResult(status, batch.queue_offsets[0], batch.physical_offsets[0], batch.remark)

    @property
    def waits(self) -> bool:
        """Whether a put must wait for more than the append itself."""
        return self.log.waits

    @property
    def may_answer_early(self) -> bool:
        """Whether a message that asks for it (WAIT=false) may be answered as soon as it is appended."""
        return self.log.may_answer_early

    def when_stored(self, batch: PutBatch, done: Done) -> None:
        """Call `done` once, with the outcome for those messages of a batch that were appended.

        PUT_OK: they are as safe as the mode promises. Other outcomes say what is known when the mode's time is up or when the
        log stops; see `PutStatus`.
        """
        self.log.when_stored(batch.end, done)

    def when_all_stored(self, done: Done) -> None:
        """Call `done` once, with the outcome for everything that has been appended so far."""
        self.log.when_stored(self.log.max_offset, done)

    # ---------------------------------------------------------------- get

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
            max_bytes: of records; the first record is always given, however large.
        """
        self.dispatcher.reads += 1
        queue = self.queues.table.get((topic, queue_id))
        if offset > (queue.max_offset if queue is not None else 0):
            # A slave may have derived what is not derived here yet, and shown it: that its reader is ahead is no mistake.
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
        return self._walk(GetResult(GetStatus.NO_MATCHED_MESSAGE, offset, low, high), raw, max_messages, max_bytes, tags)

    def _walk(self, result: GetResult, raw: bytes, max_messages: int, max_bytes: int, tags: frozenset[int] | None) -> GetResult:
        config, slices = self.config, result.slices
        log_end = self.log.max_offset
        memory = config.memory_bytes * config.access_message_in_memory_max_ratio // 100
        in_memory_from = log_end - memory
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
        removed = False
        for physical_offset, size, code in UNIT.codec.iter_unpack(raw):
            if slices:
                count_max, bytes_max = of_memory if physical_offset >= in_memory_from else of_disk
                if len(slices) >= count_max or size_sum + size > bytes_max:
                    break
            visited += 1
            if tags is not None and code not in tags:
                continue
            at = physical_offset - start
            if at < 0 or at + size > known:
                raw_log = self.log.slice_from(physical_offset, config.mapped_file_size_commit_log)
                start, at, known = physical_offset, 0, len(raw_log)
                if size > known:
                    removed = True
                    continue
            slices.append(raw_log[at : at + size])
            size_sum += size
        result.size = size_sum
        result.next_offset += visited
        result.suggest_slave = log_end - physical_offset > memory
        if slices:
            result.status = GetStatus.FOUND
        elif removed:
            result.status = GetStatus.MESSAGE_WAS_REMOVING
        return result

    def _corrected(self, asked: int, right: int) -> int:
        # A replica may be behind its master: it does not correct a consumer that knows more.
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
        """What the next message of a queue gets; 0 for an unknown queue."""
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
        """The record at a physical offset, or None if there is none."""
        if not self.log.min_offset <= physical_offset < self.log.readable_offset:
            return None
        view = self.log.slice_from(physical_offset, self.config.max_message_size + WHOLE_RECORD_EXTRA)
        span = span_of(view, 0, len(view))
        # A number made up by a client may point into a body that looks like a record.
        if span is None or span.physical_offset != physical_offset:
            return None
        if span.sys_flag & TRANSACTION_MASK in (0, TRANSACTION_COMMIT):
            queue = self.queues.table.get((topic_of(view, span), span.queue_id))
            if queue is not None and span.queue_offset < queue.min_offset:
                return None  # its topic was deleted
        return view[: span.size]

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, ms; -1 if it is not there."""
        unit = self.unit(topic, queue_id, offset)
        return self._store_time_at(unit[0], unit[1]) if unit else -1

    def _store_time_at(self, physical_offset: int, size: int) -> int:
        view = self.log.record(physical_offset, size)
        span = span_of(view, 0, len(view)) if view is not None else None
        return span.store_timestamp if span else -1

    def earliest_store_time(self, topic: str | None = None, queue_id: int = 0) -> int:
        """Store time of the oldest message of a queue, or without a topic of the whole log; -1 if there is none."""
        if topic is not None:
            return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))
        view = self.log.slice_from(self.log.min_offset, self.config.max_message_size + WHOLE_RECORD_EXTRA)
        span = span_of(view, 0, len(view))
        return span.store_timestamp if span else -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """Queue offset by store time (RocketMQ 5.x rules).

        Returns:
            The first message stored at or after `timestamp` (after all: the max offset); with `upper` the last one stored at
            or before it (before all: 0).
        """
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        limit = timestamp + 1 if upper else timestamp
        while low < high:
            middle = (low + high) // 2
            if self.store_time(topic, queue_id, middle) < limit:
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
        if self.index is None:
            return QueryResult([], 0, 0)
        count_max = min(count_max, self.config.max_msgs_num_batch)
        found = (self.message_at(offset) for offset in self.index.query(topic, key, count_max, begin_ms, end_ms))
        return QueryResult(
            [record for record in found if record is not None], self.index.end_timestamp, self.index.end_physical_offset
        )

    # ---------------------------------------------------------------- following a master

    async def cut(self, offset: int) -> None:
        """Drop every record at or behind `offset`, from the log and from the queues: the master does not have it.

        Raises:
            OSError: the disk refused; the next start finds out what is left.
        """
        if self.forget_mark is not None:
            await self.forget_mark()
        await self.log.truncate(offset)
        self.dispatcher.cut(offset)
        if self.index is not None:
            self.index.cut(offset)
        ends: dict[tuple[str, int], int] = {}
        for key, queue in self.queues.table.items():
            if queue.physical_end > offset:
                queue.truncate(offset)
                ends[key] = self.next_offsets[key] = queue.max_offset
        self.events.cut(offset)
        for tell in self.on_queues_cut:
            tell(ends)

    async def clear(self) -> None:
        """Drop every record; the log begins anew with the next raw bytes.

        Raises:
            OSError: the disk refused; the next start finds out what is left.
        """
        if self.forget_mark is not None:
            await self.forget_mark()
        await self.log.clear()
        self.dispatcher.cut(0)
        self.events.cut(0)
        if self.index is not None:
            self.index.cut(0)
        ends = dict.fromkeys(self.queues.table, 0)
        for topic in {topic for topic, _ in self.queues.table}:  # queues of another stretch of the log begin elsewhere
            self.drop_queues(topic)
        for tell in self.on_queues_cut:
            tell(ends)

    async def become_writable(self) -> None:
        """Derive all that may be read, drop a record that came in part only, and take up the queue offsets from there.

        All messages of the log must be readable, and none may be appended meanwhile.

        Raises:
            OSError: the disk refused; the store may be asked again.
        """
        while self.dispatcher.behind_bytes and self.dispatcher.round():
            await trio.lowlevel.checkpoint()
        if self.dispatcher.dispatched_offset < self.log.max_offset and self.log.readable_limit is None:
            await self.log.flush()
            while self.dispatcher.behind_bytes and self.dispatcher.round():
                await trio.lowlevel.checkpoint()
            if self.dispatcher.dispatched_offset < self.log.max_offset:
                await self.cut(self.dispatcher.dispatched_offset)
        self.next_offsets.clear()
        self.next_offsets.update(queue_offsets_of(self.queues.table.values()))
        self.last_timestamp = max(self.last_timestamp, self.dispatcher.last_store_timestamp)

    def drop_everything_derived(self) -> None:
        """Forget what was derived from a log that has begun anew elsewhere; its records are derived as they come."""
        self.dispatcher.cut(0)
        for topic in {topic for topic, _ in self.queues.table}:
            self.drop_queues(topic)

    # ---------------------------------------------------------------- queues

    def topics(self) -> set[str]:
        """Topics that have messages."""
        return {topic for (topic, _), queue in self.queues.table.items() if queue.max_offset > queue.min_offset}

    def queue_ids(self, topic: str) -> list[int]:
        """Queues of a topic that have been written to."""
        return self.queues.ids(topic)

    def delete_topic(self, topic: str) -> int:
        """Delete a topic's messages; the offsets of its queues go on. The records stay in the log until their segments expire.

        The deletion is an event of the log: messages that are put after this call are kept, on every node.

        Returns, raises, durability: as `append_event`.
        """
        return self.append_event(deletion_of(topic, self.next_offsets_of(topic)))

    def next_offsets_of(self, topic: str) -> dict[int, int]:
        """What the next message of each queue of a topic gets; queues that never had a message are left out."""
        return {queue_id: offset for (name, queue_id), offset in self.next_offsets.items() if name == topic and offset}

    def append_event(self, control: Control) -> int:
        """Append an event to the log; it is applied in its turn, here and wherever this log is derived.

        Returns:
            The position that `event_done` waits for.

        Raises:
            NotWritable: the log takes nothing now; see its text. Nothing was appended.
            OSError: the disk refused. Nothing was appended.
        """
        if self.writability.refusal is not None:
            raise NotWritable(self.writability.refusal)
        now = self.last_timestamp = max(self.world.clock.wall_ms(), self.last_timestamp)
        message = control_message(control, now, self.store_host)
        records = encode_records([message], [topic_field(CONTROL_TOPIC.encode())], [0], now, self.store_host)
        appended = self.log.append(records)
        derivable = (CONTROL_TOPIC, 0, 0, appended.offsets[0], len(records[0]), 0, now, message.sys_flag, "", "")
        self.dispatcher.offer(appended.start, appended.end, [derivable])
        return appended.end

    async def event_done(self, end: int) -> None:
        """Wait until an event is as safe as the mode promises, and applied here.

        Raises:
            NotWritable: it is in the log and will be applied, but it is not as safe as promised; see its text.
        Durability: on return, the event is as safe as a message that was answered PUT_OK.
        Cancellation: the event stays in the log.
        """
        status = await self._done(end)
        if status is not PutStatus.PUT_OK:
            raise NotWritable(f"the change is in the log, but not as safe as the mode promises: {status.name}")
        while self.dispatcher.dispatched_offset < end:
            self.dispatcher.catch_up()
            await trio.lowlevel.checkpoint()

    async def _done(self, end: int) -> PutStatus:
        """Wait until everything before `end` is as safe as the mode promises."""
        if not self.log.waits:
            await trio.lowlevel.checkpoint()
            return PutStatus.PUT_OK
        finished = trio.Event()
        outcome: list[PutStatus] = []

        def done(result: PutStatus) -> None:
            outcome.append(result)
            finished.set()

        self.log.when_stored(end, done)
        await finished.wait()
        return outcome[0]

    def drop_queues(self, topic: str) -> None:
        """Remove a topic's queues from this node, as if it had never had messages; the log has no record of that."""
        for queue in self.queues.delete(topic):
            self.dispatcher.dirty.pop(queue, None)
        for key in [key for key in self.next_offsets if key[0] == topic]:
            del self.next_offsets[key]

    def catch_up(self) -> None:
        """Derive what is readable, as far as one round goes, so that queues and index have what was acknowledged before."""
        self.dispatcher.catch_up()

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that consumers are not shown yet: not derived, not flushed, or not yet allowed to a slave."""
        return max(self.log.max_offset - self.dispatcher.dispatched_offset, 0)

    def close_files(self) -> None:
        """Close log, queues and index; blocks, and syncs nothing."""
        self.log.close()
        self.queues.close()
        if self.index is not None:
            self.index.close()

    @property
    def writable(self) -> bool:
        return self.writability.refusal is None

    def disk_ratio(self) -> float:
        """Used share of the commit log's file system, 0..1."""
        return self.world.disk.usage(self.config.commit_log_directory).ratio


def _unsettled(count: int) -> PutBatch:
    return PutBatch([PutStatus.PUT_OK] * count, [-1] * count, [-1] * count, [0] * count)


def _refuse(batch: PutBatch, status: PutStatus, remark: str) -> PutBatch:
    batch.statuses = [status] * len(batch.statuses)
    batch.remark = remark
    return batch


def queue_offsets_of(queues: Iterable[ConsumeQueue]) -> dict[tuple[str, int], int]:
    """The queue offset table as the queues have it."""
    return {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
