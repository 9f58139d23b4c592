"""The binary header of commands (RocketMQ's serialize type ROCKETMQ): a fixed part, a remark, and length-prefixed fields.

A client sends the same fields with the same lengths again and again, so the layout of a block of fields is remembered as a
`Shape`, and the next block of that length is taken apart in one step. A remembered shape is only ever a guess: names and
lengths are compared with those in the block, and a block that is different is read field by field.
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
BLOCK_IN_SHAPE_MAX = 4096
"""Larger blocks are not remembered: a shape holds all names of its block, and strangers send what they like."""

_BLOCK_AT = _HEAD.size + _SIZE.size
"""Where fields begin when there is no remark."""

Head = tuple[int, int, int, int, int]
"""Code, language code, version, opaque, flag."""


@attrs.frozen
class Shape:
    """How a block of fields in ASCII is laid out."""

    frame: struct.Struct
    """Takes from a block what stands before each value: the length of the name, the name, the length of the value."""
    heads: tuple[bytes, ...]
    names: tuple[str, ...]
    values_of: Callable[[str], tuple[str, ...]]
    """Takes the values from the block's text."""

    @classmethod
    def of(cls, fields: list[tuple[bytes, bytes]]) -> Shape:
        """The shape of a block with these names and values, at least two."""
        heads = tuple(_KEY_SIZE.pack(len(name)) + name + _SIZE.pack(len(value)) for name, value in fields)
        layout: list[str] = []
        spans: list[slice] = []
        at = 0
        for head, (_, value) in zip(heads, fields, strict=True):
            layout.append(f"{len(head)}s{len(value)}x")
            spans.append(slice(at + len(head), at + len(head) + len(value)))
            at += len(head) + len(value)
        names = tuple(name.decode() for name, _ in fields)
        return cls(struct.Struct(">" + "".join(layout)), heads, names, itemgetter(*spans))


_shapes: dict[int, Shape] = {}


def decode_header(header: bytes) -> tuple[Head, str | None, dict[str, str]]:
    """Read a header into its fixed part, its remark and its fields.

    Raises:
        RemoteProtocolError: lengths that do not add up, or text that is not UTF-8.
    """
    try:
        code, language, version, opaque, flag, remark_size = _HEAD.unpack_from(header)
        head = (code, language, version, opaque, flag)
        if not remark_size and _SIZE.unpack_from(header, _HEAD.size)[0] == len(header) - _BLOCK_AT:
            block = header[_BLOCK_AT:]
            shape = _shapes.get(len(block))
            if shape is not None and shape.frame.unpack(block) == shape.heads and block.isascii():
                return head, None, dict(zip(shape.names, shape.values_of(block.decode("ascii")), strict=False))
        remark, at = _sized(header, _HEAD.size - _SIZE.size)
        block, _ = _sized(header, at)
        return head, remark.decode("utf-8", "replace") or None, _fields(block)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"binary header does not add up: {error}") from error


def _fields(block: bytes) -> dict[str, str]:
    fields = _split(block)
    usual = len(block) <= BLOCK_IN_SHAPE_MAX and 1 < len(fields) <= FIELDS_IN_SHAPE_MAX and block.isascii()
    if usual and all(name and value for name, value in fields):
        if len(_shapes) >= SHAPES_MAX:
            _shapes.clear()
        _shapes[len(block)] = Shape.of(fields)
    # Java takes a length of 0 for null, which is as good as absent.
    return {name.decode(): value.decode() for name, value in fields if name and value}


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
        LocalProtocolError: the code does not fit 16 bits.
    """
    code, language, version, opaque, flag = head
    if not -0x8000 <= code <= 0x7FFF:
        raise LocalProtocolError(f"code {code} does not fit the 16 bits of a binary header")
    text = (remark or "").encode()
    block = b"".join(encode_field(name, value.encode()) for name, value in fields.items())
    return b"".join((_HEAD.pack(code, language, version, opaque, flag, len(text)), text, _SIZE.pack(len(block)), block))


_FRAME = struct.Struct(">iIhbhiiii")  # frame length, encoding and header length, the head, no remark, size of the fields
SIZE_CODES = tuple(_SIZE.pack(size) for size in range(64))
"""Encoded lengths of short values, for whoever writes fields by a template."""


def frame_head(code: int, language: int, version: int, opaque: int, flag: int, block_size: int) -> bytes:
    """Everything of a frame without remark and body that stands before its block of fields."""
    header_size = _BLOCK_AT + block_size
    return _FRAME.pack(4 + header_size, 1 << 24 | header_size, code, language, version, opaque, flag, 0, block_size)


def encode_field(name: str, value: bytes) -> bytes:
    """Write one field."""
    key = name.encode()
    return _KEY_SIZE.pack(len(key)) + key + _SIZE.pack(len(value)) + value
