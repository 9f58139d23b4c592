"""Addresses as the white lists of RocketMQ's ACL 1.0 name them. Pure.

A pattern is an address whose parts may be a number, a range (`10.1.2.3-10`) or `*`, which as the last part stands for all that
follow; `*` alone matches every address. Several are separated by commas, also in braces as the last part: `10.1.2.{3,4}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, ip_address
from itertools import takewhile
from typing import Self

import attrs

from ...world.logs import shortened

_Part = tuple[int, int]
"""The lowest and the highest value of one part of an address."""
_Pattern = tuple[_Part, ...]
_ANY_V4, _ANY_V6 = (0, 255), (0, 0xFFFF)
KNOWN_MAX = 1000
"""How many addresses a list remembers whether it has them."""
_BRACES = re.compile(r"([^,{}]*)\{([^{}]*)\}")


@attrs.frozen
class WhiteList:
    """Patterns, one of which has to match."""

    _patterns: Mapping[tuple[int, ...], set[_Pattern]]
    """The parts of the patterns from the first one on that is no single number, each once, by the numbers before it."""
    _known: dict[str, bool] = attrs.field(init=False, eq=False, repr=False, factory=dict[str, bool])
    """What was found out about addresses; each request asks again."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read patterns; empty texts match nothing.

        Raises:
            ValueError: a text is no pattern.
        """
        found: dict[tuple[int, ...], set[_Pattern]] = {}
        for text in texts:
            for pattern in _patterns_in(text):
                numbers = tuple(low for low, _ in takewhile(_is_number, pattern))
                found.setdefault(numbers, set()).add(pattern[len(numbers) :])
        return cls(found)

    def matches(self, host: str) -> bool:
        """Whether a numeric address is in the list."""
        if (known := self._known.get(host)) is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[host] = self._has(host)
        return known

    def _has(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = address if isinstance(address, IPv4Address) else address.ipv4_mapped
        numbers = tuple(mapped.packed) if mapped is not None else tuple(int(part, 16) for part in address.exploded.split(":"))
        return any(
            _is_like(numbers[count:], pattern)
            for count in range(len(numbers) + 1)
            for pattern in self._patterns.get(numbers[:count], ())
        )


def _is_number(part: _Part) -> bool:
    low, high = part
    return low == high


def _is_like(numbers: Sequence[int], pattern: _Pattern) -> bool:
    return len(pattern) == len(numbers) and all(
        low <= number <= high for number, (low, high) in zip(numbers, pattern, strict=True)
    )


def _patterns_in(text: str) -> Iterator[_Pattern]:
    expanded = _BRACES.sub(lambda found: ",".join(found[1] + last.strip() for last in found[2].split(",")), text)
    for pattern in filter(None, map(str.strip, expanded.split(","))):
        if pattern == "*":
            yield (_ANY_V4,) * 4
            yield (_ANY_V6,) * 8
        else:
            yield _pattern(pattern)


def _pattern(text: str) -> _Pattern:
    is_v6 = ":" in text
    count, most, base, of_all = (8, 0xFFFF, 16, _ANY_V6) if is_v6 else (4, 255, 10, _ANY_V4)
    words = text.split(":" if is_v6 else ".")
    parts: list[_Part] = []
    for word in words:
        low, dash, high = word.partition("-")
        try:
            parts.append(of_all if word == "*" else (int(low, base), int(high if dash else low, base)))
        except ValueError:
            break
    if words[-1] == "*":
        parts += [of_all] * (count - len(parts))
    if len(parts) != count or not all(0 <= low <= high <= most for low, high in parts):
        raise ValueError(f"a white list has addresses such as 10.1.2.3, 10.1.2.3-10 or 10.1.* (got {shortened(text, 100)!r})")
    return tuple(parts)
