"""Rates of positions that are sampled periodically."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.classic.rate import SAMPLES_MAX, Rate


def rate_of(*samples: tuple[float, int]) -> int:
    rate = Rate()
    for now, position in samples:
        rate.sample(now, position)
    return rate.per_second


def test_a_rate_takes_two_samples_at_different_times() -> None:
    """One position says nothing of its speed, and neither do two of one moment."""
    assert rate_of() == rate_of((1.0, 500)) == rate_of((1.0, 500), (1.0, 900)) == 0
    assert rate_of((1.0, 500), (1.5, 900)) == 800


def test_what_lies_before_the_kept_samples_no_longer_counts() -> None:
    """After a rush and then silence the rate falls to nothing."""
    rush = [(0.0, 0), (0.5, 1_000_000)]
    silence = [(1.0 + 0.5 * number, 1_000_000) for number in range(SAMPLES_MAX)]

    assert rate_of(*rush, *silence[:-1]) == 0
    assert rate_of(*rush, *silence[:-2]) > 0


@given(st.lists(st.integers(0, 1 << 40), min_size=1), st.integers(0, 1 << 40))
def test_a_rate_is_never_negative_and_a_way_back_is_a_beginning(positions: list[int], after: int) -> None:
    """A log that is cut and grows again moves as fast as it grows since the cut."""
    samples = [(float(second), position) for second, position in enumerate(positions)]
    cut = float(len(samples)), -1

    assert rate_of(*samples) >= 0
    assert rate_of(*samples, cut) == 0
    assert rate_of(*samples, cut, (cut[0] + 2.0, after)) == round((after + 1) / 2.0)
