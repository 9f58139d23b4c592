"""One `async for` loop over a consumer, which acknowledges a message by asking for the next one; see `Consumer.__aiter__`."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Generic, Protocol

import attrs

from ..message.message import Body
from .errors import Stopped
from .received import ReceivedMessage

MESSAGES_PER_TURN, TURN_SECONDS = 64, 0.01
"""`async for` lets other tasks run after this many messages or this time, and whenever it has to wait."""


class Taken(Protocol[Body]):
    """What an iteration needs of its consumer."""

    @property
    def monotonic(self) -> Callable[[], float]: ...
    def take_now(self) -> ReceivedMessage[Body] | None: ...
    async def receive(self, messages_max: int, timeout_seconds: float) -> list[ReceivedMessage[Body]]: ...
    def give_back_soon(self, message: ReceivedMessage[Body]) -> None: ...


@attrs.define(eq=False)
class Iteration(Generic[Body]):
    """One `async for` loop over a consumer."""

    _consumer: Taken[Body]
    acknowledges: bool
    """Whether asking for the next message acknowledges the last one."""
    _last: ReceivedMessage[Body] | None = None
    _taken: int = 0
    _turn_ends: float = 0.0
    _monotonic: Callable[[], float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._monotonic = self._consumer.monotonic

    def __aiter__(self) -> Iteration[Body]:
        """Begin a loop: what an earlier loop over this iterator has not acknowledged is given back."""
        self._leave()
        return self

    async def __anext__(self) -> ReceivedMessage[Body]:
        if self._last is not None:
            self._last.settle()
            self._last = None
        self._taken += 1
        try:
            message = None
            if self._taken % MESSAGES_PER_TURN and self._monotonic() < self._turn_ends:
                message = self._consumer.take_now()
            if message is None:
                message = (await self._consumer.receive(1, inf))[0]
                self._turn_ends = self._monotonic() + TURN_SECONDS
        except Stopped:
            raise StopAsyncIteration from None
        self._last = message if self.acknowledges else None
        return message

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            self._consumer.give_back_soon(last)
