"""The clients for plain threads: each runs the trio client in a thread of its own, and callers wait for it.

So each client is implemented once, and heartbeats, rebalancing and commits go on while the caller computes. A client is open
for the length of a `with` block; its thread ends with the block or with the interpreter. All methods may be called from any
number of threads. Interrupting a call (Ctrl-C) cancels its request; the `KeyboardInterrupt` says what is known of a send. In a
forked process all methods raise `OtherProcess`.
`on_assigned` and `on_revoked` run in a thread of their own. All other functions of the application, such as `on_offset_moved`,
selectors, strategies, `encode` and `decode`, run in the client's thread, which they must not block; a method of the same client
that waits for that thread raises `RuntimeError` in them. Everything that is not documented here is as in the trio client.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from functools import partial, wraps
from math import inf
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import attrs
import trio

from ..message.message import Body, Message, MessageQueue
from ..world.threads import opened_in_thread
from . import admin, consumer, producer, pull
from .arguments import INT_MAX, check_function, check_integer, check_seconds, check_several, check_timeout
from .cancelled import Outcome, note_outcomes, noting
from .errors import ClientError, Closed, InvalidArgument, Stopped
from .health import CLOSED, Health
from .hosted import (
    AWAITED,
    MESSAGES_PER_TAKE,
    Host,
    Hosted,
    HostedConsumer,
    HostedIteration,
    HostedMessage,
    HostedPullConsumer,
    contained,
    in_words_of_clients,
    put_back,
)
from .push_consumer import MESSAGES_PER_GET, message_failed
from .received import ReceivedMessage, RecordView, give_back_unfinished, retry_unfinished
from .sending import SendResult
from .statistics import ProducerStatistics
from .stopping import STOP_SECONDS, signals_call
from .transmit import QueueSelector

P = ParamSpec("P")
T = TypeVar("T")
Client = TypeVar("Client")
Shell = TypeVar("Shell")


@attrs.define(eq=False)
class BlockingHost(Host[Client]):
    """The thread in which one client runs, as other threads call it."""

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function of the client in its thread and wait for the result.

        Raises:
            Closed: the client is closed. OtherProcess: it was opened by another process.
        """
        return self.ask(partial(function, *args, **kwargs))

    def ask(self, function: Callable[[], Awaitable[T]], undo: Callable[[T], object] = lambda _: None) -> T:
        """Like `run`; if the wait is interrupted, `undo` is called in the client's thread with a result that comes later."""
        with in_words_of_clients():
            return self._loop.call(function, undo)

    def run_send(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `run`, for a function that sends: if it is interrupted, what is known of each message is noted in the error."""
        known: list[Outcome] = []
        try:
            return self.ask(partial(noting, partial(function, *args, **kwargs), known))
        except BaseException as error:
            if known:
                note_outcomes(error, known)
            raise


def _asked(method: Callable[Concatenate[Client, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """A method of the trio client, which runs in its thread, as a method of the client for other threads."""

    @wraps(method)
    def ask(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        host: BlockingHost[Client] = self.host
        return host.run(method, host.client, *args, **kwargs)

    return ask


@attrs.define(eq=False)
class BlockingProducer(Hosted[BlockingHost[producer.Producer[Body]]], Generic[Body]):
    """Sends messages; see `Producer`."""

    def __repr__(self) -> str:
        return f"<BlockingProducer of {self.host.client.group}>"

    def send(
        self,
        message: Message[Body],
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send one message and wait for the acknowledgement; see `Producer.send`. A `selector` runs in the client's thread."""
        return self.host.run_send(
            self.host.client.send, message, key=key, queue=queue, selector=selector, timeout_seconds=timeout_seconds
        )

    def send_many(
        self,
        messages: Iterable[Message[Body]],
        *,
        key: str | Callable[[Message[Body]], str | None] | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult | ClientError]:
        """Send many messages, and return for each, in order, its result or its error.

        Messages of one queue are stored in the order in which they are given; see `Producer.send_many`. A function for `key`
        and a `selector` run in the client's thread.
        """
        return self.host.run_send(
            self.host.client.send_many,
            check_several(messages),  # in the thread of the caller, where a cursor or generator of the application belongs
            key=key,
            queue=queue,
            selector=selector,
            timeout_seconds=timeout_seconds,
        )

    def statistics(self) -> ProducerStatistics:
        """What this producer has done since it was opened."""
        return self.host.client.statistics()

    def send_batch(
        self,
        messages: Iterable[Message[Body]],
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic as one request to one queue; see `Producer.send_batch`."""
        return self.host.run_send(
            self.host.client.send_batch,
            check_several(messages),
            key=key,
            queue=queue,
            selector=selector,
            timeout_seconds=timeout_seconds,
        )

    def send_oneway(self, message: Message[Body], *, key: str | None = None, queue: MessageQueue | None = None) -> None:
        """Send one message without acknowledgement; see `Producer.send_oneway`."""
        self.host.run(self.host.client.send_oneway, message, key=key, queue=queue)

    queues = _asked(producer.Producer.queues)


class BlockingMessage(HostedMessage[BlockingHost[Any], Body]):
    """A received message; see `ReceivedMessage`."""

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledge the message; see `ReceivedMessage.ack`."""
        self._acknowledge()

    def retry(self, *, delay_level: int = 0) -> None:
        """Ask for the message again later; see `ReceivedMessage.retry`."""
        self._host.run(self.received.retry, delay_level=delay_level)


@attrs.define(eq=False)
class BlockingIteration(HostedIteration["BlockingConsumer[Any]"], Generic[Body]):
    """One `for` loop over a consumer."""

    def __iter__(self) -> BlockingIteration[Body]:
        """Begin a loop: what an earlier loop over this iterator has not acknowledged is given back."""
        self.begin()
        return self

    def __next__(self) -> BlockingMessage[Body]:
        self.settle_last()
        try:
            message = self._consumer.next_message(self.messages)
        except Stopped:
            raise StopIteration from None
        self.hand_out(message)
        return BlockingMessage(message, self._consumer.host)


@attrs.define(eq=False)
class BlockingConsumer(HostedConsumer[BlockingHost[consumer.Consumer[Body]]], Generic[Body]):
    """Receives messages; see `Consumer`. Any number of threads may take from it concurrently; each gets other messages."""

    # Only one thread at a time asks for more, for all threads; another one would wait although messages have been fetched.
    _fetching: threading.Lock = attrs.field(factory=threading.Lock, alias="fetching")

    def __iter__(self) -> BlockingIteration[Body]:
        """Iterate without end, with the rules of `Consumer.__aiter__`.

        With `ack="auto"`, a message is acknowledged when this iterator is asked for the next one. A loop that is left, by an
        exception, `break` or `return`, gives back the message that it has not acknowledged.
        """
        return BlockingIteration(self, self.options.ack == "auto")

    def next_message(self, messages: deque[ReceivedMessage]) -> ReceivedMessage:
        """The next message for an iteration; those that arrive with it are added to `messages`."""
        while (message := self.at_hand(messages)) is None:
            if messages is not self.fetched:
                messages.extend(self._take(MESSAGES_PER_TAKE, inf))
                continue
            with self._fetching:
                if not messages:
                    messages.extend(self._take(MESSAGES_PER_TAKE, inf))
        return message

    def get_one(self, timeout_seconds: float | None = None) -> BlockingMessage[Body] | None:
        """Take the next message; None after `timeout_seconds` without one. See `Consumer.get_many`."""
        messages = self.get_many(1, timeout_seconds)
        return messages[0] if messages else None

    def get_many(
        self, messages_max: int = MESSAGES_PER_GET, timeout_seconds: float | None = None
    ) -> list[BlockingMessage[Body]]:
        """Take the messages that have arrived, or wait for some; see `Consumer.get_many`.

        Each has to be acknowledged or retried. What comes of a call whose result is dropped, because the thread was interrupted
        or a task that waited for the thread was cancelled, is given back within `COMMIT_SECONDS`.
        """
        check_integer("messages_max", messages_max, 1, INT_MAX)
        check_timeout("timeout_seconds", timeout_seconds)
        return [BlockingMessage(message, self.host) for message in self._receive(messages_max, timeout_seconds)]

    @contextmanager
    def take(
        self, messages_max: int = MESSAGES_PER_GET, timeout_seconds: float | None = None
    ) -> Generator[list[BlockingMessage[Body]]]:
        """Take messages for the length of a `with` block that finishes them all; see `Consumer.take`."""
        messages = self.get_many(messages_max, timeout_seconds)
        with self.finishing([message.received for message in messages]):
            yield messages

    def run(
        self, handler: Callable[[BlockingMessage[Body]], object], *, concurrency: int = 1, stop_seconds: float = STOP_SECONDS
    ) -> None:
        """Call `handler` with every message, in `concurrency` threads, until SIGTERM or Ctrl-C, or until `stop`.

        A message is acknowledged when the handler returns and retried when it raises. After a signal, handlers finish what
        they have. Those that need more than `stop_seconds`, or that are still at work at a second signal, are not waited for:
        their threads go on, and their messages come again.

        Raises:
            Closed: the consumer was closed in the meantime.
            ValueError: the caller is not the main thread, which alone receives signals.
            BaseException: a handler raised it, such as a `SystemExit`, and it is no `Exception`. The consumer is stopped, and
                the other handlers are not waited for.
        """
        if not callable(handler):
            raise InvalidArgument(f"handler must be a function that takes a message (got {handler!r})")
        check_integer("concurrency", concurrency, 1, INT_MAX)
        check_seconds("stop_seconds", stop_seconds)
        over, working = threading.Event(), [None] * concurrency
        at_work: set[ReceivedMessage] = set()
        exits: list[BaseException] = []
        timer = threading.Timer(stop_seconds, over.set)
        timer.daemon = True

        def signalled() -> None:
            if timer.ident is not None:
                over.set()
                return
            timer.start()
            self.stop()

        def work() -> None:
            try:
                self._handle_all(handler, at_work)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                exits.append(error)
                with suppress(ClientError):
                    self.stop()
                over.set()
            finally:
                working.pop()
                if not working:
                    over.set()

        with signals_call(signalled):
            for number in range(concurrency):
                threading.Thread(target=work, name=f"ledgermq-handler-{number}", daemon=True).start()
            over.wait()
        timer.cancel()
        if not self.options.orderly:  # otherwise what was finished behind them would come again too
            with suppress(ClientError):
                self.host.soon(partial(give_back_unfinished, list(at_work), ordered=False))
        if exits:
            raise exits[0]
        if not self.stopped or self.host.failure is not None:
            raise Closed("the consumer was closed") from self.host.failure

    def _handle_all(self, handler: Callable[[BlockingMessage[Body]], object], at_work: set[ReceivedMessage]) -> None:
        iteration: BlockingIteration[Body] = BlockingIteration(self, False)
        with suppress(Closed):
            for message in iteration:
                at_work.add(message.received)
                try:
                    handler(message)
                except Exception as error:  # noqa: BLE001 - handlers are the application's
                    message_failed(message, error)
                    self.host.run(retry_unfinished, message.received)
                except BaseException:
                    self.host.soon(message.received.give_back)
                    raise
                else:
                    self.host.soon(message.received.settle)
                finally:
                    at_work.discard(message.received)

    def _receive(self, messages_max: int, timeout_seconds: float | None) -> list[ReceivedMessage]:
        return self.fetched_before(messages_max) or self._take(
            messages_max, inf if timeout_seconds is None else timeout_seconds
        )

    def _take(self, messages_max: int, timeout_seconds: float) -> list[ReceivedMessage]:
        client: consumer.Consumer[Any] = self.host.client
        return self.host.ask(partial(client.receive, messages_max, timeout_seconds), put_back)

    def healthy(self) -> Health:
        """Whether this consumer can do its work, as a readiness probe asks; see `Consumer.healthy`."""
        try:
            return self.host.run(self.host.client.healthy)
        except Closed:
            return CLOSED

    seek = _asked(consumer.Consumer.seek)
    seek_to_beginning = _asked(consumer.Consumer.seek_to_beginning)
    seek_to_end = _asked(consumer.Consumer.seek_to_end)
    seek_to_time = _asked(consumer.Consumer.seek_to_time)
    commit = _asked(consumer.Consumer.commit)
    progress = _asked(consumer.Consumer.progress)


async def _at_once(function: Callable[[], T]) -> T:
    return function()


@attrs.define(eq=False)
class BlockingPullConsumer(HostedPullConsumer[BlockingHost[pull.PullConsumer]]):
    """Reads queues; see `PullConsumer`."""

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        self.host.run(self.host.client.assign, list(queues), expression)

    def poll(self, messages_max: int = pull.MESSAGES_PER_POLL, timeout_seconds: float | None = None) -> list[RecordView]:
        """Take the messages that have arrived, or wait for some; an empty list after `timeout_seconds`."""
        client = self.host.client
        messages: list[ReceivedMessage] = self.host.ask(partial(client.poll, messages_max, timeout_seconds), client.unpoll)
        return list(messages)

    def position(self, queue: MessageQueue) -> int:
        # Asked for in the client's thread, where what an interrupted `poll` took is put back first.
        return self.host.run(_at_once, partial(self.host.client.position, queue))

    queues = _asked(pull.PullConsumer.queues)
    seek = _asked(pull.PullConsumer.seek)
    seek_to_beginning = _asked(pull.PullConsumer.seek_to_beginning)
    seek_to_end = _asked(pull.PullConsumer.seek_to_end)
    seek_to_time = _asked(pull.PullConsumer.seek_to_time)
    committed = _asked(pull.PullConsumer.committed)
    commit = _asked(pull.PullConsumer.commit)


@attrs.define(eq=False)
class BlockingAdmin(Hosted[BlockingHost[admin.Admin]]):
    """Administers a cluster: `call` runs any method of `Admin`, as in `admin.call(lambda each: each.topics())`."""

    def call(self, ask: Callable[[admin.Admin], Awaitable[T]]) -> T:
        """Run one function of the admin client and wait for its result."""
        return self.host.run(ask, self.host.client)


async def _in_other_thread(callback: Callable[[object], object], queues: object) -> object:
    """Call a function that may block; at the time limit its thread is left alone."""
    return await trio.to_thread.run_sync(callback, queues, abandon_on_cancel=True)


def _blocking(
    open_async: Callable[P, AbstractAsyncContextManager[Client]], shell: Callable[[BlockingHost[Client]], Shell]
) -> Callable[P, AbstractContextManager[Shell]]:
    """Make the blocking counterpart of an `open_...`, with the same arguments."""

    @wraps(open_async)
    @contextmanager
    def open_blocking(*args: P.args, **kwargs: P.kwargs) -> Generator[Shell]:
        for name, option in kwargs.items():
            if name.startswith("on_") and callable(option):
                check_function(name, option)
                callback = contained(option)
                kwargs[name] = partial(_in_other_thread, callback) if name in AWAITED else callback
        with opened_in_thread(lambda: open_async(*args, **kwargs), "ledgermq-client") as (client, loop):
            yield shell(BlockingHost(client, loop))

    return open_blocking


open_producer = _blocking(producer.open_producer, BlockingProducer)
open_consumer = _blocking(consumer.open_consumer, BlockingConsumer)
open_pull_consumer = _blocking(pull.open_pull_consumer, BlockingPullConsumer)
open_admin = _blocking(admin.open_admin, BlockingAdmin)
