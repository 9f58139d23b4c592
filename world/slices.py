"""Long work on the event loop, a part of it in each turn: others get theirs in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

import attrs
import trio

T = TypeVar("T")

SLICE_ITEMS = 500
"""Items of one turn, where one takes some microseconds."""


def in_slices(items: Iterable[T], size: int = SLICE_ITEMS) -> Slices[T]:
    """Iterate over lists of at most `size` items, with a turn of the event loop between two lists.

    What is iterated over must not change meanwhile; pass a copy of a table that does.
    """
    return Slices(iter(items), size)


@attrs.define(eq=False)
class Slices(Generic[T]):
    """An asynchronous iterator over lists; not a generator, which would have to be closed by whoever leaves it early."""

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
