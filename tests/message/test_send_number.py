"""The text of send numbers, in requests and in properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.properties import SEND_NUMBER, decode_properties, encode_properties
from ledgermq.message.send_number import SendNumber, number_property, parse_send_number, without_number

_IDS = st.text("abcXYZ019_-", min_size=1, max_size=64)
_COUNTS = st.integers(0, 10**15 - 1)


@given(_IDS, _COUNTS, _COUNTS, st.data())
def test_a_number_survives_its_text(producer_id: str, epoch: int, sequence: int, data: st.DataObject) -> None:
    number = SendNumber(producer_id, epoch, sequence, data.draw(st.integers(0, sequence)))

    assert parse_send_number(str(number)) == number
    assert decode_properties(number_property(number)) == {SEND_NUMBER: str(number)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.1.2",
        "a.1.2.3.4",
        "a.1.2.3",
        "a\x01b.1.2.1",
        ".1.2.1",
        "a.x.2.1",
        "a.1.1000000000000000.1",
        "a.-1.2.1",
        "a.1.\u0661.1",
        "a" * 65 + ".1.2.1",
    ],
)
def test_other_texts_are_no_numbers(text: str) -> None:
    """Neither one whose oldest send is after itself, nor other digits than ASCII's."""
    with pytest.raises(ValueError, match="a send number is"):
        parse_send_number(text)


def test_a_batch_ends_before_the_sequences_do() -> None:
    first = SendNumber("p", 0, 10**15 - 2, 0)

    assert first.after(1).sequence == 10**15 - 1
    with pytest.raises(ValueError, match="sequence is not below"):
        first.after(2)


def test_a_copied_number_is_removed_and_nothing_else() -> None:
    """Names that end with that of the number are the application's own."""
    own = encode_properties({"TAGS": "a", f"MY_{SEND_NUMBER}": "1", "KEYS": "k"})

    assert without_number(own + number_property(SendNumber("p", 0, 1, 0))) == own
    assert without_number(own) == own
