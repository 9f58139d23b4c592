"""Ending a consumer in order at a signal, so that nothing that was handled comes again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
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
    """Run `work` in trio until it ends; a signal stops the consumer, and a second one or the time limit cancels the work."""
    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                async for _ in signals:
                    if consumer.stopped:
                        nursery.cancel_scope.cancel()
                    consumer.stop()
                    nursery.cancel_scope.deadline = trio.current_time() + stop_seconds

            nursery.start_soon(wait)
            await work()
            nursery.cancel_scope.cancel()


@contextmanager
def signals_call(function: Callable[[], object]) -> Generator[None]:
    """Call a function at each signal in the main thread, instead of what the program does otherwise, until the block ends.

    Raises:
        ValueError: the caller is not the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ValueError("a consumer can wait for signals in the main thread alone: use process and stop in another one")

    def signalled(_: int, __: FrameType | None) -> None:
        function()

    before = {which: signal.signal(which, signalled) for which in SIGNALS}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
