"""Puts that wait for a position to be reached: the pure core of group commit, of group transfer, and of a Raft group's commits.

Waiters are added in log order, so one queue serves them all: no task, no timer and no search per put.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import attrs

O = TypeVar("O")  # noqa: E741 - an outcome
"""What a waiter is told."""


@attrs.define(eq=False)
class PendingPuts(Generic[O]):
    """Waiting puts, oldest first."""

    reached: O
    """What is told when the position of a put is reached."""
    timed_out: O
    """What is told when its deadline has passed."""
    _waiting: deque[tuple[int, float, Callable[[O], None]]] = attrs.field(factory=deque[Any])

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end: int, deadline: float, done: Callable[[O], None]) -> None:
        """Wait until `end` is reached; `done` must not raise."""
        self._waiting.append((end, deadline, done))

    def reach(self, position: int) -> None:
        """End the waits for `position` or less as reached."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            waiting.popleft()[2](self.reached)

    def expire(self, now: float) -> None:
        """End the waits whose deadline has passed, in whatever order deadlines are, as timed out."""
        expired = [done for _, deadline, done in self._waiting if deadline <= now]
        if expired:
            self._waiting = deque(one for one in self._waiting if one[1] > now)
        for done in expired:
            done(self.timed_out)

    def fail(self, outcome: O) -> None:
        """End all waits with `outcome`."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, done in waiting:
            done(outcome)
