"""The thread of a client as tasks of asyncio reach it: wake-ups, callbacks, opening and closing."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest
import trio

from ledgermq import ConsumeFrom, Message, aio
from ledgermq.client.aio.host import AioHost, Opening, Wakeups
from ledgermq.client.errors import Closed
from ledgermq.testing.embedded import Embedded

from .test_clients import lag

NAME = ContextVar("NAME", default="")
PATIENCE_SECONDS = 10


class Exit(BaseException):
    """As a `SystemExit`, but asyncio does not end its loop for it."""


@asynccontextmanager
async def something(*, on_change: Callable[[int], object] = lambda _: None, fails: bool = False) -> AsyncGenerator[list[str]]:
    """Notes how its block ended."""
    events: list[str] = []
    on_change(1)
    if fails:
        raise OSError("nothing there")
    try:
        yield events
    except BaseException:
        events.append("cancelled")
        raise
    events.append("closed")


def opening(**options: Any) -> Opening[list[str], AioHost[list[str]]]:
    return Opening(something, lambda host: host, (), options)


def test_what_waits_is_delivered_with_one_wake_up() -> None:
    """And an outcome that is added during a delivery wakes the loop again."""

    async def main() -> None:
        woken: list[Callable[[], None]] = []
        wakeups = Wakeups(cast("Any", SimpleNamespace(call_soon_threadsafe=woken.append)))
        futures = [asyncio.get_running_loop().create_future() for _ in range(4)]
        wakeups.add(futures[0], 1)
        wakeups.add(futures[1], ValueError("x"))
        futures[2].cancel()
        wakeups.add(futures[2], 2)
        assert len(woken) == 1
        woken.pop()()
        assert await futures[0] == 1
        with pytest.raises(ValueError, match="x"):
            await futures[1]
        wakeups.add(futures[3], 3)
        assert len(woken) == 1

    asyncio.run(main())


def test_a_client_ends_as_its_block_ends() -> None:
    """In order, or cancelled by an exception; calls are refused afterwards."""

    async def main() -> None:
        async with opening() as host:
            assert await host.run(trio.sleep, 0) is None
        assert host.client == ["closed"]
        with pytest.raises(Closed):
            await host.run(trio.sleep, 0)
        with pytest.raises(ZeroDivisionError):
            async with opening() as host:
                raise ZeroDivisionError
        assert host.client == ["cancelled"]
        with pytest.raises(OSError, match="nothing there"):
            async with opening(fails=True):
                pass

    asyncio.run(main())


def test_a_callback_runs_in_the_event_loop() -> None:
    """So it may touch what tasks of asyncio use."""

    async def main() -> None:
        threads: list[threading.Thread] = []
        called = asyncio.Event()

        def on_change(_: int) -> None:
            threads.append(threading.current_thread())
            called.set()

        async with opening(on_change=on_change):
            await called.wait()
        assert threads == [threading.current_thread()]

    asyncio.run(main())


def test_an_async_callback_for_which_nobody_waits_runs_to_its_end() -> None:
    """Though nothing of the application may refer to its task; a failure of it is reported by asyncio."""

    async def main() -> None:
        event_loop, called, reported = asyncio.get_running_loop(), asyncio.Event(), list[dict[str, Any]]()
        futures = WeakSet[asyncio.Future[None]]()

        def report(_: object, context: dict[str, Any]) -> None:
            reported.append(context)

        async def on_change(_: int) -> None:
            future = event_loop.create_future()
            futures.add(future)
            called.set()
            await future
            raise LookupError

        event_loop.set_exception_handler(report)
        async with asyncio.timeout(PATIENCE_SECONDS), opening(on_change=on_change):
            await called.wait()
            gc.collect()
            for future in futures:
                future.set_result(None)
            while not reported:
                await asyncio.sleep(0)
                gc.collect()
        assert isinstance(reported[0].get("exception"), LookupError)

    asyncio.run(main())


def test_a_cancelled_call_is_cancelled_in_the_thread() -> None:
    """A result that has come already is undone, once."""

    async def main() -> None:
        undone: list[int] = []
        ended = threading.Event()

        async def wait() -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.set()

        async def answer() -> int:
            return 1

        async with opening() as host:
            task = asyncio.create_task(host.run(wait))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.to_thread(ended.wait, 60)
            task_with_result = asyncio.create_task(host.ask(answer, undone.append))
            await asyncio.sleep(0)
            await host.run(trio.sleep, 0)
            cancelled = task_with_result.cancel()
            (outcome,) = await asyncio.gather(task_with_result, return_exceptions=True)
            await host.run(trio.sleep, 0)
        assert ended.is_set()
        assert undone == ([1] if isinstance(outcome, asyncio.CancelledError) else [])
        assert cancelled or outcome == 1

    asyncio.run(main())


def test_closing_ends_even_if_it_is_cancelled() -> None:
    """The cancellation hurries it and is raised when the thread has ended."""

    async def main() -> None:
        async def open_and_close() -> None:
            async with opening() as host:
                threads.append(cast("Any", host)._loop.thread)
                closing.set()

        threads: list[threading.Thread] = []
        closing = asyncio.Event()
        task = asyncio.create_task(open_and_close())
        await closing.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not threads[0].is_alive()

    asyncio.run(main())


def test_a_callback_that_the_client_waits_for_runs_in_the_event_loop() -> None:
    """In the context of whoever opened the client; what it returns or raises reaches the client, and so does a cancellation."""
    events: list[object] = []

    @asynccontextmanager
    async def asking(*, on_assigned: Callable[[list[int]], Awaitable[object]]) -> AsyncGenerator[list[object]]:
        events.append(await on_assigned([1]))
        with pytest.raises(LookupError, match="2"):
            await on_assigned([2])
        with trio.move_on_after(0.1):
            await on_assigned([3])
        with pytest.raises(RuntimeError, match="the callback raised CancelledError"):
            await on_assigned([4])
        with pytest.raises(RuntimeError, match="the callback raised Exit"):
            await on_assigned([5])
        yield events

    async def main() -> None:
        event_loop, task = asyncio.get_running_loop(), asyncio.current_task
        NAME.set("main")

        async def callback(numbers: list[int]) -> object:
            assert asyncio.get_running_loop() is event_loop
            await asyncio.sleep(0)
            if numbers == [2]:
                raise LookupError("2")
            if numbers == [5]:
                raise Exit
            if numbers == [3]:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    events.append("cancelled")
                    raise
            if numbers == [4]:
                running = task()
                assert running is not None
                running.cancel()
                await asyncio.sleep(60)
            return numbers, NAME.get()

        async with Opening(asking, lambda host: host, (), {"on_assigned": callback}):
            pass

    asyncio.run(main())

    assert events == [([1], "main"), "cancelled"]


def test_the_end_waits_for_what_a_cancelled_process_gives_back(cluster: Embedded, topic: str) -> None:
    """The application has cancelled it and waits no longer; of what the other handlers have finished nothing comes again."""

    async def main() -> None:
        done: list[bytes] = []
        all_but_one = asyncio.Event()

        async def handle(message: aio.AioMessage) -> None:
            if message.body == b"5":
                try:
                    await asyncio.sleep(PATIENCE_SECONDS)
                finally:
                    await asyncio.sleep(0.05)
            done.append(message.body)
            if len(done) == 39:
                all_but_one.set()

        async with (
            aio.open_producer(cluster.namesrv) as producer,
            aio.open_consumer(cluster.namesrv, topic, topic, consume_from=ConsumeFrom.FIRST) as consumer,
        ):
            await producer.send_many([Message(topic, b"%d" % number) for number in range(40)], key="k")
            work = asyncio.create_task(consumer.process(handle, tasks=8))
            await all_but_one.wait()
            work.cancel()
        assert await lag(cluster, topic) == 0

    asyncio.run(main())
