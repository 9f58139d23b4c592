"""Tasks of taskiq on a broker of ours: they run at workers, and again when their worker was lost."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from taskiq import AsyncBroker, InMemoryBroker
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError

from ledgermq.testing.embedded import Embedded, start_embedded

EXAMPLE = Path(__file__).parents[2] / "examples" / "taskiq_broker.py"
PATIENCE_SECONDS = 120


@pytest.fixture(scope="module")
def cluster() -> Any:
    with start_embedded() as embedded:
        yield embedded


def broker_of(cluster: Embedded, topic: str) -> AsyncBroker:
    spec = importlib.util.spec_from_file_location("taskiq_broker", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    broker: AsyncBroker = module.LedgerBroker(cluster.namesrv, topic=topic, group=topic)
    return broker.with_result_backend(InMemoryBroker().result_backend)


@asynccontextmanager
async def worker(broker: AsyncBroker) -> AsyncGenerator[None]:
    """A worker in this event loop, which is lost at the end with whatever it has in hand."""
    broker.is_worker_process = True
    await broker.startup()
    running = asyncio.create_task(run_receiver_task(broker))
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await broker.shutdown()


def limited(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await main()

    asyncio.run(run())


def test_tasks_run_at_a_worker_and_return_their_results(cluster: Embedded) -> None:
    """Also one that fails, whose error is its result."""

    async def main() -> None:
        broker = broker_of(cluster, "sums")

        @broker.task(task_name="divide")
        async def divide(first: int, second: int) -> float:
            await asyncio.sleep(0)
            return first / second

        async with worker(broker):
            tasks = [await divide.kiq(number, 2) for number in range(20)]
            results = [await task.wait_result(timeout=PATIENCE_SECONDS) for task in tasks]
            failed = await (await divide.kicker().with_labels(delay_level=1).kiq(1, 0)).wait_result(timeout=PATIENCE_SECONDS)
        assert [result.return_value for result in results] == [number / 2 for number in range(20)]
        assert isinstance(failed.error, ZeroDivisionError)

    limited(main)


def test_a_task_whose_worker_is_lost_runs_at_the_next_one(cluster: Embedded) -> None:
    """It was not acknowledged."""

    async def main() -> None:
        begun = asyncio.Event()
        runs: list[str] = []

        def task_of(broker: AsyncBroker, name: str, work: Callable[[], Awaitable[object]]) -> Any:
            @broker.task(task_name="once")
            async def once() -> str:
                runs.append(name)
                begun.set()
                await work()
                return name

            return once

        first, second = broker_of(cluster, "lost"), broker_of(cluster, "lost")
        once = task_of(first, "first", lambda: asyncio.sleep(PATIENCE_SECONDS))
        task_of(second, "second", lambda: asyncio.sleep(0))
        async with worker(first):
            await once.kiq()
            await begun.wait()
        begun.clear()
        async with worker(second):
            await begun.wait()
        assert runs == ["first", "second"]

    limited(main)


def test_a_broker_that_was_not_started_says_so(cluster: Embedded) -> None:
    async def main() -> None:
        broker = broker_of(cluster, "none")
        with pytest.raises(SendTaskError) as failed:
            await broker.task(task_name="nothing")(lambda: None).kiq()
        assert "not been started" in str(failed.value.__cause__)
        with pytest.raises(RuntimeError, match="not been started as a worker"):
            await anext(broker.listen())

    limited(main)
