"""Tracks brokers that answered slowly or not at all, which producers then avoid (RocketMQ latency fault tolerance).

Avoidance is only a preference: if every broker is to be avoided, all are chosen as usual. Times are seconds by a monotonic
clock.
"""

from __future__ import annotations

from bisect import bisect_right

import attrs

# RocketMQ 5.1 and later: a broker with a latency of at least BOUNDS_MS[i] is avoided for AVOID_MS[i].
BOUNDS_MS = (50, 100, 550, 1800, 3000, 5000, 15000)
AVOID_MS = (0, 0, 2000, 5000, 6000, 10000, 30000)
FAILURE_COUNTS_AS_MS = 10_000


def avoid_seconds(latency_ms: float) -> float:
    """How long a broker with this latency is avoided."""
    at = bisect_right(BOUNDS_MS, latency_ms) - 1
    return AVOID_MS[at] / 1000 if at >= 0 else 0.0


@attrs.define
class BrokerLatencies:
    """The broker names that a producer avoids, from the latencies of its sends."""

    _avoid_until: dict[str, float] = attrs.field(factory=dict[str, float])

    @property
    def any(self) -> bool:
        """Whether any broker is avoided; without the clock, so some of the times may be over."""
        return bool(self._avoid_until)

    def sent(self, broker_name: str, latency_seconds: float, now: float) -> None:
        """Record an answered send; a fast answer makes the broker available at once."""
        seconds = avoid_seconds(latency_seconds * 1000)
        if seconds:
            self._avoid_until[broker_name] = now + seconds
        elif self._avoid_until:
            self._avoid_until.pop(broker_name, None)

    def failed(self, broker_name: str, now: float) -> None:
        """Record a send that failed or got no answer."""
        self._avoid_until[broker_name] = now + avoid_seconds(FAILURE_COUNTS_AS_MS)

    def to_avoid(self, now: float) -> frozenset[str]:
        """The broker names to avoid now."""
        if not self._avoid_until:
            return _NONE
        for broker_name in [name for name, until in self._avoid_until.items() if until <= now]:
            del self._avoid_until[broker_name]
        return frozenset(self._avoid_until)


_NONE: frozenset[str] = frozenset()
