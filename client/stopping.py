"""Ending a consumer in order, so that nothing that was handled comes again."""

from __future__ import annotations

import signal

import trio

from .arguments import check_seconds
from .consumer import Consumer, MessageHandler

STOP_SECONDS = 30.0
"""How long handlers may go on after a signal; Kubernetes kills a container after the same time by default."""


async def run_until_signal(
    consumer: Consumer, handler: MessageHandler, *, tasks: int = 1, stop_seconds: float = STOP_SECONDS
) -> None:
    """Run `consumer.process` until SIGTERM or Ctrl-C, and then until its handlers have finished what they have.

    The end of the consumer's block commits what they have acknowledged. Handlers that need more than `stop_seconds`, or that
    are still at work at a second signal, are cancelled, and their messages come again.

    Raises: as `Consumer.process`. Only the main thread can call this, because only it receives signals.
    """
    check_seconds("stop_seconds", stop_seconds)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                async for _ in signals:
                    if consumer.stopped:
                        nursery.cancel_scope.cancel()
                    consumer.stop()
                    nursery.cancel_scope.deadline = trio.current_time() + stop_seconds

            nursery.start_soon(wait)
            await consumer.process(handler, tasks=tasks)
            nursery.cancel_scope.cancel()
