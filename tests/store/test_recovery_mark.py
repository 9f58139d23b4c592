"""The recovery mark as bytes."""

from __future__ import annotations

import pytest

from ledgermq.store.recovery_mark import MARK, RecoveryMark


def a_mark() -> RecoveryMark:
    return RecoveryMark(2000, 1900, 1800, 100, 1_700_000_000_000, 1500, "f" * 36, deletions_crc=7)


def test_a_mark_is_read_as_it_was_written() -> None:
    """Its start is the smaller of what is synced and what is derived."""
    mark = RecoveryMark.decode(a_mark().encode() + bytes(20))

    assert mark is not None
    assert mark == a_mark()
    assert mark.start == 1900


@pytest.mark.parametrize("at", range(0, MARK.size, 13))
def test_a_changed_byte_makes_it_no_mark(at: int) -> None:
    """Recovery then looks for its start without it."""
    changed = bytearray(a_mark().encode())
    changed[at] ^= 0x40

    assert RecoveryMark.decode(bytes(changed)) is None


def test_bytes_that_were_never_written_are_no_mark() -> None:
    """RocketMQ leaves zeros there, or ends the file before."""
    assert RecoveryMark.decode(bytes(256)) is None
    assert RecoveryMark.decode(b"short") is None
