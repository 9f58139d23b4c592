"""Lengths of windows, pauses and delays."""

from __future__ import annotations

import pytest

from ledgermq.pipeline.errors import BadOption
from ledgermq.pipeline.intervals import microseconds


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1 minute", 60_000_000),
        (" 10  Seconds ", 10_000_000),
        ("1 hour 30 minutes", 5_400_000_000),
        ("500 milliseconds", 500_000),
        ("1 microsecond", 1),
        ("1 week", 604_800_000_000),
        ("36500 days", 36_500 * 86_400_000_000),
    ],
)
def test_an_interval_has_a_length(text: str, length: int) -> None:
    assert microseconds("window", text) == length


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 minutee", "such as '1 minute'"),
        ("soon", "such as '1 minute'"),
        ("", "such as '1 minute'"),
        ("1", "such as '1 minute'"),
        ("minute", "such as '1 minute'"),
        ("1minute", "such as '1 minute'"),
        ("-1 minute", "such as '1 minute'"),
        ("1 minute or so", "such as '1 minute'"),
        ("1 month", "the units are microsecond, millisecond, second, minute, hour, day, week"),
        ("0 seconds", "at least 1 microseconds"),
        ("36501 days", "at most 36500 days"),
        ("999999999999999 weeks", "at most 36500 days"),
    ],
)
def test_what_is_no_interval_is_named_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(BadOption) as refused:
        microseconds("window", text)

    assert said in str(refused.value)
    assert str(refused.value).startswith("option 'window': ")
    assert str(refused.value).endswith(f"(got {text!r})")


def test_an_interval_may_be_empty_where_that_has_a_meaning() -> None:
    """A trigger of no length starts batches at once."""
    assert microseconds("trigger", "0 seconds", least=0) == 0
