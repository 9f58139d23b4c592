"""Which addresses a white list contains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.broker.access import white_list
from ledgermq.broker.access.white_list import KNOWN_MAX, WhiteList


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


def test_a_long_list_costs_a_request_next_to_nothing(cpu_seconds: Callable[[], float]) -> None:
    found = WhiteList.parse(f"10.1.{number // 250}.{number % 250}" for number in range(60_000))
    before = cpu_seconds()

    assert [found.matches(host) for host in ("10.1.239.249", "10.1.239.250", "127.0.0.1", "::1")] == [True, False, False, False]
    assert cpu_seconds() - before < 0.02  # 0.1 ms in truth; address by address it would be 200 ms


PARTS = st.sampled_from(["1", "2", "1-2", "2-3", "*"])
PATTERNS = st.lists(st.lists(PARTS, min_size=4, max_size=4).map(".".join), max_size=6)
HOSTS = st.lists(st.sampled_from("123"), min_size=4, max_size=4).map(".".join)


def contains(pattern: str, host: str) -> bool:
    """The rule itself: each part is the number, a range around it, or any."""
    pairs = zip(pattern.split("."), host.split("."), strict=True)
    return all(part == "*" or part[0] <= number <= part[-1] for part, number in pairs)


@given(PATTERNS, st.lists(HOSTS, min_size=1, max_size=8), st.sampled_from([1, KNOWN_MAX]))
def test_one_pattern_of_many_has_to_match(patterns: list[str], hosts: list[str], known: int) -> None:
    """However they are arranged, and whether what was found out about an address is remembered or not."""
    found = WhiteList.parse(patterns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(white_list, "KNOWN_MAX", known)
        for host in hosts + hosts:
            assert found.matches(host) == any(contains(pattern, host) for pattern in patterns)
