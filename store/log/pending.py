"""Puts that wait for a position to be reached: the pure core of group commit and of group transfer.

Waiters are added in log order with one timeout, so their ends and their deadlines ascend, and one queue serves both: no task,
no timer and no search per put.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from ..statuses import PutStatus

Done = Callable[[PutStatus], None]


@attrs.define(eq=False)
class PendingPuts:
    """Waiting puts, oldest first."""

    timeout_status: PutStatus
    """The status of a put whose deadline has passed."""
    _waiting: deque[tuple[int, float, Done]] = attrs.field(factory=deque[tuple[int, float, Done]])

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end: int, deadline: float, done: Done) -> None:
        """Wait until `end` is reached; `done` must not raise."""
        self._waiting.append((end, deadline, done))

    def reach(self, position: int) -> None:
        """Answer the puts that wait for `position` or less with PUT_OK."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= position:
            waiting.popleft()[2](PutStatus.PUT_OK)

    def expire(self, now: float) -> None:
        """Answer the puts whose deadline has passed."""
        waiting = self._waiting
        while waiting and waiting[0][1] <= now:
            waiting.popleft()[2](self.timeout_status)

    def fail(self, status: PutStatus) -> None:
        """Answer all waiting puts with `status`."""
        waiting, self._waiting = self._waiting, deque()
        for _, _, done in waiting:
            done(status)
