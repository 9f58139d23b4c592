"""Handlers of `process` and `run` under asyncio: what they do to the event loop, and what is done to them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from ledgermq import Message, aio
from ledgermq.client.errors import WrongEventLoop
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.testing.embedded import Embedded

PATIENCE_SECONDS = 60


@asynccontextmanager
async def consuming(cluster: Embedded, topic: str, count: int) -> AsyncGenerator[aio.AioConsumer[bytes]]:
    """A consumer of a topic, of which so many messages have come to the client's thread."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        aio.open_producer(cluster.namesrv, send_timeout_seconds=PATIENCE_SECONDS) as producer,
        aio.open_consumer(cluster.namesrv, topic, topic, consume_from=ConsumeFrom.FIRST) as consumer,
    ):
        await producer.send_many([Message(topic, b"%d" % number) for number in range(count)])
        while consumer.statistics().waiting < count:
            await asyncio.to_thread(time.sleep, 0.01)
        yield consumer


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_signal_stops_handlers_that_never_wait(cluster: Embedded, topic: str, concurrency: int) -> None:
    """The event loop gets no turn meanwhile, and the message in hand is the last one all the same."""
    begun: list[bytes] = []

    def handle(message: aio.AioMessage) -> None:
        begun.append(message.body)
        if len(begun) == 70:
            signal.raise_signal(signal.SIGTERM)

    async def main() -> None:
        async with consuming(cluster, topic, 100) as consumer:
            await consumer.run(handle, concurrency=concurrency)
            await consumer.commit()
            assert len(begun) == consumer.statistics().acknowledged == 70

    asyncio.run(main())


def test_handlers_that_compute_for_long_let_other_tasks_run(cluster: Embedded, topic: str) -> None:
    """After each message, even if they never wait."""
    turns, seen = 0, list[int]()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        async with consuming(cluster, topic, 20) as consumer:

            def handle(_: aio.AioMessage) -> None:
                time.sleep(0.03)
                seen.append(turns)
                if len(seen) == 20:
                    consumer.stop()

            turning = asyncio.create_task(take_turns())
            await consumer.process(handle, tasks=2)
            turning.cancel()

    asyncio.run(main())
    assert all(later > before for before, later in zip(seen, seen[2:], strict=False))


@pytest.mark.parametrize("way", ["while it waits", "and raises"])
def test_a_handler_whose_own_task_is_cancelled_fails_alone(
    cluster: Embedded, topic: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By a library, for example, and not by the caller of `process`: the task handles the next message."""
    seen: list[int] = []

    async def main() -> None:
        async with consuming(cluster, topic, 10) as consumer:

            async def handle(message: aio.AioMessage) -> None:
                seen.append(int(message.body))
                if len(set(seen)) == 10:
                    consumer.stop()
                task = asyncio.current_task()
                assert task is not None
                if len(seen) in (3, 5):
                    task.cancel()
                    if way == "while it waits":
                        await asyncio.sleep(PATIENCE_SECONDS)
                    raise ValueError
                assert not task.cancelling()

            await consumer.process(handle)

    asyncio.run(main())
    assert set(seen) == set(range(10))
    assert [record.message.split()[0] for record in caplog.records].count("handler_cancelled") == 2


def test_the_caller_of_process_cancels_it(cluster: Embedded, topic: str) -> None:
    """Also one that was cancelled before, and has gone on."""

    async def main() -> None:
        async with consuming(cluster, topic, 4) as consumer:
            begun: list[bytes] = []
            all_begun = asyncio.Event()

            async def handle(message: aio.AioMessage) -> None:
                begun.append(message.body)
                if len(begun) == 2:
                    all_begun.set()
                await asyncio.sleep(PATIENCE_SECONDS)

            async def work() -> None:
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(PATIENCE_SECONDS)
                await consumer.process(handle, tasks=2)

            working = asyncio.create_task(work())
            await asyncio.sleep(0)
            working.cancel()
            await all_begun.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert len(begun) == 2

    asyncio.run(main())


def test_another_event_loop_may_do_what_does_not_wait(cluster: Embedded, topic: str) -> None:
    """It acknowledges, pauses and stops."""

    async def main() -> None:
        async with consuming(cluster, topic, 3) as consumer:
            first, second, third = [message for _ in range(3) if (message := await consumer.get_one())]

            async def elsewhere() -> None:
                await first.ack()
                second.ack_now()
                consumer.pause()
                consumer.stop()
                with pytest.raises(WrongEventLoop):
                    await third.retry()

            await asyncio.to_thread(asyncio.run, elsewhere())
            await consumer.commit()
            assert consumer.stopped
            assert consumer.paused == consumer.queues
            assert (consumer.statistics().acknowledged, consumer.statistics().in_hand) == (2, 1)

    asyncio.run(main())
