"""Threads of a simulated run: real code, one order of events."""

from __future__ import annotations

import random

import pytest
import trio

from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.testing.sim.threads import SimLock, SimThread, SimThreadLoop, ThreadEndedError, current_thread


def _trace(seed: int) -> list[str]:
    trace: list[str] = []
    rng, lock = random.Random(seed), SimLock()

    def body(name: str) -> None:
        for step in range(5):
            with lock:
                current_thread().sleep(rng.random())
                trace.append(f"{current_thread().now:.3f} {name} {step}")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(SimThread(lambda name=name: body(name)).drive)  # type: ignore[misc]

    seeded_run(main, seed=seed)
    return trace


def test_one_seed_gives_one_order_and_a_lock_is_held_once() -> None:
    assert _trace(1) == _trace(1) != _trace(2)
    assert len(_trace(1)) == 15


def test_what_a_thread_lets_out_is_raised_by_its_driver() -> None:
    def body() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError, match="k"):
        seeded_run(SimThread(body).drive, seed=1)


def test_a_thread_that_waits_when_its_driver_is_cancelled_ends() -> None:
    ended: list[str] = []

    def body() -> None:
        try:
            current_thread().sleep(100)
        finally:
            ended.append("waited")
            with pytest.raises(ThreadEndedError):
                current_thread().sleep(1)

    async def main() -> None:
        with trio.move_on_after(1):
            await SimThread(body).drive()

    seeded_run(main, seed=1)

    assert ended == ["waited"]


def test_an_interrupted_call_has_its_result_undone() -> None:
    """As `ThreadLoop.call` does when the waiting thread is interrupted."""
    undone: list[int] = []

    async def answer() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    def body() -> None:
        loop = SimThreadLoop(random.Random(1), interrupts=1.0)
        with pytest.raises(KeyboardInterrupt):
            loop.call(answer, undone.append)

    seeded_run(SimThread(body).drive, seed=1)

    assert undone == [7]
