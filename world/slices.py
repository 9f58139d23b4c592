"""Long work on the event loop, one slice per turn, so that other tasks run in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sized
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")

SLICE_ITEMS = 500
"""How many items, of some microseconds each, one turn handles."""


ROWS_PER_SLICE = 10_000
"""How many rows of tables inside a table, of less than a microsecond each, one turn handles."""


def _one(_item: object) -> int:
    return 1


def in_slices(
    items: Iterable[T],
    size: int = SLICE_ITEMS,
    weight: Callable[[T], int] = _one,
    next_turn: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> Slices[T]:
    """Iterate over lists of items that together weigh at most `size`, with a turn of the event loop between two lists.

    `items` must not change meanwhile; pass a copy of a table that may.

    Args:
        weight: the work of one item; one item that weighs more than `size` is a list of its own.
        next_turn: `Processor.next_turn` of a world to which the work is charged.
    """
    return Slices(iter(items), size, weight, next_turn)


def rows_of(item: tuple[object, Sized]) -> int:
    """The weight of an entry of a table of tables: its number of rows, and one."""
    return 1 + len(item[1])


@attrs.define(eq=False)
class Slices(Generic[T]):
    """An asynchronous iterator over lists; not a generator, which a caller that leaves the loop early would have to close."""

    _items: Iterator[T]
    _size: int
    _weight: Callable[[T], int]
    _next_turn: Callable[[], Awaitable[None]]
    _left: list[T] = attrs.field(factory=list[T])
    """The item that did not fit the last list, if there is one."""
    _begun: bool = False

    def __aiter__(self) -> Slices[T]:
        return self

    async def __anext__(self) -> list[T]:
        if self._begun:
            await self._next_turn()
        self._begun = True
        piece, self._left = self._left, []
        room = self._size - sum(map(self._weight, piece))
        for item in self._items:
            room -= self._weight(item)
            if room < 0 and piece:
                self._left.append(item)
                break
            piece.append(item)
            if room <= 0:
                break
        if not piece:
            raise StopAsyncIteration
        return piece
