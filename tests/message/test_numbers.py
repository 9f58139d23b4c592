"""Numbers are bounded where they enter."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.message.numbers import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, int_of, long_of


@pytest.mark.parametrize("value", [LONG_MIN, -1, 0, LONG_MAX])
def test_a_long_may_be_a_number_or_text(value: int) -> None:
    """Both ways to write it mean the same."""
    assert long_of(value) == long_of(str(value)) == value


@pytest.mark.parametrize("value", [INT_MIN, INT_MAX])
def test_an_int_may_be_a_number_or_text(value: int) -> None:
    """The borders are included."""
    assert int_of(value) == int_of(str(value)) == value


@pytest.mark.parametrize(
    "value", [1 << 63, 1 << 64, -(1 << 63) - 1, 10**40, "9" * 40, "9" * 5000, 1e30, float("inf"), float("nan"), "", "x"]
)
def test_what_no_long_can_hold_is_refused(value: Any) -> None:
    """The error is short, whatever was given."""
    with pytest.raises(ValueError, match=r"^a number ") as caught:
        long_of(value)

    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("value", [1 << 31, INT_MIN - 1])
def test_what_no_int_can_hold_is_refused(value: int) -> None:
    """A long is no int."""
    with pytest.raises(ValueError, match="was expected"):
        int_of(value)


@pytest.mark.parametrize("value", [None, [], {}])
def test_other_types_are_refused(value: Any) -> None:
    """As `int` refuses them."""
    with pytest.raises(TypeError):
        long_of(value)
