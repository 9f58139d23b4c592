"""Binary headers: what is remembered of earlier ones must not show in what is read from the next."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.remoting.binary_header import SHAPES_MAX, Head, decode_header, encode_header
from ledgermq.remoting.errors import RemoteProtocolError

Decoded = tuple[Head, str | None, dict[str, str]]

HEAD: Head = (310, 0, 409, 7, 0)
NAMES = ("a", "b", "ab", "ba", "topic", "queueId", "\u4e3b")
VALUES = ("", "0", "1", "12", "ab", "\u00e9", "x" * 40, "\x00\x01")


def naively(header: bytes) -> Decoded:
    """Read a header field by field, as RocketMQ's layout says, remembering nothing."""

    def take(size: int) -> bytes:
        nonlocal at
        if size < 0 or at + size > len(header):
            raise ValueError
        at += size
        return header[at - size : at]

    at = 0
    code, language, version, opaque, flag = struct.unpack(">hbhii", take(13))
    remark = take(struct.unpack(">i", take(4))[0]).decode("utf-8", "replace")
    end = struct.unpack(">i", take(4))[0] + at
    if end < at or end > len(header):
        raise ValueError
    header = header[:end]
    fields: dict[str, str] = {}
    while at < end:
        name = take(struct.unpack(">h", take(2))[0])
        value = take(struct.unpack(">i", take(4))[0])
        if name and value:
            fields[name.decode()] = value.decode()
    return (code, language, version, opaque, flag), remark or None, fields


def outcome(header: bytes) -> Decoded | None:
    try:
        return decode_header(header)
    except RemoteProtocolError:
        return None


def naive_outcome(header: bytes) -> Decoded | None:
    try:
        return naively(header)
    except (ValueError, struct.error):  # a text that is not UTF-8 is a ValueError, too
        return None


def field(name: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value


def header_of(block: bytes) -> bytes:
    return struct.pack(">hbhiiii", *HEAD, 0, len(block)) + block


pairs = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=6)
blocks = pairs.map(lambda fields: b"".join(field(name.encode(), value.encode()) for name, value in fields))


@settings(max_examples=300)
@given(st.lists(blocks, min_size=2, max_size=6))
def test_headers_of_like_lengths_are_read_as_if_each_were_the_first(sent: list[bytes]) -> None:
    """Few names and few lengths: blocks of one length and different layouts follow each other all the time."""
    for block in sent:
        assert outcome(header_of(block)) == naive_outcome(header_of(block))


@settings(max_examples=300)
@given(blocks.filter(bool), st.data())
def test_a_remembered_header_with_some_bytes_changed_is_read_anew(block: bytes, data: st.DataObject) -> None:
    """Whatever is changed of a known block, names and lengths included, the answer is the naive reader's."""
    outcome(header_of(block))
    changed = bytearray(block)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))

    assert outcome(header_of(bytes(changed))) == naive_outcome(header_of(bytes(changed)))


@given(st.binary(max_size=120))
def test_any_bytes_are_read_as_the_naive_reader_reads_them(noise: bytes) -> None:
    """Or refused by both."""
    assert outcome(noise) == naive_outcome(noise)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([(b"a", b"12"), (b"b", b"3")], [(b"a", b"1"), (b"b", b"23")]),
        ([(b"a", b"12"), (b"b", b"3")], [(b"b", b"12"), (b"a", b"3")]),
        ([(b"ab", b"1"), (b"c", b"2")], [(b"a", b"1"), (b"cb", b"2")]),
        ([(b"a", b"1"), (b"a", b"2")], [(b"a", b"2"), (b"a", b"1")]),
        ([(b"a", b"1"), (b"b", b"2")], [(b"a", b"\xc3"), (b"b", b"\xa9")]),
        ([(b"a", b"12"), (b"b", b"2")], [(b"a", b"\xc3\xa9"), (b"b", b"2")]),
        ([(b"a", b"1"), (b"b", b"23")], [(b"a", b""), (b"b", b"123")]),
        ([(b"a", b"x" * 9), (b"b", b"y")], [(b"a", b"x" + field(b"", b"")[:6] + b"xx"), (b"b", b"y")]),
    ],
)
def test_kept_pairs_of_one_length(first: list[tuple[bytes, bytes]], second: list[tuple[bytes, bytes]]) -> None:
    """Blocks that differ only in what a careless memory would overlook."""
    blocks_ = [b"".join(field(*pair) for pair in fields) for fields in (first, second)]
    assert len(blocks_[0]) == len(blocks_[1])
    for block in (*blocks_, *blocks_):
        assert outcome(header_of(block)) == naive_outcome(header_of(block))


def test_what_is_remembered_stays_small_whatever_strangers_send() -> None:
    """Long names in blocks of ever new lengths are read and forgotten."""
    tracemalloc.start()
    try:
        for size in range(2 * SHAPES_MAX):
            decode_header(encode_header(HEAD, None, {"n" * (20_000 + size): "1", "b": "2"}))
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
