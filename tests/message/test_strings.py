"""Java's hash of a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.strings import hash_units, string_hash


def naive_hash(text: str) -> int:
    units = text.encode("utf-16-le")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "little")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize(
    ("text", "value"),
    [("TagA", 2598919), ("TagB", 2598920), ("中文", 646394), ("", 0), ("TopicTest#UK0", 85106456), ("TopicTest#k1", 2746024)],
)
def test_known_texts_have_java_s_hash(text: str, value: int) -> None:
    """The hashes seen in real index files and tag codes come out (the index takes the absolute value)."""
    assert abs(string_hash(text)) == value


@given(st.text() | st.text(min_size=200, max_size=600))
def test_the_hash_is_the_sum_that_java_defines(text: str) -> None:
    """Whatever the length and the script, the fast way gives what the definition gives."""
    assert string_hash(text) == naive_hash(text)


@given(st.text(), st.text())
def test_a_hash_can_be_continued(first: str, second: str) -> None:
    """The index hashes topic, `#` and key without joining them."""
    assert hash_units(second, hash_units(first)) == hash_units(first + second)
