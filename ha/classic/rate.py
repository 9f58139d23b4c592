"""How fast a position in the log moves, from looks at it now and then: nothing is counted where the bytes flow. Pure."""

from __future__ import annotations

from collections import deque

import attrs

LOOKS_KEPT = 7
"""Three seconds of looks, two a second."""


@attrs.define
class Rate:
    """Bytes a second over the looks that are kept."""

    _looks: deque[tuple[float, int]] = attrs.field(factory=lambda: deque[tuple[float, int]](maxlen=LOOKS_KEPT))

    def look(self, now: float, position: int) -> None:
        """Take note of the position; one that has gone back is a beginning."""
        if self._looks and position < self._looks[-1][1]:
            self._looks.clear()
        self._looks.append((now, position))

    @property
    def per_second(self) -> int:
        """0 until there are two looks."""
        if len(self._looks) < 2:
            return 0
        (first_at, first), (last_at, last) = self._looks[0], self._looks[-1]
        return round((last - first) / (last_at - first_at)) if last_at > first_at else 0
