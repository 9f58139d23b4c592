"""What is read off a stored message."""

from __future__ import annotations

import attrs
import pytest

from ledgermq.message.layout import decode_record, encode_host, encode_record

HOST = encode_host("127.0.0.1", 10911)


@pytest.mark.parametrize(
    ("text", "level"), [("3", 3), ("", 0), ("x", 0), ("-1", 0), ("\u00b2", 0), ("\u0663", 0), ("9" * 5000, 0)]
)
def test_a_delay_level_is_a_number_or_none(text: str, level: int) -> None:
    """Also where Python sees a digit, and where there are more of them than it reads."""
    message = decode_record(encode_record(b"T", 0, 0, b"", b"", 0, 0, 0, HOST, 0, HOST))

    assert attrs.evolve(message, properties={"DELAY": text}).delay_level == level
