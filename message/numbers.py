"""Numbers that enter from requests, tables and files, bounded where they enter.

Peers write numbers as Java's int and long. A larger one fits neither a record, the file of a table nor an answer, so it would
fail much later, in another task. Numbers may also be written as text, because fastjson reads them so.
"""

from __future__ import annotations

from typing import Any

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1

DIGITS_MAX = 24
"""The longest number written as text: a sign, the 19 digits of a long and some spaces; longer text is refused."""


def is_digits(text: str) -> bool:
    """Whether a text is a number of at most `DIGITS_MAX` digits 0 to 9; `str.isdigit` accepts those of other scripts too."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def long_of(value: Any) -> int:
    """Read a Java long.

    Raises:
        TypeError: neither a number nor text.
        ValueError: text that is no number, or one outside -2^63 to 2^63 - 1.
    """
    return _within(value, LONG_MIN, LONG_MAX)


def int_of(value: Any) -> int:
    """Read a Java int.

    Raises:
        TypeError: neither a number nor text.
        ValueError: text that is no number, or one outside -2^31 to 2^31 - 1.
    """
    return _within(value, INT_MIN, INT_MAX)


def _within(value: Any, low: int, high: int) -> int:
    if isinstance(value, str) and len(value) > DIGITS_MAX:
        raise ValueError(f"a number has at most {DIGITS_MAX} characters (got {len(value)})")
    if isinstance(value, str) and not (value.isascii() and "_" not in value):
        raise ValueError(f"a number has the digits 0 to 9 (got {value!r})")
    try:
        number = int(value)
    except OverflowError as error:  # a float that is infinite
        raise ValueError("a number is finite") from error
    except ValueError as error:
        raise ValueError(f"a number was expected (got {value!r})") from error
    if not low <= number <= high:
        raise ValueError(
            f"a number from {low} to {high} was expected (got {number if abs(number) < 1 << 99 else 'a longer one'})"
        )
    return number
