"""Properties taken apart side by side are what they are one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.properties import decode_properties
from ledgermq.pipeline.property_columns import as_text, split_properties

pieces = st.sampled_from(["TAGS", "KEYS", "a", "bb", "", "\x01", "\x02", "\x01", "\x02", "TAGS\x01", "ü", "中文", "x" * 20])
texts = st.lists(pieces, max_size=12).map("".join)


@given(st.lists(texts, max_size=20))
def test_any_text_is_split_as_the_message_layer_splits_it(rows: list[str]) -> None:
    """Empty names and values, separators in values, names given twice, a last item without its end."""
    found = split_properties(pa.array(rows, pa.string()))

    expected = [decode_properties(row) for row in rows]
    assert [dict(each) for each in found.maps().to_pylist()] == expected
    assert [len(each) for each in found.maps().to_pylist()] == [len(each) for each in expected]
    for name in ("TAGS", "bb", "none"):
        assert found.values_of(name).to_pylist() == [each.get(name) for each in expected]


names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "UNIQ_KEY1", "x" * 16, "x" * 16 + "y", "\0", "ü"])
values = st.sampled_from(["a", "\0", "b" * 30, "中文"])
items = st.lists(st.tuples(names, values), max_size=6)


@given(st.lists(st.tuples(items, st.booleans()), max_size=8))
def test_strings_as_clients_write_them_are_split_in_one_pass(rows: list[tuple[list[tuple[str, str]], bool]]) -> None:
    """Clients in Java 4.9 leave out the last separator; names are given twice; names differ in their last byte only."""
    texts = []
    for pairs, is_closed in rows:
        text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
        texts.append(text if is_closed else text[:-1])

    found = split_properties(pa.array(texts, pa.string()))

    expected = [decode_properties(text) for text in texts]
    assert [dict(each) for each in found.maps().to_pylist()] == expected
    assert [len(each) for each in found.maps().to_pylist()] == [len(each) for each in expected]
    for name in ("UNIQ_KEY", "UNIQ_KEY1", "x" * 16, "none"):
        assert found.values_of(name).to_pylist() == [each.get(name) for each in expected]


any_values = values | st.sampled_from(["", "a\x01b", "\x01"])


@given(st.lists(names, min_size=1, max_size=4), st.lists(st.lists(any_values, min_size=4, max_size=4), min_size=1), st.data())
def test_messages_with_the_same_names_are_split_alike(shared: list[str], columns: list[list[str]], data: st.DataObject) -> None:
    """As those of one producer are, with or without the last separator; one message among them may differ from the others."""
    texts = ["".join(f"{name}\x01{value}\x02" for name, value in zip(shared, row, strict=False)) for row in columns]
    if data.draw(st.booleans()):
        texts = [text[:-1] for text in texts]
    odd = data.draw(st.integers(0, len(texts) - 1))
    other = data.draw(names | st.sampled_from(["", "\x01", "\x02", "\x02a\x01b\x02"]))
    texts[odd] = texts[odd].replace(data.draw(names | st.just("\x02")), other, 1)

    found = split_properties(pa.array(texts, pa.string()))

    expected = [decode_properties(text) for text in texts]
    assert [dict(each) for each in found.maps().to_pylist()] == expected
    for name in (*shared, "none"):
        assert found.values_of(name).to_pylist() == [each.get(name) for each in expected]


@pytest.mark.parametrize(
    "texts",
    [
        ["TAGS\x01a\x02KEYS\x01b\x02", "TAGS\x01a\x02KEYX\x01b\x02"],
        ["TAGS\x01a\x02", "TAG\x01aa\x02"],
        ["TAGS\x01a\x02", "TAGSX\x01a\x02"],
        ["x23456789\x01a\x02", "x2345678y\x01a\x02"],
        ["a\x011\x02b\x012\x02", "a\x011\x02", "a\x011\x02b\x012\x02b\x013\x02"],
        ["a\x011\x02b\x012", "a\x011", "a\x011\x02b\x012\x02b\x013"],
        ["a\x011\x02b\x012", "a\x011\x02b\x012\x02", "a\x012"],
        ["a\x011\x02b\x012\x02", "a\x011\x02b\x012"],
        ["a\x01\x02b\x011\x02", "a\x011\x02b\x012\x02"],
        ["a\x011\x02b\x012\x02", "a\x01\x02b\x012\x02"],
        ["\x011\x02b\x012\x02", "a\x011\x02b\x012\x02"],
        ["a\x011\x02a\x012\x02", "a\x013\x02a\x014\x02"],
        ["a\x011\x02b\x02", "a\x011\x02b\x02"],
        ["\x011\x02", "\x012\x02"],
        ["a\x011\x02", "a\x011\x02b\x012"],
        ["a\x011\x02", ""],
        ["", "a\x011\x02"],
    ],
)
def test_messages_that_differ_from_the_first_in_one_thing_are_split_as_they_are(texts: list[str]) -> None:
    """In a byte of a name, in the number of items or in the last separator; or all lack a name, or have one twice."""
    found = split_properties(pa.array(texts, pa.string()))

    expected = [decode_properties(text) for text in texts]
    assert [dict(each) for each in found.maps().to_pylist()] == expected
    for name in ("TAGS", "KEYX", "TAG", "x23456789", "a", "b"):
        assert found.values_of(name).to_pylist() == [each.get(name) for each in expected]


def test_many_names_are_distinguished() -> None:
    """More than fit into the bits of a number, one of them given twice."""
    row = "".join(f"n{number}\x01{number}\x02" for number in range(200)) + "n7\x01again\x02"

    (found,) = split_properties(pa.array([row, ""], pa.string())).maps().to_pylist()[:1]

    assert dict(found) == decode_properties(row)
    assert len(found) == 200


def test_a_part_of_an_array_is_split_alike() -> None:
    """Arrow shares the bytes of what it cuts from."""
    whole = pa.array(["a\x011\x02", "b\x012\x02", "c\x013\x02"], pa.string())

    assert [dict(each) for each in split_properties(whole[1:]).maps().to_pylist()] == [{"b": "2"}, {"c": "3"}]


def test_bytes_that_are_no_text_are_replaced() -> None:
    """As everywhere else."""
    assert as_text(pa.array([b"ok", b"\xff"], pa.binary())).to_pylist() == ["ok", "�"]
