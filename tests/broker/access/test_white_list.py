"""Which addresses a white list contains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.broker.access.white_list import WhiteList


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.1.2.3", ["10.1.2.3", "::ffff:10.1.2.3"], ["10.1.2.4", "::1", "a name"]),
        ("10.1.*", ["10.1.0.0", "10.1.255.255"], ["10.2.0.0"]),
        ("10.1.*.*", ["10.1.0.0"], ["10.2.0.0"]),
        ("10.1.2.3-10", ["10.1.2.3", "10.1.2.10"], ["10.1.2.2", "10.1.2.11"]),
        ("10.1-2.*.7", ["10.2.9.7"], ["10.3.9.7", "10.2.9.8"]),
        ("10.1.2.{3,4}", ["10.1.2.3", "10.1.2.4"], ["10.1.2.5"]),
        ("10.1.2.3, 10.9.*", ["10.1.2.3", "10.9.9.9"], ["10.1.2.4"]),
        ("*", ["10.1.2.3", "fe80::1"], []),
        ("1050:0:0:0:5:600:300c:1-9", ["1050::5:600:300c:1", "1050::5:600:300c:9"], ["1050::5:600:300c:a"]),
        ("1050:*", ["1050::1"], ["1051::1", "10.1.2.3"]),
        ("", [], ["10.1.2.3"]),
    ],
)
def test_patterns_match_as_in_rocketmq(pattern: str, inside: list[str], outside: list[str]) -> None:
    found = WhiteList.parse([pattern])

    assert [host for host in inside if not found.matches(host)] == []
    assert [host for host in outside if found.matches(host)] == []


@pytest.mark.parametrize("text", ["10.1.2", "10.1.2.3.4", "10.1.2.x", "10.1.2.9-3", "10.1.2.3-", "10.*.3", "localhost", "{"])
def test_a_text_that_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a white list has addresses such as"):
        WhiteList.parse([text])


@given(st.ip_addresses(), st.ip_addresses())
def test_an_address_matches_itself_alone(one: object, other: object) -> None:
    """Unless the other is the same as an IPv6 address."""
    found = WhiteList.parse([getattr(one, "exploded", str(one))])

    mapped = getattr(other, "ipv4_mapped", None) or other
    assert found.matches(str(one)) == (getattr(one, "ipv4_mapped", None) is None)
    assert found.matches(str(other)) == (mapped == one)
