"""A message as a consumer gets it: a view into the bytes of a pull answer, decoded only where it is looked at.

Splitting an answer into messages costs two integers per message; bodies, properties and hosts are cut out on demand. Whoever
keeps a message keeps the whole answer in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol

import attrs

from ..message.errors import CorruptRecord
from ..message.flags import COMPRESSED, HOST_BITS
from ..message.layout import (
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    SYS_FLAG_AT,
    decode_record,
    properties_of,
    span_of,
    topic_of,
)
from ..message.message import MessageQueue, StoredMessage
from ..message.properties import KEYS, RETRY_TOPIC, TAGS, UNIQUE_KEY, decode_properties
from .arguments import DEAD_LETTER_LEVEL, check_delay_level
from .compression import decompress

_PREFIX = struct.Struct(">ii12xq")  # total size, magic, then crc, queue id and flag unread, queue offset
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_HEAD_SIZES = tuple(head.size for head in HEADS)
_STORE_TIMESTAMPS_AT = tuple(head.offsets["store_timestamp"] for head in HEADS)
_BORN_TIMESTAMP_AT = HEADS[0].offsets["born_timestamp"]
_PHYSICAL_OFFSET_AT = HEADS[0].offsets["physical_offset"]
_RECONSUME_TIMES_BEFORE_END = 16  # of the fixed part: reconsume times (4), prepared offset (8), body size (4)


BUFFERED, HANDED_OUT, GIVEN_BACK, REDELIVERED, FORGOTTEN, DONE = range(6)
"""The states of a delivery: pulled and waiting; in the application's hands; given back to the client, which offers it to a
broker; replaced by another delivery here; in the application's hands, but its queue was moved to another offset; done with."""


@attrs.define(eq=False)
class PulledAnswer:
    """The bytes that one pull brought, which stay in memory until the last of their messages is done with."""

    size: int
    open: int = 0
    """How many of its messages are not done with."""


class Origin(Protocol):
    """Where a message came from, and who wants to know what became of it."""

    @property
    def queue(self) -> MessageQueue: ...

    def ack(self, message: ReceivedMessage) -> None: ...

    def check_open(self) -> None:
        """Raise `Closed` when nobody is there any more who could be told."""
        ...

    async def retry(self, message: ReceivedMessage, delay_level: int) -> None: ...

    def put_back(self, message: ReceivedMessage) -> None:
        """Take back a message that nobody has seen."""
        ...

    def abandon(self, message: ReceivedMessage) -> None:
        """Take back a message whose task has ended without a word about it."""
        ...


class RecordView:
    """What can be read of a received message, from any thread.

    Attributes:
        queue_offset: its number in `queue`.
        size: bytes of its record.
        local_redeliveries: how often this client has handed it out again without the broker.
        answer: the pull answer that it came with.
        state: what has become of this delivery; `AssignedQueue` alone changes it.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_origin",
        "_properties",
        "answer",
        "local_redeliveries",
        "queue_offset",
        "size",
        "state",
    )

    def __init__(self, origin: Origin, buffer: bytes, at: int, size: int, queue_offset: int, answer: PulledAnswer) -> None:
        self._origin = origin
        self._buffer = buffer
        self._at = at
        self._properties: Mapping[str, str] | None = None
        self.size = size
        self.queue_offset = queue_offset
        self.local_redeliveries = 0
        self.answer = answer
        self.state = BUFFERED

    @property
    def body(self) -> bytes:
        """The payload, decompressed.

        Raises:
            BadBody: it does not decompress.
            CorruptRecord: the record does not add up.
        """
        buffer, at = self._buffer, self._at
        sys_flag: int = _INT.unpack_from(buffer, at + SYS_FLAG_AT)[0]
        start = at + _HEAD_SIZES[(sys_flag & HOST_BITS) >> 4]
        size: int = _INT.unpack_from(buffer, start - 4)[0]
        if not 0 <= size <= at + self.size - start:
            raise CorruptRecord(f"body of {size} bytes in a record of {self.size}")
        body = buffer[start : start + size]
        return decompress(body, sys_flag) if sys_flag & COMPRESSED else body

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the broker's own too."""
        if self._properties is None:
            span = span_of(self._buffer, self._at, self._at + self.size)
            if span is None:
                raise CorruptRecord(f"no whole record at byte {self._at} of {len(self._buffer)}")
            self._properties = decode_properties(properties_of(self._buffer, span))
        return self._properties

    @property
    def topic(self) -> str:
        """The topic it was sent to, also when it comes by way of a retry topic."""
        return self.properties.get(RETRY_TOPIC) or self.queue.topic

    @property
    def queue(self) -> MessageQueue:
        """The queue it was read from."""
        return self._origin.queue

    @property
    def tag(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(KEYS, "").split()

    @property
    def message_id(self) -> str:
        """The unique id that the producer gave it, else the offset message id."""
        return self.properties.get(UNIQUE_KEY) or self.stored().message_id

    @property
    def offset_message_id(self) -> str:
        """The id that says where the broker keeps it."""
        return self.stored().message_id

    @property
    def physical_offset(self) -> int:
        return int(_LONG.unpack_from(self._buffer, self._at + _PHYSICAL_OFFSET_AT)[0])

    @property
    def reconsume_times(self) -> int:
        """How often it was handed out and not acknowledged before."""
        end = self._at + _HEAD_SIZES[self._host_bits()]
        return int(_INT.unpack_from(self._buffer, end - _RECONSUME_TIMES_BEFORE_END)[0]) + self.local_redeliveries

    @property
    def born_timestamp(self) -> int:
        """When it was sent, ms of the producer's clock."""
        return int(_LONG.unpack_from(self._buffer, self._at + _BORN_TIMESTAMP_AT)[0])

    @property
    def store_timestamp(self) -> int:
        """When it was stored, ms of the broker's clock."""
        return int(_LONG.unpack_from(self._buffer, self._at + _STORE_TIMESTAMPS_AT[self._host_bits()])[0])

    def stored(self) -> StoredMessage:
        """Everything in the record, its body as stored."""
        return decode_record(self._buffer[self._at : self._at + self.size])

    def stored_topic(self) -> str:
        """The topic in the record, which differs from `topic` for a retried message."""
        span = span_of(self._buffer, self._at, self._at + self.size)
        return self.queue.topic if span is None else topic_of(self._buffer, span)

    def _host_bits(self) -> int:
        return int(_INT.unpack_from(self._buffer, self._at + SYS_FLAG_AT)[0] & HOST_BITS) >> 4

    def copy_to(self, other: RecordView) -> None:
        """Let `other` show the same record."""
        RecordView.__init__(other, self._origin, self._buffer, self._at, self.size, self.queue_offset, self.answer)
        other.local_redeliveries = self.local_redeliveries

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.queue} offset {self.queue_offset}, {self.size} bytes>"


class ReceivedMessage(RecordView):
    """One delivery of a message, to be acknowledged or retried (unless the consumer acknowledges by itself).

    It is good for one delivery: after `retry`, the message comes again as another object, and this one does nothing more.
    """

    __slots__ = ()

    @property
    def in_hand(self) -> bool:
        """Whether the application has it, and has not said yet what is to become of it."""
        return self.state in (HANDED_OUT, FORGOTTEN)

    @property
    def is_current(self) -> bool:
        """Whether acknowledging it would count."""
        return self.state == HANDED_OUT

    def check_open(self) -> None:
        """Raise `Closed` if the consumer is closed."""
        self._origin.check_open()

    async def ack(self) -> None:
        """Say that the message is done with. The broker is told within 5 seconds and when the consumer closes.

        After `retry`, and for a queue that was moved to another offset meanwhile, this does nothing.

        Raises:
            Closed: the consumer is closed. The message comes again to another member.
        """
        self.ack_now()

    def ack_now(self) -> None:
        """The same outside of `async` code; nothing waits."""
        self.check_open()
        self._origin.ack(self)

    async def retry(self, *, delay_level: int = 0) -> None:
        """Ask for the message again later; it counts as done with here.

        Args:
            delay_level: 1..18 for RocketMQ's levels; 0 lets the broker wait longer each time; -1 sends the message to the
                dead letters at once. In orderly consumption the queue waits for the message, and only -1 is respected.

        Raises:
            Closed: the consumer is closed. The message comes again to another member.
            InvalidArgument: the message has been acknowledged, or was sent back already.
        Cancellation: the message comes again; it may have been sent back, too, and then comes twice.
        """
        check_delay_level(delay_level, DEAD_LETTER_LEVEL)
        self._origin.check_open()
        await self._origin.retry(self, delay_level)

    def settle(self) -> None:
        """Acknowledge the message if it is still in hand, as automatic acknowledgement does."""
        self._origin.ack(self)

    def put_back(self) -> None:
        """Hand the message out again: whoever it was for has not seen it."""
        self._origin.put_back(self)

    def abandon(self) -> None:
        """Hand the message out again if it is still in hand, and nobody is there any more who could finish it."""
        self._origin.abandon(self)

    def again(self, redeliveries: int) -> ReceivedMessage:
        """The same message for another delivery."""
        message = ReceivedMessage(self._origin, self._buffer, self._at, self.size, self.queue_offset, self.answer)
        message.local_redeliveries = self.local_redeliveries + redeliveries
        return message


def split_records(origin: Origin, buffer: bytes) -> list[ReceivedMessage]:
    """Split the body of a pull answer.

    Raises:
        CorruptRecord: what lies between two messages is not a record; nothing was taken.
    """
    messages: list[ReceivedMessage] = []
    append, prefix = messages.append, _PREFIX.unpack_from
    at, end = 0, len(buffer)
    answer = PulledAnswer(end)
    while at < end:
        if end - at < RECORD_SIZE_MIN:
            raise CorruptRecord(f"{end - at} bytes left at byte {at} of a pull answer, a record has at least {RECORD_SIZE_MIN}")
        size, magic, queue_offset = prefix(buffer, at)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or not RECORD_SIZE_MIN <= size <= end - at:  # noqa: PLR1714 - hot
            raise CorruptRecord(f"no record at byte {at} of a pull answer: magic {magic & 0xFFFFFFFF:#x}, size {size}")
        append(ReceivedMessage(origin, buffer, at, size, queue_offset, answer))
        at += size
    return messages


def select_tags(messages: list[ReceivedMessage], tags: frozenset[str]) -> list[ReceivedMessage]:
    """Leave out what the broker let through only because two tags have the same hash."""
    return [message for message in messages if message.tag in tags] if tags else messages
