"""Simulated worker threads: work is done on the event loop, with a delay in virtual time before and after it.

Real threads would let the mock clock jump while they run; here a slow disk is a random delay.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import attrs
import trio

SLOW_SECONDS = 0.1
"""Work that takes longer counts as a slow disk."""

P = ParamSpec("P")
T = TypeVar("T")


@attrs.define(eq=False)
class SimWorkers:
    """Runs each piece of work at a random moment within its delay."""

    rng: random.Random = attrs.field(factory=lambda: random.Random(0))  # noqa: S311 - never secrets
    delay_seconds_max: float = 0.0
    """The longest delay of a piece of work, in seconds; the event loop runs other tasks meanwhile."""
    injected: dict[str, int] = attrs.field(factory=dict[str, int])
    """How often work was slow."""

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        delay = self.delay_seconds_max * self.rng.random() ** 3
        part = self.rng.random()
        if delay > SLOW_SECONDS:
            self.injected["slow_disk"] = self.injected.get("slow_disk", 0) + 1
        await _sleep_whole(delay * part)
        result = function(*args, **kwargs)
        await _sleep_whole(delay * (1 - part))
        return result


async def _sleep_whole(seconds: float) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(seconds)
