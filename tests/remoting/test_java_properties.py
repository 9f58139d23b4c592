"""Java's properties text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.remoting.errors import BadProperties
from ledgermq.remoting.java_properties import read_properties, write_properties


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=1\nb: 2\nc 3", {"a": "1", "b": "2", "c": "3"}),
        ("# no\n! no\n\n  a = 1 ", {"a": "1 "}),
        ("a=1,\\\n   2", {"a": "1,2"}),
        ("a\\ b=c\\=d\\u0041\\n", {"a b": "c=dA\n"}),
        ("a=x\r\na=y\r", {"a": "y"}),
        ("alone", {"alone": ""}),
        ("end=1\\", {"end": "1"}),
        ("smile=\\ud83d\\ude00!", {"smile": "\U0001f600!"}),
        ("half=\\ud83d!", {"half": "\ufffd!"}),
        ("half=\\ude00\\ud83d", {"half": "\ufffd\ufffd"}),
        ("path=C:\\\\store", {"path": "C:\\store"}),
    ],
)
def test_text_is_read_as_java_reads_it(text: str, entries: dict[str, str]) -> None:
    """Separators, comments, joined lines and escapes are those of java.util.Properties."""
    assert read_properties(text) == entries


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_written_is_read_back(entries: dict[str, str]) -> None:
    """Any keys and values survive writing and reading."""
    assert read_properties(write_properties(entries)) == entries


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u", "a=\\u12g4", "\\u123=b", "a=\\uu0041"])
def test_an_escape_without_four_hex_digits_is_refused(text: str) -> None:
    """As Java does, rather than to take another name or value than was meant."""
    with pytest.raises(BadProperties, match="is not a Unicode escape, which has four hex digits"):
        read_properties(text)


@given(st.text())
def test_any_other_text_is_read_without_an_error(text: str) -> None:
    """No text is refused but for its Unicode escapes."""
    read_properties(text.replace("\\u", "u"))


def test_a_line_of_many_parts_is_joined_once() -> None:
    """Fifty thousand parts took seconds when each was joined to all before it."""
    assert read_properties("a=\\\n" + "b\\\n" * 50_000 + "c") == {"a": "b" * 50_000 + "c"}
    assert read_properties("a=\\") == {"a": ""}
    assert read_properties("\\") == {}


def test_half_a_character_is_replaced() -> None:
    """It could not be written again; two halves that belong together are one character."""
    assert read_properties("a=\\ud83d\\ude00\nb=\\ud800") == {"a": "\U0001f600", "b": "\ufffd"}
