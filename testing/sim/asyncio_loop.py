"""An event loop of asyncio in a simulated thread: it waits in virtual time, so asyncio programs run unchanged from one seed."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import trio

from .threads import ThreadEndedError, current_thread


class _Selector:
    """What the event loop waits in: it has no sockets, so only its timers and `wake` end a wait."""

    def __init__(self) -> None:
        self._woken = trio.Event()
        self._ended = False

    def select(self, timeout: float | None) -> list[Any]:
        async def wait() -> None:
            with trio.move_on_after(inf if timeout is None else timeout):
                await self._woken.wait()

        if self._ended and timeout == 0:  # `asyncio.Runner` cancels the tasks that are left
            return []
        try:
            current_thread().wait_for(wait)
        except ThreadEndedError:
            self._ended = True
            raise
        self._woken = trio.Event()
        return []

    def wake(self) -> None:
        self._woken.set()


class SimEventLoop(asyncio.BaseEventLoop):
    """An event loop of a simulated thread; give the class to `asyncio.Runner` as its `loop_factory`."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector()

    def time(self) -> float:
        """The virtual time at which the thread last continued."""
        return current_thread().now

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None:
        self._selector.wake()
