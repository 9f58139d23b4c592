"""The property string."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.properties import decode_properties, encode_properties, find_property, join_properties

texts = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.dictionaries(texts, texts))
def test_properties_are_read_back_with_and_without_the_last_separator(properties: dict[str, str]) -> None:
    """Java 4.9 drops the last separator, everybody else writes it; both are the same properties."""
    text = encode_properties(properties)

    assert decode_properties(text) == properties
    assert decode_properties(text.removesuffix("\x02")) == properties


@given(st.text(st.sampled_from("ab\x01\x02"), max_size=30))
def test_any_text_is_read_without_empty_names_or_values(text: str) -> None:
    """Items that are no pairs are skipped, never an error."""
    properties = decode_properties(text)

    assert all(name and value for name, value in properties.items())


@given(st.text(st.sampled_from("ab\x01\x02"), max_size=30), st.sampled_from(["a", "b", "ab", "ba"]))
def test_one_property_is_found_as_if_all_were_read(text: str, name: str) -> None:
    """Whatever stands around it: names that end alike, empty values, the same name twice."""
    assert find_property(text, name) == decode_properties(text).get(name, "")


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"a": "b\x01c"}])
def test_separators_inside_names_or_values_are_refused(properties: dict[str, str]) -> None:
    """There is no escaping, so such a property would change its neighbours."""
    with pytest.raises(ValueError, match="U\\+0001"):
        encode_properties(properties)


@given(st.dictionaries(texts, texts), st.dictionaries(texts, texts))
def test_an_addition_overrides_what_stands_before(first: dict[str, str], second: dict[str, str]) -> None:
    """Properties added behind others win, whether or not the first text ends with a separator."""
    for text in (encode_properties(first), encode_properties(first).removesuffix("\x02")):
        assert decode_properties(join_properties(text, encode_properties(second))) == first | second
