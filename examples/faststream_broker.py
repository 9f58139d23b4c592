"""Handlers of FastStream whose messages come from topics of LedgerMQ.

    broker = LedgerMQBroker("127.0.0.1:9876")

    @broker.subscriber("orders", group="shop")
    @broker.publisher("bills")
    async def bill(order: Order, customer: Annotated[str, Header()], logger: Logger) -> Bill: ...

    app = LedgerMQApp(lifespan=broker.lifespan)
    await broker.publish(Order(...), "orders", headers={"customer": "Ada"})     # in handlers, or within the lifespan

    faststream run shop:app

A handler gets the body as its first parameter, converted to the type that it names; the others are FastStream's `Context`,
`Header`, `Depends` and `Logger`. Headers are properties of messages. A message is acknowledged when its handler has returned
and its result is published. One whose handler raises comes again by the rules of its group, and is a dead letter in the end.

The base class of FastStream's own brokers is private (`faststream._internal`) and changes between releases, so this broker does
not inherit from it. What FastStream builds on that class does not know this broker: its middlewares, its AsyncAPI documents and
its test brokers. Tests run handlers against a broker of `ledgermq.testing`, with FastStream's `TestApp`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NoReturn, TypeVar

import attrs
from fast_depends.pydantic import PydanticSerializer
from faststream import AckPolicy, FastStream, StreamMessage, apply_types
from faststream.annotations import ContextRepo
from faststream.exceptions import AckMessage, HandlerException, IncorrectState, NackMessage, RejectMessage, SetupError
from faststream.message import decode_message, encode_message, gen_cor_id
from faststream.response import ensure_response
from faststream.types import Lifespan

from ledgermq import ConsumeFrom, Message, SendResult, aio

STOP_SECONDS = 20
"""How long handlers may go on at the end; less than the time after which the platform kills the process."""

CONTENT_TYPE, CORRELATION_ID = "content-type", "correlation_id"
"""The properties in which FastStream's brokers keep them."""

DEAD_LETTER = -1

Handler = TypeVar("Handler", bound=Callable[..., Any])


class LedgerMQMessage(StreamMessage[aio.AioMessage[bytes]]):
    """A received message; handlers get it as `Annotated[LedgerMQMessage, Context("message")]`."""

    async def ack(self) -> None:
        if self.committed is None:
            await super().ack()
            await self.raw_message.ack()

    async def nack(self, *, delay_level: int = 0) -> None:
        """Ask for the message again, after one of RocketMQ's delays or, with 0, after the next one of the retry rules."""
        if self.committed is None:
            await super().nack()
            await self.raw_message.retry(delay_level=delay_level)

    async def reject(self) -> None:
        """Make the message a dead letter."""
        if self.committed is None:
            await super().reject()
            await self.raw_message.retry(delay_level=DEAD_LETTER)


@attrs.frozen
class Subscriber:
    """One handler, and how it gets its messages."""

    handler: Callable[..., Any]
    topic: str
    group: str
    tags: str
    ack_policy: AckPolicy
    max_workers: int


class LedgerMQBroker:
    """Sends messages, and calls the handlers of subscribers within its lifespan.

    Args:
        namesrv: the name servers; by default `$LEDGERMQ_NAMESRV`.
    """

    def __init__(self, namesrv: str | Sequence[str] | None = None) -> None:
        self._namesrv = namesrv
        self._subscribers: list[Subscriber] = []
        self._result_topics: dict[Callable[..., Any], list[str]] = {}
        self._producer: aio.AioProducer | None = None
        self._logger = logging.getLogger("faststream.access.ledgermq")

    def subscriber(
        self,
        topic: str,
        *,
        group: str,
        tags: str = "*",
        ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR,
        max_workers: int = 1,
    ) -> Callable[[Handler], Handler]:
        """Call the decorated function with every message of a topic, as a member of a consumer group.

        Args:
            topic: it is read from its first message if the group has not read it before.
            group: one for each handler, because the members of a group have the same topics.
            tags: which messages, such as `"a || b"`.
            ack_policy: what becomes of a message whose handler raises; FastStream's exceptions `AckMessage`, `NackMessage` and
                `RejectMessage` decide it in any case.
            max_workers: how many messages are handled at the same time.

        Raises:
            SetupError: the policy is `MANUAL`, or another handler has the group. The function was not registered.
        """
        if ack_policy is AckPolicy.MANUAL:
            raise SetupError(
                "a message whose handler has returned is acknowledged: raise NackMessage instead of AckPolicy.MANUAL"
            )
        if any(group == other.group for other in self._subscribers):
            raise SetupError(f"another handler of this broker is in the group {group!r}: each one needs its own")

        def register(handler: Handler) -> Handler:
            self._subscribers.append(Subscriber(handler, topic, group, tags, ack_policy, max_workers))
            return handler

        return register

    def publisher(self, topic: str) -> Callable[[Handler], Handler]:
        """Send what the decorated subscriber returns to a topic, unless that is None, before its message is acknowledged."""

        def register(handler: Handler) -> Handler:
            self._result_topics.setdefault(handler, []).append(topic)
            return handler

        return register

    async def publish(
        self,
        body: object,
        topic: str,
        *,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
        tag: str | None = None,
        keys: Sequence[str] = (),
        delay_level: int = 0,
    ) -> SendResult:
        """Send a body and wait for the broker's acknowledgement: bytes and text as they are, everything else as JSON.

        Raises:
            IncorrectState: the broker's lifespan has not begun. Nothing was sent.
            ClientError: as `AioProducer.send`.
        """
        if self._producer is None:
            raise IncorrectState("the broker has not been started: its lifespan has not begun, and nothing was sent")
        encoded, content_type = encode_message(body, PydanticSerializer())  # type: ignore[arg-type] # any that pydantic knows
        properties = {**(headers or {}), CORRELATION_ID: correlation_id or gen_cor_id()}
        if content_type:
            properties[CONTENT_TYPE] = content_type
        return await self._producer.send(
            Message(topic, encoded, tag=tag, keys=keys, delay_level=delay_level, properties=properties)
        )

    @asynccontextmanager
    async def lifespan(self, context: ContextRepo) -> AsyncGenerator[None]:
        """Open the clients, run the handlers, and let them finish what they have at the end, for `STOP_SECONDS` at most."""
        async with (
            AsyncExitStack() as clients,
            aio.open_producer(self._namesrv) as self._producer,
            asyncio.TaskGroup() as group,
        ):
            running: dict[asyncio.Task[None], aio.AioConsumer] = {}
            for subscriber in self._subscribers:
                topics = {subscriber.topic: subscriber.tags}
                consumer: aio.AioConsumer = await clients.enter_async_context(
                    aio.open_consumer(self._namesrv, subscriber.group, topics, ack="explicit", consume_from=ConsumeFrom.FIRST)
                )
                call = apply_types(subscriber.handler, cast_result=False, context__=context)
                deliver = partial(self._deliver, subscriber, call, context)
                running[group.create_task(consumer.process(deliver, tasks=subscriber.max_workers))] = consumer
            try:
                yield
            finally:
                for consumer in running.values():
                    consumer.stop()
                if running:
                    await asyncio.wait(running, timeout=STOP_SECONDS)
                for task in running:
                    task.cancel()  # what its handlers have not finished by now comes again

    async def _deliver(
        self, subscriber: Subscriber, call: Callable[..., Any], context: ContextRepo, received: aio.AioMessage[bytes]
    ) -> None:
        """Call a handler with a message; the consumer acknowledges what this returns from, and retries what it raises from."""
        headers = dict(received.properties)
        message = LedgerMQMessage(
            received,
            received.body,
            headers=headers,
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=received.message_id,
        )
        with context.scope("message", message), context.scope("broker", self), context.scope("logger", self._logger):
            try:
                if subscriber.ack_policy is AckPolicy.ACK_FIRST:
                    await message.ack()
                body = decode_message(message)
                result = await call(body) if iscoroutinefunction(call) else await asyncio.to_thread(call, body)
                await self._publish_result(subscriber, result, message)
            except AckMessage:
                await message.ack()
            except NackMessage as nack:
                await message.nack(**nack.extra_options)
            except RejectMessage:
                await message.reject()
            except HandlerException:
                pass  # a handler that skips a message is done with it
            except Exception:
                if subscriber.ack_policy is AckPolicy.ACK:
                    await message.ack()
                elif subscriber.ack_policy is AckPolicy.REJECT_ON_ERROR:
                    await message.reject()
                raise

    async def _publish_result(self, subscriber: Subscriber, result: object, message: LedgerMQMessage) -> None:
        response = ensure_response(result)
        if response.body is None:
            return
        for topic in self._result_topics.get(subscriber.handler, ()):
            await self.publish(
                response.body,
                topic,
                headers=response.headers,
                correlation_id=response.correlation_id or message.correlation_id,
            )


class LedgerMQApp(FastStream):
    """An application of FastStream all of whose messages come from the lifespan of a `LedgerMQBroker`."""

    def __init__(self, *, lifespan: Lifespan) -> None:
        super().__init__(lifespan=lifespan)

    async def start(self, **_: Any) -> None:
        """Begin nothing: FastStream would demand one of its own brokers here, and the lifespan has begun."""

    def on_startup(self, func: Callable[..., Any]) -> NoReturn:
        """Refuse a hook that would not run."""
        raise SetupError(f"{func} was not registered: let it run in the lifespan, before or after that of the broker")

    after_startup = on_startup
