"""The body of a batch send: small items back to back, each becoming a stored message of its own (RocketMQ code 320)."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import CorruptBatch
from .fields import Buffer, Field, Layout

ITEM_HEAD = Layout(
    "batch item, fixed part",
    (
        Field("item_size", "i", "whole item, itself included"),
        Field("magic", "i", "0, not read"),
        Field("body_crc", "i", "0, not read"),
        Field("flag", "i", "the application's own"),
        Field("body_size", "i", "bytes of body that follow"),
    ),
)
assert ITEM_HEAD.size == 20

_PROPERTIES_SIZE_BYTES = 2


def item_size(body: bytes, properties: bytes) -> int:
    """Bytes of an encoded item."""
    return ITEM_HEAD.size + len(body) + _PROPERTIES_SIZE_BYTES + len(properties)


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Encode items given as (flag, body, property string bytes)."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        size = item_size(body, properties)
        parts += (
            ITEM_HEAD.codec.pack(size, 0, 0, flag, len(body)),
            body,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    return b"".join(parts)


def decode_batch(buffer: Buffer, items_max: int | None = None) -> list[tuple[int, bytes, bytes]]:
    """Read the items as (flag, body, property string bytes).

    Raises:
        CorruptBatch: the sizes of an item are inconsistent, or there are more than `items_max`. Nothing was decoded.
    """
    items: list[tuple[int, bytes, bytes]] = []
    position, end = 0, len(buffer)
    while position < end:
        if len(items) == items_max:
            raise CorruptBatch(f"more than {items_max} items")
        if end - position < ITEM_HEAD.size + _PROPERTIES_SIZE_BYTES:
            raise CorruptBatch(f"{end - position} bytes left at byte {position}, an item needs at least 22")
        size, _, _, flag, body_size = ITEM_HEAD.codec.unpack_from(buffer, position)
        body_at = position + ITEM_HEAD.size
        properties_at = body_at + body_size + _PROPERTIES_SIZE_BYTES
        if body_size < 0 or properties_at > end:
            raise CorruptBatch(f"body of {body_size} bytes at byte {position} goes beyond the end at {end}")
        properties_size = int.from_bytes(buffer[properties_at - 2 : properties_at], "big")
        if properties_at + properties_size != position + size or position + size > end:
            raise CorruptBatch(f"item at byte {position} has a size of {size} bytes, but its parts have another one")
        items.append((flag, bytes(buffer[body_at : body_at + body_size]), bytes(buffer[properties_at : position + size])))
        position += size
    return items
