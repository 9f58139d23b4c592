"""Trio runs that are the same each time: the scheduler is seeded, and time is virtual.

The mock clock alone is not enough, as trio shuffles the tasks that are ready. The two private names of trio that decide this
are used here and nowhere else. The garbage collector must not run meanwhile either: its moments depend on what ran before, and
what it collects may wake tasks.
"""

from __future__ import annotations

import gc
import importlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio
import trio.testing

T = TypeVar("T")


def seeded_run(
    function: Callable[..., Awaitable[T]],
    *args: Any,
    seed: int,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> T:
    """Run `function` under trio so that the same seed gives the same run, in this process and in any other.

    Args:
        function: what to run, with `args`.
        args: the arguments of `function`.
        seed: determines the order in which tasks run.
        clock: the clock of the run; by default a mock clock that jumps whenever all tasks wait.
        instruments: see `trio.run`.
    """
    collects = gc.isenabled()
    gc.disable()
    scheduler: Any = importlib.import_module("trio._core._run")
    before = (scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r)  # noqa: SLF001
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001
    scheduler._r = random.Random(seed)  # noqa: S311, SLF001
    try:
        return trio.run(function, *args, clock=clock or trio.testing.MockClock(autojump_threshold=0), instruments=instruments)
    finally:
        if collects:
            gc.enable()
        gc.collect(0)  # whatever was made meanwhile is in the youngest generation
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r = before  # noqa: SLF001
