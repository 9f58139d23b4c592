"""When waiting puts are looked at for their deadline: now and then while some wait, never while none does."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from ..world.clock import Clock

EXPIRE_SECONDS = 0.1
"""How late a put may hear of its deadline."""


@attrs.define(eq=False)
class Expiry:
    """Tells puts whose time is up, wherever they wait."""

    waiting: Callable[[], int]
    """How many puts wait."""
    expire: Callable[[float], None]
    """Tells those whose deadline, by the monotonic clock, has passed."""
    clock: Clock
    _some_wait: trio.Event = attrs.field(factory=trio.Event)

    def wake(self) -> None:
        """A put may have begun to wait."""
        self._some_wait.set()

    async def run(self) -> None:
        """Look after those that wait, until cancelled."""
        while True:
            await self._some_wait.wait()
            while self.waiting():
                await trio.sleep(EXPIRE_SECONDS)
                self.expire(self.clock.monotonic())
            self._some_wait = trio.Event()
