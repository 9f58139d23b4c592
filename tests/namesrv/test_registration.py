"""The body of a registration in its forms."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.data_version import DataVersion
from ledgermq.namesrv import registration
from ledgermq.namesrv.registration import CONFIGS_MAX, TopicConfig, read_registration
from ledgermq.remoting.errors import RequestRefused

COMPRESSED = bytes.fromhex(
    "78da636060b0a8564ace2fcd2b492d52b232d4512a2e492c490d4b2d2acecccf53b232d0512ac9cc4d050ae61600a5cd0d10a0968181811188"
    "c5420c154c80d04c21d8d3cfddc7353ec4d15da11a24cb141d0b24190066c11840"
)
COMPRESSED_CRC = 1991429476
JSON = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1700000000000},'
    b'"topicConfigTable":{"T1":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T1",'
    b'"topicSysFlag":2,"writeQueueNums":8}}}}'
)


def compressed(*lines: str, version: bytes = b'{"counter":1}') -> bytes:
    parts = [version, None, *(line.encode() for line in lines)]
    body = b"".join(struct.pack(">i", len(lines)) if part is None else struct.pack(">i", len(part)) + part for part in parts)
    return zlib.compress(body)


def test_java_s_compressed_body_is_read() -> None:
    """Written by the real classes of 5.x: version, topics with attributes, filter servers, mappings."""
    read = read_registration(COMPRESSED, COMPRESSED_CRC)

    assert read.data_version == DataVersion(1, 1700000000000, 0)
    assert read.topics == {"T1": TopicConfig(4, 4, 6)}


def test_a_json_body_is_read_with_or_without_its_wrapper() -> None:
    """Very old brokers send the inner object alone."""
    inner = json.dumps(json.loads(JSON)["topicConfigSerializeWrapper"]).encode()

    for body in (JSON, inner):
        read = read_registration(body, 0)
        assert read.data_version == DataVersion(1, 1700000000000)
        assert read.topics == {"T1": TopicConfig(4, 8, 6, 2)}


def test_five_words_of_a_4_9_broker_and_six_of_5_x_are_topics() -> None:
    """Attributes may hold spaces; they are not ours to keep."""
    read = read_registration(compressed("A 4 4 6 SINGLE_TAG", 'B 1 2 7 MULTI_TAG {"+a": "b c"}'), 0)

    assert read.topics == {"A": TopicConfig(4, 4, 6), "B": TopicConfig(1, 2, 7)}


def test_no_body_registers_no_topics() -> None:
    """A slave may register with nothing."""
    assert read_registration(b"", 0).topics == {}


def test_a_checksum_is_over_the_bytes_as_sent() -> None:
    """Before they are expanded, and without the sign bit; 0 is not checked."""
    for body, crc in ((COMPRESSED, COMPRESSED_CRC), (JSON, zlib.crc32(JSON) & 0x7FFFFFFF)):
        read_registration(body, crc)
        with pytest.raises(RequestRefused, match="crc32 not match"):
            read_registration(body, crc ^ 1)


@pytest.mark.parametrize(
    "body",
    [
        b"x",
        b"{",
        b"[]",
        b'{"topicConfigSerializeWrapper":5}',
        b'{"topicConfigTable":{"T":{"perm":"x"}}}',
        b'{"topicConfigTable":{"T":null}}',
        b'{"topicConfigTable":[1]}',
        COMPRESSED[:-6],
        COMPRESSED[:2] + bytes(20),
        compressed("T 4 4"),
        compressed("T a b c SINGLE_TAG"),
        zlib.compress(struct.pack(">i", 1000)),
        zlib.compress(struct.pack(">i", -5)),
        zlib.compress(struct.pack(">i", 2) + b"{}" + struct.pack(">i", 2**31 - 1)),
    ],
)
def test_a_body_that_does_not_add_up_is_refused(body: bytes) -> None:
    """The broker gets an error, and nothing of the body is kept."""
    with pytest.raises(RequestRefused, match="cannot be read"):
        read_registration(body, 0)


@pytest.mark.parametrize(
    ("bound", "body"),
    [
        ("TOPICS_MAX", b'{"topicConfigTable":{"A":{},"B":{},"C":{}}}'),
        ("TOPICS_MAX", compressed("A 4 4 6", "B 4 4 6", "C 4 4 6")),
        ("OBJECTS_MAX", b'{"topicConfigTable":{"A":{}}}'),
        ("OBJECTS_MAX", b'{"x":[{},{}]}'),
    ],
)
def test_more_than_any_broker_has_is_refused(monkeypatch: pytest.MonkeyPatch, bound: str, body: bytes) -> None:
    """A stranger's body must not hold up everybody else; one that is just inside the bound is read."""
    monkeypatch.setattr(registration, bound, 3)
    read_registration(body, 0)
    monkeypatch.setattr(registration, bound, 2)

    with pytest.raises(RequestRefused, match="2 are allowed"):
        read_registration(body, 0)


def test_a_long_version_is_refused_unread() -> None:
    """All of a compressed body could be the JSON of its version."""
    version = b'{"counter":1,"x":"%b"}'

    assert read_registration(compressed(version=version % bytes(4000).replace(b"\0", b"x")), 0).data_version == DataVersion(1)
    with pytest.raises(RequestRefused, match="4096 are allowed"):
        read_registration(compressed(version=version % bytes(4100).replace(b"\0", b"x")), 0)


def test_numbers_may_be_text_and_what_is_null_is_absent() -> None:
    """As fastjson reads them; so is a body that is no strict JSON, if it is short."""
    topics = b'"T":{"readQueueNums":"4","writeQueueNums":8,"attributes":null}'
    strict = b'{"topicConfigSerializeWrapper":null,"dataVersion":null,"topicConfigTable":{%b}}' % topics

    for body in (strict, b"\xef\xbb\xbf" + strict, strict.replace(b'"dataVersion"', b"0")):
        assert read_registration(body, 0).topics == {"T": TopicConfig(4, 8, 6)}
    loose = strict.replace(b'"dataVersion"', b"0").replace(b"{", b"{" + b" " * 40_000, 1)
    with pytest.raises(RequestRefused, match="cannot be read"):
        read_registration(loose, 0)


def test_a_body_that_expands_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few KiB must not become all of our memory."""
    monkeypatch.setattr(registration, "EXPANDED_BYTES_MAX", 10_000)

    with pytest.raises(RequestRefused, match="10000 bytes"):
        read_registration(zlib.compress(bytes(10_001)), 0)


@given(st.binary(max_size=200) | st.binary(max_size=200).map(zlib.compress))
def test_any_bytes_are_refused_or_read_but_nothing_else(body: bytes) -> None:
    """No body makes the reader fail in another way."""
    with contextlib.suppress(RequestRefused):
        read_registration(body, 0)


@pytest.mark.parametrize("compressed", [False, True])
def test_topics_of_too_many_kinds_are_left_out(compressed: bool) -> None:
    """Each kind costs an object; brokers have a handful of them, and keep those although somebody creates thousands."""
    lines = [b"t%d %d 4 6" % (number, number) for number in range(CONFIGS_MAX + 1)]
    packed = struct.pack(">i", 2) + b"{}" + struct.pack(">i", len(lines))
    packed += b"".join(struct.pack(">i", len(line)) + line for line in lines)
    table = {f"t{number}": {"readQueueNums": number} for number in range(CONFIGS_MAX + 1)}
    body = zlib.compress(packed) if compressed else json.dumps({"topicConfigTable": table}).encode()

    registered = read_registration(body, 0)

    assert (len(registered.topics), registered.left_out) == (CONFIGS_MAX, 1)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_topic_with_a_name_of_any_length_is_left_out(compressed: bool) -> None:
    """The broker's other topics are registered."""
    long = "x" * 513
    lines = [b"T 4 4 6", long.encode() + b" 4 4 6"]
    packed = struct.pack(">i", 2) + b"{}" + struct.pack(">i", len(lines))
    packed += b"".join(struct.pack(">i", len(line)) + line for line in lines)
    body = zlib.compress(packed) if compressed else json.dumps({"topicConfigTable": {"T": {}, long: {}}}).encode()

    registered = read_registration(body, 0)

    assert (list(registered.topics), registered.left_out) == (["T"], 1)


@pytest.mark.parametrize("number", [1 << 31, 1 << 64, 10**40])
def test_a_number_that_no_java_int_holds_is_refused(number: int) -> None:
    """The registration changes nothing of the routes of others."""
    for body in (b'{"topicConfigTable":{"T":{"perm":%d}}}' % number, b'{"dataVersion":{"counter":%d}}' % (number << 64)):
        with pytest.raises(RequestRefused, match="cannot be read"):
            read_registration(body, 0)
