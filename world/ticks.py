"""Periodic work that shares its wake-ups.

A process that has nothing to do spends its time on waking up. Loops that wait here with the same interval, or with one that
divides the other, wake in the same turn of the event loop, so that many of them cost little more than one.
"""

from __future__ import annotations

from math import floor

import trio


async def next_tick(seconds: float) -> None:
    """Sleep until the next whole multiple of `seconds` on trio's clock that is more than half of that away."""
    await trio.sleep_until((floor(trio.current_time() / seconds + 0.5) + 1) * seconds)
