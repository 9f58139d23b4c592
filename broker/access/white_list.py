"""Addresses as the white lists of RocketMQ's ACL 1.0 name them. Pure.

A pattern is an address whose parts may be a number, a range (`10.1.2.3-10`) or `*`, which as the last part stands for all that
follow; `*` alone matches every address. Several are separated by commas, also in braces as the last part: `10.1.2.{3,4}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from ipaddress import IPv4Address, ip_address
from typing import Self

import attrs

from ...world.logs import shortened

_Part = tuple[int, int]
"""The lowest and the highest value of one part of an address."""
_ANY_V4, _ANY_V6 = (0, 255), (0, 0xFFFF)
_BRACES = re.compile(r"([^,{}]*)\{([^{}]*)\}")


@attrs.frozen
class WhiteList:
    """Patterns, one of which has to match."""

    _patterns: tuple[tuple[_Part, ...], ...]

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read patterns; empty texts match nothing.

        Raises:
            ValueError: a text is no pattern.
        """
        return cls(tuple(pattern for text in texts for pattern in _patterns_in(text)))

    def matches(self, host: str) -> bool:
        """Whether a numeric address is in the list."""
        try:
            address = ip_address(host)
        except ValueError:
            return False
        mapped = address if isinstance(address, IPv4Address) else address.ipv4_mapped
        numbers = list(mapped.packed) if mapped is not None else [int(part, 16) for part in address.exploded.split(":")]
        return any(_is_like(numbers, pattern) for pattern in self._patterns)


def _is_like(numbers: Sequence[int], pattern: Sequence[_Part]) -> bool:
    return len(pattern) == len(numbers) and all(
        low <= number <= high for number, (low, high) in zip(numbers, pattern, strict=True)
    )


def _patterns_in(text: str) -> Iterator[tuple[_Part, ...]]:
    expanded = _BRACES.sub(lambda found: ",".join(found[1] + last.strip() for last in found[2].split(",")), text)
    for pattern in filter(None, map(str.strip, expanded.split(","))):
        if pattern == "*":
            yield (_ANY_V4,) * 4
            yield (_ANY_V6,) * 8
        else:
            yield _pattern(pattern)


def _pattern(text: str) -> tuple[_Part, ...]:
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
