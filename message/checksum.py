"""CRC-32 as in `zlib`, computed by `zlib-ng` in a quarter of the time."""

from __future__ import annotations

from typing import Protocol, cast

from zlib_ng import zlib_ng

from .fields import Buffer


class _Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


# Its stub leaves out the type of the bytes.
crc32 = cast("_Checksum", zlib_ng.crc32)  # pyright: ignore[reportUnknownMemberType]
"""CRC-32 of `data`; `value` is the CRC-32 of the bytes before it."""
