"""Processors whose work takes virtual time, so that a turn of the event loop that is too long delays a simulated node too."""

from __future__ import annotations

from collections import deque

import attrs
import trio

from .clock import trio_time


@attrs.define(eq=False)
class SimProcessor:
    """One machine's processor.

    What one task charges at one moment is one turn of its event loop; turns follow each other. Within a turn the clocks of the
    machine stand still, what arrives waits for its end, and so does what the machine sends. Timers of trio do not wait, but
    whatever they cause is noticed by others only at the end of the turn.
    """

    slowness: float = 0.0
    """How many times longer work takes than on a usual machine; with 0 it takes no time."""
    _turns: deque[tuple[float, float]] = attrs.field(factory=deque[tuple[float, float]])
    """The beginning and the end of each turn that has not ended, in their order."""
    _last: tuple[float, trio.lowlevel.Task] | None = None
    """The moment and the task of the last charge."""

    def charge(self, seconds: float) -> None:
        if self.slowness:
            self.stall(seconds * self.slowness)

    def stall(self, seconds: float) -> None:
        """Let the event loop do nothing else for this long."""
        now = trio_time()
        while self._turns and self._turns[0][1] <= now:
            self._turns.popleft()
        this = (now, trio.lowlevel.current_task())
        begin, end = max(now, self._turns[-1][1] if self._turns else now), now
        if this == self._last and self._turns:
            begin, end = self._turns.pop()
        self._turns.append((begin, max(begin, end) + seconds))
        self._last = this

    async def next_turn(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._turns:
            await trio.sleep_until(self._turns[-1][1])

    def time(self) -> float:
        """The true time as the machine's clocks show it: within a turn that of its beginning."""
        now = trio_time()
        return next((begin for begin, end in self._turns if begin < now < end), now)

    def handled_at(self, at: float) -> float:
        """When the event loop handles what happens at a time: then, or at the end of the turn in which that is."""
        return next((end for begin, end in self._turns if begin <= at < end), at)

    def restart(self) -> None:
        """End the work of a process that ends."""
        self._turns.clear()
