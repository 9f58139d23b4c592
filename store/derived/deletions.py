"""What control records determine about a queue: its next offset, and before which offset its messages are deleted.

The file `deletedQueues.json` is a cache of control records of the log. A deletion in it counts as long as its control record is
in the log. Pure except for the file; readers of a store's files, which do not import the server, use it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import attrs

from ...world.disk import Disk
from ..json_file import JsonFile
from ..names import queue_fault, queue_id_of, queue_offset_fault


@attrs.frozen
class QueueEnd:
    """A control record that gives the next offset of a queue."""

    physical_offset: int
    """The position of the control record in the log."""
    size: int
    """The size of the control record, in bytes."""
    queue_offset: int
    """The offset of the next message of the queue."""

    @property
    def physical_end(self) -> int:
        return self.physical_offset + self.size


@attrs.frozen
class Deletion(QueueEnd):
    """The control record also deletes the topic: messages before it do not count."""


def deletions_file(disk: Disk, root: str) -> JsonFile:
    """The file in which a store keeps its deletions."""
    return JsonFile(disk, f"{root}/deletedQueues.json")


Row = list[int]
"""Queue offset, physical offset and size of one control record, as they are in the file."""


def deletions_of(kept: Any) -> Iterator[tuple[str, int, Deletion]]:
    """The deletions in the file, without invalid rows; a deletion counts only if the log confirms it."""
    for topic, queue_id, (queue_offset, physical_offset, size) in _rows(kept, "deletedQueues"):
        yield topic, queue_id, Deletion(physical_offset, size, queue_offset)


def ends_of(kept: Any) -> Iterator[tuple[str, int, QueueEnd]]:
    """The queue ends in the file that are no deletions, without invalid rows."""
    for topic, queue_id, (queue_offset, physical_offset, size) in _rows(kept, "endedQueues"):
        if queue_fault(topic, queue_id) is None:
            yield topic, queue_id, QueueEnd(physical_offset, size, queue_offset)


def topics_of(kept: Any) -> Iterator[tuple[str, QueueEnd]]:
    """The last deletion of each topic in the file, without invalid rows."""
    for topic, numbers in _object(_object(kept).get("deletedTopics")).items():
        found = _list(numbers)
        if len(found) == 3 and all(map(_is_offset, found)):
            yield topic, QueueEnd(found[1], found[2], found[0])


def row_of(end: QueueEnd) -> Row:
    """The row for a control record in the file."""
    return [end.queue_offset, end.physical_offset, end.size]


def _rows(kept: Any, key: str) -> Iterator[tuple[str, int, Row]]:
    for topic, queues in _object(_object(kept).get(key)).items():
        for name, listed in _object(queues).items():
            queue_id = queue_id_of(name)
            for numbers in _list(listed):
                found = _list(numbers)
                if queue_id is not None and len(found) == 3 and all(map(_is_offset, found)):
                    yield topic, queue_id, found


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(cast("Iterable[Any]", value)) if isinstance(value, list) else []


def _is_offset(number: Any) -> bool:
    return type(number) is int and queue_offset_fault(number) is None
