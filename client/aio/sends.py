"""Sends of asyncio tasks: all that wait for the client's thread cross to it together, and leave in as few requests as they fit.

A send that crosses alone is made as the trio client makes it. Several of one topic are made as those of `send_many`, with one
request for many messages of a queue: the two threads would spend more on a task and a frame for each message than on the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from functools import partial
from typing import Any, cast

import attrs
import trio

from ...message.message import Message, MessageQueue
from ..errors import Closed
from ..producer import Producer
from ..send_many import Item, Outcome
from ..sending import SendResult
from ..transmit import QueueSelector
from .host import AioHost


@attrs.define(eq=False)
class _Send:
    """One send of one task."""

    message: Message[Any]
    key: str | None
    queue: MessageQueue | None
    selector: QueueSelector | None
    seconds: float
    future: asyncio.Future[SendResult]
    begun: bool = False
    """Set by the client's thread before it looks at `withdrawn`."""
    withdrawn: bool = False
    """Set by the task, which was cancelled, before it looks at `begun`."""
    group: _Group | None = None

    @property
    def together_with(self) -> Hashable:
        """Equal for sends that can be made together."""
        return self if self.selector is not None else (self.message.topic, self.queue, self.seconds)

    def withdraw(self) -> None:
        """Cancel what can be cancelled of a send whose task was cancelled; in the client's thread."""
        if self.group is not None:
            self.group.finished(self)


@attrs.define(eq=False)
class _Group:
    """Sends that are made together."""

    sends: list[_Send] = attrs.field(factory=list[_Send])
    waiting: set[_Send] = attrs.field(factory=set[_Send])
    """Those that have no outcome yet and whose tasks wait for it."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    def add(self, send: _Send) -> None:
        send.group = self
        self.sends.append(send)
        self.waiting.add(send)

    def finished(self, send: _Send) -> None:
        """Note that nobody waits for a send any more; without anybody, the rest is cancelled."""
        self.waiting.discard(send)
        if not self.waiting:
            self.scope.cancel()


@attrs.define(eq=False)
class Sends:
    """Makes the sends of one producer."""

    _host: AioHost[Producer[Any]]
    _passed: deque[_Send] = attrs.field(factory=deque[_Send])
    """The sends that wait for the client's thread."""
    _unbegun: dict[Hashable, _Group] = attrs.field(factory=dict[Hashable, _Group])
    """The groups whose tasks have not begun yet, by `_Send.together_with`. Later sends join them, because trio begins the tasks
of one turn in any order, and a group of their own could overtake."""

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
        send = _Send(message, key, queue, selector, seconds, host.event_loop.create_future())
        self._passed.append(send)
        if len(self._passed) == 1:
            try:
                host.soon(self._start)
            except Closed:
                self._passed.clear()  # else the next send would rely on the wake-up that this one could not make
                raise
        try:
            return await send.future
        except asyncio.CancelledError as error:
            send.withdrawn = True
            _mark(error, may_have_been_stored=send.begun)
            if send.begun:
                host.soon(send.withdraw)
            raise

    def _start(self) -> None:
        fresh: list[tuple[Hashable, _Group]] = []
        while self._passed:
            send = self._passed.popleft()
            send.begun = True
            if send.withdrawn:
                continue
            group = self._unbegun.get(key := send.together_with)
            if group is None or group.scope.cancel_called:
                group = self._unbegun[key] = _Group()
                fresh.append((key, group))
            group.add(send)
        for key, group in fresh:
            if not self._host.start(partial(self._make, key, group)):
                self._begin(key, group)
                self._fail(group, Closed("the client is closed"))

    def _begin(self, key: Hashable, group: _Group) -> None:
        if self._unbegun.get(key) is group:
            del self._unbegun[key]

    async def _make(self, key: Hashable, group: _Group) -> None:
        self._begin(key, group)
        try:
            with group.scope:
                await (self._make_one(group) if len(group.sends) == 1 else self._make_together(group))
        except Exception as error:  # noqa: BLE001 - raised in the tasks that wait
            self._fail(group, error)
        finally:
            self._fail(group, Closed("the producer was closed during the send", may_have_been_stored=True))

    async def _make_one(self, group: _Group) -> None:
        (send,) = group.sends
        result = await self._host.client.send(
            send.message, key=send.key, queue=send.queue, selector=send.selector, timeout_seconds=send.seconds
        )
        self._done(group, 0, result)

    async def _make_together(self, group: _Group) -> None:
        first = group.sends[0]
        many = self._host.client.many_sends(
            first.queue, first.seconds, partial(self._done, group), trio.current_time() + first.seconds
        )
        await many.send([Item(index, send.message, send.key) for index, send in enumerate(group.sends)])

    def _done(self, group: _Group, index: int, outcome: Outcome | Exception) -> None:
        send = group.sends[index]
        if send in group.waiting:
            if isinstance(outcome, Exception) and len(group.sends) > 1:
                outcome = _copied(outcome)
            self._host.wakeups.add(send.future, outcome)
            group.waiting.discard(send)

    def _fail(self, group: _Group, error: Exception) -> None:
        for index in range(len(group.sends)):
            self._done(group, index, error)


def _copied(error: Exception) -> Exception:
    """An error of its own for one task: several tasks that raise one object would add to each other's traceback."""
    copy = type(error).__new__(type(error))
    copy.args, copy.__cause__ = error.args, error.__cause__
    vars(copy).update(vars(error))
    return copy


def _mark(error: asyncio.CancelledError, *, may_have_been_stored: bool) -> None:
    """Note in a cancellation what is known of the send; another exception would break `asyncio.timeout` and `TaskGroup`."""
    error.may_have_been_stored = may_have_been_stored  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    error.add_note(
        "the send was cancelled; the message may have been stored"
        if may_have_been_stored
        else "the send was cancelled before it was begun; the message was not stored"
    )


def may_have_been_stored(error: BaseException) -> bool:
    """Whether the message of a send that failed or was cancelled may be in the log.

    Args:
        error: a `ClientError`, an `asyncio.CancelledError`, the `TimeoutError` of `asyncio.timeout` or `asyncio.wait_for`, or a
            group of these. A cancellation of which nothing is known, as `asyncio.gather` makes them anew, rules nothing out.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(may_have_been_stored, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    at: BaseException | None = error
    while at is not None:
        mark = getattr(at, "may_have_been_stored", None)
        if mark is not None:
            return bool(mark)
        at = at.__cause__ or at.__context__
    return isinstance(error, asyncio.CancelledError | TimeoutError)
