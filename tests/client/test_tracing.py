"""Spans of sends and handlers, which one trace connects across processes, and none without being asked for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import default_getter, default_setter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from trio.testing import MockClock

from ledgermq import aio, blocking
from ledgermq.client import tracing
from ledgermq.client.aio.clients import AioMessage
from ledgermq.client.blocking import BlockingMessage
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError, InvalidArgument
from ledgermq.client.producer import open_producer
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.testing.embedded import start_embedded

from .fake_cluster import NAMESRV, open_cluster

FIRST = ConsumeFrom.FIRST


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Generator[InMemorySpanExporter]:
    """The spans that end during the test, while all clients are traced."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def tracer(*_: object) -> trace.Tracer:
        return provider.get_tracer("test")

    monkeypatch.setattr(trace, "get_tracer", tracer)
    tracing.instrument()
    tracing.instrument()
    yield exporter
    tracing.uninstrument()
    provider.shutdown()


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


async def test_a_handler_continues_the_trace_of_the_send(autojump_clock: MockClock, spans: InMemorySpanExporter) -> None:
    """With the attributes of the conventions; one that raises marks its span as failed."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            result = await producer.send(Message("t", b"0", tag="a", keys=["k"]))

        async def handle(message: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()
            consumer.stop()
            raise LookupError("no customer")

        async with open_consumer(NAMESRV, "g", "t", consume_from=FIRST, world=cluster.world) as consumer:
            await consumer.process(handle)
    send, process = spans.get_finished_spans()
    assert (send.name, send.kind, process.name, process.kind) == (
        "send t",
        trace.SpanKind.PRODUCER,
        "process t",
        trace.SpanKind.CONSUMER,
    )
    assert process.parent is not None
    assert (process.parent.trace_id, process.parent.span_id) == ids(send)
    assert send.attributes is not None
    assert process.attributes is not None
    assert send.attributes["messaging.message.id"] == process.attributes["messaging.message.id"] == result.message_id
    assert process.attributes["messaging.consumer.group.name"] == "g"
    assert send.attributes["messaging.rocketmq.message.tag"] == "a"
    assert send.attributes["messaging.system"] == process.attributes["messaging.system"] == "rocketmq"
    assert process.status.status_code is trace.StatusCode.ERROR


async def test_a_batch_has_one_span_and_its_processing_links(autojump_clock: MockClock, spans: InMemorySpanExporter) -> None:
    """Work on messages of two sends is linked to both."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            await producer.send_batch([Message("t", b"0"), Message("t", b"1")])
            await producer.send_many(Message("t", b"%d" % number) for number in range(2, 4))
            assert await producer.send_many([]) == []
            with pytest.raises(InvalidArgument):
                await producer.send_batch([])
            with pytest.raises(ClientError):
                await producer.send(Message("no topic", b""))
        async with (
            open_consumer(NAMESRV, "g", "t", consume_from=FIRST, world=cluster.world) as consumer,
            consumer.take(4) as found,
        ):
            messages = list(found)
            while len(messages) < 4:
                messages += await consumer.get_many(4)
            with tracing.processing(*messages):
                pass
    batch, many, refused, work = spans.get_finished_spans()
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert refused.status.status_code is trace.StatusCode.ERROR
    assert [(link.context.trace_id, link.context.span_id) for link in work.links] == [ids(batch)] * 2 + [ids(many)] * 2
    assert work.parent is None


@pytest.mark.parametrize("way", ["send", "send_oneway", "send_many", "send_batch"])
async def test_a_traced_method_takes_what_it_took_before(
    autojump_clock: MockClock, spans: InMemorySpanExporter, way: str
) -> None:
    """Its messages may have their name, and what it refuses it refuses as before."""
    name, several = ("message", False) if way in ("send", "send_oneway") else ("messages", True)
    message: Message = Message("t", b"0")
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            send = getattr(producer, way)
            await send(**{name: [message] if several else message})
            with pytest.raises(InvalidArgument):
                await send(message if several else [message])
            with pytest.raises(TypeError, match="argument"):
                await send()
            await trio.testing.wait_all_tasks_blocked()
    assert broker.bodies("t") == [b"0"]
    sent, *refused = spans.get_finished_spans()
    assert sent.status.status_code is trace.StatusCode.UNSET
    assert [span.status.status_code for span in refused] == [trace.StatusCode.ERROR]


def test_every_kind_of_client_makes_one_span_for_a_send(spans: InMemorySpanExporter) -> None:
    """In the context of the caller, though the client runs in a thread of its own."""
    with start_embedded() as cluster:
        tracer = trace.get_tracer("test")

        async def main() -> None:
            async with aio.open_producer(cluster.namesrv, send_timeout_seconds=60) as producer:
                with tracer.start_as_current_span("request"):
                    await asyncio.gather(*(producer.send(Message("t", b"%d" % number)) for number in range(3)))
            async with aio.open_consumer(cluster.namesrv, "g", "t", consume_from=FIRST) as consumer:
                seen: list[bytes] = []

                async def handle(message: AioMessage) -> None:
                    await asyncio.sleep(0)
                    seen.append(message.body)
                    if len(seen) == 3:
                        consumer.stop()

                await consumer.process(handle)

        asyncio.run(main())
        found = {span.name: span for span in spans.get_finished_spans()}
        assert [span.name for span in spans.get_finished_spans()].count("send t") == 3
        assert [span.name for span in spans.get_finished_spans()].count("process t") == 3
        assert len({ids(span)[0] for span in spans.get_finished_spans()}) == 1
        assert "request" in found
        spans.clear()
        with blocking.open_producer(cluster.namesrv, send_timeout_seconds=60) as producer:
            producer.send(Message("u", b"0"))
        with blocking.open_consumer(cluster.namesrv, "h", "u", consume_from=FIRST) as consumer:

            def handle_in_thread(message: BlockingMessage) -> None:
                consumer.stop()

            consumer.run(handle_in_thread)
        assert sorted(span.name for span in spans.get_finished_spans()) == ["process u", "send u"]


class OtherPropagator(TraceContextTextMapPropagator):
    """Carries traces in another field than the W3C's, as that of B3 does."""

    def inject(self, carrier: Any, context: Any = None, setter: Any = default_setter) -> None:
        found: dict[str, str] = {}
        super().inject(found, context)
        setter.set(carrier, "b3", found["traceparent"])

    def extract(self, carrier: Any, context: Any = None, getter: Any = default_getter) -> Context:
        (given,) = getter.get(carrier, "b3") or ("",)
        return super().extract({"traceparent": given}, context)


@pytest.fixture
def other_propagator() -> Generator[None]:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(OtherPropagator())
    yield
    propagate.set_global_textmap(before)


@pytest.mark.usefixtures("other_propagator")
def test_a_send_has_one_span_with_any_propagator(spans: InMemorySpanExporter) -> None:
    """The client in front marks its messages by whatever field carries their trace, and its consumer finds that."""
    with start_embedded() as cluster:
        with blocking.open_producer(cluster.namesrv, send_timeout_seconds=60) as producer:
            producer.send(Message("t", b"0"))
        with blocking.open_consumer(cluster.namesrv, "g", "t", consume_from=FIRST) as consumer:
            message = consumer.get_one(60)
            assert message is not None
            with tracing.processing(message):
                pass
    sent, work = spans.get_finished_spans()
    assert work.parent is not None
    assert work.parent.span_id == ids(sent)[1]


async def test_a_message_that_failed_among_many_is_an_error_of_their_span(
    autojump_clock: MockClock, spans: InMemorySpanExporter
) -> None:
    """Nothing is raised for it, so it would not be seen otherwise."""
    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            await producer.send_many([Message("t", b"0"), Message("no topic", b"1")])
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "1 of 2 messages failed"


def test_nothing_of_opentelemetry_is_imported_without_being_asked_for() -> None:
    program = (
        "import sys, ledgermq, ledgermq.aio, ledgermq.blocking; ledgermq.open_producer; ledgermq.open_consumer; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


async def test_a_client_is_as_before_when_tracing_has_ended(autojump_clock: MockClock, spans: InMemorySpanExporter) -> None:
    tracing.uninstrument()
    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with open_producer(NAMESRV, world=cluster.world) as producer:
            await producer.send(Message("t", b"0"))
    assert spans.get_finished_spans() == ()
    assert broker.bodies("t") == [b"0"]
    unused: Any = tracing.processing()
    with pytest.raises(InvalidArgument, match="at least one message"), unused:
        pass
