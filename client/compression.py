"""Compression of bodies as in RocketMQ's clients: zlib stream, LZ4 frame or zstd frame, marked by bits of `sysFlag`.

A body that does not shrink is sent as it is. Decompressed sizes are limited, so that a small record cannot fill the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import Enum
from typing import Protocol, cast

import lz4.frame as lz4_frame  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]
import zstandard

from ..message.flags import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_MASK, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from .errors import ClientError


class _Lz4Stream(Protocol):
    eof: bool

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Lz4(Protocol):
    """The part of the untyped module that is used here."""

    LZ4FrameDecompressor: Callable[[], _Lz4Stream]

    def compress(self, data: bytes) -> bytes: ...


_LZ4 = cast("_Lz4", lz4_frame)

COMPRESS_OVER_BYTES = 4096
"""RocketMQ's `compressMsgBodyOverHowmuch`: the size in bytes from which bodies are compressed by default."""

_LEVEL = 5  # RocketMQ's level for zlib; the others accept 5 too, with a meaning of their own
_ZSTD_PIECE_BYTES = 512
BODY_BYTES_MAX = 64 * 1024 * 1024
"""A body that is larger when decompressed is refused; sixteen times the largest body that a broker accepts by default."""


class Compression(Enum):
    """The algorithm that compresses bodies. Go clients read only zlib, Java clients read all."""

    ZLIB = COMPRESSION_ZLIB
    LZ4 = COMPRESSION_LZ4
    ZSTD = COMPRESSION_ZSTD


class BadBody(ClientError):
    """A received body cannot be decompressed."""


def compress(body: bytes, compression: Compression) -> tuple[bytes, int]:
    """Compress a body; return it with the `sysFlag` bits that mark it, or unchanged with 0 if it did not shrink."""
    if compression is Compression.ZLIB:
        packed = zlib.compress(body, _LEVEL)
    elif compression is Compression.LZ4:
        packed = _LZ4.compress(body)
    else:
        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(body)
    return (packed, COMPRESSED | compression.value) if len(packed) < len(body) else (body, 0)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """Undo `compress` as `sys_flag` says; a body that is not marked as compressed is returned as it is.

    Raises:
        BadBody: the bytes are not what `sys_flag` says, are truncated, or decompress to more than `BODY_BYTES_MAX`.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & COMPRESSION_MASK
    try:
        if kind == COMPRESSION_LZ4:
            lz4_stream = _LZ4.LZ4FrameDecompressor()
            plain = lz4_stream.decompress(body, max_length=BODY_BYTES_MAX)
            whole = lz4_stream.eof
        elif kind == COMPRESSION_ZSTD:
            plain, whole = _decompress_zstd(body)
        else:  # old clients leave the kind at 0, which means zlib
            zlib_stream = zlib.decompressobj()
            plain = zlib_stream.decompress(body, BODY_BYTES_MAX)
            whole = zlib_stream.eof
    except (zlib.error, RuntimeError, zstandard.ZstdError) as error:
        raise BadBody(f"body of {len(body)} bytes does not decompress: {error}") from error
    if not whole:
        raise BadBody(f"body of {len(body)} bytes is cut short, or has more than {BODY_BYTES_MAX} bytes decompressed")
    return plain


def _decompress_zstd(body: bytes) -> tuple[bytes, bool]:
    # We decompress small pieces, because a block of a few bytes may decompress to 128 KiB.
    stream = zstandard.ZstdDecompressor().decompressobj()
    plain = bytearray()
    for at in range(0, len(body), _ZSTD_PIECE_BYTES):
        plain += stream.decompress(body[at : at + _ZSTD_PIECE_BYTES])
        if stream.eof or len(plain) > BODY_BYTES_MAX:
            break
    return bytes(plain), stream.eof and len(plain) <= BODY_BYTES_MAX
