"""Long work on the event loop, a part of it in each turn: others get theirs in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

import trio

T = TypeVar("T")

SLICE_ITEMS = 500
"""Items of one turn, where one takes some microseconds."""


async def in_slices(items: Iterable[T], size: int = SLICE_ITEMS) -> AsyncIterator[list[T]]:
    """Yield the items in lists of at most `size`, with a turn of the event loop between two lists.

    What is iterated over must not change meanwhile; pass a copy of a table that does.
    """
    rest = iter(items)
    while piece := list(islice(rest, size)):
        yield piece
        await trio.lowlevel.checkpoint()
