"""Polling for the deadlines of waiting puts, as long as some wait."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from ...world.clock import Clock

EXPIRE_SECONDS = 0.1
"""Polling interval for put time-outs, in seconds."""


@attrs.define(eq=False)
class Expiry:
    """Answers puts whose deadline has passed, wherever they wait."""

    waiting: Callable[[], int]
    """How many puts wait."""
    expire: Callable[[float], None]
    """Answers the puts whose deadline, by the monotonic clock, has passed."""
    clock: Clock
    _some_wait: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        """Start polling, because a put may have begun to wait."""
        self._some_wait.set()

    async def run(self) -> None:
        """Poll while puts wait, until cancelled."""
        while True:
            await self._some_wait.wait()
            while self.waiting():
                await trio.sleep(EXPIRE_SECONDS)
                self.expire(self.clock.monotonic())
            self._some_wait = trio.Event()
