"""CRC-32."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.checksum import crc32


@given(st.binary(max_size=3000), st.binary(max_size=300))
def test_checksums_are_those_that_every_other_implementation_computes(data: bytes, more: bytes) -> None:
    """CRC-32 as `zlib` has it, in one go or going on from a part, over all that speaks the buffer protocol."""
    whole = zlib.crc32(data + more)
    assert crc32(data + more) == whole
    assert crc32(memoryview(more), crc32(bytearray(data))) == whole
