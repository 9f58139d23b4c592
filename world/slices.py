"""Long work on the event loop, one slice per turn, so that other tasks run in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")

SLICE_ITEMS = 500
"""How many items, of some microseconds each, one turn handles."""


def in_slices(items: Iterable[T], size: int = SLICE_ITEMS) -> Slices[T]:
    """Iterate over lists of at most `size` items, with a turn of the event loop between two lists.

    `items` must not change meanwhile; pass a copy of a table that may.
    """
    return Slices(iter(items), size)


@attrs.define(eq=False)
class Slices(Generic[T]):
    """An asynchronous iterator over lists; not a generator, which a caller that leaves the loop early would have to close."""

    _items: Iterator[T]
    _size: int
    _begun: bool = False

    def __aiter__(self) -> Slices[T]:
        return self

    async def __anext__(self) -> list[T]:
        if self._begun:
            await trio.lowlevel.checkpoint()
        self._begun = True
        piece = list(islice(self._items, self._size))
        if not piece:
            raise StopAsyncIteration
        return piece
