"""The stored message, byte for byte: a pull answer carries records as the commit log has them (RocketMQ CommitLog).

`HEADS` is the one table of the fixed part; body, topic and properties follow with their lengths. The record is written in
format v1 (1-byte topic length), which every client reads; v2 (2-byte topic length) is read as well.
Nothing here opens a file: callers pass buffers and positions.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import lru_cache

import attrs

from .checksum import crc32
from .errors import CorruptRecord
from .fields import Buffer, Field, Layout
from .flags import BORN_HOST_V6, HOST_BITS, STORE_HOST_V6
from .message import IncomingMessage, MessageId, StoredMessage
from .properties import PROPERTIES_BYTES_MAX, decode_properties
from .units import PhysicalOffset, QueueId, QueueOffset

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB
MAGIC_BLANK = -875286124  # 0xCBD43194: the filler at the end of a commit log file
CRC_MASK = 0x7FFFFFFF  # Java keeps the CRC in a non-negative int
TOPIC_BYTES_MAX = 127
TOPICS_KEPT = 10_000
"""How many decoded topics are cached, because many records share few topics; the least recently used one is dropped."""


def _head(born_v6: bool, store_v6: bool) -> Layout:
    return Layout(
        "stored message, fixed part",
        (
            Field("total_size", "i", "whole record, itself included"),
            Field("magic", "i", "format v1 or v2, or the filler at a file's end"),
            Field("body_crc", "i", "CRC-32 of the body as stored, top bit cleared"),
            Field("queue_id", "i", "queue inside the topic"),
            Field("flag", "i", "the application's own, untouched"),
            Field("queue_offset", "q", "entry number in the queue; 0 for half messages"),
            Field("physical_offset", "q", "own position in the commit log"),
            Field("sys_flag", "i", "compression, transaction type, host families"),
            Field("born_timestamp", "q", "producer's clock, ms"),
            Field("born_host", "20s" if born_v6 else "8s", "address and 4-byte port of the producer"),
            Field("store_timestamp", "q", "broker's clock, ms; never decreases along the log"),
            Field("store_host", "20s" if store_v6 else "8s", "address and 4-byte port of the broker"),
            Field("reconsume_times", "i", "deliveries that failed so far"),
            Field("prepared_transaction_offset", "q", "physical offset of the half message of a commit, else 0"),
            Field("body_size", "i", "bytes of body that follow"),
        ),
    )


# Indexed by (sys_flag & HOST_BITS) >> 4: bit 0 = IPv6 born host, bit 1 = IPv6 store host.
HEADS = tuple(_head(bool(bits & 1), bool(bits & 2)) for bits in range(4))
HEAD_V4 = HEADS[0]
assert [head.size for head in HEADS] == [88, 100, 100, 112]

QUEUE_OFFSET_AT = HEAD_V4.offsets["queue_offset"]
PHYSICAL_OFFSET_AT = HEAD_V4.offsets["physical_offset"]
SYS_FLAG_AT = HEAD_V4.offsets["sys_flag"]
assert (QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT, SYS_FLAG_AT) == (20, 28, 36)
put_physical_offset = HEAD_V4.field_struct("physical_offset")[0].pack_into
"""Write a physical offset into a buffer, at a position in it."""

BLANK = Layout(
    "filler at the end of a commit log file",
    (
        Field("remaining", "i", "bytes from here to the end of the file"),
        Field("magic", "i", "marks the filler"),
    ),
)
assert BLANK.size == 8

RECORD_SIZE_MIN = HEAD_V4.size + 1 + 2

_SIZE_AND_MAGIC = struct.Struct(">ii")
_PROPERTIES_SIZE = struct.Struct(">h")
_TOPIC_SIZE_V1 = struct.Struct(">B")
_TOPIC_SIZE_V2 = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_PORT = struct.Struct(">i")


def encode_host(host: str, port: int) -> bytes:
    """Encode an address for the host fields: 8 bytes for IPv4, 20 for IPv6.

    Raises:
        ValueError: `host` is not a numeric address.
    """
    return ipaddress.ip_address(host).packed + _PORT.pack(port)


def decode_host(packed: bytes) -> tuple[str, int]:
    """Read a host field back."""
    return str(ipaddress.ip_address(packed[:-4])), _PORT.unpack(packed[-4:])[0]


def body_crc(body: Buffer) -> int:
    """CRC-32 of a body as Java stores it."""
    return crc32(body) & CRC_MASK


def record_size(topic_bytes: int, body_bytes: int, properties_bytes: int, sys_flag: int = 0) -> int:
    """Bytes of a v1 record with these parts."""
    return HEADS[(sys_flag & HOST_BITS) >> 4].size + 1 + 2 + topic_bytes + body_bytes + properties_bytes


_SIZE_V4 = HEAD_V4.size + 2
"""Bytes of a record with IPv4 hosts, without its body, topic field and properties."""


def topic_field(topic: bytes) -> bytes:
    """A topic as a record holds it, preceded by its length.

    Raises:
        ValueError: over 255 bytes.
    """
    return bytes((len(topic),)) + topic


def encode_records(
    messages: Iterable[IncomingMessage],
    topic_fields: Iterable[bytes],
    queue_offsets: Iterable[int],
    store_timestamp: int,
    store_host: bytes,
) -> list[bytes]:
    """Encode records in format v1; the host bits of their system flags are set as their hosts require.

    Physical offsets are left 0: the log that appends the records knows them and patches them in.

    Args:
        topic_fields: for each message the result of `topic_field` for its topic.

    Raises:
        struct.error, UnicodeEncodeError: properties over 32767 bytes, or numbers or text that no record can hold.
    """
    records: list[bytes] = []
    hosts_v4_size = 16 - len(store_host)
    pack_v4, pack_properties_size = HEAD_V4.codec.pack, _PROPERTIES_SIZE.pack
    for message, topic, queue_offset in zip(messages, topic_fields, queue_offsets, strict=True):
        body, properties = message.body, message.properties.encode()
        sys_flag, born_host = message.sys_flag & ~HOST_BITS, message.born_host
        pack, size = pack_v4, _SIZE_V4
        if len(born_host) > hosts_v4_size:
            sys_flag |= (BORN_HOST_V6 if len(born_host) == 20 else 0) | (STORE_HOST_V6 if len(store_host) == 20 else 0)
            head = HEADS[sys_flag >> 4 & 3]
            pack, size = head.codec.pack, head.size + 2
        head_bytes = pack(
            size + len(topic) + len(body) + len(properties),
            MAGIC_V1,
            crc32(body) & CRC_MASK,
            message.queue_id,
            message.flag,
            queue_offset,
            0,
            sys_flag,
            message.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            len(body),
        )
        records.append(b"".join((head_bytes, body, topic, pack_properties_size(len(properties)), properties)))
    return records


def encode_record(
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    body: bytes,
    properties: bytes,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    physical_offset: int = 0,
) -> bytes:
    """Encode one record whose physical offset is known, as `encode_records` does."""
    message = IncomingMessage(
        "",
        queue_id,
        body,
        properties.decode(),
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        reconsume_times,
        prepared_transaction_offset,
    )
    (record,) = encode_records([message], [topic_field(topic)], [queue_offset], store_timestamp, store_host)
    placed = bytearray(record)
    put_physical_offset(placed, PHYSICAL_OFFSET_AT, physical_offset)
    return bytes(placed)


_HEAD_READERS = tuple((head.codec.unpack_from, head.size) for head in HEADS)
_unpack_v4 = HEAD_V4.codec.unpack_from
_SIZE_HEAD_V4 = HEAD_V4.size


class Check(Enum):
    """What is stored at a position of a commit log file."""

    RECORD = "record"
    BLANK = "blank"
    """The filler: the next record is at the start of the next file."""
    NOTHING = "nothing"
    """No complete, valid record: the end of valid data."""


@attrs.define(eq=False)
class RecordSpan:
    """Positions of the variable parts of a checked record in its buffer.

    It is not frozen, because that doubles the time to create one and recovery creates one per record.
    """

    size: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp: int
    prepared_transaction_offset: int
    body_at: int
    topic_at: int
    properties_at: int
    end: int


def span_of(buffer: Buffer, position: int, limit: int) -> RecordSpan | None:
    """Find the parts of the record at `position`, or None if its sizes are inconsistent or go beyond `limit`."""
    if limit - position < RECORD_SIZE_MIN:
        return None
    fields = _unpack_v4(buffer, position)
    total, magic = fields[0], fields[1]
    if magic not in (MAGIC_V1, MAGIC_V2) or total < RECORD_SIZE_MIN or position + total > limit:
        return None
    end = position + total
    sys_flag: int = fields[7]
    body_at = position + _SIZE_HEAD_V4
    if sys_flag & HOST_BITS:
        unpack_head, head_size = _HEAD_READERS[sys_flag >> 4 & 3]
        body_at = position + head_size
        if body_at + 3 > end:
            return None
        fields = unpack_head(buffer, position)
    body_size = fields[14]
    topic_at = body_at + body_size
    if body_size < 0 or topic_at + 3 > end:
        return None
    if magic == MAGIC_V1:
        topic_size, topic_at = _TOPIC_SIZE_V1.unpack_from(buffer, topic_at)[0], topic_at + 1
    else:
        (topic_size,), topic_at = _TOPIC_SIZE_V2.unpack_from(buffer, topic_at), topic_at + 2
    properties_at = topic_at + topic_size
    if topic_size < 0 or properties_at + 2 > end:
        return None
    properties_size = _PROPERTIES_SIZE.unpack_from(buffer, properties_at)[0]
    if properties_size < 0 or properties_at + 2 + properties_size != end:
        return None
    return RecordSpan(
        total,
        fields[3],
        fields[5],
        fields[6],
        sys_flag,
        fields[10],
        fields[13],
        body_at,
        topic_at,
        properties_at + 2,
        end,
    )


_DERIVED_FIELDS = (
    "total_size",
    "magic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "store_timestamp",
    "body_size",
)
_DERIVED_READERS = tuple((head.picking(*_DERIVED_FIELDS).unpack_from, head.size) for head in HEADS)
_unpack_derived_v4 = _DERIVED_READERS[0][0]


@lru_cache(maxsize=TOPICS_KEPT)
def _decoded_topic(encoded: bytes) -> str:
    return str(encoded, "utf-8", "replace")


DerivedParts = tuple[int, int, int, int, int, int, str, str]
"""What queues and index need of a record: size, queue id, queue offset, physical offset, sys flag, store timestamp, topic and
properties. A plain tuple: one is created for every record that is read back."""


def derived_parts(buffer: Buffer, position: int, limit: int) -> DerivedParts | None:
    """Read what queues and index need of the record at `position`; None where `span_of` returns None.

    It takes two thirds of the time that `span_of`, `topic_of` and `properties_of` take together (`bench/shortcuts.py`), for
    every record that is read back.
    """
    if limit - position < RECORD_SIZE_MIN:
        return None
    size, magic, queue_id, queue_offset, physical_offset, sys_flag, timestamp, body_size = _unpack_derived_v4(buffer, position)
    end = position + size
    if (magic != MAGIC_V1 and magic != MAGIC_V2) or size < RECORD_SIZE_MIN or end > limit:  # noqa: PLR1714 - faster
        return None
    topic_at = position + _SIZE_HEAD_V4
    if sys_flag & HOST_BITS:
        hosts: int = sys_flag >> 4 & 3
        unpack_head, head_size = _DERIVED_READERS[hosts]
        topic_at = position + head_size
        if topic_at + 3 > end:
            return None
        fields = unpack_head(buffer, position)
        timestamp, body_size = fields[6], fields[7]
    topic_at += body_size
    if body_size < 0 or topic_at + 3 > end:
        return None
    tail = bytes(buffer[topic_at:end])
    if magic == MAGIC_V1:
        topic_at, properties_at = 1, tail[0] + 3
    else:
        topic_at, properties_at = 2, (tail[0] << 8 | tail[1]) + 4
    properties_size = len(tail) - properties_at
    # Sizes are signed: a negative one shows as a number above the largest that its field can hold.
    if not 0 <= properties_size <= PROPERTIES_BYTES_MAX or properties_at > 0x7FFF + 4:
        return None
    if tail[properties_at - 2] << 8 | tail[properties_at - 1] != properties_size:
        return None
    return (
        size,
        queue_id,
        queue_offset,
        physical_offset,
        sys_flag,
        timestamp,
        _decoded_topic(tail[topic_at : properties_at - 2]),
        tail[properties_at:].decode("utf-8", "replace"),
    )


def check_record(buffer: Buffer, position: int, limit: int, *, check_crc: bool = True) -> tuple[Check, RecordSpan | None]:
    """Check `position` as recovery does: the sizes must be consistent and, with `check_crc`, the CRC of the body must match."""
    span = span_of(buffer, position, limit)
    if span is None:
        blank = limit - position >= BLANK.size and _SIZE_AND_MAGIC.unpack_from(buffer, position)[1] == MAGIC_BLANK
        return Check.BLANK if blank else Check.NOTHING, None
    if check_crc:
        body_at = span.body_at
        body = memoryview(buffer)[body_at : body_at + _INT.unpack_from(buffer, body_at - 4)[0]]
        if crc32(body) & CRC_MASK != _INT.unpack_from(buffer, position + 8)[0]:
            return Check.NOTHING, None
    return Check.RECORD, span


def size_beyond(buffer: Buffer, position: int, limit: int) -> int:
    """The size of the record that begins at `position` if by that size it ends behind `limit`; otherwise 0."""
    if limit - position < BLANK.size:
        return 0
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
    return size if magic in (MAGIC_V1, MAGIC_V2) and position + size > limit else 0


def is_part_of_record(part: Buffer, physical_offset: int, room: int) -> bool:
    """Whether `part` may be the first bytes of a record or filler at `physical_offset`, whose other bytes are missing.

    Args:
        room: how many bytes the segment has from there on, which no record exceeds.
    """
    if len(part) < BLANK.size:
        return True
    size, magic = _SIZE_AND_MAGIC.unpack_from(part, 0)
    if not len(part) < size <= room or magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return False
    written = bytes(part[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8])
    return magic == MAGIC_BLANK or len(written) < 8 or int.from_bytes(written, "big") == physical_offset


def body_size_of(buffer: Buffer, span: RecordSpan) -> int:
    """Bytes of the body of a checked record."""
    return _INT.unpack_from(buffer, span.body_at - 4)[0]  # type: ignore[no-any-return]


def topic_of(buffer: Buffer, span: RecordSpan) -> str:
    """Topic of a checked record; bytes that are not UTF-8 are replaced, never an error."""
    return str(buffer[span.topic_at : span.properties_at - 2], "utf-8", "replace")


def properties_of(buffer: Buffer, span: RecordSpan) -> str:
    """Property string of a checked record."""
    return str(buffer[span.properties_at : span.end], "utf-8", "replace")


def decode_record(buffer: Buffer, position: int = 0) -> StoredMessage:
    """Decode the record at `position`.

    Raises:
        CorruptRecord: the sizes are inconsistent. Nothing was decoded.
    """
    span = span_of(buffer, position, len(buffer))
    if span is None:
        raise CorruptRecord(f"no whole record at byte {position} of {len(buffer)}")
    head = HEADS[(span.sys_flag & HOST_BITS) >> 4].unpack(buffer, position)
    store_host = decode_host(head["store_host"])
    return StoredMessage(
        topic=topic_of(buffer, span),
        queue_id=QueueId(span.queue_id),
        queue_offset=QueueOffset(span.queue_offset),
        physical_offset=PhysicalOffset(span.physical_offset),
        body=bytes(buffer[span.body_at : span.body_at + head["body_size"]]),
        properties=decode_properties(properties_of(buffer, span)),
        flag=head["flag"],
        sys_flag=span.sys_flag,
        body_crc=head["body_crc"],
        born_timestamp=head["born_timestamp"],
        born_host=decode_host(head["born_host"]),
        store_timestamp=span.store_timestamp,
        store_host=store_host,
        reconsume_times=head["reconsume_times"],
        prepared_transaction_offset=span.prepared_transaction_offset,
        size=span.size,
        message_id=str(MessageId(*store_host, PhysicalOffset(span.physical_offset))),
    )


def decode_records(buffer: Buffer) -> Iterator[StoredMessage]:
    """Decode adjacent records, as in the body of a pull answer.

    Raises:
        CorruptRecord: the bytes after the records decoded so far are not a record.
    """
    position = 0
    while position < len(buffer):
        message = decode_record(buffer, position)
        position += message.size
        yield message


__all__ = [
    "PROPERTIES_BYTES_MAX",
    "Check",
    "RecordSpan",
    "body_crc",
    "check_record",
    "decode_host",
    "decode_record",
    "decode_records",
    "encode_host",
    "encode_record",
    "record_size",
    "span_of",
]
