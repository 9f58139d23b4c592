"""Long work in slices."""

from __future__ import annotations

import trio

from ledgermq.world.slices import in_slices, rows_of


async def test_everything_comes_in_order() -> None:
    """In lists of the size that is asked for; nothing gives none."""
    assert [piece async for piece in in_slices(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [piece async for piece in in_slices((), 3)] == []


async def test_a_list_ends_where_its_items_weigh_enough() -> None:
    """An item that alone weighs more than a list may is a list of its own; nothing is lost at the borders."""
    assert [piece async for piece in in_slices([1, 2, 3, 9, 1, 1, 1], 3, int)] == [[1, 2], [3], [9], [1, 1, 1]]
    rows: list[tuple[str, list[int]]] = [("a", [1, 2]), ("b", []), ("c", [3])]
    assert [[name for name, _ in piece] async for piece in in_slices(rows, 4, rows_of)] == [["a", "b"], ["c"]]


async def test_other_tasks_get_their_turns() -> None:
    """Between any two slices."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        seen = [turns async for _ in in_slices(range(100), 10)]
        nursery.cancel_scope.cancel()

    assert seen[-1] >= 5
