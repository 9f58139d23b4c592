"""Java's `String.hashCode`, which tag filters and the key index use."""

from __future__ import annotations

from operator import mul

_MASK = 0xFFFFFFFF
_POWERS_MAX = 256


def _powers() -> list[int]:
    powers = [1]
    while len(powers) < _POWERS_MAX:
        powers.append(powers[-1] * 31 & _MASK)
    powers.reverse()
    return powers


# _WEIGHTS[n] are the weights of a text of n units: 31^(n-1) ... 31^0, modulo 2^32.
_ALL_WEIGHTS = _powers()
_WEIGHTS = [_ALL_WEIGHTS[_POWERS_MAX - count :] for count in range(_POWERS_MAX + 1)]


def hash_units(text: str, start: int = 0) -> int:
    """Continue an unsigned 32-bit hash `start` over the UTF-16 code units of `text`."""
    units: bytes | memoryview = text.encode() if text.isascii() else memoryview(text.encode("utf-16-le")).cast("H")
    for at in range(0, len(units), _POWERS_MAX):
        part = units[at : at + _POWERS_MAX]
        size = len(part)
        start = (start * pow(31, size, 1 << 32) + sum(map(mul, part, _WEIGHTS[size]))) & _MASK
    return start


def string_hash(text: str) -> int:
    """Hash `text` as Java does: a signed 32-bit number over its UTF-16 code units.

    >>> string_hash("TagA"), string_hash("中文")
    (2598919, 646394)
    """
    value = hash_units(text)
    return value - (1 << 32) if value & 0x80000000 else value
