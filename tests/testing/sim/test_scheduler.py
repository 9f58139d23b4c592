from __future__ import annotations

import subprocess
import sys

import trio

from ledgermq.testing.sim.clock import START_MS, SimClock
from ledgermq.testing.sim.scheduler import seeded_run


async def trace_of_tasks() -> list[str]:
    trace: list[str] = []

    async def worker(name: str) -> None:
        for turn in range(5):
            trace.append(f"{name}{turn}@{trio.current_time():.0f}")
            await trio.sleep(turn % 2)

    async with trio.open_nursery() as nursery:
        for name in "abcde":
            nursery.start_soon(worker, name)
    return trace


def test_one_seed_gives_one_trace_and_another_seed_another() -> None:
    assert seeded_run(trace_of_tasks, seed=1) == seeded_run(trace_of_tasks, seed=1)
    assert len({tuple(seeded_run(trace_of_tasks, seed=seed)) for seed in range(10)}) > 1


def test_another_process_gives_the_same_trace() -> None:
    script = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('here', {__file__!r})\n"
        "here = importlib.util.module_from_spec(spec); spec.loader.exec_module(here)\n"
        "print(here.seeded_run(here.trace_of_tasks, seed=7))\n"
    )
    env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "77"}

    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)

    assert out.stdout.strip() == str(seeded_run(trace_of_tasks, seed=7))


def test_time_is_virtual_and_clocks_drift_and_jump() -> None:
    async def two_hours() -> tuple[int, float]:
        clock = SimClock(drift=0.01)
        await trio.sleep(7200)
        clock.jump(-60_000)
        return clock.wall_ms(), clock.monotonic()

    wall, monotonic = seeded_run(two_hours, seed=0)

    assert round(monotonic) == 7272
    assert wall == START_MS + 7_272_000 - 60_000
