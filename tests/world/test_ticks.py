"""Loops that wake together."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from ledgermq.world.ticks import next_tick


async def test_loops_that_began_at_different_times_wake_together(autojump_clock: MockClock) -> None:
    """However much later one of them began, and however long its work takes, it ends up in the others' turns."""
    wakes = dict[float, list[str]]()

    async def loop(name: str, begin: float, interval: float, work: float) -> None:
        await trio.sleep(begin)
        while True:
            await next_tick(interval)
            wakes.setdefault(trio.current_time(), []).append(name)
            await trio.sleep(work)

    with trio.move_on_after(10.1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop, "a", 0.0, 0.5, 0.0)
            nursery.start_soon(loop, "b", 0.33, 1.0, 0.2)
            nursery.start_soon(loop, "c", 0.77, 0.5, 0.01)

    assert list(wakes) == [0.5 * count for count in range(1, 21)]
    assert all(sorted(names) == ["a", "b", "c"] for at, names in wakes.items() if at % 1 == 0 and at > 1)


async def test_a_tick_is_never_less_than_half_an_interval_away(autojump_clock: MockClock) -> None:
    """A loop whose work has gone on until right before a tick leaves that one out."""
    for begin in (0.0, 0.3, 0.5, 0.7, 0.99):
        await trio.sleep(begin)
        before = trio.current_time()

        await next_tick(1.0)

        assert 0.5 <= trio.current_time() - before <= 1.5
