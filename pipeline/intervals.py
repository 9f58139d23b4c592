"""Parses the lengths of windows, pauses and delays as Spark's SQL writes them, such as `1 minute`. Pure.

They are parsed before Spark sees them, because Spark would name neither the option nor what it allows.
"""

from __future__ import annotations

import re

from .errors import BadOption

UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
"""The microseconds of each unit. Months and years are missing because they are not always equally long."""
DAYS_MAX = 36_500
"""The longest interval, far from where the times that Spark computes with it would overflow."""

_ITEM = re.compile(rf"([0-9]{{1,15}})\s+({'|'.join(UNITS_US)})s?")


def microseconds(option: str, text: str, least: int = 1) -> int:
    """Return the length of an interval.

    Args:
        option: named in errors.
        text: numbers with units, such as `1 minute` or `1 hour 30 minutes`.
        least: the shortest interval that is allowed.

    Raises:
        BadOption: the text is no interval, or too short or too long.
    """
    lower = text.strip().lower()
    items = _ITEM.findall(lower)
    expected = (
        f"a number and a unit are expected, such as '1 minute' or '1 hour 30 minutes'; the units are {', '.join(UNITS_US)}"
    )
    if not items or _ITEM.sub("", lower).strip():
        raise BadOption(option, text, expected)
    total = sum(int(count) * UNITS_US[unit] for count, unit in items)
    if not least <= total <= DAYS_MAX * UNITS_US["day"]:
        raise BadOption(option, text, f"it must be at least {least} microseconds and at most {DAYS_MAX} days long")
    return total
