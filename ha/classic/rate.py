"""The rate at which a position in the log grows, from periodic samples, so that nothing is counted on the hot path. Pure."""

from __future__ import annotations

from collections import deque

import attrs

SAMPLES_MAX = 7
"""How many samples are kept: three seconds at two samples per second."""


@attrs.define
class Rate:
    """Bytes per second over the kept samples."""

    _samples: deque[tuple[float, int]] = attrs.field(factory=lambda: deque[tuple[float, int]](maxlen=SAMPLES_MAX))

    def sample(self, now: float, position: int) -> None:
        """Record the position; if it has decreased, the earlier samples are dropped."""
        if self._samples and position < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, position))

    @property
    def per_second(self) -> int:
        """The rate in bytes per second, or 0 with fewer than two samples."""
        if len(self._samples) < 2:
            return 0
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return round((last - first) / (last_at - first_at)) if last_at > first_at else 0
