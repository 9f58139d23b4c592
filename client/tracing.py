"""Traces of OpenTelemetry for clients: spans after its conventions for messaging, and their context in messages.

It needs the extra `otel`, and nothing of it is imported before a program asks for it. `instrument` lets all clients of the
process trace their sends and their handlers; a program that takes messages in a loop of its own marks its work by
`processing`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from inspect import isawaitable, iscoroutinefunction, signature
from typing import Any, cast

import attrs

from ..message.message import Message
from .aio.clients import AioConsumer, AioProducer
from .blocking import BlockingConsumer, BlockingProducer
from .errors import ClientError, InvalidArgument
from .producer import Producer
from .push_consumer import Consumer
from .received import RecordView
from .sending import SendResult

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
except ImportError as error:
    raise ImportError("traces need OpenTelemetry: install ledgermq[otel]") from error

SYSTEM = "rocketmq"

_originals: dict[tuple[type, str], Callable[..., Any]] = {}
"""The methods that `instrument` has replaced."""


def _tracer() -> trace.Tracer:
    return trace.get_tracer("ledgermq")


def _attributes(topic: str, operation: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


@contextmanager
def publishing(messages: Iterable[Message[Any]]) -> Generator[list[Message[Any]]]:
    """A span for sending messages, which gives them with the properties by which their consumers continue the trace.

    These are those of the propagator of OpenTelemetry, by default `traceparent`; a message that has one of them already keeps
    it. An exception in the block is recorded in the span.
    """
    several = list(messages)
    topics = {message.topic for message in several}
    topic = topics.pop() if len(topics) == 1 else "(several)"
    with _tracer().start_as_current_span(f"send {topic}", kind=trace.SpanKind.PRODUCER) as span:
        span.set_attributes(_attributes(topic, "send", "send"))
        if len(several) == 1:
            if several[0].keys:
                span.set_attribute("messaging.rocketmq.message.keys", list(several[0].keys))
            if several[0].tag:
                span.set_attribute("messaging.rocketmq.message.tag", several[0].tag)
        else:
            span.set_attribute("messaging.batch.message_count", len(several))
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        yield [attrs.evolve(message, properties={**carrier, **message.properties}) for message in several]


@contextmanager
def processing(*messages: RecordView[Any], group: str | None = None) -> Generator[trace.Span]:
    """A span for the work of an application on messages: of one message within its trace, of several linked to theirs.

    An exception in the block is recorded in the span and passes on.
    """
    if not messages:
        raise InvalidArgument("a span for processing needs at least one message")
    first = messages[0]
    origins = [_origin(message.properties) for message in messages]
    with _tracer().start_as_current_span(
        f"process {first.topic}",
        context=propagate.extract(first.properties, Context()) if len(messages) == 1 else None,
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(origin) for origin in origins if origin.is_valid] if len(messages) > 1 else None,
        attributes=_attributes(first.topic, "process", "process"),
    ) as span:
        if group is not None:
            span.set_attribute("messaging.consumer.group.name", group)
        if len(messages) == 1:
            span.set_attribute("messaging.message.id", first.message_id)
            span.set_attribute("messaging.destination.partition.id", str(first.queue.queue_id))
        else:
            span.set_attribute("messaging.batch.message_count", len(messages))
        yield span


def instrument() -> None:
    """Trace all sends, and all handlers of `process` and `run`, of all clients of this process, those open already included.

    A second call changes nothing. Sends without acknowledgement are traced too.
    """
    for producer in (Producer, AioProducer, BlockingProducer):
        for name in ("send", "send_oneway", "send_many", "send_batch"):
            _replace(producer, name, _sends)
    for consumer, name in ((Consumer, "process"), (AioConsumer, "process"), (BlockingConsumer, "run")):
        _replace(consumer, name, _handles)


def uninstrument() -> None:
    """End what `instrument` has begun."""
    while _originals:
        (owner, name), original = _originals.popitem()
        setattr(owner, name, original)


def _replace(owner: type, name: str, traced: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    if (owner, name) not in _originals:
        original = _originals[owner, name] = getattr(owner, name)
        setattr(owner, name, wraps(original)(traced(original)))


def _note(result: object) -> None:
    """Set attributes of the current span, which is that of the send, by its result."""
    span = trace.get_current_span()
    if isinstance(result, SendResult):
        span.set_attribute("messaging.message.id", result.message_id)
        span.set_attribute("messaging.destination.partition.id", str(result.queue.queue_id))
    elif isinstance(result, list):
        outcomes = cast("list[object]", result)
        if failed := sum(isinstance(outcome, ClientError) for outcome in outcomes):
            span.set_status(trace.StatusCode.ERROR, f"{failed} of {len(outcomes)} messages failed")


def _ignore(result: object) -> None: ...


def _untraced(given: Sequence[object]) -> bool:
    """Whether these are messages, and no client in front of this one has traced them."""
    return bool(given) and all(isinstance(each, Message) and not _origin(each.properties).is_valid for each in given)


def _origin(properties: Mapping[str, str]) -> trace.SpanContext:
    """The span that a message names, by whatever fields the propagator of the process uses."""
    return trace.get_current_span(propagate.extract(properties, Context())).get_span_context()


def _sends(send: Callable[..., Any]) -> Callable[..., Any]:
    """A sending method with a span; it takes the same arguments."""
    arguments = signature(send)
    (_, parameter, *_) = arguments.parameters

    @contextmanager
    def publish(*args: Any, **options: Any) -> Generator[tuple[Callable[[], Any], Callable[[object], None]]]:
        """Give the call to make, and what to do with its result."""
        bound = arguments.bind(*args, **options)
        given = bound.arguments[parameter]
        several = isinstance(given, Iterable) and not isinstance(given, str | bytes)
        messages: list[Any] = list(given) if several else [given]  # pyright: ignore[reportUnknownArgumentType]
        with publishing(messages) if _untraced(messages) else nullcontext() as marked:
            sent = messages if marked is None else marked
            bound.arguments[parameter] = sent if several else sent[0]
            yield partial(send, *bound.args, **bound.kwargs), _ignore if marked is None else _note

    async def traced(*args: Any, **options: Any) -> Any:
        with publish(*args, **options) as (call, note):
            result = await call()
            note(result)
            return result

    def traced_in_thread(*args: Any, **options: Any) -> Any:
        with publish(*args, **options) as (call, note):
            result = call()
            note(result)
            return result

    return traced if iscoroutinefunction(send) else traced_in_thread


def _handles(process: Callable[..., Any]) -> Callable[..., Any]:
    """A method with a handler, each call of which gets a span."""

    async def traced(self: Any, handler: Callable[[Any], object], **options: Any) -> None:
        async def handle(message: RecordView[Any]) -> None:
            with processing(message, group=self.group):
                answer = handler(message)
                if isawaitable(answer):
                    await answer

        await process(self, handle if callable(handler) else handler, **options)

    def traced_in_thread(self: Any, handler: Callable[[Any], object], **options: Any) -> None:
        def handle(message: RecordView[Any]) -> None:
            with processing(message, group=self.group):
                handler(message)

        process(self, handle if callable(handler) else handler, **options)

    return traced if iscoroutinefunction(process) else traced_in_thread
