"""Sends of asyncio tasks: all that wait for the client's thread cross to it together, and leave in as few requests as they fit.

There they are made as those of `send_many`, in lanes that keep their order and carry many messages in a request: the two
threads would spend more on a task and a frame for each message than on the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

import attrs
import trio

from ...message.message import Message, MessageQueue
from ..cancelled import note_outcomes
from ..errors import ClientError, Closed
from ..producer import Producer
from ..send_many import Item
from ..sending import SendResult
from ..transmit import QueueSelector
from .host import AioHost

SENDS_PER_TURN = 1000
"""How many sends begin in the client's thread before its other tasks get a turn."""


@attrs.define(eq=False)
class Sends:
    """Makes the sends of one producer."""

    _host: AioHost[Producer[Any]]
    _passed: deque[Item] = attrs.field(factory=deque[Item])
    """The sends that wait for the client's thread."""

    async def send(
        self,
        message: Message[Any],
        key: str | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        seconds: float,
    ) -> SendResult:
        """Send one message, whose arguments were checked."""
        host = self._host
        host.check_caller()
        if host.wakeups.ended:
            raise Closed("the client is closed") from host.failure
        future: asyncio.Future[SendResult] = host.event_loop.create_future()
        item = Item(message, key, queue, selector, seconds, partial(self._done, future))
        self._passed.append(item)
        if len(self._passed) == 1:
            try:
                host.soon(self._start)
            except Closed:
                self._passed.clear()  # else the next send would rely on the wake-up that this one could not make
                raise
        host.wakeups.waiting.add(future)
        try:
            return await future
        except asyncio.CancelledError as error:
            item.withdrawn = True
            note_outcomes(error, [item.known])
            with suppress(Closed):  # the client has ended, and the send with it
                host.soon(partial(host.client.lanes.withdraw, item))
            raise
        finally:
            host.wakeups.waiting.discard(future)

    def _start(self) -> None:
        lanes, now = self._host.client.lanes, trio.current_time()
        for _ in range(min(SENDS_PER_TURN, len(self._passed))):
            item = self._passed.popleft()
            if not item.withdrawn:
                item.deadline = now + item.seconds
                lanes.add(item)
        if self._passed:
            with suppress(Closed):  # the client has ended, and the sends with it
                self._host.soon(self._start)

    def _done(self, future: asyncio.Future[SendResult], outcome: SendResult | BaseException) -> None:
        self._host.wakeups.add(future, _copied(outcome) if isinstance(outcome, ClientError) else outcome)


def _copied(error: ClientError) -> ClientError:
    """An error of its own for one task: several tasks that raise one object would add to each other's traceback.

    What a selector raises is not copied: it belongs to one send, and an exception of the application may refuse to be copied.
    """
    copy = type(error).__new__(type(error))
    copy.args, copy.__cause__ = error.args, error.__cause__
    vars(copy).update(vars(error))
    return copy.with_traceback(error.__traceback__)
