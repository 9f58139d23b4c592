"""Applications of each kind in a simulated world."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from ledgermq.testing.hosting import KINDS, Hosting


@pytest.mark.parametrize("kind", KINDS)
async def test_an_application_that_is_cancelled_cleans_up(autojump_clock: MockClock, kind: str) -> None:
    """Its blocks end, in virtual time."""
    ended: list[str] = []

    async def application(hosting: Hosting) -> None:
        try:
            await hosting.sleep(3600)
        finally:
            ended.append(kind)

    with trio.move_on_after(10) as scope:
        await KINDS[kind](application, random.Random(0), 0.0)

    assert scope.cancelled_caught
    assert ended == [kind]
    assert trio.current_time() == pytest.approx(10)
