"""`audit`: checks whether the replicas of a log are equal, and whether each of them is intact.

The logs of a master and its slaves are equal byte for byte up to the end of the shortest one, and the ledgers of a Raft group
up to the smallest committed index; entries of a node after that may still be replaced. Workers compute a CRC of every section
of every replica. Sections that differ are compared byte by byte, and the first difference is reported with its record. A
replica that is only shorter does not differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ...ha.dledger.offline import all_log_files
from ...message.checksum import crc32
from ...message.layout import Check, check_record, span_of, topic_of
from ...store.offline import verify
from ...world.disk import RealDisk
from ..errors import BadOption
from ..log_files import SegmentFile
from ..store_files import Store, open_stores
from .ledgers import entry_at, examine_ledgers
from .places import TASKS_PER_CORE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRETCH_BYTES = 4 * 1024 * 1024


@attrs.frozen
class Difference:
    """The first byte in which a replica differs from the first replica."""

    replica: str
    reference: str
    file: str
    physical_offset: int
    found: int
    expected: int
    record: str
    """A description of the record that contains it."""

    def __str__(self) -> str:
        return (
            f"{self.replica} differs from {self.reference} at physical offset {self.physical_offset} ({self.file}): "
            f"{self.found:#04x} instead of {self.expected:#04x}, in {self.record}"
        )


@attrs.frozen
class Audit:
    """The result of an audit."""

    begin: int
    end: int
    """All replicas were compared from the physical offset `begin` to this one."""
    differences: tuple[Difference, ...]
    problems: dict[str, list[str]]
    """The faults in each replica, found without comparing it to others."""
    ends: dict[str, int]

    @property
    def sound(self) -> bool:
        return not self.differences and not any(self.problems.values())


@attrs.frozen
class _Stretch:
    """A part of a file of one replica."""

    replica: str
    path: str
    start: int
    """The physical offset at which the file begins."""
    begin: int
    size: int


def audit(spark: SparkSession, replicas: Sequence[str]) -> Audit:
    """Compare stores with each other, and each with its own checksums.

    Args:
        spark: a session; its workers must reach all stores by these paths.
        replicas: store directories; a single one is only verified.

    Raises:
        BadOption: a path is not a store. Nothing was compared.
    """
    if not replicas:
        raise BadOption("stores", "", "at least one store is expected")
    stores = list(open_stores(replicas, [str(at) for at in range(len(replicas))]).values())
    ends: dict[str, int] = {}
    for store in stores:
        store.log.refresh()
        ends[store.root] = end_of(store)
    begin, end = max(store.log.min_offset for store in stores), min(ends.values())
    stretches = [stretch for store in stores for stretch in _stretches(store, begin, end)] if len(stores) > 1 else []
    sums: dict[tuple[int, int], dict[str, int]] = {}
    context = spark.sparkContext
    if stretches:
        tasks = min(len(stretches), TASKS_PER_CORE * context.defaultParallelism)
        for replica, physical_offset, size, value in context.parallelize(stretches, tasks).map(_sum).collect():
            sums.setdefault((physical_offset, size), {})[replica] = value
    differences = _differences(stores, sums)
    checked = context.parallelize(list(replicas), len(replicas)).map(_verify).collect()
    return Audit(begin, end, tuple(differences), dict(checked), ends)


def end_of(store: Store) -> int:
    """Return the end of the last intact record of a store's log; in a Raft ledger, the end of its last committed entry."""
    ledgers = examine_ledgers(store.root, check_bodies=False)
    if ledgers.end is not None:
        return ledgers.end
    for file in reversed(store.log.files):
        piece = store.log.piece(file)
        if piece is None:
            continue
        view = memoryview(piece.bytes)
        position = 0
        while check_record(view, position, len(view), check_crc=False)[0] is Check.RECORD:
            span = span_of(view, position, len(view))
            assert span is not None
            position += span.size
        if position:
            return file.start + position
    return store.log.min_offset


def _stretches(store: Store, begin: int, end: int) -> list[_Stretch]:
    found: list[_Stretch] = []
    for file in store.log.files:
        low, high = max(file.start, begin), min(file.end, end)
        found += [
            _Stretch(store.root, file.path, file.start, at, min(STRETCH_BYTES, high - at))
            for at in range(low, high, STRETCH_BYTES)
        ]
    return found


def _sum(stretch: _Stretch) -> tuple[str, int, int, int]:
    file = RealDisk().open(stretch.path, read_only=True)
    try:
        return stretch.replica, stretch.begin, stretch.size, crc32(file.read(stretch.begin - stretch.start, stretch.size))
    finally:
        file.close()


def _verify(root: str) -> tuple[str, list[str]]:
    disk = RealDisk()
    report = verify(disk, root, files=all_log_files(disk, root))
    more = report.problem_count - len(report.problems)
    of_ledgers = examine_ledgers(root, check_bodies=True).problems
    return root, [*report.problems, *([f"and {more} more"] if more else []), *of_ledgers]


def _differences(stores: Sequence[Store], sums: dict[tuple[int, int], dict[str, int]]) -> list[Difference]:
    reference = stores[0]
    found: dict[str, Difference] = {}
    for (physical_offset, size), by_replica in sorted(sums.items()):
        for store in stores[1:]:
            if store.root in found or by_replica.get(store.root) == by_replica.get(reference.root):
                continue
            difference = _first_difference(reference, store, physical_offset, size)
            if difference is not None:
                found[store.root] = difference
    return list(found.values())


def _first_difference(reference: Store, other: Store, physical_offset: int, size: int) -> Difference | None:
    ours, theirs = reference.log.find(physical_offset), other.log.find(physical_offset)
    if ours is None or theirs is None:
        return None
    expected = reference.log.piece(ours)
    found = other.log.piece(theirs)
    if expected is None or found is None:
        return None
    left = expected.bytes[physical_offset - ours.start :][:size]
    right = found.bytes[physical_offset - theirs.start :][:size]
    count = min(len(left), len(right))
    places = np.flatnonzero(left[:count] != right[:count])
    if not len(places):
        return None
    at = physical_offset + int(places[0])
    return Difference(
        other.root,
        reference.root,
        theirs.path,
        at,
        int(right[places[0]]),
        int(left[places[0]]),
        _record_at(reference, ours, at),
    )


def _record_at(store: Store, file: SegmentFile, physical_offset: int) -> str:
    """Describe the record, or the entry of a ledger, that contains a byte."""
    piece = store.log.piece(file)
    assert piece is not None
    view = memoryview(piece.bytes)
    if file.header_size:
        return entry_at(view, file.start, physical_offset)
    position = 0
    while (span := span_of(view, position, len(view))) is not None:
        if file.start + position + span.size > physical_offset:
            where = f"topic {topic_of(view, span)}, queue {span.queue_id}, queue offset {span.queue_offset}"
            return f"the record at {file.start + position} ({where})"
        position += span.size
    return "no record: behind the last one, or a filler"
