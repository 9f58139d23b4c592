"""The binary header of commands (RocketMQ's serialize type ROCKETMQ): a fixed part, a remark, and length-prefixed fields.

A client sends the same fields with the same lengths again and again, and most with the same values. So a header is remembered
as a `Shape`: which of its bytes never changed, and where the values lie that did. The next header of that length is taken apart
in one step. A remembered shape is only ever a guess: all bytes that it holds for constant are compared, and a header that
differs is read field by field and widens the guess.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from operator import itemgetter

import attrs

from .errors import LocalProtocolError, RemoteProtocolError

# Code, language, version, opaque, flag; then remark and fields, each behind a 4-byte length.
_HEAD = struct.Struct(">hbhiii")
_SIZE = struct.Struct(">i")
_KEY_SIZE = struct.Struct(">h")

SHAPES_MAX = 1024
FIELDS_IN_SHAPE_MAX = 32
HEADER_IN_SHAPE_MAX = 4096
"""Longer headers are not remembered: a shape holds all of its header, and strangers send what they like."""

_BLOCK_AT = _HEAD.size + _SIZE.size
"""Where fields begin when there is no remark."""
_NUMBERS = 5
"""Code, language code, version, opaque, flag stand before what a shape compares."""

Head = tuple[int, int, int, int, int]
"""Code, language code, version, opaque, flag."""


@attrs.frozen
class Shape:
    """How a header without a remark and with fields in ASCII is laid out."""

    codec: struct.Struct
    """Takes from a header its numbers, the two sizes, and the runs of bytes that never changed."""
    constant: tuple[int | bytes, ...]
    """The sizes and the runs."""
    fields: dict[str, str]
    """All fields; those that vary have some value that was seen."""
    varying: tuple[str, ...]
    values_of: Callable[[str], tuple[str, ...]]
    """Takes the values that vary from the fields' text."""

    @classmethod
    def of(cls, fields: dict[str, str], before: Shape | None) -> Shape:
        """The shape of these fields; what differs from the shape `before` varies, and what varied there."""
        varying: set[str] = set()
        if before is not None and _sizes(before.fields) == _sizes(fields):
            varying = {name for name in fields if name in before.varying or fields[name] != before.fields[name]}
        formats: list[str] = []
        runs: list[bytes] = []
        spans: list[slice] = []
        at = 0
        run = b""
        for name, value in fields.items():
            run += _KEY_SIZE.pack(len(name)) + name.encode() + _SIZE.pack(len(value))
            at += _KEY_SIZE.size + len(name) + _SIZE.size
            if name in varying:
                formats.append(f"{len(run)}s{len(value)}x")
                runs.append(run)
                spans.append(slice(at, at + len(value)))
                run = b""
            else:
                run += value.encode()
            at += len(value)
        formats.append(f"{len(run)}s")
        runs.append(run)
        names = tuple(name for name in fields if name in varying)
        return cls(struct.Struct(f">hbhiiii{''.join(formats)}"), (0, at, *runs), fields.copy(), names, _getter(spans))


def _sizes(fields: dict[str, str]) -> list[tuple[str, int]]:
    return [(name, len(value)) for name, value in fields.items()]


def _getter(spans: list[slice]) -> Callable[[str], tuple[str, ...]]:
    if len(spans) > 1:
        return itemgetter(*spans)
    return lambda text: tuple(text[span] for span in spans)  # of one value an itemgetter makes no tuple


_shapes: dict[int, Shape] = {}
"""By length of the header."""


def decode_header(header: bytes) -> tuple[Head, str | None, dict[str, str]]:
    """Read a header into its fixed part, its remark and its fields.

    Raises:
        RemoteProtocolError: lengths that do not add up, or text that is not UTF-8.
    """
    shape = _shapes.get(len(header))
    if shape is not None:
        found = shape.codec.unpack(header)
        if found[_NUMBERS:] == shape.constant:
            try:
                values = shape.values_of(header[_BLOCK_AT:].decode("ascii"))
            except UnicodeDecodeError:
                pass  # as seldom as it is allowed: below it is read as UTF-8
            else:
                fields = shape.fields.copy()
                fields.update(zip(shape.varying, values, strict=False))
                return found[:_NUMBERS], None, fields
    try:
        code, language, version, opaque, flag, _ = _HEAD.unpack_from(header)
        remark, at = _sized(header, _HEAD.size - _SIZE.size)
        block, end = _sized(header, at)
        pairs = _split(block)
        # Java takes a length of 0 for null, which is as good as absent.
        fields = {name.decode(): value.decode() for name, value in pairs if name and value}
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"binary header does not add up: {error}") from error
    if not remark and end == len(header) and len(fields) == len(pairs):  # no name twice, nothing empty
        _learn(block, fields, shape)
    return (code, language, version, opaque, flag), remark.decode("utf-8", "replace") or None, fields


def _learn(block: bytes, fields: dict[str, str], before: Shape | None) -> None:
    """Remember what a header of this block alone looks like, unless it is longer or odder than those of clients."""
    size = _BLOCK_AT + len(block)
    if size <= HEADER_IN_SHAPE_MAX and 0 < len(fields) <= FIELDS_IN_SHAPE_MAX and block.isascii():
        if len(_shapes) >= SHAPES_MAX:
            _shapes.clear()
        _shapes[size] = Shape.of(fields, before)


def _split(block: bytes) -> list[tuple[bytes, bytes]]:
    fields: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(block):
        (key_size,) = _KEY_SIZE.unpack_from(block, at)
        at += _KEY_SIZE.size + key_size
        if key_size < 0 or at > len(block):
            raise RemoteProtocolError(f"key of {key_size} bytes passes the end of the header fields")
        name = block[at - key_size : at]
        value, at = _sized(block, at)
        fields.append((name, value))
    return fields


def _sized(buffer: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _SIZE.unpack_from(buffer, at)
    start = at + _SIZE.size
    if size < 0 or start + size > len(buffer):
        raise RemoteProtocolError(f"length {size} at byte {at} passes the end of the header ({len(buffer)} bytes)")
    return buffer[start : start + size], start + size


def encode_header(head: Head, remark: str | None, fields: Mapping[str, str]) -> bytes:
    """Write a header.

    Raises:
        LocalProtocolError: the code, or the length of a field's name, does not fit 16 bits.
    """
    code, language, version, opaque, flag = head
    if not -0x8000 <= code <= 0x7FFF:
        raise LocalProtocolError(f"code {code} does not fit the 16 bits of a binary header")
    text = (remark or "").encode()
    try:
        block = b"".join(encode_field(name, value.encode()) for name, value in fields.items())
    except struct.error as error:
        raise LocalProtocolError(f"the name of a field does not fit the 16 bits of its length: {error}") from error
    return b"".join((_HEAD.pack(code, language, version, opaque, flag, len(text)), text, _SIZE.pack(len(block)), block))


_FRAME = struct.Struct(">iIhbhiiii")  # frame length, encoding and header length, the head, no remark, size of the fields
OPAQUE_AT = struct.calcsize(">iIhbh")
"""Where in such a frame its opaque stands, for whoever writes frames by a template."""


def frame_head(code: int, language: int, version: int, opaque: int, flag: int, block_size: int) -> bytes:
    """Everything of a frame without remark and body that stands before its block of fields."""
    header_size = _BLOCK_AT + block_size
    return _FRAME.pack(4 + header_size, 1 << 24 | header_size, code, language, version, opaque, flag, 0, block_size)


def encode_field(name: str, value: bytes) -> bytes:
    """Write one field."""
    key = name.encode()
    return _KEY_SIZE.pack(len(key)) + key + _SIZE.pack(len(value)) + value
