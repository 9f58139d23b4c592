"""How much is done in one turn of the event loop, as a count, which no other work on the machine changes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import attrs
import trio


@attrs.define(eq=False)
class Turns(trio.abc.Instrument):
    """Compares a count before and after each turn, in which every task that can run does one step."""

    count: Callable[[], int]
    most: int = 0
    """The largest growth of the count in one turn."""
    _before: int = 0

    def after_io_wait(self, timeout: float) -> None:
        del timeout
        self._before = self.count()

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.most = max(self.most, self.count() - self._before)


@contextmanager
def counted(count: Callable[[], int]) -> Generator[Turns]:
    """Watch the turns of the event loop during the block; the turn in which it begins does not count."""
    turns = Turns(count, 0, 1 << 62)
    trio.lowlevel.add_instrument(turns)
    try:
        yield turns
    finally:
        trio.lowlevel.remove_instrument(turns)
