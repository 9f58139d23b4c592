"""The body of a batch send."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.batch import decode_batch, encode_batch
from ledgermq.message.errors import CorruptBatch

BY_JAVA = bytes.fromhex(
    "0000001f00000000000000000000000000000002623000074b455953017802000000180000000000000000000000000000000262310000"
)
ITEMS = [(0, b"b0", b"KEYS\x01x\x02"), (0, b"b1", b"")]


def test_a_batch_is_java_s_byte_for_byte() -> None:
    """What the real Java classes wrote is written and read alike."""
    assert encode_batch(ITEMS) == BY_JAVA
    assert decode_batch(BY_JAVA) == ITEMS


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.binary(max_size=50)), max_size=5),
)
def test_items_are_read_back(items: list[tuple[int, bytes, bytes]]) -> None:
    """Flags, bodies and properties survive."""
    assert decode_batch(encode_batch(items)) == items


@pytest.mark.parametrize("size", range(1, len(BY_JAVA)))
def test_a_cut_batch_is_refused_unless_cut_between_items(size: int) -> None:
    """Half an item is never taken."""
    if size == 0x1F:
        assert decode_batch(BY_JAVA[:size]) == ITEMS[:1]
    else:
        with pytest.raises(CorruptBatch):
            decode_batch(BY_JAVA[:size])


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read_but_nothing_else(noise: bytes) -> None:
    """No bytes make the reader fail in another way."""
    with contextlib.suppress(CorruptBatch):
        decode_batch(noise)


def test_a_batch_of_too_many_items_is_refused_before_all_are_read() -> None:
    """Millions of empty messages fit four megabytes."""
    batch = encode_batch([(0, b"x", b"")] * 5)

    assert len(decode_batch(batch, 5)) == 5
    with pytest.raises(CorruptBatch, match="more than 4 items"):
        decode_batch(batch, 4)
