"""Counts the ticks of a node's core, and wakes the node when the next timer of the core expires."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol

import attrs
import trio

from ...world.clock import Clock

STALLED_TICKS = 10
"""If a node slept more than this many ticks longer than planned, half of the planned ones are counted, so that it does not time
out its peers, whose messages are still in its sockets. A node that is late each time counts the rest in shorter sleeps."""
ROUNDING = 1e-3
"""The part of a tick by which a sleep may end early and still count as whole; otherwise a rounding error would make the loop
sleep again and again."""


class Ticked(Protocol):
    """A core that counts time in ticks."""

    @property
    def ticks_until_due(self) -> int:
        """How many ticks may pass before a timer expires."""
        ...

    def tick(self, count: int = 1) -> None:
        """Let `count` ticks pass."""
        ...


@attrs.define(eq=False)
class Ticking:
    """The time of one node.

    A follower's election time-out begins again with each heartbeat. So the deadline of the sleeping task is moved; waking the
    task each time would double the wake-ups of an idle node. A deadline is moved back only when half of the time to it has
    passed, which is enough to prevent such wake-ups with fewer moves; after an early one the task sleeps again.
    """

    core: Ticked
    clock: Clock
    seconds: float
    """The length of a tick."""
    on_due: Callable[[], None]
    """Called when a timer of the core has expired."""
    _counted_to: float = 0.0
    """The time up to which ticks have been counted, by the monotonic clock."""
    _due_at: float = inf
    """The time at which the sleeping task wakes, which is not after the next timer of the core expires."""
    _sleep: trio.CancelScope | None = None
    """The sleep of the task; None while it is awake."""

    def begin(self) -> None:
        """Count ticks from now on."""
        self._counted_to = self.clock.monotonic()

    def let_time_pass(self) -> None:
        """Count the ticks that have passed; called before the core gets any other input."""
        now = self.clock.monotonic()
        ticks = int((now - self._counted_to) / self.seconds + ROUNDING)
        if ticks <= 0:
            return
        planned = (self._due_at - self._counted_to) / self.seconds
        self._counted_to += ticks * self.seconds
        self.core.tick(ticks if ticks <= planned + STALLED_TICKS else max(int(planned / 2), 1))

    def plan(self) -> None:
        """Let the task sleep until the next timer of the core expires; called after the core got any input."""
        if self._sleep is None:
            return  # the task plans its next sleep itself
        now = self._counted_to
        due_at = now + max(self.core.ticks_until_due, 1) * self.seconds
        if due_at < self._due_at - ROUNDING * self.seconds or 2 * (self._due_at - now) < due_at - now:
            self._due_at = due_at
            self._sleep.deadline = trio.current_time() + max(due_at - self.clock.monotonic(), 0.0)

    async def run(self) -> None:
        """Wake the node whenever a timer of its core expires, until cancelled; `begin` was called before."""
        while True:
            self._sleep, self._due_at = trio.CancelScope(), inf
            self.plan()
            with self._sleep:
                await trio.sleep_forever()
            self._sleep = None
            self.let_time_pass()
            self.on_due()
