"""Keeping away from slow and failing brokers."""

from __future__ import annotations

import pytest

from ledgermq.client.latency import BrokerLatencies, avoid_seconds


@pytest.mark.parametrize(
    ("latency_ms", "seconds"),
    [(0, 0), (50, 0), (549, 0), (550, 2), (1799, 2), (1800, 5), (3000, 6), (5000, 10), (14999, 10), (15000, 30), (99999, 30)],
)
def test_the_table_is_that_of_rocketmq_5_1(latency_ms: int, seconds: float) -> None:
    """The largest bound that the latency reaches counts."""
    assert avoid_seconds(latency_ms) == seconds


def test_a_slow_broker_is_avoided_for_a_while() -> None:
    """Then it is as good as any."""
    latencies = BrokerLatencies()
    latencies.sent("a", 0.6, now=100.0)

    assert latencies.to_avoid(101.9) == {"a"}
    assert latencies.to_avoid(102.0) == frozenset()
    assert not latencies.any


def test_a_fast_answer_ends_the_avoiding() -> None:
    """What counts is the newest answer."""
    latencies = BrokerLatencies()
    latencies.sent("a", 20.0, now=100.0)
    latencies.sent("a", 0.01, now=101.0)

    assert latencies.to_avoid(101.0) == frozenset()


def test_a_failure_counts_as_ten_seconds() -> None:
    """Whatever it was."""
    latencies = BrokerLatencies()
    latencies.failed("a", now=100.0)

    assert latencies.to_avoid(109.9) == {"a"}
    assert latencies.to_avoid(110.0) == frozenset()
