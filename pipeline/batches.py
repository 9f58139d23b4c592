"""Turns stored bytes into Arrow columns without creating a Python object for any message.

Records are in a buffer (a mapped segment file, or the answer to a pull) at known positions. Their fixed parts are gathered in
one C loop: an array of structures with a stride of one byte is laid over the buffer, so that its element n is the head that
begins at byte n. Bodies are an Arrow `binary_view` over the buffer itself until the one copy that makes them `binary`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from ..client.compression import BadBody, decompress
from ..message.checksum import crc32
from ..message.fields import Layout
from ..message.flags import COMPRESSED, HOST_BITS
from ..message.layout import CRC_MASK, HEADS, MAGIC_V1, MAGIC_V2, RECORD_SIZE_MIN, decode_host
from ..message.message import MessageQueue
from ..message.properties import KEYS, TAGS, UNIQUE_KEY
from .columns import CORRUPT, HEADERS, Column
from .property_columns import Properties, as_text, split_properties

BATCH_ROWS = 5_000
BATCH_BYTES = 8 * 1024 * 1024
"""The limits of a batch. With fewer rows each row costs more; more rows do not fit into the processor's cache.

A single record above the limit of bytes is a batch by itself."""

_NUMPY_CODES = {"i": ">i4", "q": ">i8"}
_MS_MIN, _MS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""The first and last millisecond of the years 1 to 9999, which is the range of Spark's timestamps."""

Array = Any
"""A NumPy or Arrow array; neither library has types that a strict checker could use."""


def _dtype(layout: Layout) -> Array:
    return np.dtype([(field.name, _NUMPY_CODES.get(field.code, f"V{field.code[:-1]}")) for field in layout.fields])


HEAD_DTYPES = tuple(_dtype(head) for head in HEADS)
assert [dtype.itemsize for dtype in HEAD_DTYPES] == [head.size for head in HEADS]
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), "V2")


@attrs.define(eq=False)
class Piece:
    """A buffer with records. Arrays that were built over it keep it alive."""

    bytes: Array
    """The buffer as unsigned bytes."""
    arrow: Array

    @classmethod
    def of(cls, buffer: bytes | memoryview) -> Piece:
        return cls(np.frombuffer(buffer, np.uint8), pa.py_buffer(buffer))


@attrs.define(eq=False)
class Expected:
    """The records as their consume queues describe them, in the order of their positions. A record that differs is damaged."""

    sizes: Array
    physical_offsets: Array
    queue_offsets: Array
    queues: Sequence[MessageQueue]
    queue_index: Array
    """For each record the index of its queue in `queues`."""

    def take(self, chosen: Array) -> Expected:
        return Expected(
            self.sizes[chosen], self.physical_offsets[chosen], self.queue_offsets[chosen], self.queues, self.queue_index[chosen]
        )


@attrs.define(eq=False)
class Records:
    """The fixed parts of records, and where their variable parts are in the buffer."""

    piece: Piece
    positions: Array
    expected: Expected
    head: Array
    store_timestamps: Array
    reconsume_times: Array
    prepared_offsets: Array
    body_at: Array
    body_sizes: Array
    properties_at: Array
    properties_sizes: Array
    store_host_at: Array
    _properties: Properties | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def number(self, name: str) -> Array:
        """Return a field that is before the hosts, in the byte order of this machine."""
        column = self.head[name]
        return column.astype(column.dtype.newbyteorder("="))

    def take(self, chosen: Array) -> Records:
        """Return only the records with these indexes."""
        cut = {
            field.name: getattr(self, field.name)[chosen]
            for field in attrs.fields(Records)
            if field.name not in ("piece", "expected", "_properties")
        }
        return Records(self.piece, expected=self.expected.take(chosen), **cut)

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            raw = gather(self.piece, self.properties_at, self.properties_sizes)
            self._properties = split_properties(as_text(raw))
        return self._properties


Fault = tuple[int, str]
"""The index of a record and what is wrong with it."""


def read_heads(piece: Piece, positions: Array, expected: Expected) -> tuple[Records, list[Fault]]:
    """Read the fixed parts of records and check that all sizes are consistent.

    Returns: the valid records, and the fault of each other one, with its index in `positions`.
    """
    buffer = piece.bytes
    fits = (positions >= 0) & (positions + np.maximum(expected.sizes, RECORD_SIZE_MIN) <= len(buffer))
    safe = np.where(fits, positions, 0)
    if len(buffer) < HEADS[-1].size + RECORD_SIZE_MIN:
        padded = np.zeros(HEADS[-1].size + RECORD_SIZE_MIN, np.uint8)
        padded[: len(buffer)] = buffer
        buffer = padded
    head = _heads(buffer, safe, 0)
    hosts = (head["sys_flag"] & HOST_BITS) >> 4
    tail = {name: head[name].astype(head[name].dtype.newbyteorder("=")) for name in _TAIL_FIELDS}
    body_at = safe + HEADS[0].size
    store_host_at = safe + HEADS[0].offsets["store_host"]
    for kind in (1, 2, 3) if hosts.any() else ():
        rows = np.flatnonzero(hosts == kind)
        rows = rows[safe[rows] + HEADS[kind].size <= len(buffer)]
        if len(rows):
            own = _heads(buffer, safe[rows], kind)
            for name, column in tail.items():
                column[rows] = own[name]
            body_at[rows] = safe[rows] + HEADS[kind].size
            store_host_at[rows] = safe[rows] + HEADS[kind].offsets["store_host"]
    sizes, body_sizes = head["total_size"].astype(np.int64), tail["body_size"].astype(np.int64)
    end = safe + sizes
    limit = len(buffer) - 2  # both sizes are read as two bytes
    body_end = body_at + body_sizes
    topic_at = np.clip(body_end, 0, limit)
    is_v2 = head["magic"] == MAGIC_V2
    topic_size = buffer[topic_at].astype(np.int64)
    if is_v2.any():
        topic_size = np.where(is_v2, topic_size << 8 | buffer[topic_at + 1], topic_size)
    topic_end = topic_at + 1 + is_v2 + topic_size
    properties_size_at = np.clip(topic_end, 0, limit)
    properties_sizes = buffer[properties_size_at].astype(np.int64) << 8 | buffer[properties_size_at + 1]
    properties_at = properties_size_at + 2
    queue_ids = np.array([queue.queue_id for queue in expected.queues], np.int64)
    checks: list[tuple[str, Array]] = [
        ("its bytes end before the record does", fits),
        ("there is no record: the magic number is another one", (head["magic"] == MAGIC_V1) | is_v2),
        ("its size is not the one in the consume queue", sizes == expected.sizes),
        ("it says that it lies elsewhere", head["physical_offset"] == expected.physical_offsets),
        ("it belongs to another queue", head["queue_id"] == queue_ids[expected.queue_index]),
        ("it has another queue offset", head["queue_offset"] == expected.queue_offsets),
        (
            "its parts do not add up to its size",
            (body_sizes >= 0) & (body_end < end) & (topic_end < end) & (properties_at + properties_sizes == end),
        ),
    ]
    sound = np.logical_and.reduce([passed for _, passed in checks])
    records = Records(
        piece, positions, expected, head, tail["store_timestamp"], tail["reconsume_times"],
        tail["prepared_transaction_offset"], body_at, body_sizes, properties_at, properties_sizes, store_host_at,
    )  # fmt: skip
    if sound.all():
        return records, []
    faults = [(int(row), next(text for text, passed in checks if not passed[row])) for row in np.flatnonzero(~sound)]
    return records.take(np.flatnonzero(sound)), faults


_TAIL_FIELDS = ("store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_size")
"""Fields after the born host, whose offsets depend on the size of the hosts."""


def _heads(buffer: Array, positions: Array, hosts: int) -> Array:
    dtype = HEAD_DTYPES[hosts]
    # Plain bytes are overlaid, because NumPy copies a structure field by field, which takes fourteen times as long.
    overlaid = np.ndarray((len(buffer) - dtype.itemsize + 1,), f"V{dtype.itemsize}", buffer, strides=(1,))
    return overlaid[positions].view(dtype)


def gather(piece: Piece, starts: Array, sizes: Array) -> Array:
    """Copy ranges of a buffer into an Arrow binary array."""
    count = len(starts)
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = sizes
    views[:, 3] = starts
    short = np.flatnonzero(sizes <= _INLINE_BYTES)
    if len(short):
        views[short, 1:] = _inline(piece.bytes, starts[short], sizes[short])
    views_buffer = pa.py_buffer(views)
    return pa.Array.from_buffers(pa.binary_view(), count, [None, views_buffer, piece.arrow]).cast(pa.binary())


_INLINE_BYTES = 12
"""Arrow stores values of up to this many bytes in the view itself."""
_INLINE_MASKS = np.array([[255] * size + [0] * (_INLINE_BYTES - size) for size in range(_INLINE_BYTES + 1)], np.uint8)


def _inline(buffer: Array, starts: Array, sizes: Array) -> Array:
    """Return the bytes of short values, each padded with zeros, as three 32-bit numbers."""
    if len(buffer) < _INLINE_BYTES:
        buffer = np.concatenate([buffer, np.zeros(_INLINE_BYTES, np.uint8)])
    overlaid = np.ndarray((len(buffer) - _INLINE_BYTES + 1,), f"V{_INLINE_BYTES}", buffer, strides=(1,))
    last = len(overlaid) - 1
    values = overlaid[np.minimum(starts, last)].view(np.uint8).reshape(len(starts), _INLINE_BYTES)
    for row in np.flatnonzero(starts > last):  # at the very end of the buffer
        at = int(starts[row])
        values[row, : len(buffer) - at] = buffer[at:]
    return (values & _INLINE_MASKS[sizes]).view(np.int32)


def check_crcs(records: Records) -> list[Fault]:
    """Return the records whose body does not have the CRC that is stored with it."""
    faults: list[Fault] = []
    view = memoryview(records.piece.bytes)
    wanted = records.number("body_crc")
    for row, (at, size, crc) in enumerate(
        zip(records.body_at.tolist(), records.body_sizes.tolist(), wanted.tolist(), strict=True)
    ):
        found = crc32(view[at : at + size]) & CRC_MASK
        if found != crc & CRC_MASK:
            faults.append((row, f"the CRC of its body is {found:#010x}, it says {crc & CRC_MASK:#010x}"))
    return faults


@attrs.define(eq=False)
class Batches:
    """Builds record batches of one schema."""

    columns: tuple[Column, ...]
    schema: Array = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.schema = arrow_schema(self.columns)

    def build(self, records: Records) -> Iterator[tuple[Array, Array, list[Fault]]]:
        """Build batches of some records: usually one, several if bodies become much larger when they are decompressed.

        Yields: a batch, the rows of `records` that are in it, and rows before its end whose bodies do not decompress.
        """
        wants_body = any(column.name.lower() in _BODIES for column in self.columns)
        compressed = np.flatnonzero(records.head["sys_flag"] & COMPRESSED) if wants_body else ()
        if not len(compressed):
            bodies = gather(records.piece, records.body_at, records.body_sizes) if wants_body else None
            yield self._batch(records, bodies), slice(None), []
            return
        for low, high, inflated, faults in _inflated(records, compressed):
            rows, bodies = np.arange(low, high), inflated
            if faults:
                kept = ~np.isin(rows, [row for row, _ in faults])
                rows, bodies = rows[kept], inflated.filter(pa.array(kept))
            yield self._batch(records.take(rows), bodies), rows, faults

    def corrupt(self, texts: Sequence[str]) -> Array:
        """Build a batch for records that cannot be read: the column of faults is filled, all others are null."""
        arrays = [
            pa.array(texts, field.type) if field.name.lower() == CORRUPT else pa.nulls(len(texts), field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _batch(self, records: Records, bodies: Array) -> Array:
        arrays: list[Array] = []
        for column, field in zip(self.columns, self.schema, strict=True):
            if column.name.lower() in _BODIES:
                array = bodies
            elif column.name.lower() == CORRUPT:
                array = pa.nulls(len(records), pa.string())
            else:
                array = BUILDERS[_builder(column)](records)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _inflated(records: Records, compressed: Array) -> Iterator[tuple[int, int, Array, list[Fault]]]:
    """Decompress bodies, and yield all bodies in runs of rows that together have about `BATCH_BYTES`."""
    is_compressed = np.zeros(len(records), bool)
    is_compressed[compressed] = True
    flags = records.number("sys_flag")
    low, size = 0, 0
    plain: list[bytes] = []
    rows: list[int] = []
    faults: list[Fault] = []
    for row in range(len(records)):
        at, length = int(records.body_at[row]), int(records.body_sizes[row])
        if is_compressed[row]:
            try:
                body = decompress(records.piece.bytes[at : at + length].tobytes(), int(flags[row]))
            except BadBody as error:
                faults.append((row, str(error)))
                body = b""
            rows.append(row)
            plain.append(body)
            length = len(body)
        size += length
        if size >= BATCH_BYTES or row + 1 == len(records):
            yield low, row + 1, _merged(records, low, row + 1, rows, plain), faults
            low, size, rows, plain, faults = row + 1, 0, [], [], []


def _merged(records: Records, low: int, high: int, rows: list[int], plain: list[bytes]) -> Array:
    sizes = records.body_sizes[low:high].copy()
    inflated = np.array(rows, np.int64) - low
    sizes[inflated] = 0
    stored = gather(records.piece, records.body_at[low:high], sizes)
    if not rows:
        return stored
    order = np.arange(high - low)
    order[inflated] = high - low + np.arange(len(rows))
    return pa.concat_arrays([stored, pa.array(plain, pa.binary())]).take(pa.array(order))


def _by_queue(name: str) -> Callable[[Records], Array]:
    def build(records: Records) -> Array:
        names = pa.array([getattr(queue, name) for queue in records.expected.queues], pa.string())
        return names.take(pa.array(records.expected.queue_index))

    return build


def _field(name: str) -> Callable[[Records], Array]:
    return lambda records: pa.array(records.number(name))


def _timestamps(milliseconds: Array) -> Array:
    micros = np.clip(milliseconds.astype(np.int64), _MS_MIN, _MS_MAX) * 1000
    return pa.Array.from_buffers(TIMESTAMP, len(micros), [None, pa.py_buffer(micros)])


def _property(name: str) -> Callable[[Records], Array]:
    return lambda records: records.properties.values_of(name)


def _hex(matrix: Array) -> Array:
    """Return rows of bytes as upper-case hexadecimal text."""
    digits = np.ascontiguousarray(_HEX[matrix])
    width = matrix.shape[1] * 2
    raw = pa.Array.from_buffers(pa.binary(width), len(matrix), [None, pa.py_buffer(digits)])
    return raw.cast(pa.binary()).cast(pa.string())


def _offset_ids(records: Records) -> Array:
    """Return the offset message id that brokers give: address, port and physical offset in hexadecimal."""
    v6 = (records.head["sys_flag"] & HEAD_STORE_V6) != 0
    texts = pa.nulls(len(records), pa.string())
    order = np.zeros(len(records), np.int64)
    parts: list[Array] = []
    base = 0
    for is_v6, host_size in ((False, 8), (True, 20)):
        rows = np.flatnonzero(v6 == is_v6)
        if not len(rows):
            continue
        hosts = records.piece.bytes[records.store_host_at[rows, None] + np.arange(host_size)]
        offsets = np.ascontiguousarray(records.head["physical_offset"][rows]).view(np.uint8).reshape(len(rows), 8)
        parts.append(_hex(np.concatenate([hosts, offsets], axis=1)))
        order[rows] = base + np.arange(len(rows))
        base += len(rows)
    return pa.concat_arrays(parts).take(pa.array(order)) if parts else texts


HEAD_STORE_V6 = 0x20
HEAD_BORN_V6 = 0x10


def _message_ids(records: Records) -> Array:
    unique = records.properties.values_of(UNIQUE_KEY)
    if not unique.null_count:
        return unique
    missing = np.flatnonzero(unique.is_null().to_numpy(zero_copy_only=False))
    order = np.arange(len(records))
    order[missing] = len(records) + np.arange(len(missing))
    return pa.concat_arrays([unique, _offset_ids(records.take(missing))]).take(pa.array(order))


@cache
def _host_text(packed: bytes) -> str:
    host, port = decode_host(packed)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hosts(name: str) -> Callable[[Records], Array]:
    bit = HEAD_BORN_V6 if name == "born_host" else HEAD_STORE_V6

    def build(records: Records) -> Array:
        at = records.store_host_at if name == "store_host" else records.positions + HEADS[0].offsets[name]
        v6 = (records.head["sys_flag"] & bit) != 0
        order = np.zeros(len(records), np.int64)
        texts: list[str] = []
        for is_v6, size in ((False, 8), (True, 20)):
            rows = np.flatnonzero(v6 == is_v6)
            if len(rows):
                packed = np.ascontiguousarray(records.piece.bytes[at[rows, None] + np.arange(size)]).view(f"V{size}").ravel()
                distinct, inverse = np.unique(packed, return_inverse=True)
                order[rows] = inverse.ravel() + len(texts)
                texts += [_host_text(bytes(each)) for each in distinct]
        return pa.array(texts, pa.string()).take(pa.array(order))

    return build


def _headers(records: Records) -> Array:
    maps = records.properties.maps()
    values = pa.StructArray.from_arrays([maps.keys, maps.items.cast(pa.binary())], names=["key", "value"])
    return pa.ListArray.from_arrays(maps.offsets, values)


TIMESTAMP = pa.timestamp("us", tz="UTC")

BUILDERS: dict[str, Callable[[Records], Array]] = {
    "topic": _by_queue("topic"),
    "brokerName": _by_queue("broker_name"),
    "queueId": _field("queue_id"),
    "queueOffset": _field("queue_offset"),
    "tags": _property(TAGS),
    "keys": _property(KEYS),
    "properties": lambda records: records.properties.maps(),
    "properties:string": lambda records: records.properties.text,
    "flag": _field("flag"),
    "sysFlag": _field("sys_flag"),
    "reconsumeTimes": lambda records: pa.array(records.reconsume_times),
    "bornTimestamp": lambda records: _timestamps(records.number("born_timestamp")),
    "storeTimestamp": lambda records: _timestamps(records.store_timestamps),
    "msgId": _message_ids,
    "bornHost": _hosts("born_host"),
    "storeHost": _hosts("store_host"),
    "physicalOffset": _field("physical_offset"),
    "storeSize": _field("total_size"),
    "bodySize": lambda records: pa.array(records.body_sizes.astype(np.int32)),
    "bodyCrc": _field("body_crc"),
    "preparedTransactionOffset": lambda records: pa.array(records.prepared_offsets),
    "offsetMsgId": _offset_ids,
    "key": lambda records: records.properties.values_of(KEYS).cast(pa.binary()),
    "partition": _field("queue_id"),
    "offset": _field("queue_offset"),
    "timestamp": lambda records: _timestamps(records.store_timestamps),
    "timestampType": lambda records: pa.array(np.ones(len(records), np.int32)),  # the time of appending, in Kafka's words
    "headers": _headers,
}
"""The function that builds each column. `body` and `value` are built separately because they may be compressed."""
_BODIES = ("body", "value")
_CANONICAL = {name.lower(): name for name in BUILDERS}


def _builder(column: Column) -> str:
    name = _CANONICAL[column.name.lower()]
    return "properties:string" if name == "properties" and column.type == "string" else name


_ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": TIMESTAMP,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    HEADERS: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
}


def arrow_schema(columns: Sequence[Column]) -> Array:
    """Return exactly the Arrow schema that Spark expects for these columns; it refuses any other."""
    return pa.schema([pa.field(column.name, _ARROW_TYPES[column.type]) for column in columns])


def cut_rows(sizes: Array) -> Iterator[slice]:
    """Divide consecutive records into batches of up to `BATCH_ROWS` rows and about `BATCH_BYTES` bytes, at least one row."""
    ends = np.cumsum(sizes)
    low, count, before = 0, len(sizes), 0
    while low < count:
        high = min(low + BATCH_ROWS, count)
        if ends[high - 1] - before > BATCH_BYTES:
            high = max(low + 1, int(np.searchsorted(ends, before + BATCH_BYTES, "right")))
        yield slice(low, high)
        before, low = int(ends[high - 1]), high
