"""Threads for work that would block the event loop: `fdatasync`, recovery scans, checksums of whole files."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

import attrs
import trio

WORKERS_MAX = 40

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Protocol):
    """Runs blocking calls without blocking the event loop."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` elsewhere and return its result.

        Cancellation: not interrupted; the caller is cancelled only after `function` has returned.
        """
        ...


@attrs.frozen(eq=False)
class ThreadWorkers:
    """Trio's cached threads, at most `WORKERS_MAX` at once; further calls wait.

    A put under SYNC_FLUSH waits for one switch to a thread and back. `trio.to_thread` does more for its callers, and takes
    nearly twice the processor time (`bench/shortcuts.py`).
    """

    _free: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(WORKERS_MAX))

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            await self._free.acquire()
        try:
            task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
            trio.lowlevel.start_thread_soon(
                lambda: function(*args, **kwargs),
                lambda result: token.run_sync_soon(trio.lowlevel.reschedule, task, result),
            )
            result: T = await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
            return result
        finally:
            self._free.release()
