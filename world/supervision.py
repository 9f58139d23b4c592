"""Supervision of a server's tasks, so that no peer's input can end the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from .events import get_logger
from .logs import fault_of, trace_of

log = get_logger(__name__)

RESTART_SECONDS = 1.0
"""Pause before a task that failed is started again."""


async def keep_running(name: str, run: Callable[[], Awaitable[object]]) -> object:
    """Run a task of a server; if it raises, log that and start it again after `RESTART_SECONDS`.

    Without this an exception would leave the nursery and end the process for all its clients.

    Args:
        name: what the task does, for the log.
    """
    while True:
        try:
            return await run()
        except Exception as error:  # noqa: BLE001 - logged; the other tasks of the server go on
            log.error("task_failed", task=name, reason=fault_of(error), trace=trace_of(error))
        await trio.sleep(RESTART_SECONDS)
