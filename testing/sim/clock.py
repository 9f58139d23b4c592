"""Clocks that drift and jump, based on trio's time, which the mock clock makes virtual."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

START_MS = 1_700_000_000_000


def trio_time() -> float:
    """Trio's time, or 0 if no event loop runs."""
    return trio.current_time() if trio.lowlevel.in_trio_run() else 0.0


@attrs.define
class SimClock:
    """One machine's clocks."""

    now: Callable[[], float] = trio_time
    """Returns the true time in seconds."""
    start_ms: int = START_MS
    drift: float = 0.0
    """How many seconds both clocks gain in a second of true time."""
    jumped_ms: int = 0
    """How many milliseconds jumps have added to the wall clock so far."""
    jumps_back: int = 0
    jumps_forward: int = 0

    def wall_ms(self) -> int:
        return self.start_ms + self.jumped_ms + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return self.now() * (1 + self.drift)

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back if `milliseconds` is negative."""
        self.jumped_ms += milliseconds
        if milliseconds < 0:
            self.jumps_back += 1
        else:
            self.jumps_forward += 1

    @property
    def injected(self) -> dict[str, int]:
        """How often each fault of the clocks happened."""
        return {"clock_jump": self.jumps_back + self.jumps_forward, "clock_drift": int(self.drift != 0)}
