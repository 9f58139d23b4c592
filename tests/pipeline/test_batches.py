"""Columns made of stored bytes are what decoding one record after the other gives."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.flags import COMPRESSED, COMPRESSION_ZLIB
from ledgermq.message.layout import body_crc, decode_record, encode_host, encode_record
from ledgermq.message.message import MessageQueue
from ledgermq.message.properties import encode_properties
from ledgermq.pipeline.batches import (
    BATCH_BYTES,
    BATCH_ROWS,
    Batches,
    Expected,
    Piece,
    check_crcs,
    cut_rows,
    gather,
    read_heads,
)
from ledgermq.pipeline.columns import COLUMNS, CORRUPT, KAFKA_COLUMNS, Column

HOST = encode_host("127.0.0.1", 10911)
HOSTS = st.sampled_from(["127.0.0.1", "10.0.0.7", "::1", "fe80::7"])
texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=15)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "own"])


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A record without its place, and its plain body."""
    body = draw(st.binary(max_size=40))
    stored, flag = body, 0
    if draw(st.booleans()):
        stored, flag = zlib.compress(body), COMPRESSED | COMPRESSION_ZLIB
    record = encode_record(
        topic=b"T" * draw(st.integers(1, 30)),
        queue_id=3,
        queue_offset=0,
        body=stored,
        properties=encode_properties(draw(st.dictionaries(names, texts))).encode(),
        flag=draw(st.integers(-5, 5)),
        sys_flag=flag,
        born_timestamp=draw(st.integers(0, 2**41)),
        born_host=encode_host(draw(HOSTS), draw(st.integers(0, 65535))),
        store_timestamp=draw(st.integers(0, 2**41)),
        store_host=encode_host(draw(HOSTS), draw(st.integers(0, 65535))),
        reconsume_times=draw(st.integers(0, 9)),
        prepared_transaction_offset=draw(st.integers(0, 2**40)),
    )
    return record, body


def laid_out(records: list[bytes], start: int = 0) -> tuple[Piece, Any, Expected]:
    """Records back to back behind `start` other bytes, with their places patched in."""
    buffer, positions = bytearray(b"\xaa" * start), list[int]()
    for number, record in enumerate(records):
        placed = bytearray(record)
        placed[20:28] = number.to_bytes(8, "big")
        placed[28:36] = (len(buffer) + 1000).to_bytes(8, "big")
        positions.append(len(buffer))
        buffer += placed
    at = np.array(positions, np.int64)
    expected = Expected(
        np.array([len(record) for record in records], np.int64),
        at + 1000,
        np.arange(len(records)),
        [MessageQueue("T", "broker-a", 3)],
        np.zeros(len(records), np.int32),
    )
    return Piece.of(bytes(buffer)), at, expected


def built(piece: Piece, positions: Any, expected: Expected) -> pa.Table:
    batches = Batches(COLUMNS)
    records, faults = read_heads(piece, positions, expected)
    assert not faults
    return pa.Table.from_batches([batch for batch, _, _ in batches.build(records)], batches.schema)


@pytest.mark.parametrize("columns", [COLUMNS, KAFKA_COLUMNS], ids=["ledgermq", "kafka"])
def test_a_schema_may_write_the_names_of_columns_in_any_case(columns: tuple[Column, ...]) -> None:
    """Spark does not tell names apart by their case, and gives them to the source as the user wrote them."""
    columns = (*columns, Column(CORRUPT, "string"))
    piece, positions, expected = laid_out([encode_record(b"T", 3, 0, b"body", b"", 0, 0, 0, HOST, 0, HOST)])
    records, _ = read_heads(piece, positions, expected)
    plain, upper = Batches(columns), Batches(tuple(Column(column.name.upper(), column.type) for column in columns))

    (batch, _, _), (other, _, _) = next(plain.build(records)), next(upper.build(records))

    assert other.columns == batch.columns
    assert upper.corrupt(["a fault"]).columns == plain.corrupt(["a fault"]).columns


@given(st.lists(messages(), min_size=1, max_size=12), st.integers(0, 5))
def test_columns_equal_records_decoded_one_by_one(drawn: list[tuple[bytes, bytes]], start: int) -> None:
    """Addresses of both families, compressed bodies, short and long values, properties of any kind."""
    piece, positions, expected = laid_out([record for record, _ in drawn], start)

    rows = built(piece, positions, expected).to_pylist()

    assert len(rows) == len(drawn)
    for row, (_, body), position in zip(rows, drawn, positions, strict=True):
        message = decode_record(piece.bytes.tobytes(), int(position))
        born_host, born_port = message.born_host
        assert row["body"] == body
        assert dict(row["properties"]) == dict(message.properties)
        assert (row["tags"], row["keys"]) == (message.properties.get("TAGS"), message.properties.get("KEYS"))
        assert row["msgId"] == (message.unique_key or message.message_id)
        assert row["offsetMsgId"] == message.message_id
        assert row["bornHost"] == (f"[{born_host}]:{born_port}" if ":" in born_host else f"{born_host}:{born_port}")
        assert round(row["storeTimestamp"].timestamp() * 1000) == message.store_timestamp
        assert round(row["bornTimestamp"].timestamp() * 1000) == message.born_timestamp
        assert (row["topic"], row["brokerName"], row["queueId"]) == ("T", "broker-a", 3)
        assert (row["queueOffset"], row["physicalOffset"]) == (message.queue_offset, message.physical_offset)
        assert (row["flag"], row["sysFlag"], row["bodyCrc"]) == (message.flag, message.sys_flag, message.body_crc)
        assert (row["storeSize"], row["bodySize"]) == (message.size, len(message.body))
        assert (row["reconsumeTimes"], row["preparedTransactionOffset"]) == (
            message.reconsume_times, message.prepared_transaction_offset,
        )  # fmt: skip


def simple(body: bytes = b"hello", properties: bytes = b"", sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=b"T", queue_id=3, queue_offset=0, body=body, properties=properties, flag=0, sys_flag=sys_flag,
        born_timestamp=1, born_host=encode_host("127.0.0.1", 1), store_timestamp=2, store_host=encode_host("127.0.0.1", 2),
    )  # fmt: skip


@given(st.integers(0, 119), st.integers(1, 255))
def test_a_changed_byte_is_a_fault_or_a_value(at: int, change: int) -> None:
    """No byte of a record makes the reader fail; the records around it are read."""
    piece, positions, expected = laid_out([simple(b"%020d" % number) for number in range(3)])
    data = bytearray(piece.bytes.tobytes())
    data[int(positions[1]) + at % len(simple(b"%020d" % 1))] ^= change
    piece = Piece.of(bytes(data))

    records, faults = read_heads(piece, positions, expected)
    rows = [row for batch, _, _ in Batches(COLUMNS[:7]).build(records) for row in batch.to_pylist()]

    assert len(records) + len(faults) == 3
    assert all(row == 1 for row, _ in faults)
    assert {row["queueOffset"] for row in rows} >= {0, 2}


@given(st.binary(max_size=300), st.lists(st.integers(-10, 400), min_size=1, max_size=5))
def test_bytes_that_are_no_records_are_faults(data: bytes, places: list[int]) -> None:
    """Wherever units lead."""
    count = len(places)
    expected = Expected(
        np.full(count, 100), np.array(places), np.arange(count), [MessageQueue("T", "a", 0)], np.zeros(count, np.int32)
    )

    records, faults = read_heads(Piece.of(data + b"\0" * 92), np.array(places), expected)

    assert len(records) == 0
    assert len(faults) == count


def test_a_record_at_the_end_of_a_small_buffer_is_read() -> None:
    """Nothing behind it is looked at."""
    piece, positions, expected = laid_out([simple(b"")])

    assert built(piece, positions, expected).num_rows == 1


def test_bodies_that_do_not_decompress_are_faults() -> None:
    """The rows around them stay."""
    broken = simple(b"no zlib", sys_flag=COMPRESSED | COMPRESSION_ZLIB)
    piece, positions, expected = laid_out([simple(b"one"), broken, simple(b"three")])
    records, _ = read_heads(piece, positions, expected)

    ((batch, rows, faults),) = Batches(COLUMNS).build(records)

    assert batch.column("body").to_pylist() == [b"one", b"three"]
    assert batch.column("queueOffset").to_pylist() == [0, 2]
    assert list(rows) == [0, 2]
    assert [row for row, _ in faults] == [1]


def test_bodies_that_grow_when_decompressed_are_several_batches() -> None:
    """A small record may hold a large body; memory is bounded by what comes out."""
    body = bytes(BATCH_BYTES // 2)
    piece, positions, expected = laid_out(
        [simple(zlib.compress(body), sys_flag=COMPRESSED | COMPRESSION_ZLIB) for _ in range(5)]
    )
    records, _ = read_heads(piece, positions, expected)

    batches = [batch for batch, _, _ in Batches(COLUMNS).build(records)]

    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert all(batch.column("body").to_pylist()[0] == body for batch in batches)


def test_a_body_with_another_crc_is_found() -> None:
    """If it is asked for."""
    piece, positions, expected = laid_out([simple(b"one"), simple(b"two")])
    data = bytearray(piece.bytes.tobytes())
    data[int(positions[1]) + 88] ^= 1
    records, _ = read_heads(Piece.of(bytes(data)), positions, expected)

    ((row, text),) = check_crcs(records)

    assert row == 1
    assert f"{body_crc(b'two'):#010x}" in text


def test_kafka_columns_hold_the_same_messages() -> None:
    """Under the names of Spark's Kafka source."""
    piece, positions, expected = laid_out([simple(b"value", encode_properties({"KEYS": "k", "own": "x"}).encode())])
    records, _ = read_heads(piece, positions, expected)
    batches = Batches(KAFKA_COLUMNS)

    ((batch, _, _),) = batches.build(records)
    (row,) = batch.to_pylist()

    assert (row["key"], row["value"], row["partition"], row["offset"]) == (b"k", b"value", 3, 0)
    assert row["headers"] == [{"key": "KEYS", "value": b"k"}, {"key": "own", "value": b"x"}]


@given(st.lists(st.integers(91, 5_000_000), max_size=50))
def test_batches_are_cut_by_bytes(sizes: list[int]) -> None:
    """Every record is in one of them; only a single record makes one too large."""
    cuts = list(cut_rows(np.array(sizes, np.int64)))

    assert [at for cut in cuts for at in range(cut.start, cut.stop)] == list(range(len(sizes)))
    assert all(sum(sizes[cut]) <= BATCH_BYTES or cut.stop - cut.start == 1 for cut in cuts)


def test_batches_are_cut_by_rows() -> None:
    """Small records are no reason for endless batches."""
    assert [cut.stop - cut.start for cut in cut_rows(np.full(12_000, 100))] == [BATCH_ROWS, BATCH_ROWS, 2000]


@given(st.binary(min_size=1, max_size=60), st.data())
def test_stretches_of_a_buffer_are_copied_up_to_its_last_byte(data: bytes, draw: st.DataObject) -> None:
    """Values of up to twelve bytes are stored in another way than longer ones."""
    places = draw.draw(st.lists(st.tuples(st.integers(0, len(data)), st.integers(0, len(data))).map(sorted), max_size=9))
    starts = np.array([low for low, _ in places], np.int64)
    sizes = np.array([high - low for low, high in places], np.int64)

    found = gather(Piece.of(data), starts, sizes).to_pylist()

    assert found == [data[low:high] for low, high in places]
