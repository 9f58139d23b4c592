"""The stored message, byte for byte."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.errors import CorruptRecord
from ledgermq.message.flags import BORN_HOST_V6, STORE_HOST_V6
from ledgermq.message.layout import (
    Check,
    body_crc,
    check_record,
    decode_host,
    decode_record,
    decode_records,
    derived_parts,
    encode_host,
    encode_record,
    properties_of,
    record_size,
    span_of,
    topic_of,
)
from ledgermq.message.properties import encode_properties

V1 = bytes.fromhex(
    "00000074daa320a73610a6860000000100000000000000000000000500000000000003e8000000000000018bcfe568007f00000100009c40"
    "0000018bcfe568010a00000100002a9f0000000000000000000000000000000568656c6c6f0254310012544147530154616741024b455953"
    "016b3102"
)
V2_BOTH_HOSTS_V6 = bytes.fromhex(
    "00000085daa320ab3610a6860000000100000000000000000000000500000000000003e8000000300000018bcfe5680000000000000000"
    "00000000000000000100009c400000018bcfe568010000000000000000000000000000000200002a9f0000000000000000000000000000"
    "000568656c6c6f00025431000a54414753015461674102"
)
BY_JAVA_4_9 = (
    bytes.fromhex(
        "0000008ADAA320A777D18982000000010000000000000000000000000000000000000000"
        "0000000000000174876E807B7F0000010000D431000001A1FBDDAFCB7F00000100002A9F"
        "0000000000000000000000000000000548656C6C6F09546F706963546573740021"
    )
    + b"KEYS\x01k1 k2\x02UNIQ_KEY\x01UK0\x02TAGS\x01TagA"
)

hosts = st.ip_addresses().map(str)
ports = st.integers(0, 65535)
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
property_texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    return encode_record(
        topic=draw(st.text("abcXYZ%_-|", min_size=1, max_size=127)).encode(),
        queue_id=draw(ints),
        queue_offset=draw(longs),
        physical_offset=draw(longs),
        body=draw(st.binary(max_size=200)),
        properties=encode_properties(draw(st.dictionaries(property_texts, property_texts, max_size=4))).encode(),
        flag=draw(ints),
        sys_flag=draw(st.integers(0, 0x7FF)),
        born_timestamp=draw(longs),
        born_host=encode_host(draw(hosts), draw(ports)),
        store_timestamp=draw(longs),
        store_host=encode_host(draw(hosts), draw(ports)),
        reconsume_times=draw(ints),
        prepared_transaction_offset=draw(longs),
    )


def test_a_record_is_written_as_java_writes_it() -> None:
    """The record that the real Java classes wrote comes out byte for byte, and its parts are read back."""
    written = encode_record(
        topic=b"T1",
        queue_id=1,
        queue_offset=5,
        physical_offset=1000,
        body=b"hello",
        properties=b"TAGS\x01TagA\x02KEYS\x01k1\x02",
        flag=0,
        sys_flag=0,
        born_timestamp=1700000000000,
        born_host=encode_host("127.0.0.1", 40000),
        store_timestamp=1700000000001,
        store_host=encode_host("10.0.0.1", 10911),
    )

    assert written == V1
    message = decode_record(written)
    assert (message.topic, message.body, message.tag, message.keys) == ("T1", b"hello", "TagA", ["k1"])
    assert message.body_crc == 907060870
    assert message.born_host == ("127.0.0.1", 40000)
    assert message.message_id == "0A00000100002A9F00000000000003E8"


def test_a_record_of_format_v2_with_v6_hosts_is_read() -> None:
    """The two-byte topic length and both long hosts are understood."""
    message = decode_record(V2_BOTH_HOSTS_V6)

    assert message.size == 133
    assert message.sys_flag & (BORN_HOST_V6 | STORE_HOST_V6) == BORN_HOST_V6 | STORE_HOST_V6
    assert (message.topic, message.body, message.tag) == ("T1", b"hello", "TagA")
    assert (message.born_host, message.store_host) == (("::1", 40000), ("::2", 10911))


def test_a_record_of_a_4_9_broker_is_read() -> None:
    """The last separator of the properties is missing there, and the checksum has its top bit cleared."""
    message = decode_record(BY_JAVA_4_9)

    assert len(BY_JAVA_4_9) == 138
    assert (message.topic, message.queue_id, message.body) == ("TopicTest", 1, b"Hello")
    assert dict(message.properties) == {"KEYS": "k1 k2", "UNIQ_KEY": "UK0", "TAGS": "TagA"}
    assert message.body_crc == body_crc(b"Hello") == 0x77D18982
    assert message.message_id == "7F00000100002A9F0000000000000000"
    assert check_record(BY_JAVA_4_9, 0, len(BY_JAVA_4_9))[0] is Check.RECORD


@given(records())
def test_a_record_has_the_size_it_was_promised_and_is_sound(record: bytes) -> None:
    """Every record we write passes recovery's check and decodes into parts of the promised size."""
    message = decode_record(record)

    properties = encode_properties(message.properties).encode()
    assert len(record) == record_size(len(message.topic), len(message.body), len(properties), message.sys_flag)
    assert check_record(record, 0, len(record))[0] is Check.RECORD


@given(st.lists(records(), max_size=5))
def test_records_back_to_back_are_separated(written: list[bytes]) -> None:
    """The body of a pull answer gives the messages that went into it, in order."""
    read = list(decode_records(b"".join(written)))

    assert [message.size for message in read] == [len(record) for record in written]
    assert read == [decode_record(record) for record in written]


@given(records(), st.data())
def test_a_flipped_bit_of_the_body_is_noticed(record: bytes, data: st.DataObject) -> None:
    """Recovery does not take a record whose body is not what its checksum was made of."""
    span = check_record(record, 0, len(record))[1]
    assert span is not None
    body_end = span.topic_at - 1
    if span.body_at == body_end:
        return
    at = data.draw(st.integers(span.body_at, body_end - 1))
    damaged = bytearray(record)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))

    assert check_record(damaged, 0, len(damaged))[0] is Check.NOTHING
    assert check_record(damaged, 0, len(damaged), check_crc=False)[0] is Check.RECORD


@given(records(), st.integers(0, 400))
def test_a_cut_record_is_nothing(record: bytes, size: int) -> None:
    """A torn tail is never taken for a record."""
    cut = record[: min(size, len(record) - 1)]

    assert check_record(cut, 0, len(cut))[0] is Check.NOTHING
    with pytest.raises(CorruptRecord):
        decode_record(cut)


@given(records(), st.data())
def test_damaged_records_are_refused_or_read_but_nothing_else(record: bytes, data: st.DataObject) -> None:
    """Whatever bytes a disk or a peer makes of a record, the only error is CorruptRecord."""
    damaged = bytearray(record)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    check_record(damaged, 0, len(damaged))
    with contextlib.suppress(CorruptRecord):
        decode_record(damaged)


def assert_parts_are_those_of_the_span(buffer: bytes | bytearray, position: int, limit: int) -> None:
    span = span_of(buffer, position, limit)
    expected = span and (
        span.size,
        span.queue_id,
        span.queue_offset,
        span.physical_offset,
        span.sys_flag,
        span.store_timestamp,
        topic_of(buffer, span),
        properties_of(buffer, span),
    )
    assert derived_parts(buffer, position, limit) == expected
    assert derived_parts(memoryview(buffer), position, limit) == expected


@given(records(), st.binary(max_size=20), st.data())
def test_what_is_derived_is_read_as_the_whole_record_is(record: bytes, before: bytes, data: st.DataObject) -> None:
    """The short way takes the same records as the long one and finds the same in them, damaged and cut ones too."""
    buffer = bytearray(before + record)
    for _ in range(data.draw(st.integers(0, 3))):
        # Sizes, magic and flags: elsewhere hardly any damage is noticed.
        at = data.draw(st.sampled_from([0, 1, 2, 3, 7, 39, 84, 85, 86, 87, *range(88, len(record))]))
        buffer[len(before) + at] = data.draw(st.integers(0, 255))

    assert_parts_are_those_of_the_span(buffer, len(before), len(buffer) - data.draw(st.integers(0, 2)))


@pytest.mark.parametrize("record", [V1, V2_BOTH_HOSTS_V6, BY_JAVA_4_9])
def test_what_is_derived_is_read_of_every_format(record: bytes) -> None:
    """Of both versions, with hosts of both families, and as Java writes it."""
    assert derived_parts(record, 0, len(record)) is not None
    assert_parts_are_those_of_the_span(record, 0, len(record))


@given(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**15), 2**15 - 1), st.binary(max_size=8))
def test_what_is_derived_has_no_negative_sizes(topic_size: int, properties_size: int, rest: bytes) -> None:
    """Nor larger ones than the two bytes of a long topic and of properties can tell."""
    head = bytearray(BY_JAVA_4_9[:88])
    for size in (topic_size, topic_size & 0xFFFF):
        tail = size.to_bytes(4, "big", signed=True)[2:] + bytes(max(size, 0))
        tail += properties_size.to_bytes(2, "big", signed=True) + bytes(properties_size & 0xFFFF) + rest
        record = head + tail
        record[0:4], record[4:8], record[84:88] = len(record).to_bytes(4, "big"), V2_BOTH_HOSTS_V6[4:8], bytes(4)

        assert_parts_are_those_of_the_span(record, 0, len(record))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read_but_nothing_else(noise: bytes) -> None:
    """No bytes at all make the check or the decoder fail in another way."""
    check_record(noise, 0, len(noise))
    with contextlib.suppress(CorruptRecord):
        list(decode_records(noise))


def test_the_filler_is_distinguished_from_a_record() -> None:
    """The marker at the end of a commit log file sends the reader on to the next file."""
    assert check_record(bytes.fromhex("00000482CBD43194") + bytes(20), 0, 28)[0] is Check.BLANK


@given(hosts, ports)
def test_a_host_field_is_read_back(host: str, port: int) -> None:
    """Addresses of both families survive, in 8 or 20 bytes."""
    packed = encode_host(host, port)

    assert decode_host(packed) == (host, port)
    assert len(packed) == (20 if ":" in host else 8)
