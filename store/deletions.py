"""From which offset on the messages of a deleted topic's queue count, and the file that keeps it.

The file is a cache of control records of the log: a deletion in it counts as long as its control record is in the log. Pure but
for the file; readers of a store's files that import no server use it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import attrs

from ..world.disk import Disk
from .json_file import JsonFile
from .names import queue_id_of, queue_offset_fault


@attrs.frozen
class Deletion:
    """Where in the log a topic was deleted."""

    physical_offset: int
    """Of the control record that says so."""
    size: int
    """Of that record, bytes."""
    queue_offset: int
    """What the next message of the queue gets."""

    @property
    def physical_end(self) -> int:
        return self.physical_offset + self.size


def deletions_file(disk: Disk, root: str) -> JsonFile:
    """Where a store keeps its deletions."""
    return JsonFile(disk, f"{root}/deletedQueues.json")


def deletions_of(kept: Any) -> Iterator[tuple[str, int, Deletion]]:
    """What the file says, without what makes no sense: a deletion is believed only if the log confirms it."""
    for topic, queues in _object(_object(kept).get("deletedQueues")).items():
        for name, listed in _object(queues).items():
            queue_id = queue_id_of(name)
            for numbers in _list(listed):
                found = _list(numbers)
                if queue_id is not None and len(found) == 3 and all(map(_is_offset, found)):
                    yield topic, queue_id, Deletion(found[1], found[2], found[0])


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(cast("Iterable[Any]", value)) if isinstance(value, list) else []


def _is_offset(number: Any) -> bool:
    return type(number) is int and queue_offset_fault(number) is None
