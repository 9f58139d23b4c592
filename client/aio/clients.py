"""The clients that asyncio programs use: the methods and contracts of the trio clients, for tasks of one event loop.

Everything that is not documented here is as in the trio client. A cancelled call is cancelled in the client's thread too, and
what it took is given back. Callbacks given as options `on_...` run in the event loop and may be async; selectors and strategies
run in the client's thread. In a forked process all methods raise `OtherProcess`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from functools import partial, wraps
from inspect import isawaitable
from math import inf
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import attrs

from ...message.message import Body, Message, MessageQueue
from ...world.events import get_logger
from .. import admin, consumer, producer, pull
from ..arguments import (
    INT_MAX,
    check_integer,
    check_message,
    check_queue,
    check_seconds,
    check_several,
    check_text,
    check_timeout,
)
from ..errors import ClientError, Closed, InvalidArgument, Stopped
from ..health import CLOSED, Health
from ..hosted import (
    MESSAGES_PER_TAKE,
    Client,
    Hosted,
    HostedConsumer,
    HostedIteration,
    HostedMessage,
    HostedPullConsumer,
    put_back,
)
from ..iteration import MESSAGES_PER_TURN, TURN_SECONDS
from ..push_consumer import MESSAGES_PER_GET, message_failed
from ..received import ReceivedMessage, RecordView, retry_unfinished
from ..sending import SendResult
from ..statistics import ProducerStatistics
from ..stopping import STOP_SECONDS, signals_call
from ..transmit import QueueSelector
from .host import AioHost, Opening
from .sends import Sends

log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Shell = TypeVar("Shell")


def _asked(method: Callable[Concatenate[Client, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of the trio client, which runs in its thread, as a method of the client for asyncio."""

    @wraps(method)
    async def ask(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        host: AioHost[Client] = self.host
        return await host.run(method, host.client, *args, **kwargs)

    return ask


def _in_context(selector: QueueSelector | None) -> QueueSelector | None:
    """Let a selector, which is called in the client's thread, see the context variables of the caller.

    What is not to be the outcome of a future is raised as a `RuntimeError`: a `StopIteration` would never reach the task that
    sends, and a cancellation would pass for one of that task.
    """
    if selector is None:
        return None
    context = copy_context()

    def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        try:
            return context.run(selector, queues, message)
        except (StopIteration, asyncio.CancelledError) as error:
            raise RuntimeError(f"the selector raised {error!r}") from error

    return choose


@attrs.define(eq=False)
class AioProducer(Hosted[AioHost[producer.Producer[Body]]], Generic[Body]):
    """Sends messages; see `Producer`. Any number of tasks may send concurrently."""

    _sends: Sends = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sends = Sends(self.host)

    def __repr__(self) -> str:
        return f"<AioProducer of {self.host.client.group}>"

    async def send(
        self,
        message: Message[Body],
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send one message and wait for the broker's acknowledgement; see `Producer.send`.

        Messages that many tasks send concurrently share requests, as those of `send_many`. Those of one key, those with `queue`
        or a selector, and those of a topic with one queue are stored in the order of the calls, even if some have to be sent
        again; a message is also sent if the one before it has failed.

        Cancellation: the message may or may not have been stored, but never in part; `may_have_been_stored(error)` says
            whether it can be ruled out.
        """
        if not isinstance(message, Message) or not isinstance(message.topic, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            check_message(message)  # raises; the client's thread checks the rest
        if key is not None:
            check_text("key", key)
        if queue is not None:
            check_queue("queue", queue)
        if (key is not None) + (queue is not None) + (selector is not None) > 1:
            raise InvalidArgument("give at most one of key, queue and selector")
        seconds = self.host.client.options.send_timeout_seconds
        if timeout_seconds is not None:
            seconds = check_seconds("timeout_seconds", timeout_seconds)
        return await self._sends.send(message, key, queue, _in_context(selector), seconds)

    async def send_many(
        self,
        messages: Iterable[Message[Body]],
        *,
        key: str | Callable[[Message[Body]], str | None] | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult | ClientError]:
        """Send many messages, and return the result or the error of each; see `Producer.send_many`."""
        several = check_several(messages)
        if callable(key):
            keys = iter([key(message) for message in several])  # a function of the application runs in its own thread
            key = lambda _: next(keys)  # noqa: E731
        return await self.host.run_send(
            self.host.client.send_many,
            several,
            key=key,
            queue=queue,
            selector=_in_context(selector),
            timeout_seconds=timeout_seconds,
        )

    async def send_batch(
        self,
        messages: Iterable[Message[Body]],
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in one request to one queue; see `Producer.send_batch`."""
        several = check_several(messages)  # a generator of the application runs in its own thread
        return await self.host.run_send(
            self.host.client.send_batch,
            several,
            key=key,
            queue=queue,
            selector=_in_context(selector),
            timeout_seconds=timeout_seconds,
        )

    def statistics(self) -> ProducerStatistics:
        """What this producer has done since it was opened."""
        return self.host.client.statistics()

    async def send_oneway(self, message: Message[Body], *, key: str | None = None, queue: MessageQueue | None = None) -> None:
        """Send one message without acknowledgement; see `Producer.send_oneway`."""
        await self.host.run(self.host.client.send_oneway, message, key=key, queue=queue)

    queues = _asked(producer.Producer.queues)


class AioMessage(HostedMessage[AioHost[Any], Body]):
    """A received message; see `ReceivedMessage`."""

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge the message; see `ReceivedMessage.ack`."""
        self.ack_now()

    def ack_now(self) -> None:
        """Acknowledge the message as `ack` does, outside of `async` code."""
        self._acknowledge()

    async def retry(self, *, delay_level: int = 0) -> None:
        """Ask for the message again later; see `ReceivedMessage.retry`."""
        await self._host.run(self.received.retry, delay_level=delay_level)


@attrs.define(eq=False)
class AioIteration(HostedIteration["AioConsumer[Any]"], Generic[Body]):
    """One `async for` loop over a consumer."""

    _handed_out: int = 0
    _turn_ends: float = 0.0
    _monotonic: Callable[[], float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._monotonic = self._consumer.host.event_loop.time

    def __aiter__(self) -> AioIteration[Body]:
        """Begin a loop: what an earlier loop over this iterator has not acknowledged is given back."""
        self.begin()
        return self

    async def __anext__(self) -> AioMessage[Body]:
        self.settle_last()
        self._handed_out += 1
        if not self._handed_out % MESSAGES_PER_TURN or self._monotonic() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = self._monotonic() + TURN_SECONDS
        try:
            message = await self._consumer.next_message(self.messages)
        except Stopped:
            raise StopAsyncIteration from None
        self.hand_out(message)
        return AioMessage(message, self._consumer.host)


@attrs.define(eq=False)
class AioConsumer(HostedConsumer[AioHost[consumer.Consumer[Body]]], Generic[Body]):
    """Receives messages; see `Consumer`. Any number of tasks may take from it concurrently; each gets other messages."""

    # Only one task at a time asks for more, for all tasks; another one would wait although messages have been fetched.
    _fetching: asyncio.Lock = attrs.field(init=False, factory=asyncio.Lock)

    def __repr__(self) -> str:
        return f"<Aio{self.host.client!r}"[:-1] + ">"

    def __aiter__(self) -> AioIteration[Body]:
        """Iterate without end, with the rules of `Consumer.__aiter__`."""
        return AioIteration(self, self.options.ack == "auto")

    async def next_message(self, messages: deque[ReceivedMessage]) -> ReceivedMessage:
        """The next message for an iteration; those that arrive with it are added to `messages`."""
        self.host.check_caller()
        while (message := self.at_hand(messages)) is None:
            if messages is not self.fetched:
                messages.extend(await self._take(MESSAGES_PER_TAKE, inf))
                continue
            async with self._fetching:
                if not messages:
                    messages.extend(await self._take(MESSAGES_PER_TAKE, inf))
        return message

    async def get_one(self, timeout_seconds: float | None = None) -> AioMessage[Body] | None:
        """Take the next message; None after `timeout_seconds` without one. See `Consumer.get_many`."""
        messages = await self.get_many(1, timeout_seconds)
        return messages[0] if messages else None

    async def get_many(
        self, messages_max: int = MESSAGES_PER_GET, timeout_seconds: float | None = None
    ) -> list[AioMessage[Body]]:
        """Take the messages that have arrived, or wait for some; see `Consumer.get_many`."""
        self.host.check_caller()
        check_integer("messages_max", messages_max, 1, INT_MAX)
        check_timeout("timeout_seconds", timeout_seconds)
        seconds = inf if timeout_seconds is None else timeout_seconds
        messages = self.fetched_before(messages_max) or await self._take(messages_max, seconds)
        return [AioMessage(message, self.host) for message in messages]

    @asynccontextmanager
    async def take(
        self, messages_max: int = MESSAGES_PER_GET, timeout_seconds: float | None = None
    ) -> AsyncGenerator[list[AioMessage[Body]]]:
        """Take messages for the length of an `async with` block that finishes them all; see `Consumer.take`."""
        messages = await self.get_many(messages_max, timeout_seconds)
        with self.finishing([message.received for message in messages]):
            yield messages

    async def process(self, handler: Callable[[AioMessage[Body]], Awaitable[object] | None], *, tasks: int = 1) -> None:
        """Call `handler` with every message, in `tasks` concurrent tasks; see `Consumer.process`.

        A handler that is a plain function runs in the event loop, so it must not block. One whose task is cancelled, but not by
        the caller of `process`, fails alone: its message comes again, and the task takes the next one.
        """
        if not callable(handler):
            raise InvalidArgument(f"handler must be a function that takes a message (got {handler!r})")
        check_integer("tasks", tasks, 1, INT_MAX)
        self.host.check_caller()
        iterations: list[AioIteration[Body]] = [AioIteration(self, False) for _ in range(tasks)]
        caller = asyncio.current_task()
        assert caller is not None
        before = caller.cancelling()
        self.host.processing.add(caller)
        try:
            async with asyncio.TaskGroup() as group:
                for iteration in iterations:
                    group.create_task(self._work(iteration, handler, lambda: caller.cancelling() > before))
        finally:
            self.host.processing.discard(caller)
        if not self.stopped or self.host.failure is not None:
            raise Closed("the consumer was closed") from self.host.failure

    async def run(
        self,
        handler: Callable[[AioMessage[Body]], Awaitable[object] | None],
        *,
        concurrency: int = 1,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        """Run `process` in `concurrency` tasks until SIGTERM or Ctrl-C, and then until they have ended.

        The rest is as in `Consumer.run`. In a program whose server handles signals, such as uvicorn, use `process` and `stop`.

        Raises: as `process`; also `ValueError` in any thread but the main one, which alone receives signals.
        """
        check_integer("concurrency", concurrency, 1, INT_MAX)
        check_seconds("stop_seconds", stop_seconds)
        self.host.check_caller()
        event_loop = self.host.event_loop

        def stop_now() -> None:
            self.host.client.stopped = True  # handlers that never wait leave the event loop no turn for the rest
            event_loop.call_soon_threadsafe(signalled)

        def signalled() -> None:
            if timers:  # a signal came before
                work.cancel()
            self.stop()
            timers.append(event_loop.call_later(stop_seconds, work.cancel))

        timers: list[asyncio.TimerHandle] = []
        with signals_call(stop_now):
            work = asyncio.ensure_future(self.process(handler, tasks=concurrency))
            try:
                await work
            except asyncio.CancelledError as error:
                if not timers or not _is_failure(error):  # the caller was cancelled, and not the work alone
                    raise
            finally:
                for timer in timers:
                    timer.cancel()

    async def _work(
        self,
        iteration: AioIteration[Body],
        handler: Callable[[AioMessage[Body]], Awaitable[object] | None],
        is_to_end: Callable[[], bool],
    ) -> None:
        """Handle messages until the end, also if something else than that cancels this task."""
        while True:
            try:
                await self._handle_all(iteration, handler)
            except asyncio.CancelledError as error:
                if is_to_end():
                    raise
                log.error("handler_cancelled", exc_info=error, group=self.group)
                task = asyncio.current_task()
                while task is not None and task.uncancel():
                    pass
            else:
                return

    async def _handle_all(
        self, iteration: AioIteration[Body], handler: Callable[[AioMessage[Body]], Awaitable[object] | None]
    ) -> None:
        while True:
            try:
                message = await anext(iteration)
            except (Closed, StopAsyncIteration):
                return  # and so do the other tasks
            try:
                handled = handler(message)
                if isawaitable(handled):
                    await handled
            except BaseException as error:
                if not isinstance(error, Exception) and not _is_failure(error):
                    with suppress(ClientError):
                        self.host.soon(message.received.give_back)
                    raise
                message_failed(message, error)
                with suppress(Closed):
                    await self.host.run(retry_unfinished, message.received)
            else:
                with suppress(Closed):
                    self.host.soon(message.received.settle)

    async def _take(self, messages_max: int, timeout_seconds: float) -> list[ReceivedMessage]:
        client: consumer.Consumer[Any] = self.host.client
        return await self.host.ask(partial(client.receive, messages_max, timeout_seconds), put_back)

    async def healthy(self) -> Health:
        """Whether this consumer can do its work, as a readiness probe asks; see `Consumer.healthy`."""
        try:
            return await self.host.run(self.host.client.healthy)
        except Closed:
            return CLOSED

    seek = _asked(consumer.Consumer.seek)
    seek_to_beginning = _asked(consumer.Consumer.seek_to_beginning)
    seek_to_end = _asked(consumer.Consumer.seek_to_end)
    seek_to_time = _asked(consumer.Consumer.seek_to_time)
    commit = _asked(consumer.Consumer.commit)
    progress = _asked(consumer.Consumer.progress)


def _is_failure(error: BaseException) -> bool:
    """Whether a handler failed because something that it waited for was cancelled, and not because it was cancelled itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or not task.cancelling())


@attrs.define(eq=False)
class AioPullConsumer(HostedPullConsumer[AioHost[pull.PullConsumer]]):
    """Reads queues; see `PullConsumer`."""

    async def poll(self, messages_max: int = pull.MESSAGES_PER_POLL, timeout_seconds: float | None = None) -> list[RecordView]:
        """Take the messages that have arrived, or wait for some; an empty list after `timeout_seconds`."""
        client = self.host.client
        messages: list[ReceivedMessage] = await self.host.ask(
            partial(client.poll, messages_max, timeout_seconds), client.unpoll
        )
        return list(messages)

    queues = _asked(pull.PullConsumer.queues)
    assign = _asked(pull.PullConsumer.assign)
    seek = _asked(pull.PullConsumer.seek)
    seek_to_beginning = _asked(pull.PullConsumer.seek_to_beginning)
    seek_to_end = _asked(pull.PullConsumer.seek_to_end)
    seek_to_time = _asked(pull.PullConsumer.seek_to_time)
    committed = _asked(pull.PullConsumer.committed)
    commit = _asked(pull.PullConsumer.commit)

    def position(self, queue: MessageQueue) -> int:
        """The offset behind the last message that `poll` handed out of an assigned queue.

        After a cancelled `poll` it may count messages that nobody has seen, until another call of this consumer has ended;
        `commit` never counts them.
        """
        return self.host.client.position(queue)


@attrs.define(eq=False)
class AioAdmin(Hosted[AioHost[admin.Admin]]):
    """Administers a cluster; see `Admin`."""

    broker_config = _asked(admin.Admin.broker_config)
    broker_runtime = _asked(admin.Admin.broker_runtime)
    change_dledger_group = _asked(admin.Admin.change_dledger_group)
    clone_offsets = _asked(admin.Admin.clone_offsets)
    cluster = _asked(admin.Admin.cluster)
    create_group = _asked(admin.Admin.create_group)  # type: ignore[arg-type] # one of its settings could be named `self`
    create_topic = _asked(admin.Admin.create_topic)
    create_user = _asked(admin.Admin.create_user)
    delete_group = _asked(admin.Admin.delete_group)
    delete_kv = _asked(admin.Admin.delete_kv)
    delete_rights = _asked(admin.Admin.delete_rights)
    delete_topic = _asked(admin.Admin.delete_topic)
    delete_user = _asked(admin.Admin.delete_user)
    get_kv = _asked(admin.Admin.get_kv)
    group_connections = _asked(admin.Admin.group_connections)
    group_stats = _asked(admin.Admin.group_stats)
    groups = _asked(admin.Admin.groups)
    ha_status = _asked(admin.Admin.ha_status)
    lost_messages = _asked(admin.Admin.lost_messages)
    message_at = _asked(admin.Admin.message_at)
    message_by_id = _asked(admin.Admin.message_by_id)
    messages_by_key = _asked(admin.Admin.messages_by_key)
    messages_by_unique_key = _asked(admin.Admin.messages_by_unique_key)
    name_server_config = _asked(admin.Admin.name_server_config)
    offset_at = _asked(admin.Admin.offset_at)
    offset_of = _asked(admin.Admin.offset_of)
    producer_connections = _asked(admin.Admin.producer_connections)
    put_kv = _asked(admin.Admin.put_kv)
    queue_range = _asked(admin.Admin.queue_range)
    reset_offsets = _asked(admin.Admin.reset_offsets)
    rights = _asked(admin.Admin.rights)
    running_info = _asked(admin.Admin.running_info)
    set_offset = _asked(admin.Admin.set_offset)
    set_right = _asked(admin.Admin.set_right)
    set_writable = _asked(admin.Admin.set_writable)
    topic_config = _asked(admin.Admin.topic_config)
    topic_groups = _asked(admin.Admin.topic_groups)
    topic_route = _asked(admin.Admin.topic_route)
    topic_settings = _asked(admin.Admin.topic_settings)
    topic_stats = _asked(admin.Admin.topic_stats)
    topics = _asked(admin.Admin.topics)
    update_broker_config = _asked(admin.Admin.update_broker_config)
    update_group = _asked(admin.Admin.update_group)  # type: ignore[arg-type] # likewise
    update_topic = _asked(admin.Admin.update_topic)
    update_user = _asked(admin.Admin.update_user)
    users = _asked(admin.Admin.users)


def _in_asyncio(
    open_async: Callable[P, AbstractAsyncContextManager[Client]], shell: Callable[[AioHost[Client]], Shell]
) -> Callable[P, AbstractAsyncContextManager[Shell, None]]:
    """Make the counterpart of an `open_...` for asyncio, with the same arguments."""

    @wraps(open_async)
    def open_in_asyncio(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[Shell, None]:
        return Opening(open_async, shell, args, kwargs)

    return open_in_asyncio


open_producer = _in_asyncio(producer.open_producer, AioProducer)
open_consumer = _in_asyncio(consumer.open_consumer, AioConsumer)
open_pull_consumer = _in_asyncio(pull.open_pull_consumer, AioPullConsumer)
open_admin = _in_asyncio(admin.open_admin, AioAdmin)
