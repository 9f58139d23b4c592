"""Putting messages and events into the log (RocketMQ DefaultMessageStore putMessage).

Invariant: a queue's offsets are assigned in log order, without gaps, and only to records that are in the log. `put` is
synchronous, so nothing can come between assigning an offset and appending its record.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import trio

from ..message.checksum import crc32
from ..message.control import CONTROL_TOPIC, Control, control_message
from ..message.flags import INNER_BATCH, NEED_UNWRAP, TRANSACTION_PREPARED
from ..message.layout import TOPIC_BYTES_MAX, encode_records, topic_field
from ..message.message import IncomingMessage
from ..message.numbers import LONG_MAX
from ..message.properties import (
    DELAY_MARK,
    KEYS_MARK,
    PROPERTIES_BYTES_MAX,
    SEND_NUMBER_MARK,
    TAGS_MARK,
    UNIQUE_KEY_MARK,
    find_marked,
)
from ..world.events import get_logger
from .config import SCHEDULE_TOPIC
from .derived.dispatch import Derivable
from .derived.queue_ends import QueueEnds
from .errors import AppendUnclear, BadQueueName, NotWritable, RecordTooLarge, is_full
from .log.commitlog import Done
from .log.local_recovery import SECTOR
from .names import queue_fault
from .parts import StoreParts
from .statuses import PutStatus

if TYPE_CHECKING:
    from ..native import SendRun

log = get_logger(__name__)

_SHORT_PROPERTIES = PROPERTIES_BYTES_MAX // 4
"""Properties of up to this many characters are within the limit, however many bytes each character takes."""
_LOST_SECTOR = "\0" * SECTOR
LIGHT_QUEUES_MARK = "INNER_MULTI_DISPATCH\x01"
"""The property of a message that is to be put into light message queues too (RocketMQ LMQ)."""
DERIVED_POLL_SECONDS = 0.005
"""Polling interval for whether a stored event has been applied, in seconds; a failure to write queues may delay that."""
TIMESTAMP_LEAD_MS_MAX = 86_400_000
"""By how much a store timestamp may be ahead of the clock, so that timestamps do not decrease along the log when the clock is
set back by hours, or when another node becomes master. After a larger step, such as the correction of a clock that was a year
ahead, messages get the time of the clock."""
APPEND_SECONDS_PER_BYTE = 1e-7
"""How long it takes to encode and append a byte of an event, measured with commits."""
INNER_BATCH_BITS = NEED_UNWRAP | INNER_BATCH


@attrs.define(eq=False)
class PutBatch:
    """How a put went, message by message."""

    statuses: list[PutStatus]
    queue_offsets: list[int]
    physical_offsets: list[int]
    sizes: list[int]
    """The sizes of the records; 0 for a message that was not appended."""
    end: int = 0
    """The position that the appended messages wait for; 0 if none were appended."""
    remark: str = ""
    """The reason, if a status is not PUT_OK."""


@attrs.frozen
class PutResult:
    """How the put of one message went."""

    status: PutStatus
    queue_offset: int
    physical_offset: int
    remark: str


@attrs.define(eq=False)
class Writability:
    """Whether the store accepts messages, and if not, why (RocketMQ's running flags)."""

    shut_down: bool = False
    role_refusal: str | None = None
    """Why the broker's role accepts no messages; None if it does."""
    disk_full: bool = False
    disk_state: str = ""
    """How full which disk is, and what keeps its files, for the refusal; starts with a space."""
    queue_error: str | None = None

    @property
    def hard_refusal(self) -> str | None:
        """The reason if not even an event that makes room on the disk may be appended; else None."""
        return "the broker is shutting down" if self.shut_down else self.role_refusal

    @property
    def refusal(self) -> str | None:
        """The reason, for the producer; None if puts are accepted."""
        return self.hard_refusal or self.disk_refusal

    @property
    def status(self) -> PutStatus:
        """The status of a put that is refused."""
        return PutStatus.DISK_FULL if self.disk_full and self.hard_refusal is None else PutStatus.SERVICE_NOT_AVAILABLE

    @property
    def disk_refusal(self) -> str | None:
        """The reason if the disk prevents puts; else None."""
        if self.disk_full:
            return f"the disk is full{self.disk_state}; messages are taken again when space has been freed"
        if self.queue_error is not None:
            return f"consume queues cannot be written: {self.queue_error}"
        return None


@attrs.define(eq=False, kw_only=True)
class PutSide(StoreParts):
    """The part of a message store that writes."""

    store_host: bytes
    writability: Writability = attrs.field(factory=Writability)
    last_timestamp: int = 0
    """Store timestamp of the last record. Timestamps do not decrease along the log if the clock goes back a little."""
    queue_ends: QueueEnds = attrs.field(init=False)
    _topic_fields: dict[str, bytes] = attrs.field(factory=dict[str, bytes])

    def __attrs_post_init__(self) -> None:
        self.queue_ends = QueueEnds(self)

    def put(self, messages: Sequence[IncomingMessage], *, together: bool = False) -> PutBatch:
        """Append the legal ones of the messages, in order.

        Args:
            together: all or none, in one segment, as the items of a client's batch.

        Returns:
            One status per message. PUT_OK means appended; whether it is also as safe as the mode promises is what
            `when_stored` answers.
        """
        batch = _unsettled(len(messages))
        refusal = self.writability.refusal
        if refusal is not None:
            return _refuse(batch, self.writability.status, refusal)
        if not messages or not self._all_legal(messages):
            return self._put_legal(messages, self._check(messages, batch), batch, together=together)
        try:
            self._append(messages, batch, together=together)
        except KeyError:  # the first message of a file of a queue; looking for it before would cost each message 80 ns
            return self._put_legal(messages, self._check(messages, batch), batch, together=together)
        except (struct.error, UnicodeEncodeError):  # rare, so it is not looked for before
            return self._put_legal(messages, self._encodable(messages, range(len(messages)), batch), batch, together=together)
        return batch

    def put_run(self, run: SendRun, born_host: bytes, addition: bytes) -> PutBatch | None:
        """Append the messages of a run of plain sends; None, and nothing is done, if one of them needs a closer look.

        Args:
            addition: the property that is added to each message.
        """
        next_offsets, file_ends, topic_fields = self.next_offsets, self.file_ends, self._topic_fields
        if self.writability.refusal is not None:
            return None
        starts: list[int] = []
        fields: list[bytes] = []
        for key, count in zip(run.queues, run.counts, strict=True):
            start, field = next_offsets.get(key), topic_fields.get(key[0])
            if start is None or field is None or start + count > file_ends.get(key, 0):
                return None
            starts.append(start)
            fields.append(field)
        batch = _unsettled(len(run))
        now = self._next_timestamp(self.world.clock.wall_ms())
        records = run.encode(fields, starts, now, born_host, self.store_host, addition, crc32)
        next_offsets.update(zip(run.queues, map(int.__add__, starts, run.counts), strict=True))
        try:
            appended = self.log.append(records)
        except (OSError, NotWritable) as error:
            next_offsets.update(zip(run.queues, starts, strict=True))
            self._append_failed(batch, error)
            return batch
        batch.end, batch.queue_offsets, batch.physical_offsets = appended.end, run.queue_offsets, appended.offsets
        batch.sizes = list(map(len, records))
        self.dispatcher.offer(appended.start, appended.end, run.derivables(appended.offsets, now))
        return batch

    def _put_legal(
        self, messages: Sequence[IncomingMessage], legal: Sequence[int], batch: PutBatch, *, together: bool
    ) -> PutBatch:
        """Append those of the messages that are legal, or none if they belong together and some are not."""
        if together and len(legal) < len(messages):
            return _refuse(batch, next(each for each in batch.statuses if each is not PutStatus.PUT_OK), batch.remark)
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
        """Whether nothing needs a closer look: small properties without U+0000, known topics."""
        topics = self._topic_fields
        for message in messages:
            properties = message.properties
            if len(properties) > _SHORT_PROPERTIES or message.topic not in topics:
                return False
            if "\0" in properties or LIGHT_QUEUES_MARK in properties or message.sys_flag & INNER_BATCH_BITS:
                return False
        return True

    def _check(self, messages: Sequence[IncomingMessage], batch: PutBatch) -> list[int]:
        topics = self._topic_fields
        legal: list[int] = []
        ahead = Counter[tuple[str, int]]()
        for at, message in enumerate(messages):
            if len(message.properties) * 3 > PROPERTIES_BYTES_MAX < len(message.properties.encode()):
                batch.remark = (
                    f"the properties have {len(message.properties.encode())} bytes, {PROPERTIES_BYTES_MAX} are allowed; "
                    "the message was not stored"
                )
            elif message.sys_flag & INNER_BATCH_BITS:
                batch.remark = "an inner batch, which consume queues here have no entry for; the message was not stored"
            elif LIGHT_QUEUES_MARK in message.properties:
                batch.remark = "a message for light queues, which are not here (INNER_MULTI_DISPATCH); it was not stored"
            elif message.properties.endswith("\0") or _LOST_SECTOR in message.properties:
                # Recovery would conclude that a power cut lost a sector of the record, and end the log before it.
                batch.remark = f"the properties end with U+0000 or hold {SECTOR} of them in a row; the message was not stored"
            elif message.topic not in topics and not self._encode_topic(message.topic):
                batch.remark = (
                    f"the topic has {len(message.topic.encode())} bytes, 1 to {TOPIC_BYTES_MAX} are allowed, it is the name of "
                    f"a directory, and {CONTROL_TOPIC} is the store's own; the message was not stored"
                )
            elif refusal := self._prepare(key := (message.topic, message.queue_id), ahead[key]):
                batch.statuses[at] = PutStatus.CREATE_MAPPED_FILE_FAILED
                queue = f"queue {message.queue_id} of {message.topic}"
                batch.remark = f"{queue} cannot get a file ({refusal}); the message was not stored"
                continue
            else:
                ahead[key] += not message.sys_flag & TRANSACTION_PREPARED
                legal.append(at)
                continue
            batch.statuses[at] = PutStatus.MESSAGE_ILLEGAL
        return legal

    def _prepare(self, key: tuple[str, int], ahead: int) -> str:
        """Make sure that a queue has a file for its next unit, before a message is appended; return why it has none.

        A unit that cannot be written holds up the units of all queues behind it, and all puts.

        Args:
            ahead: how many messages for the queue are about to be appended before it.
        """
        offset = self.next_offsets.get(key, 0) + ahead
        if offset >= self.file_ends.get(key, 0):
            try:
                self.file_ends[key] = self.queues.of(*key).prepare(offset)
            except BadQueueName:  # it gets no queue, which deriving logs
                self.file_ends[key] = LONG_MAX
            except OSError as error:
                log.warning("queue_not_created", topic=key[0], queue_id=key[1], reason=error.strerror or str(error))
                return error.strerror or str(error)
        self.next_offsets.setdefault(key, 0)
        return ""

    def needs_file(self, topic: str, queue_id: int) -> bool:
        """Whether a queue has no file yet for its next unit, so that a put has to create one."""
        key = (topic, queue_id)
        return self.next_offsets.get(key, 0) >= self.file_ends.get(key, 0)

    def forget_topic(self, topic: str) -> None:
        """Forget what was kept for faster puts to a topic that was deleted."""
        self._topic_fields.pop(topic, None)

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
        now = self._next_timestamp(clock_ms)
        records, queue_offsets = self._encode(messages, now)
        try:
            appended = self.log.append(records, together=together)
        except (OSError, NotWritable) as error:
            self._take_back(messages, queue_offsets)
            if isinstance(error, RecordTooLarge) and len(messages) > 1 and not together:
                self._append_singly(messages, batch)
            else:
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
                # The delay counts from now on, even while store timestamps do not advance because the clock went back.
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
                    find_marked(properties, SEND_NUMBER_MARK) if SEND_NUMBER_MARK in properties else "",
                )
            )
        self.dispatcher.offer(appended.start, appended.end, derivables)

    def _append_singly(self, messages: Sequence[IncomingMessage], batch: PutBatch) -> None:
        """Append one message after the other, because one of them is too large for the log and must not hinder the others."""
        for at, message in enumerate(messages):
            part = _unsettled(1)
            self._append([message], part, together=False)
            batch.statuses[at], batch.sizes[at] = part.statuses[0], part.sizes[0]
            batch.queue_offsets[at], batch.physical_offsets[at] = part.queue_offsets[0], part.physical_offsets[0]
            batch.end, batch.remark = part.end or batch.end, part.remark or batch.remark

    def _next_timestamp(self, clock_ms: int) -> int:
        """The store timestamp of the records that are appended now."""
        lead = self.last_timestamp - clock_ms
        if lead > TIMESTAMP_LEAD_MS_MAX:
            log.warning("store_timestamps_set_back", lead_ms=lead, last=self.last_timestamp, now=clock_ms)
        self.last_timestamp = self.last_timestamp if 0 < lead <= TIMESTAMP_LEAD_MS_MAX else clock_ms
        return self.last_timestamp

    def _encode(self, messages: Sequence[IncomingMessage], now: int) -> tuple[list[bytes], list[int]]:
        """Assign queue offsets and encode the records.

        Raises:
            struct.error, UnicodeEncodeError: a number or text of a message that no record can hold. No offset was assigned.
            KeyError: the first message of a file of a queue, which has to be created. No offset was assigned.
        """
        next_offsets, file_ends = self.next_offsets, self.file_ends
        queue_offsets: list[int] = []
        try:
            for message in messages:
                offset = 0
                if not message.sys_flag & TRANSACTION_PREPARED:  # neither prepared nor rolled back
                    key = (message.topic, message.queue_id)
                    offset = next_offsets[key]
                    if offset >= file_ends[key]:
                        raise KeyError(key)  # noqa: TRY301 - as for a queue that is not in the table
                    next_offsets[key] = offset + 1
                queue_offsets.append(offset)
        except KeyError:
            self._take_back(messages[: len(queue_offsets)], queue_offsets)
            raise
        topic_fields = [self._topic_fields[message.topic] for message in messages]
        try:
            return encode_records(messages, topic_fields, queue_offsets, now, self.store_host), queue_offsets
        except (struct.error, UnicodeEncodeError):
            self._take_back(messages, queue_offsets)
            raise

    def _take_back(self, messages: Sequence[IncomingMessage], queue_offsets: Sequence[int]) -> None:
        """Take back the queue offsets of messages that were not appended; the next messages get them."""
        for message, queue_offset in zip(reversed(messages), reversed(queue_offsets), strict=True):
            if not message.sys_flag & TRANSACTION_PREPARED:
                self.next_offsets[message.topic, message.queue_id] = queue_offset

    def _append_failed(self, batch: PutBatch, error: Exception) -> None:
        status = PutStatus.SERVICE_NOT_AVAILABLE
        if isinstance(error, OSError):
            log.error("append_failed", reason=error.strerror or str(error), errno=error.errno)
            batch.remark = f"the log could not be written ({error.strerror or error}); the message was not stored"
            if is_full(error):
                status = PutStatus.DISK_FULL
                self.writability.disk_full = True
                self.writability.disk_state = f" ({self.config.commit_log_directory}: {error.strerror})"
            if isinstance(error, AppendUnclear):
                status = PutStatus.UNKNOWN_ERROR
                batch.remark = (
                    f"the log could not be written ({error.strerror or error}); whether the message is stored is unknown"
                )
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

        PUT_OK: they are as safe as the mode promises. Other outcomes say what is known at the mode's time-out or when the
        log stops; see `PutStatus`.
        """
        self.log.when_stored(batch.end, done)

    def when_all_stored(self, done: Done) -> None:
        """Call `done` once, with the outcome for everything that has been appended so far."""
        self.log.when_stored(self.log.max_offset, done)

    def next_offsets_of(self, topic: str) -> dict[int, int]:
        """The next offset of each queue of a topic; queues that never had a message are left out."""
        return {queue_id: offset for (name, queue_id), offset in self.next_offsets.items() if name == topic and offset}

    def append_event(self, control: Control, *, on_full_disk: bool = False) -> int:
        """Append an event to the log; it is applied in its turn, here and wherever this log is derived.

        Args:
            on_full_disk: the event is needed before anything can be deleted, so it is appended even if the disk is nearly full.

        Returns:
            The position that `event_done` waits for.

        Raises:
            NotWritable: the log accepts no appends now; see its text. Nothing was appended.
            OSError: the disk refused. Nothing was appended.
        """
        refusal = self.writability.hard_refusal if on_full_disk else self.writability.refusal
        if refusal is not None:
            raise NotWritable(refusal)
        now = self._next_timestamp(self.world.clock.wall_ms())
        message = control_message(control, now, self.store_host)
        records = encode_records([message], [topic_field(CONTROL_TOPIC.encode())], [0], now, self.store_host)
        self.world.processor.charge(len(records[0]) * APPEND_SECONDS_PER_BYTE)
        appended = self.log.append(records)
        derivable = (CONTROL_TOPIC, 0, 0, appended.offsets[0], len(records[0]), 0, now, message.sys_flag, "", "", "")
        self.dispatcher.offer(appended.start, appended.end, [derivable])
        return appended.end

    async def event_done(self, end: int) -> None:
        """Wait until an event is as safe as the mode promises, and applied here.

        Raises:
            NotWritable: it is in the log and will be applied, but it is not as safe as promised; see its text.
        Durability: on return, the event is as safe as a message that was answered PUT_OK.
        Cancellation: the event stays in the log.
        """
        status = await self.event_status(end)
        if status is not PutStatus.PUT_OK:
            raise NotWritable(f"the change is in the log, but not as safe as the mode promises: {status.name}")

    async def event_status(self, end: int) -> PutStatus:
        """Wait as `event_done` does, and return how safe an event is; unless it is stored, it may not be applied yet."""
        status = await self._done(end)
        if status.stored:
            await self.derived(end)
        return status

    async def derived(self, end: int) -> None:
        """Wait until the log is derived here up to `end`, however safe it is; takes at most one round in a turn."""
        self.dispatcher.catch_up(rounds_max=1)
        while self.dispatcher.dispatched_offset < end:
            await trio.sleep(DERIVED_POLL_SECONDS)
            self.dispatcher.catch_up(rounds_max=1)

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


def _unsettled(count: int) -> PutBatch:
    return PutBatch([PutStatus.PUT_OK] * count, [-1] * count, [-1] * count, [0] * count)


def _refuse(batch: PutBatch, status: PutStatus, remark: str) -> PutBatch:
    batch.statuses = [status] * len(batch.statuses)
    batch.remark = remark
    return batch
