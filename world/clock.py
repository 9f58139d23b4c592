"""Wall and monotonic time as the rest of the project sees them.

Nothing above this package calls `time`: a simulated clock may drift, jump or stop, and the same code runs on it.
"""

from __future__ import annotations

import time
from typing import Protocol

import attrs


class Clock(Protocol):
    """Two clocks: the wall clock, which may jump, and a monotonic one, which only grows."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 by the machine's wall clock; may jump either way."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back, unrelated to `wall_ms`."""
        ...


@attrs.frozen
class SystemClock:
    """The machine's own clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # a consumer asks for each message
