"""The binary header of commands (RocketMQ's serialize type ROCKETMQ): a fixed part, a remark, and length-prefixed fields.

A client repeats the same fields with the same lengths, and most of them with the same values. So the decoder remembers a header
as a `Shape`: which of its bytes have been constant, and the positions of the values that varied. The next header of that length
is decoded in one step. All bytes that a shape takes for constant are compared; a header that differs is decoded field by field,
and the shape then counts the differing values as varying. A shape decodes a send's header in 1.3 us instead of 15 us, more than
half of what a broker takes for such a send (`bench/shortcuts.py`).
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
"""Longer headers are not remembered, because a shape holds its whole header and any peer can send one."""

_BLOCK_AT = _HEAD.size + _SIZE.size
"""The position of the fields in a header without a remark."""
_NUMBERS = 5
"""How many numbers precede the parts that a shape compares: code, language code, version, opaque and flag."""

Head = tuple[int, int, int, int, int]
"""Code, language code, version, opaque, flag."""


@attrs.frozen
class Shape:
    """The layout of a header without a remark whose fields are ASCII."""

    codec: struct.Struct
    """Unpacks the numbers, the two sizes and the constant runs of bytes of a header."""
    constant: tuple[int | bytes, ...]
    """The sizes and the constant runs."""
    fields: dict[str, str]
    """All fields; a varying one has one of the values that were received."""
    varying: tuple[str, ...]
    values_of: Callable[[str], tuple[str, ...]]
    """Extracts the varying values from the text of the fields."""

    @classmethod
    def of(cls, fields: dict[str, str], before: Shape | None) -> Shape:
        """The shape of these fields; a field varies if it varied in the shape `before` or differs from it."""
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
    return lambda text: tuple(text[span] for span in spans)  # an itemgetter of one span returns no tuple


_shapes: dict[int, Shape] = {}
"""The remembered shapes, by length of the header."""


def decode_header(header: bytes) -> tuple[Head, str | None, dict[str, str]]:
    """Read a header into its fixed part, its remark and its fields.

    Raises:
        RemoteProtocolError: the lengths are inconsistent, or text is not UTF-8.
    """
    shape = _shapes.get(len(header))
    if shape is not None:
        found = shape.codec.unpack(header)
        if found[_NUMBERS:] == shape.constant:
            try:
                values = shape.values_of(header[_BLOCK_AT:].decode("ascii"))
            except UnicodeDecodeError:
                pass  # rare; the general way below decodes UTF-8
            else:
                fields = shape.fields.copy()
                fields.update(zip(shape.varying, values, strict=False))
                return found[:_NUMBERS], None, fields
    try:
        code, language, version, opaque, flag, _ = _HEAD.unpack_from(header)
        remark, at = _sized(header, _HEAD.size - _SIZE.size)
        block, end = _sized(header, at)
        pairs = _split(block)
        # Java reads a length of 0 as null, which is the same as absent.
        fields = {name.decode(): value.decode() for name, value in pairs if name and value}
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"the binary header cannot be read: {error}") from error
    if not remark and end == len(header) and len(fields) == len(pairs):  # every field has another name and none is empty
        _learn(block, fields, shape)
    return (code, language, version, opaque, flag), remark.decode("utf-8", "replace") or None, fields


def _learn(block: bytes, fields: dict[str, str], before: Shape | None) -> None:
    """Remember the shape of a header with only this block of fields, if it is as short and plain as those of clients."""
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
            raise RemoteProtocolError(f"key of {key_size} bytes goes beyond the end of the header fields")
        name = block[at - key_size : at]
        value, at = _sized(block, at)
        fields.append((name, value))
    return fields


def _sized(buffer: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _SIZE.unpack_from(buffer, at)
    start = at + _SIZE.size
    if size < 0 or start + size > len(buffer):
        raise RemoteProtocolError(f"length {size} at byte {at} goes beyond the end of the header ({len(buffer)} bytes)")
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
"""The position of the opaque in such a frame, for callers that write frames by a template."""


def frame_head(code: int, language: int, version: int, opaque: int, flag: int, block_size: int) -> bytes:
    """All bytes before the block of fields of a frame without remark and body."""
    header_size = _BLOCK_AT + block_size
    return _FRAME.pack(4 + header_size, 1 << 24 | header_size, code, language, version, opaque, flag, 0, block_size)


def encode_field(name: str, value: bytes) -> bytes:
    """Write one field."""
    key = name.encode()
    return _KEY_SIZE.pack(len(key)) + key + _SIZE.pack(len(value)) + value
