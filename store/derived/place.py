"""The place of a consume queue at a clean stop."""

from __future__ import annotations

import attrs


@attrs.frozen
class Place:
    """Where a queue began and ended, and its files at that time."""

    files: tuple[tuple[int, int], ...]
    """Start in bytes of the queue and time of the last change in ms, of each file."""
    max_offset: int
    physical_end: int
    min_offset: int
