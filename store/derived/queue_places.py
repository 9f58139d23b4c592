"""Where each consume queue began and ended at a clean stop, so that the next start need not read its files to find that.

A place counts only with the recovery mark of that stop, and only while the files have the times of that stop: whoever has
worked on the store since, or on one of the files, has changed one of them. Every other queue is read and checked. Blocking.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

import attrs

from ...world.disk import Disk
from ..json_file import JsonFile
from ..names import queue_id_of
from ..recovery_mark import RecoveryMark
from .consumequeue import ConsumeQueue
from .place import Place


@attrs.frozen
class QueuePlaces:
    """The places of the queues at the last clean stop."""

    log_min_offset: int
    table: Mapping[tuple[str, int], Place]


def places_file(disk: Disk, root: str) -> JsonFile:
    """The file in which a clean stop leaves the places."""
    return JsonFile(disk, f"{root}/queuePlaces.json")


def save_places(disk: Disk, root: str, mark: RecoveryMark, queues: Iterable[ConsumeQueue]) -> None:
    """Write the places of queues that are completely written; nothing may be written to them any more.

    Raises:
        OSError: the disk refused. An older file does not count, because the mark is another one.
    """
    table: dict[str, dict[str, list[int]]] = {}
    for queue in queues:
        if (place := queue.place()) is not None:
            files = [number for file in place.files for number in file]
            row = [place.max_offset, place.physical_end, place.min_offset, *files]
            table.setdefault(queue.topic, {})[str(queue.queue_id)] = row
    places_file(disk, root).save({"mark": _identity(mark), "logMinOffset": mark.log_min_offset, "queues": table})


def load_places(disk: Disk, root: str, mark: RecoveryMark) -> QueuePlaces | None:
    """Read the places that were written with a mark; None if there are none, or the file is damaged.

    Raises:
        OSError: the file exists and cannot be read.
    """
    stored: Any = places_file(disk, root).load()
    try:
        if stored is None or stored["mark"] != _identity(mark) or stored["logMinOffset"] != mark.log_min_offset:
            return None
        table: dict[tuple[str, int], Place] = {}
        for topic, queues in cast("dict[str, dict[str, list[int]]]", stored["queues"]).items():
            for name, (max_offset, physical_end, min_offset, *files) in queues.items():
                if (queue_id := queue_id_of(name)) is not None:
                    pairs = tuple(zip(files[::2], files[1::2], strict=True))
                    table[topic, queue_id] = Place(pairs, max_offset, physical_end, min_offset)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return QueuePlaces(mark.log_min_offset, table)


def _identity(mark: RecoveryMark) -> int:
    return zlib.crc32(mark.encode())
