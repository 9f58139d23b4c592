"""How much `ledgermq send` has out at once."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from ledgermq.cli.send import IN_FLIGHT_BYTES_MAX, Room


async def test_small_requests_are_counted_and_large_ones_weighed() -> None:
    """Who gives back lets the next one go."""
    room = Room(3)
    taken: list[int] = []

    async def take(sizes: list[int]) -> None:
        for size in sizes:
            await room.take(size)
            taken.append(size)

    async with trio.open_nursery() as nursery:
        half = IN_FLIGHT_BYTES_MAX // 2
        nursery.start_soon(take, [1, 2, 3, 4, half, half, IN_FLIGHT_BYTES_MAX + 1])

        seen = 0
        large = IN_FLIGHT_BYTES_MAX + 1
        for given, ready in enumerate(([1, 2, 3], [4], [half], [], [half], [], [large])):
            await wait_all_tasks_blocked()
            assert taken[seen:] == ready
            seen = len(taken)
            room.give_back(taken[given])
    assert (room.requests, room.size) == (0, 0)
