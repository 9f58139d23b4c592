"""Making queues and index agree with the log after any kind of exit, in numbered passes.

1. Queues: each finds its own end (`ConsumeQueue.recover`), without looking at the log.
2. Start: where the log has to be read from. Our own mark (`RecoveryMark`) has the offsets up to which log and queues are on
   the medium; it counts only if the record it names is still there, whole. Otherwise RocketMQ's rule applies: the newest
   segment whose first record is sound and old enough for the checkpoint (after a crash) or held by the queues (after a clean
   stop). Until the machine restarts, a note replaces the mark: it covers what was written, synced or not.
3. Queues drop the units of all records at or behind the start: these are derived again, not trusted.
4. The log is read back from the start; every record that it accepts as whole is derived, as far as consumers may read it.
5. The log ends behind the last such record (`CommitLog.end_at`); what follows is truncated.

What makes a record whole, and how a log is truncated, is decided by the log. This runs on a worker thread, before anything else
uses the store.
"""

from __future__ import annotations

import attrs

from ...message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from ...message.layout import Check, DerivedParts, check_record, span_of, topic_of
from ..checkpoint import Checkpoint
from ..derived.consumequeue import PRE_BLANK_SIZE, ConsumeQueue, Unit
from ..derived.dispatch import Derivable, Dispatcher
from ..errors import DamagedLog, MissingLog, MissingSegment
from ..log.commitlog import Evidence, LogRecords, RecoveredLog
from ..recovery_mark import RecoveryMark

DERIVE_AT_ONCE = 4096
"""How many records are derived together while the log is read back."""


@attrs.frozen
class Recovered:
    """What recovery found."""

    start: int
    end: int
    records: int
    """Records read back between the two."""
    torn: bool
    """Whether something other than zeros followed the end."""


def recover(
    log: RecoveredLog,
    queues: list[ConsumeQueue],
    dispatcher: Dispatcher,
    checkpoint: Checkpoint,
    mark: RecoveryMark | None,
    *,
    clean_exit: bool,
    page_cache_intact: bool,
    check_crc: bool,
    note: RecoveryMark | None = None,
    index_lost_from: int | None = None,
    derived_damaged: bool = False,
) -> Recovered:
    """Run passes 2 to 5 (pass 1 happened when the queues were opened).

    Args:
        page_cache_intact: no written byte can have been lost, and none can have returned to an older state.
        note: the note of what had been written; counts only if the page cache is intact.
        index_lost_from: records from there on have to be indexed again.
        derived_damaged: queues have lost units, so everything is derived from the whole log.

    Raises:
        MissingLog: there is no log, though there was one. Nothing was changed.
        DamagedLog: a record that had been synced is no longer whole. Nothing was truncated.
        OSError: the disk refused.
    """
    if log.empty:
        if mark is not None and mark.flushed_offset:
            raise MissingLog(log.directory, mark.flushed_offset)
        for queue in queues:
            queue.truncate(0)
            queue.forget_place()
        return Recovered(0, 0, 0, torn=False)
    if (
        mark is not None
        and log.min_offset > mark.log_min_offset >= 0
        and not _used_by_another(log, mark, checkpoint, clean_exit=clean_exit)
    ):
        raise MissingSegment(log.directory, mark.log_min_offset, log.min_offset)
    trusted = mark if mark is not None and not derived_damaged and _is_there(log, mark, queues) else None
    evidence = Evidence(
        clean_exit=clean_exit,
        page_cache_intact=page_cache_intact,
        synced_offset=_synced_offset(mark, queues, page_cache_intact=page_cache_intact),
        verified_offset=trusted.flushed_offset if trusted is not None else -1,
        check_crc=check_crc,
    )
    start = _start(log, queues, checkpoint, trusted, clean_exit=clean_exit)
    if mark is not None and start < mark.dispatched_offset:
        # The mark is not valid, or soon will not be: a start after a crash during what follows must not use it.
        checkpoint.forget(evidence=mark.as_evidence(mark.flushed_offset).encode())
    if page_cache_intact and trusted is not None and note is not None and _is_there(log, note, queues):
        start = max(start, note.start)
    for queue in queues:
        if not page_cache_intact or queue.last_mention > start:
            _forget_from(log, queue, start)
    if derived_damaged or (trusted is not None and sum(queue.max_offset for queue in queues) < trusted.queue_ends):
        start = _forget_derived(log, queues, checkpoint, mark)
    if trusted is not None:
        _sync_again(queues, dispatcher, trusted)
    read_from = start if index_lost_from is None else max(min(start, index_lost_from), log.min_offset)
    order = None if page_cache_intact or mark is None else _Order(mark.flushed_offset, queues)
    try:
        end, records = _read_back(log, dispatcher, read_from, evidence, order)
        torn = log.end_at(end, start, evidence)
    except DamagedLog:
        # Queues end earlier now, so that the next start could take the damage for a torn write.
        if mark is not None:
            checkpoint.forget(evidence=mark.as_evidence(evidence.synced_offset).encode())
        raise
    if log.readable_limit is None:
        dispatcher.dispatched_offset = end
    for queue in queues:
        queue.correct_min_offset(log.min_offset)
    return Recovered(read_from, end, records, torn)


def _used_by_another(log: RecoveredLog, mark: RecoveryMark, checkpoint: Checkpoint, *, clean_exit: bool) -> bool:
    """Whether a broker that writes no mark has put messages behind it; it may have deleted the first files as expired."""
    for _, record in log.records(max(mark.flushed_offset, log.min_offset), log.files()[-1].end):
        if record is not None:
            return checkpoint.is_of_another(record[5], clean_exit=clean_exit)
    return False


def _sync_again(queues: list[ConsumeQueue], dispatcher: Dispatcher, trusted: RecoveryMark) -> None:
    """Let the next sync cover the units that were kept though they are behind the mark: their own sync may have failed."""
    for queue in queues:
        if queue.physical_end > trusted.start and queue.doubt_from(trusted.start):
            dispatcher.dirty[queue] = None


def _synced_offset(mark: RecoveryMark | None, queues: list[ConsumeQueue], *, page_cache_intact: bool) -> int:
    """Before this position, a record that is not whole is damage and no torn write; -1 if nothing is known."""
    if mark is None:
        return -1
    # What queues have was written to the log before, and the end of a process loses no written bytes.
    return max(mark.flushed_offset, _queues_end(queues)) if page_cache_intact else mark.flushed_offset


def _forget_derived(log: RecoveredLog, queues: list[ConsumeQueue], checkpoint: Checkpoint, mark: RecoveryMark | None) -> int:
    """Let all queues be derived again from the whole log; returns where it begins."""
    # A start after a crash during what follows must read back the whole log.
    checkpoint.physical_timestamp = checkpoint.logical_timestamp = 0
    checkpoint.forget(evidence=mark.as_evidence(mark.flushed_offset).encode() if mark is not None else b"")
    for queue in queues:
        queue.truncate(log.min_offset)
        queue.forget_place()
        queue.segments.park_if_full()
    return log.min_offset


def _forget_from(log: RecoveredLog, queue: ConsumeQueue, start: int) -> None:
    queue.truncate(start)
    # If a power cut lost one of two sectors of a unit, the offset in it is arbitrary and misleads searches by offset.
    while queue.max_offset > queue.min_offset and not _points_to_its_record(log, queue):
        queue.drop_last()
        queue.truncate(start)
    queue.segments.park_if_full()  # a cut is synced


def _points_to_its_record(log: LogRecords, queue: ConsumeQueue) -> bool:
    """Whether the last unit of a queue is right, as far as the log still has its record."""
    number = queue.max_offset - 1
    unit, before = queue.unit(number), queue.unit(number - 1)
    if unit is None or unit[1] == PRE_BLANK_SIZE:
        return unit is not None
    if before is not None and before[1] != PRE_BLANK_SIZE and before[0] + before[1] > unit[0]:
        return False
    return leads_to_its_record(log, queue, number, unit)


def leads_to_its_record(log: LogRecords, queue: ConsumeQueue, number: int, unit: Unit) -> bool:
    """Whether a unit leads to the record that it is for, as far as the log still has it."""
    offset, size, _ = unit
    if offset < log.min_offset:
        return True
    view = log.record(offset, size)
    span = span_of(view, 0, size) if view is not None else None
    return (
        view is not None
        and span is not None
        and (span.size, span.queue_id, span.queue_offset) == (size, queue.queue_id, number)
        and topic_of(view, span) == queue.topic
    )


def _start(
    log: RecoveredLog,
    queues: list[ConsumeQueue],
    checkpoint: Checkpoint,
    mark: RecoveryMark | None,
    *,
    clean_exit: bool,
) -> int:
    if mark is not None:
        return max(mark.start, log.min_offset)
    queues_end, recovery_time = _queues_end(queues), checkpoint.recovery_time

    def acceptable(physical_offset: int, store_timestamp: int) -> bool:
        return physical_offset <= queues_end if clean_exit else store_timestamp <= recovery_time

    return log.start_below(acceptable)


def _queues_end(queues: list[ConsumeQueue]) -> int:
    return max((queue.physical_end for queue in queues), default=-1)


def _is_there(log: RecoveredLog, mark: RecoveryMark, queues: list[ConsumeQueue]) -> bool:
    if mark.record_offset < 0 or not mark.record_offset + mark.record_size <= mark.start:
        return False
    if _queues_end(queues) < mark.record_offset + mark.record_size:
        return False  # an operator removed the queues to have them built again
    view = log.slice_from(mark.record_offset, mark.record_size)
    check, span = check_record(view, 0, len(view))
    return (
        check is Check.RECORD
        and span is not None
        and (span.size, span.physical_offset, span.store_timestamp)
        == (mark.record_size, mark.record_offset, mark.record_store_timestamp)
    )


@attrs.define(eq=False)
class _Order:
    """The next offset that each queue expects, to notice where the log lacks records.

    A filler may be withdrawn and overwritten by records: then a power cut may bring the filler back, and behind it what came
    after those records. Only the missing queue offsets distinguish that from a sound log.
    """

    synced: int
    """Before this position, the bytes that are read are those that were written."""
    queues: list[ConsumeQueue]
    _next: dict[tuple[str, int], int] = attrs.field(factory=dict[tuple[str, int], int])

    def __attrs_post_init__(self) -> None:
        self._next.update({(queue.topic, queue.queue_id): queue.max_offset for queue in self.queues if queue.max_offset})

    def follows(self, record: DerivedParts) -> bool:
        """Whether no record of the same queue was left out before this one."""
        _, queue_id, offset, physical_offset, sys_flag, _, topic, _ = record
        if sys_flag & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            return True
        expected = self._next.get((topic, queue_id), offset)
        if offset > expected and physical_offset >= self.synced:
            return False
        self._next[topic, queue_id] = max(expected, offset + 1)
        return True


def _read_back(
    log: RecoveredLog, dispatcher: Dispatcher, start: int, evidence: Evidence, order: _Order | None
) -> tuple[int, int]:
    end, count = start, 0
    batch: list[Derivable] = []
    limit = log.readable_limit
    dispatcher.dispatched_offset = start
    for position, record in log.read_back(start, evidence):
        if record is not None:
            if order is not None and not order.follows(record):
                break
            count += 1
            if limit is None or position <= limit:
                batch.append(dispatcher.derivable(record))
                dispatcher.dispatched_offset = position
        end = position
        if len(batch) >= DERIVE_AT_ONCE:
            dispatcher.derive(batch)
            batch = []
    dispatcher.derive(batch)
    return end, count
