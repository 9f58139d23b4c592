"""The clients for plain threads: each lives in a thread of its own that runs the trio client, and callers wait for it.

So there is one producer, one consumer and one admin client, not two of each; heartbeats, rebalancing and commits go on while
the caller computes. A client is open for the length of a `with` block; its thread has ended when the block has. All methods may
be called from any number of threads. What is not named here is as in the trio client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import wraps
from math import inf
from typing import Any, Generic, ParamSpec, TypeVar

import attrs
import trio

from ..message.message import Message, MessageQueue
from ..world.threads import opened_in_thread
from . import admin, consumer, producer, pull
from .errors import ClientError, Closed
from .received import ReceivedMessage, RecordView
from .sending import SendResult
from .transmit import QueueSelector

P = ParamSpec("P")
T = TypeVar("T")
Client = TypeVar("Client")
Shell = TypeVar("Shell")

MESSAGES_PER_TAKE = 256


@attrs.define(eq=False)
class Host(Generic[Client]):
    """The thread in which one client lives."""

    client: Client
    _token: trio.lowlevel.TrioToken

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function of the client in its thread and wait for the result.

        Raises:
            Closed: the client is closed.
        """

        async def call() -> T:
            return await function(*args, **kwargs)

        try:
            return trio.from_thread.run(call, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise Closed("the client is closed") from error

    def soon(self, function: Callable[[], object]) -> None:
        """Run a plain function in the client's thread soon, after what was given before."""
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError as error:
            raise Closed("the client is closed") from error


@attrs.define(eq=False)
class BlockingProducer:
    """Sends messages; see `Producer`."""

    _host: Host[producer.Producer]

    def __repr__(self) -> str:
        return f"<BlockingProducer of {self._host.client.group}>"

    def send(
        self,
        message: Message,
        *,
        key: str | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send one message and wait for the acknowledgement; see `Producer.send`. A `selector` runs in the client's thread."""
        return self._host.run(
            self._host.client.send, message, key=key, queue=queue, selector=selector, timeout_seconds=timeout_seconds
        )

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        key: str | Callable[[Message], str | None] | None = None,
        queue: MessageQueue | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult | ClientError]:
        """Send many messages, and return for each, in order, its result or the error that came of it.

        Messages of one queue are stored in the order in which they are given; see `Producer.send_many`. A function for `key`
        runs in the client's thread.
        """
        return self._host.run(
            self._host.client.send_many, list(messages), key=key, queue=queue, timeout_seconds=timeout_seconds
        )

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None, timeout_seconds: float | None = None
    ) -> list[SendResult]:
        """Send messages of one topic as one request to one queue; see `Producer.send_batch`."""
        return self._host.run(self._host.client.send_batch, messages, queue=queue, timeout_seconds=timeout_seconds)

    def send_oneway(self, message: Message, *, key: str | None = None, queue: MessageQueue | None = None) -> None:
        """Send one message without acknowledgement; see `Producer.send_oneway`."""
        self._host.run(self._host.client.send_oneway, message, key=key, queue=queue)

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of `topic` that can be sent to."""
        return self._host.run(self._host.client.queues, topic)


class BlockingMessage(RecordView):
    """A received message; see `ReceivedMessage`."""

    __slots__ = ("_host", "_received")

    def __init__(self, received: ReceivedMessage, host: Host[Any]) -> None:
        received.copy_to(self)
        self._received = received
        self._host = host

    def ack(self) -> None:
        """Say that the message is done with."""
        self._host.soon(self._received.ack_now)

    def retry(self, *, delay_level: int = 0) -> None:
        """Ask for the message again later; see `ReceivedMessage.retry`."""
        self._host.run(self._received.retry, delay_level=delay_level)


@attrs.define(eq=False)
class BlockingConsumer:
    """Receives messages; see `Consumer`."""

    _host: Host[consumer.Consumer]
    _fetched: deque[BlockingMessage] = attrs.field(factory=deque[BlockingMessage])
    """Taken for an iteration and not handed out yet."""
    _last: BlockingMessage | None = None
    """Handed out by an iteration, to be acknowledged by the next step in auto mode."""

    def __iter__(self) -> Iterator[BlockingMessage]:
        """Iterate without end; in auto mode a message is acknowledged when the next one is asked for."""
        auto = self._host.client.options.ack == "auto"
        while True:
            self.finish()
            while not self._fetched:
                received = self._host.run(self._host.client.take, MESSAGES_PER_TAKE, inf)
                self._fetched.extend(BlockingMessage(message, self._host) for message in received)
            message = self._fetched.popleft()
            self._last = message if auto else None
            yield message

    def get_one(self, timeout_seconds: float | None = None) -> BlockingMessage | None:
        """Take the next message; None after `timeout_seconds` without one. It is acknowledged by the application."""
        messages = self.get_many(1, timeout_seconds)
        return messages[0] if messages else None

    def get_many(self, messages_max: int = MESSAGES_PER_TAKE, timeout_seconds: float | None = None) -> list[BlockingMessage]:
        """Take what is there; an empty list after `timeout_seconds`. In auto mode the next call acknowledges them."""
        received = self._host.run(self._host.client.get_many, messages_max, timeout_seconds)
        return [BlockingMessage(message, self._host) for message in received]

    def commit(self) -> None:
        """Tell the broker now how far the group is."""
        self._host.run(self._host.client.commit)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return self._host.client.queues

    @property
    def client_id(self) -> str:
        return self._host.client.client_id

    def finish(self) -> None:
        """Acknowledge what an iteration handed out last, in auto mode; the end of the block does so, too."""
        if self._last is not None:
            self._last.ack()
            self._last = None


@attrs.define(eq=False)
class BlockingPullConsumer:
    """Reads queues; see `PullConsumer`."""

    _host: Host[pull.PullConsumer]

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._host.run(self._host.client.queues, topic)

    def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        self._host.run(self._host.client.assign, list(queues), expression)

    def assignment(self) -> list[MessageQueue]:
        return self._host.client.assignment()

    def poll(self, messages_max: int = pull.MESSAGES_PER_POLL, timeout_seconds: float | None = None) -> list[RecordView]:
        """Take what is there; an empty list after `timeout_seconds` without a message."""
        return list(self._host.run(self._host.client.poll, messages_max, timeout_seconds))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._host.run(self._host.client.seek, queue, offset)

    def seek_to_beginning(self, queue: MessageQueue) -> None:
        self._host.run(self._host.client.seek_to_beginning, queue)

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._host.run(self._host.client.seek_to_end, queue)

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        self._host.run(self._host.client.seek_to_time, queue, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        chosen = list(queues)
        self._host.soon(lambda: self._host.client.pause(chosen))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        chosen = list(queues)
        self._host.soon(lambda: self._host.client.resume(chosen))

    def position(self, queue: MessageQueue) -> int:
        return self._host.client.position(queue)

    def committed(self, queue: MessageQueue) -> int | None:
        return self._host.run(self._host.client.committed, queue)

    def commit(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        self._host.run(self._host.client.commit, queue, offset)


@attrs.define(eq=False)
class BlockingAdmin:
    """Administers a cluster: `call` runs any method of `Admin`, as in `admin.call(lambda each: each.topics())`."""

    _host: Host[admin.Admin]

    def call(self, ask: Callable[[admin.Admin], Awaitable[T]]) -> T:
        """Run one question and wait for its answer."""
        return self._host.run(ask, self._host.client)


def _blocking(
    open_async: Callable[P, AbstractAsyncContextManager[Client]], shell: Callable[[Host[Client]], Shell]
) -> Callable[P, AbstractContextManager[Shell]]:
    """Make the blocking counterpart of an `open_...`, with the same arguments."""

    @wraps(open_async)
    @contextmanager
    def open_blocking(*args: P.args, **kwargs: P.kwargs) -> Generator[Shell]:
        # As in trio, what was handed out last is not acknowledged when the block fails: the client is cancelled then.
        with opened_in_thread(lambda: open_async(*args, **kwargs), "ledgermq-client") as (client, token):
            opened = shell(Host(client, token))
            yield opened
            if isinstance(opened, BlockingConsumer):
                opened.finish()

    return open_blocking


open_producer = _blocking(producer.open_producer, BlockingProducer)
open_consumer = _blocking(consumer.open_consumer, BlockingConsumer)
open_pull_consumer = _blocking(pull.open_pull_consumer, BlockingPullConsumer)
open_admin = _blocking(admin.open_admin, BlockingAdmin)
