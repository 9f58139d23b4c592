"""Detection of files that were damaged at rest: removed, emptied, replaced by an older copy, or corrupted.

The recovery mark says how many units, index files and deletions there were when it was written. All of them
were on the medium, so no crash can explain it if there are fewer now. Queues, index and deletions are then derived again from
the whole log. Blocking; part of opening a store.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...world.events import get_logger
from ..derived.consumequeue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, ConsumeQueue, ConsumeQueues, Unit
from ..derived.index import IndexFiles
from ..log.commitlog import LogRecords
from ..recovery_mark import RecoveryMark
from .recovery import leads_to_its_record

log = get_logger(__name__)

UNSYNCED_FILES = 2
"""How many files at the end of a queue may not be synced; after a power cut they may hold anything and are not checked."""


def queue_ends(queues: Iterable[ConsumeQueue], physical_offset: int) -> int:
    """The sum, over queues, of the unit number that follows the records before `physical_offset`."""
    return sum(queue.end_before(physical_offset) for queue in queues)


def queue_begins(queues: Iterable[ConsumeQueue]) -> int:
    """The sum of the first unit numbers of queues."""
    return sum(queue.first_number for queue in queues)


def remove_corrupt_queues(commit_log: LogRecords, queues: ConsumeQueues, *, page_cache_intact: bool) -> bool:
    """Remove queues with a file whose first or last unit is wrong; returns whether there was one.

    Raises:
        OSError: the disk refused.
    """
    corrupt: list[ConsumeQueue] = []
    for queue in queues.table.values():
        if _is_corrupt(commit_log, queue, page_cache_intact=page_cache_intact):
            corrupt.append(queue)
        queue.segments.park()
    for queue in corrupt:
        log.error("queue_damaged", topic=queue.topic, queue_id=queue.queue_id, directory=queue.segments.directory)
        queues.remove(queue)
    return bool(corrupt)


def _is_corrupt(commit_log: LogRecords, queue: ConsumeQueue, *, page_cache_intact: bool) -> bool:
    if queue.unchanged:
        return False
    files = queue.segments.files
    looked_at = files if page_cache_intact else files[:-UNSYNCED_FILES]
    numbers = [segment.start // UNIT_SIZE for segment in looked_at if segment.wrote]
    numbers += [segment.end // UNIT_SIZE - 1 for segment in looked_at if segment.wrote]
    for number in numbers:
        unit: Unit = UNIT.codec.unpack(queue.units(number, 1))
        if unit[1] == PRE_BLANK_SIZE or leads_to_its_record(commit_log, queue, number, unit):
            continue
        # If the log ends before the record, recovery decides about the log; here the unit counts as sound if it is in order.
        if unit[0] < commit_log.max_offset or not _is_in_order(queue, number, unit):
            return True
    return False


def _is_in_order(queue: ConsumeQueue, number: int, unit: Unit) -> bool:
    before, after = queue.unit(number - 1), queue.unit(number + 1)
    return (before is None or before[0] < unit[0]) and (after is None or unit[0] < after[0])


def lost_units(mark: RecoveryMark, commit_log: LogRecords, queues: ConsumeQueues) -> bool:
    """Whether queues have fewer units than the mark counts."""
    table = queues.table.values()
    if queue_ends(table, mark.dispatched_offset) < mark.queue_ends:
        log.error("queue_units_lost", directory=queues.directory, expected=mark.queue_ends)
        return True
    if mark.queue_begins >= 0 and commit_log.min_offset == mark.log_min_offset and queue_begins(table) > mark.queue_begins:
        log.error("queue_files_lost", directory=queues.directory)
        return True
    return False


def lost_index_files(
    mark: RecoveryMark, note: RecoveryMark | None, commit_log: LogRecords, index: IndexFiles, *, page_cache_intact: bool
) -> bool:
    """Whether there are fewer index files than the mark counts."""
    if mark.index_files < 0 or commit_log.min_offset != mark.log_min_offset:
        return False
    expected, found = mark.full_index_files, index.full_files
    if page_cache_intact:
        found = len(index.files)
        expected = max(mark.index_files, note.index_files if note is not None and note.boot_id == mark.boot_id else 0)
    if found >= expected:
        return False
    log.error("index_files_lost", directory=index.directory, expected=expected, found=found)
    return True
