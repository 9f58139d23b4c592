"""Compressed bodies."""

from __future__ import annotations

import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client import compression as module
from ledgermq.client.compression import BadBody, Compression, compress, decompress
from ledgermq.message.flags import COMPRESSED

TEXT = b"the same words again and again " * 200


@pytest.mark.parametrize("kind", list(Compression))
@given(body=st.binary(max_size=2000).map(lambda body: body * 20))
def test_what_is_compressed_comes_back(kind: Compression, body: bytes) -> None:
    """With each kind, and unchanged if it did not shrink."""
    packed, flags = compress(body, kind)

    assert decompress(packed, flags) == body
    assert len(packed) <= len(body)


@pytest.mark.parametrize(
    ("kind", "flags", "magic"),
    [
        (Compression.ZLIB, 0x301, b"\x78"),
        (Compression.LZ4, 0x101, b"\x04\x22\x4d\x18"),
        (Compression.ZSTD, 0x201, b"\x28\xb5\x2f\xfd"),
    ],
)
def test_flags_and_formats_are_rocketmq_s(kind: Compression, flags: int, magic: bytes) -> None:
    """Other clients find the kind in the flags, and a whole stream or frame of it in the body."""
    packed, packed_flags = compress(TEXT, kind)

    assert packed_flags == flags
    assert packed.startswith(magic)


def test_old_clients_mean_zlib_without_saying_so() -> None:
    """Only the compressed bit is set by clients that know one kind."""
    assert decompress(zlib.compress(TEXT), COMPRESSED) == TEXT


def test_what_does_not_shrink_goes_out_as_it_is() -> None:
    """Compressing noise would make it longer."""
    assert compress(b"abc", Compression.ZLIB) == (b"abc", 0)


@pytest.mark.parametrize("kind", list(Compression))
def test_damage_is_an_error_of_its_own(kind: Compression) -> None:
    """Noise and truncated streams raise one error, whichever library found them."""
    packed, flags = compress(TEXT, kind)

    for body in (b"noise", b"", packed[:-5]):
        with pytest.raises(BadBody):
            decompress(body, flags)


@pytest.mark.parametrize("kind", list(Compression))
def test_a_small_body_does_not_become_a_huge_one(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb is refused at the limit."""
    monkeypatch.setattr(module, "BODY_BYTES_MAX", 10_000)
    packed, flags = compress(b"\0" * 1_000_000, kind)

    assert len(packed) < 10_000
    with pytest.raises(BadBody, match="10000"):
        decompress(packed, flags)


def test_frames_of_other_libraries_are_read() -> None:
    """Frames without their content size in the header, as streaming writers make them."""
    zstd = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)

    assert decompress(zstd, 0x201) == TEXT
