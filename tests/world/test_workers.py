"""Blocking calls beside the event loop."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from ledgermq.world.workers import WORKERS_MAX, ThreadWorkers


async def test_a_call_runs_in_another_thread_and_its_result_comes_back() -> None:
    """With its arguments."""
    workers = ThreadWorkers()

    assert await workers.run(divmod, 7, 2) == (3, 1)
    assert await workers.run(int, "11", base=3) == 4
    assert await workers.run(threading.current_thread) is not threading.current_thread()


async def test_what_a_call_raises_is_raised_where_it_was_asked_for() -> None:
    """And the place it took is free again."""
    workers = ThreadWorkers()
    for _ in range(WORKERS_MAX + 1):
        with pytest.raises(ZeroDivisionError):
            await workers.run(divmod, 7, 0)


async def test_no_more_calls_than_allowed_run_at_once_and_all_get_their_turn() -> None:
    """Those that come later wait without a thread."""
    workers, gate, guard = ThreadWorkers(), threading.Event(), threading.Lock()
    running = most = finished = 0

    def call() -> None:
        nonlocal running, most, finished
        with guard:
            running += 1
            most = max(most, running)
        assert gate.wait(20)
        with guard:
            running -= 1
            finished += 1

    async with trio.open_nursery() as nursery:
        for _ in range(WORKERS_MAX + 5):
            nursery.start_soon(workers.run, call)
        with trio.fail_after(20):
            while running < WORKERS_MAX:  # noqa: ASYNC110 - threads count
                await trio.sleep(0.001)
        gate.set()

    assert most == WORKERS_MAX
    assert finished == WORKERS_MAX + 5


async def test_a_cancelled_caller_goes_on_only_when_its_call_has_ended() -> None:
    """What the call works on must not be taken away under it."""
    workers, started, gate = ThreadWorkers(), threading.Event(), threading.Event()
    ended = False

    def call() -> None:
        nonlocal ended
        started.set()
        assert gate.wait(20)
        ended = True

    async def let_go(scope: trio.CancelScope) -> None:
        with trio.fail_after(20):
            while not started.is_set():  # noqa: ASYNC110 - a thread sets it
                await trio.sleep(0.001)
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        gate.set()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(let_go, scope)
            await workers.run(call)
            assert ended
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_a_caller_that_is_cancelled_already_starts_nothing() -> None:
    """As with every checkpoint."""
    calls: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await ThreadWorkers().run(calls.append, 1)

    assert scope.cancelled_caught
    assert calls == []
