"""The common part of consumers in threads of their own: what has crossed to the application, and what is handed out of it."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from ledgermq import blocking
from ledgermq.client.aio.clients import AioConsumer, AioMessage
from ledgermq.client.aio.host import Opening
from ledgermq.client.blocking import BlockingConsumer, BlockingHost, BlockingMessage, BlockingProducer, BlockingPullConsumer
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError, Closed, InvalidArgument, OtherProcess, Stopped
from ledgermq.client.hosted import HostedConsumer, HostedIteration
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.client.received import GIVEN_BACK, HANDED_OUT, PulledAnswer, ReceivedMessage
from ledgermq.client.sending import SendResult
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message, MessageQueue
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.sim.threads import SimLock, SimThread, SimThreadLoop, current_thread
from ledgermq.world.threads import Call, LoopEndedError, opened_in_thread

from .fake_cluster import NAMESRV, open_cluster, until
from .test_consumer import fill
from .test_orderly import LOCK, consuming, members_changed
from .test_received import Recorder

PATIENCE_SECONDS = 60


@attrs.define(eq=False)
class ThreadlessHost:
    """Runs at once what is for the client's thread."""

    client: Any = attrs.field(
        factory=lambda: SimpleNamespace(stopped=False, stop=lambda: None, options=SimpleNamespace(ack="auto", orderly=False))
    )

    def soon(self, function: Callable[[], object]) -> None:
        function()


def made(count: int) -> tuple[Recorder, Any, list[ReceivedMessage]]:
    origin, answer = Recorder(), PulledAnswer(30)
    messages = [ReceivedMessage(origin, b"", 0, 10, offset, answer) for offset in range(count)]
    for message in messages:
        message.state = HANDED_OUT
    return origin, HostedConsumer[Any](ThreadlessHost()), messages


def test_what_was_moved_meanwhile_is_not_handed_out() -> None:
    """The next message that is still to be handled is, from loops and lists alike."""
    origin, consumer, messages = made(4)
    messages[0].state = messages[2].state = GIVEN_BACK
    waiting = deque(messages[:2])

    assert consumer.at_hand(waiting) is messages[1]
    assert consumer.at_hand(waiting) is None
    assert origin.retried == [(0, 0)]
    consumer.fetched.extend(messages[2:])
    assert consumer.fetched_before(5) == messages[3:]


def test_what_has_crossed_of_a_queue_that_hands_out_nothing_is_put_back() -> None:
    """In its order; of a queue that is paused it comes again after `resume`."""
    origin, consumer, messages = made(3)
    origin.withheld = True

    assert consumer.at_hand(deque(messages)) is None
    assert origin.retried == [(2, 0), (1, 0), (0, 0)]


def test_a_stopped_consumer_hands_out_nothing_at_once() -> None:
    """Not even what has crossed already."""
    _, consumer, messages = made(1)
    consumer.stop()

    assert consumer.stopped
    with pytest.raises(Stopped):
        consumer.at_hand(deque(messages))


def test_the_last_loop_leaves_nothing_behind() -> None:
    """What it has in hand comes again, and so does what no loop has seen; other loops are waited for."""
    origin, consumer, messages = made(3)
    one, other = HostedIteration[Any](consumer, True), HostedIteration[Any](consumer, True)
    consumer.fetched.extend(messages[1:])
    one.hand_out(messages[0])

    del one
    assert origin.retried == [(0, 0)]
    del other
    assert origin.retried == [(0, 0), (2, 0), (1, 0)]


@pytest.mark.parametrize("shell", [BlockingMessage, AioMessage])
def test_a_message_is_out_of_hand_as_soon_as_it_is_acknowledged(shell: Any) -> None:
    """The client's thread may come to it much later; a client that refuses to acknowledge leaves it in hand."""
    passed: list[Callable[[], object]] = []

    def refuse(_: object) -> None:
        raise Closed("the client is closed")

    origin, _, messages = made(2)
    message, refused = (
        shell(received, SimpleNamespace(soon=soon)) for received, soon in zip(messages, (passed.append, refuse), strict=True)
    )
    ack = message.ack_now if shell is AioMessage else message.ack
    assert message.in_hand
    ack()
    assert not message.in_hand
    assert origin.acked == []
    passed.pop()()
    assert origin.acked == [0]
    with pytest.raises(Closed):
        refused.ack_now() if shell is AioMessage else refused.ack()
    assert refused.in_hand


def test_a_block_that_outlives_its_consumer_acknowledges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get its messages, so it must not end as if it had finished them."""
    origin, consumer, messages = made(1)

    def closed(_: Recorder) -> None:
        raise Closed("the consumer is closed")

    with pytest.raises(Closed), consumer.finishing(messages):
        monkeypatch.setattr(Recorder, "check_open", closed)

    assert origin.acked == []


@asynccontextmanager
async def producing(*, when_sent: Callable[[RemotingCommand], None] | None = None) -> AsyncGenerator[Producer]:
    """A producer and its broker, which may call a function with the first request of each kind instead of answering it."""
    async with open_cluster() as cluster, open_producer(NAMESRV, world=cluster.world) as producer:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        if when_sent is not None:
            for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                broker.script(code, when_sent)
        yield producer


@pytest.mark.parametrize("way", ["send", "send_batch", "send_many"])
def test_a_send_under_way_when_its_client_is_cancelled_may_have_been_stored(way: str) -> None:
    """Its request has left; a send that begins later is certainly not stored."""
    left, errors, threads = threading.Event(), list[ClientError](), list[threading.Thread]()
    held = partial(producing, when_sent=lambda _: left.set())

    def send() -> None:
        message = Message("t", b"x")
        try:
            getattr(producer, way)(message if way == "send" else [message])
        except ClientError as error:
            errors.append(error)

    with suppress(ZeroDivisionError), opened_in_thread(held, "client") as (client, loop):
        producer = BlockingProducer(BlockingHost(client, loop))
        threads.append(threading.Thread(target=send))
        threads[0].start()
        assert left.wait(PATIENCE_SECONDS)
        raise ZeroDivisionError
    threads[0].join(PATIENCE_SECONDS)
    send()

    assert [(type(error), error.may_have_been_stored) for error in errors] == [(Closed, True), (Closed, False)]


@pytest.mark.parametrize("way", ["send_batch", "send_many"])
def test_messages_are_made_in_the_thread_that_sends_them(way: str) -> None:
    """A cursor of a database works in no other one, and a slow generator would hold up the client."""
    made_in: list[threading.Thread] = []

    def rows() -> Generator[Message]:
        for number in range(2):
            made_in.append(threading.current_thread())
            yield Message("t", b"%d" % number)

    with opened_in_thread(producing, "client") as (client, loop):
        producer = BlockingProducer(BlockingHost(client, loop))
        assert [type(result) for result in getattr(producer, way)(rows())] == [SendResult] * 2
        with pytest.raises(InvalidArgument, match="several Messages"):
            getattr(producer, way)(Message("t", b""))

    assert made_in == [threading.current_thread()] * 2


@asynccontextmanager
async def failing_consumer(*, fails: trio.Event) -> AsyncGenerator[Consumer]:
    """A consumer one of whose tasks fails at an event."""

    async def fail() -> None:
        await fails.wait()
        raise ZeroDivisionError

    async with open_cluster() as cluster:
        await cluster.start_broker("b1")
        cluster.create("t", 1)
        async with trio.open_nursery() as nursery, open_consumer(NAMESRV, "g", "t", world=cluster.world) as consumer:
            nursery.start_soon(fail)
            yield consumer


FAILED = pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True)


def test_whoever_uses_a_client_that_has_failed_learns_why() -> None:
    """Its thread has ended, and nothing else of the failure is left."""
    fails = trio.Event()
    with FAILED, opened_in_thread(partial(failing_consumer, fails=fails), "client") as (client, loop):
        loop.soon(fails.set)
        loop.thread.join(PATIENCE_SECONDS)
        consumer = BlockingConsumer(BlockingHost(client, loop))
        with pytest.raises(Closed) as raised:
            consumer.run(print)
        assert FAILED.matches(raised.value.__cause__)
        consumer.stop()
        with pytest.raises(Closed):
            consumer.run(print)


def test_whoever_uses_a_client_for_asyncio_that_has_failed_learns_why() -> None:
    """A call that was under way, and a service."""

    fails = trio.Event()

    async def wait() -> None:
        fails.set()
        await trio.sleep_forever()

    async def main() -> None:
        opening: Opening[Consumer, AioConsumer] = Opening(failing_consumer, AioConsumer, (), {"fails": fails})
        async with opening as consumer:
            with pytest.raises(Closed) as under_way:
                await consumer.host.run(wait)
            ended = under_way.value.__cause__
            assert isinstance(ended, LoopEndedError)
            assert FAILED.matches(ended.__cause__)
            with pytest.raises(Closed) as raised:
                await consumer.process(print)
            assert FAILED.matches(raised.value.__cause__)
            consumer.stop()
            with pytest.raises(Closed):
                await consumer.process(print)

    with FAILED:
        asyncio.run(main())


def test_a_position_counts_nothing_that_an_interrupted_poll_took() -> None:
    """What it took is put back in the client's thread, so the position is asked for there, too."""

    @asynccontextmanager
    async def polling() -> AsyncGenerator[PullConsumer]:
        async with open_cluster() as cluster, open_pull_consumer(NAMESRV, "g", world=cluster.world) as consumer:
            broker = await cluster.start_broker("b1")
            cluster.create("t", 1)
            fill(broker, 5)
            await consumer.assign(await consumer.queues("t"))
            yield consumer

    with opened_in_thread(polling, "client") as (client, loop):
        consumer = BlockingPullConsumer(BlockingHost(client, loop))
        (queue,) = consumer.assignment()
        polled, gate = threading.Event(), threading.Event()
        loop.begin(poll := Call(client.poll, client.unpoll, polled.set))
        assert polled.wait(PATIENCE_SECONDS)
        loop.soon(gate.wait)
        loop.abandon(poll)
        threading.Timer(0.1, gate.set).start()
        assert consumer.position(queue) == 0


def test_one_queue_in_place_of_several_is_refused() -> None:
    """As in the trio client, by name."""
    consumer: HostedConsumer[Any] = HostedConsumer(cast("Any", ThreadlessHost()))
    with pytest.raises(InvalidArgument, match="queues must be several"):
        consumer.pause(cast("Any", MessageQueue("t", "b1", 0)))


def test_threads_have_no_async_callbacks() -> None:
    """None of their event loops could run one, so it is refused before anything is opened."""

    async def assigned(_: object) -> None: ...

    opening = blocking.open_consumer("10.0.0.9:9876", "g", "t", on_assigned=assigned)
    with pytest.raises(InvalidArgument, match="on_assigned must not be async"):
        opening.__enter__()


def test_a_consumer_may_be_stopped_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in trio: what ends a service may come to a consumer that has ended by itself. A forked process has no consumer."""
    with opened_in_thread(partial(failing_consumer, fails=trio.Event()), "client") as (client, loop):
        consumer = BlockingConsumer(BlockingHost(client, loop))
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: -1)
            with pytest.raises(OtherProcess):
                consumer.stop()
        loop.end(cancel=True)
    consumer.stop()

    assert consumer.stopped


async def loop_in_threads(consumer: Consumer, handle: Callable[[MessageQueue], None], threads: int = 1) -> None:
    """Loops of several threads over one consumer, which call `handle` with the queue of each message."""
    loop = cast("Any", SimThreadLoop(random.Random(0)))
    shell = BlockingConsumer(BlockingHost(consumer, loop), fetching=cast("Any", SimLock()))

    def run() -> None:
        for message in shell:
            handle(message.queue)

    async with trio.open_nursery() as nursery:
        for _ in range(threads):
            nursery.start_soon(SimThread(run).drive)


@pytest.mark.parametrize("orderly", [False, True])
async def test_nothing_of_a_queue_that_was_given_away_is_handed_out(autojump_clock: MockClock, orderly: bool) -> None:
    """Many of its messages have crossed to the application; the next member gets them, and does not wait for them."""
    revoked: list[MessageQueue] = []
    handled: list[MessageQueue] = []

    def handle(queue: MessageQueue) -> None:
        assert queue not in revoked
        current_thread().sleep(1)
        handled.append(queue)

    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 2)
        for queue_id in range(2):
            fill(broker, 100, queue_id=queue_id)
        options: dict[str, Any] = {"orderly": orderly, "consume_from": ConsumeFrom.FIRST, "world": cluster.world}
        async with (
            open_consumer(NAMESRV, "g", "t", instance_name="a", on_revoked=revoked.extend, **options) as one,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(partial(loop_in_threads, one, handle, threads=2))
            await until(lambda: len(handled) == 6)
            async with open_consumer(NAMESRV, "g", "t", instance_name="b", **options) as two:
                members_changed(broker)
                await until(lambda: bool(revoked), 5)
                await until(lambda: two.queues == revoked, 25)
                if orderly:
                    message = await two.get_one()
                    assert message is not None
                    assert message.queue_offset == handled.count(message.queue)
                before = len(handled)
                await trio.sleep(10)
                assert len(handled) >= before + 9, "the other queue goes on"
                held = sum(source.assigned.held_bytes for source in one.sources.values())
                assert one.statistics().held_bytes == held
                nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["lost", "expired"])
async def test_a_loop_in_a_thread_ends_with_the_lock_of_its_queue(autojump_clock: MockClock, how: str) -> None:
    """Another member may have the queue then, so nothing that has crossed before is handed out."""
    began: list[float] = []

    def handle(_: MessageQueue) -> None:
        began.append(current_thread().now)
        current_thread().sleep(2)

    async with open_cluster() as cluster:
        broker = await cluster.start_broker("b1")
        cluster.create("t", 1)
        fill(broker, 100)
        async with consuming(cluster, "a") as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(loop_in_threads, consumer, handle)
            await trio.sleep(5)
            if how == "lost":
                broker.locks["t", 0] = "another"
            else:
                broker.refuse(LOCK, ResponseCode.SYSTEM_ERROR, times=1000)
            await trio.sleep(90)
            nursery.cancel_scope.cancel()

    assert max(began) == pytest.approx(20 if how == "lost" else 30, abs=3)
