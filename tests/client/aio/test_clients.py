"""The clients for asyncio against a broker: what they hand out and take back, and what programs do to them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, cast

import pytest
import trio
import uvloop

from ledgermq import Message, MessageQueue, aio, blocking
from ledgermq.client.admin import Admin
from ledgermq.client.consumer import Consumer
from ledgermq.client.errors import Closed, InvalidArgument, WrongEventLoop
from ledgermq.client.producer import Producer
from ledgermq.client.pull import PullConsumer
from ledgermq.client.sending import SendResult
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.testing.embedded import Embedded, start_embedded

PATIENCE_SECONDS = 60
FIRST = ConsumeFrom.FIRST
STALE = ContextVar("STALE", default="")

Main = Callable[[], Coroutine[Any, Any, None]]


async def limited(program: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await program


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    """Runs a program in each of the two event loops."""
    loops: dict[str, Any] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

    def run_main(main: Main) -> None:
        with asyncio.Runner(loop_factory=loops[request.param]) as runner:
            runner.run(limited(main()))

    return run_main


def producer_of(cluster: Embedded) -> AbstractAsyncContextManager[aio.AioProducer[bytes]]:
    return aio.open_producer(cluster.namesrv, send_timeout_seconds=PATIENCE_SECONDS)


async def lag(cluster: Embedded, topic: str) -> int:
    """How much of a topic its group has not committed; each test has a group of its own, because retries come late."""
    async with aio.open_admin(cluster.namesrv) as admin:
        return sum(position.lag for position in (await admin.group_stats(topic, topic)).values())


def test_every_method_of_the_trio_clients_is_there() -> None:
    """With the same parameters; what only the trio client's own parts call is not."""
    internal = {
        "targets_changed", "close", "lanes", "options", "group",  # of a producer
        "receive", "take_now", "give_back_soon", "members_changed", "reset", "consume_directly", "join", "begin", "sources",
        "properties", "subscriptions", "monotonic",  # of a consumer
        "unpoll", "read_offset",  # of a pull consumer
    }  # fmt: skip
    pairs: list[tuple[type, type]] = [
        (Producer, aio.AioProducer),
        (Consumer, aio.AioConsumer),
        (PullConsumer, aio.AioPullConsumer),
        (Admin, aio.AioAdmin),
    ]
    for trio_client, ours in pairs:
        for name, value in inspect.getmembers(trio_client):
            if name.startswith("_") or name in internal:
                continue
            own = getattr(ours, name)
            if inspect.isfunction(value):
                parameters = [parameter.name for parameter in inspect.signature(value).parameters.values()]
                assert [each.name for each in inspect.signature(own).parameters.values()] == parameters, name
                assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(value), name


def test_what_is_sent_is_received(cluster: Embedded, run: Callable[[Main], None], topic: str) -> None:
    """By every way of sending, and all is acknowledged in the end."""

    async def main() -> None:
        async with producer_of(cluster) as producer:
            first = await producer.send(Message(topic, b"0"))
            assert isinstance(first, SendResult)
            await asyncio.gather(*(producer.send(Message(topic, b"%d" % number)) for number in range(1, 300)))
            results = await producer.send_many(
                [Message(topic, b"%d" % number) for number in range(300, 400)], key=lambda message: message.body.decode()[-1]
            )
            assert all(isinstance(result, SendResult) for result in results)
            await producer.send_batch([Message(topic, b"400"), Message(topic, b"401")])
            queues: tuple[MessageQueue, ...] = await producer.queues(topic)
            await producer.send(Message(topic, b"402"), selector=lambda _, message: queues[len(message.body)])
        seen: list[int] = []
        async with aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer:
            async for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 200:
                    await message.ack()
                    break
            assert sum(queue.end for queue in (await consumer.progress()).values()) == 403
            async with consumer.take(100) as messages:
                seen += [int(message.body) for message in messages]
            while len(seen) < 403:
                for message in await consumer.get_many(20):
                    seen.append(int(message.body))
                    await message.ack()
        assert sorted(seen) == list(range(403))
        assert await lag(cluster, topic) == 0

    run(main)


def test_concurrent_sends_keep_the_order_of_their_key(cluster: Embedded, topic: str, run: Callable[[Main], None]) -> None:
    """Tasks begin in the order in which they are made."""

    async def main() -> None:
        async with producer_of(cluster) as producer:
            await producer.send(Message(topic, b""), key="k")
            results = await asyncio.gather(*(producer.send(Message(topic, b"%d" % each), key="k") for each in range(600)))
        assert len({result.queue for result in results}) == 1
        offsets = [result.queue_offset for result in results]
        assert offsets == sorted(offsets)

    run(main)


def test_one_bad_send_does_not_fail_those_beside_it(cluster: Embedded, topic: str) -> None:
    """Each task gets its own error; two tasks never get the same object."""

    async def main() -> None:
        async with producer_of(cluster) as producer:
            await producer.send(Message(topic, b""))
            nowhere = MessageQueue(topic, "nowhere", 0)
            outcomes = await asyncio.gather(
                producer.send(Message(topic, b"a")),
                producer.send(Message(topic, b"b" * (5 << 20))),
                producer.send(Message("not a topic", b"c")),
                producer.send(Message(topic, b"d"), queue=nowhere),
                producer.send(Message(topic, b"e"), queue=nowhere),
                producer.send(Message(topic, b"f"), key="k", queue=nowhere),
                producer.send(Message(topic, b"g"), timeout_seconds=-1),
                producer.send(cast("Any", b"h")),
                producer.send(Message(cast("Any", []), b"i")),
                producer.send(Message(topic, b"j")),
                return_exceptions=True,
            )
        names = [type(outcome).__name__ for outcome in outcomes]
        assert names == ["SendResult", "MessageTooLarge", *["InvalidArgument"] * 7, "SendResult"]
        assert outcomes[3] is not outcomes[4]
        assert str(outcomes[3]) == str(outcomes[4])

    asyncio.run(limited(main()))


def test_a_cancelled_call_takes_no_message(cluster: Embedded, run: Callable[[Main], None], topic: str) -> None:
    """Wherever the cancellation meets it: while it waits, while the message crosses, or when it has come already."""

    async def main() -> None:
        async with (
            producer_of(cluster) as producer,
            aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer,
        ):
            for number in range(40):
                waiting = asyncio.create_task(consumer.get_one())
                sending = asyncio.create_task(producer.send(Message(topic, b"%d" % number)))
                for _ in range(number % 8):
                    await asyncio.sleep(0)
                if number % 3 == 0:
                    await sending
                waiting.cancel()
                (seen,) = await asyncio.gather(waiting, return_exceptions=True)
                if isinstance(seen, asyncio.CancelledError):
                    seen = await consumer.get_one()
                assert isinstance(seen, aio.AioMessage)
                assert int(seen.body) == number
                assert seen.reconsume_times == 0
                await seen.ack()
                await sending

    run(main)


def test_tasks_share_what_one_of_them_fetches(cluster: Embedded, topic: str, run: Callable[[Main], None]) -> None:
    """Several loops over one consumer, of which some are cancelled again and again: nothing waits for ever, nothing is lost."""

    async def main() -> None:
        seen: set[int] = set()
        async with (
            producer_of(cluster) as producer,
            aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer,
        ):
            enough = asyncio.Event()

            async def loop() -> None:
                async for message in consumer:
                    seen.add(int(message.body))
                    if len(seen) >= 1900:  # those whose loop was cancelled come again only after seconds
                        enough.set()
                    await asyncio.sleep(0)

            async def restart() -> None:
                while True:
                    task = asyncio.create_task(loop())
                    await asyncio.sleep(0.01)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

            tasks = [asyncio.create_task(each()) for each in (loop, restart, restart, loop)]
            await producer.send_many([Message(topic, b"%d" % number) for number in range(2000)])
            await enough.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(main)


def test_a_program_that_blocks_its_loop_is_served_meanwhile(cluster: Embedded, topic: str) -> None:
    """The client's thread fetches what others send, while no task of asyncio runs."""

    async def main() -> None:
        async with aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST, orderly=True) as consumer:
            with blocking.open_producer(cluster.namesrv, send_timeout_seconds=PATIENCE_SECONDS) as producer:
                producer.send(Message(topic, b"x"))
            sources = consumer.host.client.sources
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not any(source.assigned.buffered for source in list(sources.values())):
                assert time.monotonic() < deadline
                time.sleep(0.01)  # noqa: ASYNC251 - it blocks the loop

    asyncio.run(limited(main()))


def test_a_handler_fails_alone(cluster: Embedded, topic: str, run: Callable[[Main], None]) -> None:
    """By an exception, or because something that it waits for is cancelled; the tasks of `process` go on."""

    async def main() -> None:
        failed: list[int] = []
        seen: set[int] = set()
        async with (
            producer_of(cluster) as producer,
            aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer,
        ):
            await producer.send_many([Message(topic, b"%d" % number) for number in range(20)])

            async def handle(message: aio.AioMessage) -> None:
                number = int(message.body)
                if number in (3, 5) and number not in failed:
                    failed.append(number)
                    if number == 3:
                        raise ValueError("scripted")
                    future = asyncio.get_running_loop().create_future()
                    future.cancel()
                    await future
                seen.add(number)
                if len(seen) == 18:
                    consumer.stop()

            await consumer.process(handle, tasks=1)
        assert sorted(failed) == [3, 5]
        assert seen == set(range(20)) - {3, 5}

    run(main)


def test_a_handler_may_fail_after_it_has_acknowledged(cluster: Embedded, topic: str, run: Callable[[Main], None]) -> None:
    """Its message does not come again, also if the client's thread is too busy to note at once that it is done."""

    async def main() -> None:
        async with (
            producer_of(cluster) as producer,
            aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer,
        ):
            await producer.send_many([Message(topic, b"%d" % number) for number in range(3)])
            left = 3

            async def handle(message: aio.AioMessage) -> None:
                nonlocal left
                left -= 1
                if not left:
                    consumer.stop()
                consumer.host.soon(lambda: time.sleep(0.2))
                await message.ack()
                raise ValueError("scripted")

            await consumer.process(handle)
            assert (consumer.statistics().acknowledged, consumer.statistics().failed) == (3, 0)

    run(main)


@pytest.mark.parametrize(
    "ending",
    [
        "handlers end",
        *(pytest.param(e, marks=pytest.mark.slow) for e in ("stopped before", "time limit", "second signal")),
        "cancelled",
    ],
)
def test_a_signal_ends_a_service(cluster: Embedded, topic: str, run: Callable[[Main], None], ending: str) -> None:
    """Handlers finish what they have, unless they take too long; what the program does at signals otherwise is as before."""

    async def main() -> None:
        before = [signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGINT)]
        begun, done = 0, 0
        cut_off = ending not in ("handlers end", "stopped before")
        service: list[asyncio.Task[None]] = []
        async with (
            producer_of(cluster) as producer,
            aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer,
        ):
            await producer.send_many([Message(topic, b"%d" % number) for number in range(50)])

            async def handle(_: aio.AioMessage) -> None:
                nonlocal begun, done
                begun += 1
                if begun == 10:
                    if ending == "stopped before":
                        consumer.stop()
                    signal.raise_signal(signal.SIGTERM)
                    await asyncio.sleep(0.1)
                    if ending == "second signal":
                        signal.raise_signal(signal.SIGINT)
                    if ending == "cancelled":
                        service[0].cancel()
                    if cut_off:
                        await asyncio.sleep(PATIENCE_SECONDS)
                await asyncio.sleep(0.01)
                done += 1

            stop_seconds = 0.2 if ending == "time limit" else 30
            service.append(asyncio.create_task(consumer.run(handle, concurrency=4, stop_seconds=stop_seconds)))
            outcome = (await asyncio.gather(*service, return_exceptions=True))[0]
            await consumer.commit()
            assert consumer.stopped
        assert isinstance(outcome, asyncio.CancelledError) == (ending == "cancelled")
        assert done == begun - cut_off
        assert begun < 20
        assert [signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGINT)] == before

    run(main)


def test_context_variables_are_those_of_the_caller(cluster: Embedded, topic: str) -> None:
    """In handlers, keys and selectors."""

    async def main() -> None:
        STALE.set("mine")
        found: list[str] = []

        def key(_: Message) -> str:
            found.append(STALE.get())
            return "k"

        def selector(queues: Any, _: Message) -> Any:
            found.append(STALE.get())
            return queues[0]

        async with (
            producer_of(cluster) as producer,
            aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer,
        ):
            await producer.send(Message(topic, b"a"), selector=selector)
            await producer.send_batch([Message(topic, b"a")], selector=selector)
            await producer.send_many([Message(topic, b"b")], key=key)

            async def handle(_: aio.AioMessage) -> None:
                found.append(STALE.get())
                if len(found) == 6:
                    consumer.stop()

            await consumer.process(handle)
        assert found == ["mine"] * 6

    asyncio.run(limited(main()))


def test_a_pull_consumer_reads_and_is_cancelled(cluster: Embedded, topic: str, run: Callable[[Main], None]) -> None:
    """What a cancelled poll would have returned is returned by the next one."""

    async def main() -> None:
        async with producer_of(cluster) as producer, aio.open_pull_consumer(cluster.namesrv, topic) as consumer:
            queue = (await producer.send(Message(topic, b"0"))).queue
            await consumer.assign([queue])
            assert [message.body for message in await consumer.poll()] == [b"0"]
            for number in range(1, 20):
                waiting = asyncio.create_task(consumer.poll())
                sending = asyncio.create_task(producer.send(Message(topic, b"%d" % number), queue=queue))
                for _ in range(number % 8):
                    await asyncio.sleep(0)
                waiting.cancel()
                (seen,) = await asyncio.gather(waiting, return_exceptions=True)
                if isinstance(seen, asyncio.CancelledError):
                    seen = await consumer.poll()
                assert not isinstance(seen, BaseException)
                assert [int(message.body) for message in seen] == [number]
                await sending
            await consumer.commit()
            assert await consumer.committed(queue) == consumer.position(queue) == 20
            consumer.pause([queue])
            await producer.send(Message(topic, b"20"), queue=queue)
            assert await consumer.poll(timeout_seconds=0.1) == []
            consumer.resume([queue])
            assert [message.body for message in await consumer.poll()] == [b"20"]
            with pytest.raises(InvalidArgument, match="not assigned"):
                consumer.pause([MessageQueue(topic, "other", 0)])

    run(main)


def test_misuse_is_named(cluster: Embedded, topic: str) -> None:
    """Each error says what to do instead."""
    kept: list[Any] = []

    async def main() -> None:
        opening: Any = aio.open_producer(cluster.namesrv)
        with pytest.raises(AttributeError, match=r"use `async with ledgermq.aio.open_producer"):
            opening.send(Message(topic, b""))
        with pytest.raises(TypeError, match="not `await`"):
            await opening
        with pytest.raises(TypeError, match="async with"), opening:
            pass
        async with opening as producer:
            kept.append(producer)
        with pytest.raises(Closed, match="is closed"):
            await producer.send(Message(topic, b""))
        with pytest.raises(Closed, match="is closed"):
            await producer.send(Message(topic, b""))
        with pytest.raises(Closed, match="used already"):
            async with opening:
                pass
        with pytest.raises(InvalidArgument):
            async with aio.open_consumer(cluster.namesrv, "not a group", topic):
                pass

    async def use_elsewhere(use: Callable[[], Coroutine[Any, Any, object]]) -> None:
        with pytest.raises(WrongEventLoop, match="another event loop"):
            await use()

    async def in_two_loops() -> None:
        async with (
            producer_of(cluster) as producer,
            aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer,
        ):
            for use in (
                lambda: producer.send(Message(topic, b"")),
                consumer.get_one,
                consumer.commit,
                lambda: anext(aiter(consumer)),
            ):
                await asyncio.to_thread(asyncio.run, use_elsewhere(use))

    asyncio.run(limited(main()))
    asyncio.run(limited(in_two_loops()))
    with pytest.raises(WrongEventLoop, match=r"asyncio\.run"):
        kept[0].send(Message(topic, b"")).send(None)


def test_every_wait_raises_when_the_client_closes(cluster: Embedded, topic: str, run: Callable[[Main], None]) -> None:
    """A task that waits for messages, and one that comes later."""

    async def main() -> None:
        async with aio.open_consumer(cluster.namesrv, topic, topic) as consumer:
            waiting = [asyncio.create_task(consumer.get_one()), asyncio.create_task(anext(aiter(consumer)))]
            await asyncio.sleep(0.1)
        for task in waiting:
            with pytest.raises(Closed):
                await task
        with pytest.raises(Closed):
            await consumer.get_one()
        with pytest.raises(Closed):
            async for _ in consumer:
                pass

    run(main)


def test_a_cancelled_send_says_what_is_known(topic: str) -> None:
    """Also through `asyncio.timeout`, which makes a `TimeoutError` of it."""

    async def main() -> None:
        with start_embedded() as cluster:
            async with producer_of(cluster) as producer:
                await producer.send(Message(topic, b""))
                cluster.kill(cluster.master())
                with pytest.raises(TimeoutError) as timed_out:
                    async with asyncio.timeout(0.1):
                        await producer.send(Message(topic, b""))
                assert aio.may_have_been_stored(timed_out.value)
                assert aio.may_have_been_stored(Closed("", may_have_been_stored=True))

    asyncio.run(limited(main()))


def test_an_unclosed_client_warns_and_ends(cluster: Embedded, topic: str) -> None:
    """When it is collected, and not before."""

    async def main() -> None:
        producer: Any = await producer_of(cluster).__aenter__()
        gc.collect()
        await producer.send(Message(topic, b""))
        await producer.host.run(trio.lowlevel.checkpoint)  # the task of the send has ended in the client's thread
        thread: threading.Thread = producer.host._loop.thread
        with pytest.warns(ResourceWarning, match="unclosed <Producer"):
            producer = None
        await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
        assert not thread.is_alive()

    asyncio.run(limited(main()))


def test_opening_can_be_cancelled(topic: str) -> None:
    """While no name server answers; the client's thread has ended when the task ends."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), aio.open_consumer(f"127.0.0.1:{silent.getsockname()[1]}", topic, topic):
                raise AssertionError("it was opened")

    asyncio.run(limited(main()))


def test_queues_are_paused_resumed_and_moved(cluster: Embedded, topic: str, run: Callable[[Main], None]) -> None:
    """Nothing comes of a paused queue, although it has crossed to the event loop already."""

    async def main() -> None:
        async with producer_of(cluster) as producer:
            await producer.send_many([Message(topic, b"%d" % number) for number in range(50)], key="k")
        async with aio.open_consumer(cluster.namesrv, topic, topic, consume_from=FIRST) as consumer:
            seen: list[int] = []
            async for message in consumer:
                seen.append(int(message.body))
                if len(seen) == 10:
                    await message.ack()
                    consumer.pause()
                    break
            assert await consumer.get_many(10, 0.3) == []
            assert consumer.paused == consumer.queues
            with pytest.raises(InvalidArgument):
                consumer.pause([MessageQueue(topic, "nowhere", 0)])
            for queue in consumer.queues:
                await consumer.seek(queue, 45)
            consumer.resume()
            async with consumer.take(10) as messages:
                seen += [int(message.body) for message in messages]
            assert seen == [*range(10), *range(45, 50)]

    run(main)


def test_a_consumer_announces_its_queues_and_its_health(cluster: Embedded, topic: str) -> None:
    """From the event loop, and after it was closed too."""
    events: list[str] = []

    async def main() -> None:
        async with producer_of(cluster) as producer:
            (first, *_) = await producer.queues(topic)
            await producer.send_many([Message(topic, b"%d" % number) for number in range(10)], queue=first)

        async def assigned(queues: list[MessageQueue]) -> dict[MessageQueue, int] | None:
            await asyncio.sleep(0.01)
            events.append("assigned")
            return {first: 8} if first in queues else None

        async with aio.open_consumer(
            cluster.namesrv,
            topic,
            topic,
            consume_from=FIRST,
            on_assigned=assigned,
            on_revoked=lambda _: events.append("revoked"),
        ) as consumer:
            assert await consumer.healthy()
            async with consumer.take(10) as messages:
                assert [int(message.body) for message in messages] == [8, 9]
        assert (await consumer.healthy()).problems == ("the client is closed",)
        assert events[0] == "assigned"
        assert events[-1] == "revoked"

    asyncio.run(limited(main()))
