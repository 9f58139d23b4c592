"""Ending a consumer in order at a signal, so that nothing that was handled comes again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import Protocol

import trio

STOP_SECONDS = 30.0
"""How long handlers may go on after a signal; Kubernetes kills a container after the same time by default."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stoppable(Protocol):
    """A consumer."""

    stopped: bool

    def stop(self) -> None: ...


async def run_until_signal(consumer: Stoppable, work: Callable[[], Awaitable[None]], stop_seconds: float) -> None:
    """Run `work` in trio until it ends; a signal stops the consumer, and a second one or the time limit cancels the work.

    Raises:
        ValueError: as `signals_call`.
    """
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:

        def stop_now() -> None:
            consumer.stopped = True  # handlers that never wait leave the event loop no turn for the rest
            token.run_sync_soon(signalled)

        def signalled() -> None:
            if scope.deadline < inf:  # a signal came before
                scope.cancel()
            consumer.stop()
            scope.deadline = trio.current_time() + stop_seconds

        with signals_call(stop_now):
            await work()


_called: list[Callable[[], object]] = []
"""The functions of all open blocks of `signals_call`. Several consumers of a process may wait for the same signal, and their
blocks end in any order, so no block may put back the handlers that it has found."""
_before: dict[signal.Signals, signal.Handlers | int | Callable[[int, FrameType | None], object] | None] = {}
"""What the program did at a signal before the first of these blocks began."""


@contextmanager
def signals_call(function: Callable[[], object]) -> Generator[None]:
    """Call a function at each signal in the main thread, instead of what the program does otherwise, until the block ends.

    At the same time other blocks may be open, whose functions are called too.

    Raises:
        ValueError: the caller is not the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("a consumer can wait for signals in the main thread alone: use process and stop in another one")
    if not _called:
        _before.update({which: signal.signal(which, _signalled) for which in SIGNALS})
    _called.append(function)
    try:
        yield
    finally:
        _called.remove(function)
        if not _called:
            for which, handler in _before.items():
                # None stands for a handler that was not installed from Python, which cannot install it again.
                signal.signal(which, signal.SIG_DFL if handler is None else handler)


def _signalled(_: int, __: FrameType | None) -> None:
    for function in _called:
        function()
