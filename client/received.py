"""A message as a consumer gets it: a view of the bytes of a pull answer, decoded on access.

Splitting an answer into messages costs two integers per message; bodies, properties and hosts are decoded on demand. Each
message keeps the whole answer in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, cast

import attrs

from ..message.checksum import crc32
from ..message.errors import CorruptRecord
from ..message.flags import COMPRESSED, HOST_BITS
from ..message.layout import (
    CRC_MASK,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    SYS_FLAG_AT,
    decode_record,
    properties_of,
    span_of,
)
from ..message.message import Body, MessageQueue, StoredMessage
from ..message.properties import KEYS, RETRY_TOPIC, TAGS, UNIQUE_KEY, decode_properties
from .arguments import DEAD_LETTER_LEVEL, check_delay_level
from .compression import decompress

_PREFIX = struct.Struct(">iii8xq8xi")  # total size, magic, CRC, queue offset, system flag; what is between them is skipped
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_HEAD_SIZES = tuple(head.size for head in HEADS)
_STORE_TIMESTAMPS_AT = tuple(head.offsets["store_timestamp"] for head in HEADS)
_BORN_TIMESTAMP_AT = HEADS[0].offsets["born_timestamp"]
_PHYSICAL_OFFSET_AT = HEADS[0].offsets["physical_offset"]
_RECONSUME_TIMES_BEFORE_END = 16  # bytes to the end of the fixed part: reconsume times (4), prepared offset (8), body size (4)


BUFFERED, HANDED_OUT, GIVEN_BACK, REDELIVERED, FORGOTTEN, DONE = range(6)
"""The states of a delivery: pulled and waiting; handed out to the application; given back to the client, which offers it to a
broker; replaced by another delivery here; handed out, but its queue was moved to another offset; done."""


_UNDECODED = object()
"""The value of a message whose consumer has no `decode`."""


@attrs.define(eq=False)
class PulledAnswer:
    """The answer to one pull, which counts as used memory until all its messages are done."""

    size: int
    open: int = 0
    """How many of its messages are not done."""


class Origin(Protocol):
    """The source of a message, which gets its acknowledgement or retry."""

    @property
    def queue(self) -> MessageQueue: ...

    @property
    def withheld(self) -> bool:
        """Whether no message of it may be handed out now; any thread may ask."""
        ...

    def ack(self, message: ReceivedMessage[Any]) -> None: ...

    def check_open(self) -> None:
        """Raise `Closed` if the consumer is closed."""
        ...

    async def retry(self, message: ReceivedMessage[Any], delay_level: int) -> None: ...

    def put_back(self, message: ReceivedMessage[Any]) -> None:
        """Take back a message that the application has not seen."""
        ...

    def give_back(self, message: ReceivedMessage[Any]) -> None:
        """Take back a message that was left in hand; it comes again by the rules of `retry`."""
        ...


class RecordView(Generic[Body]):
    """The readable parts of a received message; any thread may read them.

    Attributes:
        queue_offset: its offset in `queue`.
        size: the size of its record in bytes.
        local_redeliveries: how often this client has handed it out again by itself, without the broker.
        answer: the pull answer that contained it.
        state: the state of this delivery; only `AssignedQueue` changes it.
    """

    __slots__ = (
        "_at",
        "_buffer",
        "_origin",
        "_properties",
        "_value",
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
        self._value: object = _UNDECODED
        self.size = size
        self.queue_offset = queue_offset
        self.local_redeliveries = 0
        self.answer = answer
        self.state = BUFFERED

    @property
    def body(self) -> bytes:
        """The payload, decompressed.

        Raises:
            BadBody: it cannot be decompressed.
        """
        buffer, at = self._buffer, self._at
        sys_flag: int = _INT.unpack_from(buffer, at + SYS_FLAG_AT)[0]
        start = at + _HEAD_SIZES[(sys_flag & HOST_BITS) >> 4]
        size: int = _INT.unpack_from(buffer, start - 4)[0]
        body = buffer[start : start + size]
        return decompress(body, sys_flag) if sys_flag & COMPRESSED else body

    @property
    def value(self) -> Body:
        """The body as the consumer's `decode` has made it when the message was handed out; without `decode`, the body."""
        value = self._value
        return cast("Body", self.body if value is _UNDECODED else value)

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, including those that the broker added."""
        if self._properties is None:
            span = span_of(self._buffer, self._at, self._at + self.size)
            if span is None:
                raise CorruptRecord(f"no whole record at byte {self._at} of {len(self._buffer)}")
            self._properties = decode_properties(properties_of(self._buffer, span))
        return self._properties

    @property
    def topic(self) -> str:
        """The topic to which it was sent, even if it was read from a retry topic."""
        return self.properties.get(RETRY_TOPIC) or self.queue.topic

    @property
    def queue(self) -> MessageQueue:
        """The queue from which it was read."""
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
        """The id that contains the broker's address and the physical offset."""
        return self.stored().message_id

    @property
    def physical_offset(self) -> int:
        return int(_LONG.unpack_from(self._buffer, self._at + _PHYSICAL_OFFSET_AT)[0])

    @property
    def reconsume_times(self) -> int:
        """How often it was handed out before without being acknowledged."""
        end = self._at + _HEAD_SIZES[self._host_bits()]
        return int(_INT.unpack_from(self._buffer, end - _RECONSUME_TIMES_BEFORE_END)[0]) + self.local_redeliveries

    @property
    def born_timestamp(self) -> int:
        """When it was sent, in ms by the producer's clock."""
        return int(_LONG.unpack_from(self._buffer, self._at + _BORN_TIMESTAMP_AT)[0])

    @property
    def store_timestamp(self) -> int:
        """When it was stored, in ms by the broker's clock."""
        return int(_LONG.unpack_from(self._buffer, self._at + _STORE_TIMESTAMPS_AT[self._host_bits()])[0])

    def stored(self) -> StoredMessage:
        """The whole record, decoded; the body is as stored, not decompressed."""
        return decode_record(self._buffer[self._at : self._at + self.size])

    def _host_bits(self) -> int:
        return int(_INT.unpack_from(self._buffer, self._at + SYS_FLAG_AT)[0] & HOST_BITS) >> 4

    def copy_to(self, other: RecordView[Any]) -> None:
        """Make `other` a view of the same record."""
        RecordView.__init__(other, self._origin, self._buffer, self._at, self.size, self.queue_offset, self.answer)
        other.local_redeliveries = self.local_redeliveries
        other._value = self._value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.queue} offset {self.queue_offset}, {self.size} bytes>"


class ReceivedMessage(RecordView[Body]):
    """One delivery of a message, to be acknowledged or retried (unless its iterator or its block acknowledges it).

    It is valid for one delivery: after `retry`, or once it was given back, the message comes again as another object, and this
    one has no effect.
    """

    __slots__ = ()

    @property
    def in_hand(self) -> bool:
        """Whether the application has the message and has neither acknowledged nor retried it."""
        return self.state in (HANDED_OUT, FORGOTTEN)

    @property
    def origin(self) -> Origin:
        """What pulled it."""
        return self._origin

    @property
    def is_withheld(self) -> bool:
        """Whether no message of its queue may be handed out now: the queue is paused or given up, or its lock has expired."""
        return self._origin.withheld

    @property
    def is_current(self) -> bool:
        """Whether acknowledging it has an effect."""
        return self.state == HANDED_OUT

    def decode(self, decode: Callable[[bytes], Body]) -> None:
        """Let `value` be the decoded body; raises what `decode` raises, and `BadBody`."""
        self._value = decode(self.body)

    def check_open(self) -> None:
        """Raise `Closed` if the consumer is closed."""
        self._origin.check_open()

    async def ack(self) -> None:
        """Acknowledge the message. The offset is committed within 5 seconds and when the consumer closes.

        After `retry`, and if the queue was moved to another offset in the meantime, this does nothing. It has no effect on a
        message of a pull consumer either, whose positions `PullConsumer.commit` commits.

        Raises:
            Closed: the consumer is closed. The message comes again to another member.
        """
        self.ack_now()

    def ack_now(self) -> None:
        """Acknowledge the message as `ack` does, outside of `async` code."""
        self.check_open()
        self._origin.ack(self)

    async def retry(self, *, delay_level: int = 0) -> None:
        """Ask for another delivery of the message later; this delivery is then done.

        Args:
            delay_level: 1..18 for RocketMQ's levels; 0 lets the broker increase the delay each time; -1 sends it to the
                dead letters at once. In orderly consumption the queue waits for the message, and only -1 is respected.

        Raises:
            Closed: the consumer is closed. The message comes again to another member.
            InvalidArgument: the message has been acknowledged, or was sent back already.
        Cancellation: the message comes again all the same.
        """
        check_delay_level(delay_level, DEAD_LETTER_LEVEL)
        self._origin.check_open()
        await self._origin.retry(self, delay_level)

    def settle(self) -> None:
        """Acknowledge the message if it is still in hand, as an iterator does."""
        self._origin.ack(self)

    def put_back(self) -> None:
        """Hand the message out again, because the application has not seen it."""
        self._origin.put_back(self)

    def give_back(self) -> None:
        """Ask for the message again if it is still in hand, as `retry` does, without waiting for the outcome."""
        self._origin.give_back(self)

    def again(self, redeliveries: int) -> ReceivedMessage[Body]:
        """A new object of the same message for another delivery."""
        message: ReceivedMessage[Body] = ReceivedMessage(
            self._origin, self._buffer, self._at, self.size, self.queue_offset, self.answer
        )
        message.local_redeliveries = self.local_redeliveries + redeliveries
        return message


def split_records(origin: Origin, buffer: bytes) -> list[ReceivedMessage]:
    """Split the body of a pull answer, and verify each message's body: brokers do not, and a disk may have damaged it.

    Raises:
        CorruptRecord: some bytes are not a record, or a body does not have its CRC; no message is returned.
    """
    messages: list[ReceivedMessage] = []
    append, prefix, view = messages.append, _PREFIX.unpack_from, memoryview(buffer)
    at, end = 0, len(buffer)
    answer = PulledAnswer(end)
    while at < end:
        if end - at < RECORD_SIZE_MIN:
            raise CorruptRecord(f"{end - at} bytes left at byte {at} of a pull answer, a record has at least {RECORD_SIZE_MIN}")
        size, magic, crc, queue_offset, sys_flag = prefix(buffer, at)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or not RECORD_SIZE_MIN <= size <= end - at:  # noqa: PLR1714 - hot
            raise CorruptRecord(f"no record at byte {at} of a pull answer: magic {magic & 0xFFFFFFFF:#x}, size {size}")
        host_bits: int = (sys_flag & HOST_BITS) >> 4
        start = at + _HEAD_SIZES[host_bits]
        body_size: int = _INT.unpack_from(buffer, start - 4)[0]
        if not 0 <= body_size <= at + size - start:
            raise CorruptRecord(f"body of {body_size} bytes in a record of {size}")
        if (found := crc32(view[start : start + body_size]) & CRC_MASK) != crc:
            raise CorruptRecord(
                f"the message at queue offset {queue_offset} is damaged: the CRC of its body is {found:#010x}, it says "
                f"{crc & 0xFFFFFFFF:#010x}"
            )
        append(ReceivedMessage(origin, buffer, at, size, queue_offset, answer))
        at += size
    return messages


async def retry_unfinished(message: ReceivedMessage[Any]) -> None:
    """Ask for a message again, unless it was acknowledged or retried already; in the client's thread, where that is known."""
    if message.in_hand:
        await message.retry()


def give_back_unfinished(messages: Iterable[ReceivedMessage[Any]], *, ordered: bool) -> None:
    """Give back the messages that are still in hand.

    If they are of one ordered queue, the first one comes again by the rules of `retry`, and the others behind it as if the
    application had not seen them.
    """
    unfinished = [message for message in messages if message.in_hand]
    if ordered:
        for message in reversed(unfinished[1:]):
            message.put_back()
        del unfinished[1:]
    for message in unfinished:
        message.give_back()


def select_tags(messages: list[ReceivedMessage], tags: frozenset[str]) -> list[ReceivedMessage]:
    """Remove messages that passed the broker's filter only because two tags have the same hash."""
    return [message for message in messages if message.tag in tags] if tags else messages
