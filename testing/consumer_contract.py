"""The contract of consumers as checks: every message is handled to the end or delivered again, in whatever way it is taken.

There are the ways in which an application takes messages: loops, single messages, lists, blocks. They are the same code for
trio and for asyncio, and are written again for threads. In each of them a handler fails at some messages, in each way in which
code can be left. A check needs a virtual clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Protocol, cast

import attrs
import trio

from ..client.blocking import BlockingConsumer, BlockingHost, BlockingMessage
from ..client.consumer import Consumer, open_consumer
from ..client.producer import open_producer
from ..client.received import ReceivedMessage, RecordView
from ..client.subscription import ConsumeFrom
from ..message.message import Message
from .embedded import OpenEmbedded, open_virtual
from .hosting import Hosting, in_asyncio
from .sim.threads import SimLock, SimThread, SimThreadLoop, current_thread

TOPIC, GROUP = "contract", "contract-group"
MESSAGES = 12
FAILS_AT = frozenset({0, 3, 4, 9})
"""The messages whose first delivery fails."""
HANDLING_SECONDS = 0.4
GET_SECONDS = 2.0
ABANDONED_CALLS = 3
DEADLINE_SECONDS = 900.0
"""When all messages must have been handled: a retry comes after some ten seconds, and none fails often."""


class Ending(Enum):
    """How the code that handles a message ends without having finished it."""

    RAISE = "an exception"
    LEAVE = "break or return"
    CANCEL = "a cancelled scope or task, or Ctrl-C in a thread"


class HandlerFailed(Exception):
    """A handler failed as planned."""


class Scope(Protocol):
    """A block that can be cancelled, and that then ends normally."""

    def __enter__(self) -> Any: ...
    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None: ...
    def cancel(self) -> None: ...


class AsyncioScope:
    """A block of a task of asyncio that can be cancelled, and that then ends normally."""

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = False

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool:
        if not self._cancelled:
            return False
        assert self._task is not None
        self._task.uncancel()
        return error_type is asyncio.CancelledError

    def cancel(self) -> None:
        assert self._task is not None
        self._cancelled = True
        self._task.cancel()


@attrs.define(eq=False)
class Work:
    """What an application does with the messages: it handles each, and fails at some at their first delivery."""

    ending: Ending
    sleep: Callable[[float], Awaitable[object]] = trio.sleep
    new_scope: Callable[[], Scope] = trio.CancelScope
    scope: Scope = attrs.field(factory=trio.CancelScope)
    """What `Ending.CANCEL` cancels."""
    handled: list[int] = attrs.field(factory=list[int])
    in_hand: dict[int, int] = attrs.field(factory=dict[int, int])
    """By number of the message, its offset in its queue, while it is being handled."""
    _failed: set[int] = attrs.field(factory=set[int])

    @property
    def unfinished(self) -> bool:
        return len(set(self.handled)) < MESSAGES

    @contextmanager
    def handling(self, message: RecordView) -> Generator[bool]:
        """One delivery, which counts as handled if the block ends normally; gives whether it has to fail."""
        number = int(message.body)
        fails = number in FAILS_AT and number not in self._failed
        self._failed |= {number} if fails else set()
        if message.queue.topic == TOPIC:
            self.in_hand[number] = message.queue_offset
        try:
            yield fails
            if not fails:
                self.handled.append(number)
        finally:
            self.in_hand.pop(number, None)

    async def handle(self, message: ReceivedMessage) -> bool:
        """Handle one delivery; returns whether the loop goes on."""
        with self.handling(message) as fails:
            await self.sleep(HANDLING_SECONDS)
            if fails and self.ending is Ending.RAISE:
                raise HandlerFailed
            if fails and self.ending is Ending.CANCEL:
                self.scope.cancel()
                await self.sleep(DEADLINE_SECONDS)
        return self.unfinished and not fails

    def handle_in_thread(self, message: BlockingMessage) -> bool:
        """The same in a simulated thread."""
        with self.handling(message) as fails:
            current_thread().sleep(HANDLING_SECONDS)
            if fails and self.ending is Ending.RAISE:
                raise HandlerFailed
            if fails and self.ending is Ending.CANCEL:
                raise KeyboardInterrupt
        return self.unfinished and not fails

    def attempts(self) -> Iterator[Scope]:
        """A new scope for each attempt of an application that begins again whenever its loop has ended."""
        while self.unfinished:
            self.scope = self.new_scope()
            yield self.scope


# --------------------------------------------------------------------------- the clients for trio and for asyncio


async def _loop(consumer: Consumer, work: Work) -> None:
    for scope in work.attempts():
        with suppress(HandlerFailed), scope:
            async for message in consumer:
                if not await work.handle(message):
                    break


async def _loop_over_a_kept_iterator(consumer: Consumer, work: Work) -> None:
    messages = aiter(consumer)
    for scope in work.attempts():
        with suppress(HandlerFailed), scope:
            async for message in messages:
                if not await work.handle(message):
                    break


async def _generator(consumer: Consumer, work: Work) -> None:
    async def wrapped() -> AsyncGenerator[ReceivedMessage]:
        async for message in consumer:
            yield message

    for scope in work.attempts():
        with suppress(HandlerFailed), scope:
            async with aclosing(wrapped()) as messages:
                async for message in messages:
                    if not await work.handle(message):
                        break


async def _function(consumer: Consumer, work: Work) -> None:
    async def first() -> ReceivedMessage:
        async for message in consumer:
            if not await work.handle(message):
                return message
        raise AssertionError("the loop has no end")

    for scope in work.attempts():
        with suppress(HandlerFailed), scope:
            await first()


async def _get_one(consumer: Consumer, work: Work) -> None:
    for scope in work.attempts():
        with suppress(HandlerFailed), scope:
            message = await consumer.get_one(GET_SECONDS)
            while message is not None and (await work.handle(message) or not work.unfinished):
                await message.ack()
                message = None
                message = await consumer.get_one(GET_SECONDS)
        message = None


async def _retry(consumer: Consumer, work: Work) -> None:
    for scope in work.attempts():
        with suppress(HandlerFailed), scope:
            while work.unfinished and (message := await consumer.get_one(GET_SECONDS)) is not None:
                try:
                    finished = await work.handle(message) or not work.unfinished
                except BaseException:
                    await message.retry()
                    raise
                await (message.ack() if finished else message.retry())


async def _get_many(consumer: Consumer, work: Work) -> None:
    message: ReceivedMessage | None
    for scope in work.attempts():
        with suppress(HandlerFailed), scope:
            for message in await consumer.get_many(4, GET_SECONDS):
                if not await work.handle(message) and work.unfinished:
                    break
                await message.ack()
        message = None


async def _take(consumer: Consumer, work: Work) -> None:
    for scope in work.attempts():
        with suppress(HandlerFailed), scope:
            async with consumer.take(4, GET_SECONDS) as messages:
                for message in messages:
                    if not await work.handle(message) and work.unfinished:
                        raise HandlerFailed


async def _process(consumer: Consumer, work: Work) -> None:
    async def handle(message: ReceivedMessage) -> None:
        if not await work.handle(message):
            if work.unfinished:
                raise HandlerFailed
            work.scope.cancel()

    for scope in work.attempts():
        with scope:
            await consumer.process(handle, tasks=1 if consumer.options.orderly else 3)


# ------------------------------------------------------------------------------------------- the client for threads


def _caught(work: Work) -> Iterator[suppress]:
    """Begin again, as an application does, whenever an attempt has failed or was interrupted."""
    for _ in work.attempts():
        yield suppress(HandlerFailed, KeyboardInterrupt)


def _loop_in_thread(consumer: BlockingConsumer, work: Work) -> None:
    for attempt in _caught(work):
        with attempt:
            for message in consumer:
                if not work.handle_in_thread(message):
                    break


def _loop_over_a_kept_iterator_in_thread(consumer: BlockingConsumer, work: Work) -> None:
    messages = iter(consumer)
    for attempt in _caught(work):
        with attempt:
            for message in messages:
                if not work.handle_in_thread(message):
                    break


def _generator_in_thread(consumer: BlockingConsumer, work: Work) -> None:
    def wrapped() -> Generator[BlockingMessage]:
        yield from consumer

    for attempt in _caught(work):
        with attempt:
            for message in wrapped():
                if not work.handle_in_thread(message):
                    break


def _get_one_in_thread(consumer: BlockingConsumer, work: Work) -> None:
    for attempt in _caught(work):
        with attempt:
            message = consumer.get_one(GET_SECONDS)
            while message is not None and (work.handle_in_thread(message) or not work.unfinished):
                message.ack()
                message = None
                message = consumer.get_one(GET_SECONDS)
        message = None


def _get_many_in_thread(consumer: BlockingConsumer, work: Work) -> None:
    message: BlockingMessage | None
    for attempt in _caught(work):
        with attempt:
            for message in consumer.get_many(4, GET_SECONDS):
                if not work.handle_in_thread(message) and work.unfinished:
                    break
                message.ack()
        message = None


def _take_in_thread(consumer: BlockingConsumer, work: Work) -> None:
    for attempt in _caught(work):
        with attempt, consumer.take(4, GET_SECONDS) as messages:
            for message in messages:
                if not work.handle_in_thread(message) and work.unfinished:
                    raise HandlerFailed


def _abandoned_calls(consumer: BlockingConsumer, work: Work) -> None:
    """The first calls return to nobody, as one of a thread does whose `asyncio.to_thread` was cancelled."""
    for _ in range(ABANDONED_CALLS):
        consumer.get_one(GET_SECONDS)
    _get_one_in_thread(consumer, work)


# -------------------------------------------------------------------------------------------------------- the checks

Way = Callable[[Consumer, Work], Awaitable[None]]


def _in_thread(way: Callable[[BlockingConsumer, Work], None]) -> Way:
    async def run(consumer: Consumer, work: Work) -> None:
        loop = cast("Any", SimThreadLoop(random.Random(0)))  # noqa: S311 - with it no call is interrupted
        shell = BlockingConsumer(BlockingHost(consumer, loop), fetching=cast("Any", SimLock()))
        await SimThread(partial(way, shell, work)).drive()

    return run


def _in_asyncio(way: Way) -> Way:
    async def run(consumer: Consumer, work: Work) -> None:
        work.sleep, work.new_scope = asyncio.sleep, AsyncioScope

        async def application(hosting: Hosting) -> None:
            await way(hosting.shell(consumer), work)

        await in_asyncio(application, random.Random(0), 0.0)  # noqa: S311 - with it no call is interrupted

    return run


ASYNC_WAYS: Mapping[str, Way] = {
    "loop": _loop,
    "loop over a kept iterator": _loop_over_a_kept_iterator,
    "generator": _generator,
    "function": _function,
    "get_one": _get_one,
    "retry": _retry,
    "get_many": _get_many,
    "take": _take,
    "process": _process,
}

WAYS: Mapping[str, Way] = {
    **ASYNC_WAYS,
    **{f"{name} in asyncio": _in_asyncio(way) for name, way in ASYNC_WAYS.items()},
    "loop in a thread": _in_thread(_loop_in_thread),
    "loop over a kept iterator in a thread": _in_thread(_loop_over_a_kept_iterator_in_thread),
    "generator in a thread": _in_thread(_generator_in_thread),
    "get_one in a thread": _in_thread(_get_one_in_thread),
    "get_many in a thread": _in_thread(_get_many_in_thread),
    "take in a thread": _in_thread(_take_in_thread),
    "abandoned calls": _in_thread(_abandoned_calls),
}
"""The ways in which applications take messages from the clients for trio, for asyncio and for threads."""


async def check_way(way: Way, ending: Ending, *, orderly: bool) -> None:
    """Check one way of taking messages: all are handled to the end, none is committed while it is in hand, and order is kept.

    Raises:
        AssertionError: a message was lost, acknowledged too early or handled out of order.
    """
    work = Work(ending)
    async with open_virtual(settings={"defaultTopicQueueNums": "1"}) as cluster:
        async with open_producer(cluster.namesrv, world=cluster.world) as producer:
            for number in range(MESSAGES):
                await producer.send(Message(TOPIC, b"%d" % number))
        async with (
            open_consumer(
                cluster.namesrv, GROUP, TOPIC, orderly=orderly, consume_from=ConsumeFrom.FIRST, world=cluster.world
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_watch, cluster, consumer, work)
            with trio.move_on_after(DEADLINE_SECONDS):
                await way(consumer, work)
            nursery.cancel_scope.cancel()
    missing = sorted(set(range(MESSAGES)) - set(work.handled))
    assert not missing, f"{len(missing)} messages were never handled: {missing}"
    if orderly:
        first = sorted(range(MESSAGES), key=work.handled.index)
        assert first == sorted(first), f"an ordered queue was handled as {work.handled}"


async def _watch(cluster: OpenEmbedded, consumer: Consumer, work: Work) -> None:
    """Check at short intervals that the group has not committed what is being handled."""
    (node,) = cluster.nodes
    assert node.broker is not None
    while True:
        await trio.sleep(HANDLING_SECONDS / 2)
        with suppress(Exception):
            await consumer.commit()
        for committed in node.broker.offsets.of(GROUP, TOPIC).values():
            for number, offset in work.in_hand.items():
                assert committed <= offset, f"the group has committed {committed}, and message {number} at {offset} is in hand"
