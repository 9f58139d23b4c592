"""The garbage collector of a server's process: when it runs, and what bounds the memory that it does not look at.

A message creates a few containers, none of them in a cycle: with Python's defaults the collector would run every hundred
messages and find nothing. A collection of all objects takes a second with full tables, and finds nothing either: what grows old
in a server, such as connections and held pulls, belongs to no cycle when it ends. So objects that have survived two collections
are not looked at again, unless the process has more memory than its bounds allow.
"""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable
from pathlib import Path

import attrs

from .events import get_logger
from .ticks import next_tick

log = get_logger(__name__)

COLLECT_AFTER = 10_000
"""The garbage collector runs after this many new container objects, about a MiB."""
MIDDLE_AFTER = 5
"""After how many collections of the youngest objects those that survived one are collected, 60,000 objects. With full tables a
collection of 250,000 objects took up to 129 ms of one turn of the event loop; collecting fewer more often takes as long
altogether."""
NEVER = (1 << 31) - 1
PRIVATE_BYTES_MAX = 1 << 30
"""With more private memory all objects are collected once: this is what a server holds for all connections, and 512 MiB for its
tables."""
LOOK_SECONDS = 30.0


def collect_rarely() -> None:
    """Make the collector run rarely, never traverse the objects of the start, and never traverse all objects by itself."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, MIDDLE_AFTER, NEVER)


def private_bytes(process: int | str = "self") -> int:
    """Bytes of memory of a process alone, without mapped files; 0 where the system does not say, and for one that has ended."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_bytes().split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * mmap.PAGESIZE


@attrs.define(eq=False)
class GarbageBound:
    """Collects all objects when the process has more memory than the bounds of a server allow."""

    private_bytes: Callable[[], int] = private_bytes
    _collect_above: int = PRIVATE_BYTES_MAX

    def look(self) -> None:
        """Collect all objects if memory is above the bound, and has grown by a quarter since that was done last."""
        before = self.private_bytes()
        if before <= self._collect_above:
            return
        found = gc.collect()
        after = self.private_bytes()
        self._collect_above = max(PRIVATE_BYTES_MAX, after + after // 4)
        log.warning("all_objects_collected", private_bytes_before=before, private_bytes_after=after, found_objects=found)

    async def keep(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await next_tick(LOOK_SECONDS)
            self.look()
