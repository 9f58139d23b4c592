"""The processor that runs the event loop. On a real machine work takes time by itself; a simulation has to count it."""

from __future__ import annotations

from typing import Protocol

import attrs
import trio


class Processor(Protocol):
    """The time that work on the event loop takes."""

    def charge(self, seconds: float) -> None:
        """Count work of the present turn of the event loop; called for batches, never for single messages.

        Args:
            seconds: how long the work takes on a usual machine.
        """
        ...

    async def next_turn(self) -> None:
        """End the present turn of the event loop, so that other tasks run, and connections are read and written."""
        ...


@attrs.frozen
class RealProcessor:
    """The processor of the machine that this process runs on."""

    def charge(self, seconds: float) -> None:
        """Do nothing, because the time has passed."""

    async def next_turn(self) -> None:
        await trio.lowlevel.checkpoint()
