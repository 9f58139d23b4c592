"""Finding the end of a log after any kind of exit, and making queues and index agree with it, in numbered passes.

1. Queues: each finds its own end (`ConsumeQueue.recover`), without looking at the log.
2. Start: where the log has to be read from. Our own mark (`RecoveryMark`) says up to where log and queues are known to be on
   the medium; it counts only if the record it names is still there, whole. Else RocketMQ's rule: the newest segment whose
   first record is sound and old enough for the checkpoint (after a crash) or held by the queues (after a clean stop).
   While the machine has not been started anew, a note takes the mark's place: the same of what was written, synced or not.
3. Queues forget whatever lies at or behind the start: they are derived again, not trusted.
4. The log is read from the start; every sound record is derived; the first unsound one is the end.
5. The log is cut at the end, and what is cut reads as zeros, so that no later scan takes old bytes for new records.

It blocks, so it runs on a worker thread, before anybody else uses the store.
"""

from __future__ import annotations

import zlib

import attrs
import structlog

from ..message.fields import Field, Layout
from ..message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from ..message.layout import BLANK, MAGIC_V1, MAGIC_V2, Check, body_size_of, check_record, span_of, topic_of
from .checkpoint import Checkpoint
from .commitlog import LocalLog
from .consumequeue import PRE_BLANK_SIZE, ConsumeQueue
from .dispatch import Derivable, Dispatcher, scan
from .errors import DamagedLog, MissingLog

log = structlog.get_logger()

DERIVE_AT_ONCE = 4096
SECTOR = 512
"""What the medium writes whole or not at all; a multiple of it on most."""
LEFTOVER_BYTES = 64 * 1024
"""How far behind the end is looked for something that was cut off."""


MARK = Layout(
    "recovery mark",
    (
        Field("flushed_offset", "q", "all bytes of the log before it are on the medium"),
        Field("dispatched_offset", "q", "all queue units of records before it are too"),
        Field("record_offset", "q", "a record that ends at or before both, to recognise the log by; -1 for none"),
        Field("record_size", "i", "its size"),
        Field("record_store_timestamp", "q", "and its store timestamp"),
        Field("indexed_offset", "q", "index files whose last record is before it, or it, are on the medium whole"),
        Field("boot_id", "36s", "start of the machine under which all this was written"),
        Field("crc", "I", "CRC-32 of the fields before"),
    ),
)
_CRC_AT = MARK.offsets["crc"]


@attrs.frozen
class RecoveryMark:
    """What is known to be on the medium; lies in the checkpoint file behind RocketMQ's fields, which have no room for it."""

    flushed_offset: int
    dispatched_offset: int
    record_offset: int
    record_size: int
    record_store_timestamp: int
    indexed_offset: int
    boot_id: str
    """While the machine has not been started anew, whatever was written is still there, synced or not."""

    @classmethod
    def decode(cls, encoded: bytes) -> RecoveryMark | None:
        """Read a mark; None if the bytes are not one."""
        if len(encoded) < MARK.size or not any(encoded):
            return None
        fields = MARK.unpack(encoded)
        if fields.pop("crc") != zlib.crc32(encoded[:_CRC_AT]):
            return None
        boot_id = fields.pop("boot_id").rstrip(b"\0").decode("ascii", "replace")
        return cls(**fields, boot_id=boot_id)

    def encode(self) -> bytes:
        """Encode the mark with its checksum."""
        fields = attrs.asdict(self) | {"boot_id": self.boot_id.encode("ascii"), "crc": 0}
        encoded = MARK.pack(**fields)[:_CRC_AT]
        return encoded + zlib.crc32(encoded).to_bytes(4, "big")

    @property
    def start(self) -> int:
        return min(self.flushed_offset, self.dispatched_offset)


@attrs.frozen
class Recovered:
    """What recovery found."""

    start: int
    end: int
    records: int
    """Records read back between the two."""
    torn: bool
    """Whether something other than zeros lay behind the end."""


def recover(
    local: LocalLog,
    queues: list[ConsumeQueue],
    dispatcher: Dispatcher,
    checkpoint: Checkpoint,
    mark: RecoveryMark | None,
    *,
    clean_exit: bool,
    kept_all: bool,
    check_crc: bool,
    note: RecoveryMark | None = None,
    index_lost_from: int | None = None,
) -> Recovered:
    """Run passes 2 to 5 (pass 1 happened when the queues were opened).

    Args:
        kept_all: no written byte can have been lost, nor an older state of one have come back.
        note: what had been written, as far as anybody wrote that down; counts only with `kept_all`.
        index_lost_from: records from there on have to be indexed anew.

    Raises:
        MissingLog: there is no log, though there was one. Nothing was changed.
        DamagedLog: a record that had been synced is no longer whole. Nothing was cut.
        OSError: the disk refused.
    """
    files = local.segments.files
    if not files:
        if mark is not None and mark.flushed_offset:
            raise MissingLog(local.segments.directory, mark.flushed_offset)
        for queue in queues:
            queue.truncate(0)
        return Recovered(0, 0, 0, torn=False)
    trusted = mark if mark is not None and _is_there(local, mark, queues) else None
    start = _start(local, queues, checkpoint, trusted, clean_exit=clean_exit)
    if mark is not None and start < mark.dispatched_offset:
        # The mark does not hold, or no longer will: a crash during what follows must not find it.
        checkpoint.forget()
    if kept_all and trusted is not None and note is not None and _is_there(local, note, queues):
        start = max(start, note.start)
    for queue in queues:
        if not kept_all or queue.physical_end > start:
            _forget_from(local, queue, start)
        if trusted is not None and queue.physical_end > trusted.start and queue.doubt_from(trusted.start):
            dispatcher.dirty[queue] = None
    log_start = start
    if index_lost_from is not None:
        start = max(min(start, index_lost_from), local.min_offset)
    order = None if kept_all or mark is None else _Order(mark.flushed_offset, queues)
    belongs = _Belongs(local, trusted.flushed_offset if trusted is not None else -1, kept_all=kept_all)
    end, records = _read_back(local, dispatcher, start, belongs, order, check_crc=check_crc)
    if mark is not None and end < mark.flushed_offset and _damaged_at(local, end, mark.flushed_offset):
        raise DamagedLog(local.segments.directory, end, mark.flushed_offset)
    torn = _cut(local, end, clean_exit=clean_exit)
    local.max_offset = local.flushed_offset = end
    if not clean_exit:
        _make_durable(local, trusted, log_start, kept_all=kept_all)
    if local.readable_max is None:
        dispatcher.dispatched_offset = end
    for queue in queues:
        queue.correct_min_offset(local.min_offset)
    return Recovered(start, end, records, torn)


def _make_durable(local: LocalLog, trusted: RecoveryMark | None, log_start: int, *, kept_all: bool) -> None:
    """Bring what was read back to the medium: it may be in the page cache only, written by a process that was killed.

    If a sync of that process had failed, another one would not help: what is not known to be on the medium is written anew.
    Where nobody was promised more than the page cache, and that still holds everything, it is left to the next flush.
    """
    end = local.max_offset
    if trusted is None:
        local.segments.sync(local.min_offset, log_start)
    start = log_start if trusted is None else min(max(trusted.flushed_offset, local.min_offset), end)
    if kept_all and not local.sync_flush:
        local.flushed_offset, local.suspect_until = start, end
    else:
        local.rewrite(start, end)


def _forget_from(local: LocalLog, queue: ConsumeQueue, start: int) -> None:
    queue.truncate(start)
    # A unit may lie across two sectors of which a power cut took one: then its offset is anything, and no search by it holds.
    while queue.max_offset > queue.min_offset and not _points_to_its_record(local, queue):
        queue.drop_last()
        queue.truncate(start)


def _points_to_its_record(local: LocalLog, queue: ConsumeQueue) -> bool:
    """Whether the last unit of a queue is what it must be, as far as the log still tells."""
    number = queue.max_offset - 1
    unit, before = queue.unit(number), queue.unit(number - 1)
    if unit is None or unit[1] == PRE_BLANK_SIZE:
        return unit is not None
    offset, size, _ = unit
    if before is not None and before[1] != PRE_BLANK_SIZE and before[0] + before[1] > offset:
        return False
    if offset < local.min_offset:
        return True
    view = local.record(offset, size)
    span = span_of(view, 0, size) if view is not None else None
    return (
        view is not None
        and span is not None
        and (span.size, span.queue_id, span.queue_offset) == (size, queue.queue_id, number)
        and topic_of(view, span) == queue.topic
    )


def _start(
    local: LocalLog,
    queues: list[ConsumeQueue],
    checkpoint: Checkpoint,
    mark: RecoveryMark | None,
    *,
    clean_exit: bool,
) -> int:
    if mark is not None:
        return max(mark.start, local.min_offset)
    queues_end = _queues_end(queues)
    for segment in reversed(local.segments.files):
        check, span = check_record(segment.view, 0, segment.size)
        if check is not Check.RECORD or span is None or span.store_timestamp == 0:
            continue
        if clean_exit and span.physical_offset <= queues_end:
            return segment.start
        if not clean_exit and span.store_timestamp <= checkpoint.recovery_time:
            return segment.start
    return local.min_offset


def _queues_end(queues: list[ConsumeQueue]) -> int:
    return max((queue.physical_end for queue in queues), default=-1)


def _is_there(local: LocalLog, mark: RecoveryMark, queues: list[ConsumeQueue]) -> bool:
    if mark.record_offset < 0 or not mark.record_offset + mark.record_size <= mark.start:
        return False
    if _queues_end(queues) < mark.record_offset + mark.record_size:
        return False  # somebody took the queues away to have them built anew
    view = local.slice_from(mark.record_offset, mark.record_size)
    check, span = check_record(view, 0, len(view))
    return (
        check is Check.RECORD
        and span is not None
        and (span.size, span.physical_offset, span.store_timestamp)
        == (mark.record_size, mark.record_offset, mark.record_store_timestamp)
    )


@attrs.define(eq=False)
class _Order:
    """What each queue expects next, to tell where the log jumps.

    A filler may be taken back and be written over by records: then a power cut may bring the filler back, and behind it what
    came after those records. Nothing tells that from a log as it should be, except the queue offsets that are left out.
    """

    synced: int
    """Before it, what is read is what was written."""
    queues: list[ConsumeQueue]
    _next: dict[tuple[str, int], int] = attrs.field(factory=dict[tuple[str, int], int])

    def __attrs_post_init__(self) -> None:
        self._next.update({(queue.topic, queue.queue_id): queue.max_offset for queue in self.queues if queue.max_offset})

    def follows(self, record: Derivable) -> bool:
        """Whether no record of the same queue was left out before this one."""
        if record[7] & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
            return True
        key, offset = (record[0], record[1]), record[2]
        expected = self._next.get(key, offset)
        if offset > expected and record[3] >= self.synced:
            return False
        self._next[key] = max(expected, offset + 1)
        return True


@attrs.define(eq=False)
class _Belongs:
    """Whether what looks like a record is one of this log, and all there."""

    local: LocalLog
    synced: int
    """Records that end before it are."""
    kept_all: bool

    def judge(self, record: Derivable, position: int) -> bool:
        offset, size = record[3], record[4]
        if offset != position - size:  # it says that it lies elsewhere: left over from another log
            return False
        if position <= self.synced:
            return True
        if _ends_early(self.local, offset, size):
            return False
        return self.kept_all or not _lacks_a_sector(self.local, offset, size)


def _ends_early(local: LocalLog, offset: int, size: int) -> bool:
    """Whether the end of a record was never written: a slave's bytes may end anywhere, and the CRC covers the body only.

    What was not written reads as zeros, and neither a topic nor properties end with one.
    """
    view = local.record(offset, size)
    if view is not None and view[size - 1] != 0:
        return False
    span = span_of(view, 0, size) if view is not None else None
    if view is None or span is None or span.properties_at < span.end:
        return True
    return 0 in view[span.topic_at : span.properties_at - 2]


def _read_back(
    local: LocalLog, dispatcher: Dispatcher, start: int, belongs: _Belongs, order: _Order | None, *, check_crc: bool
) -> tuple[int, int]:
    end, count = start, 0
    batch: list[Derivable] = []
    limit = local.segments.max_offset
    readable = limit if local.readable_max is None else local.readable_max
    dispatcher.dispatched_offset = start
    for position, record in scan(local, start, limit, dispatcher.tags_codes, check_crc=check_crc):
        if record is None:
            # A filler leads on only if there is a file for it to lead to: else the log ends where the filler begins.
            if local.segments.find(position) is None:
                break
        elif not belongs.judge(record, position) or (order is not None and not order.follows(record)):
            break
        else:
            count += 1
            if position <= readable:
                batch.append(record)
                dispatcher.dispatched_offset = position
        end = position
        if len(batch) >= DERIVE_AT_ONCE:
            dispatcher.derive(batch)
            batch = []
    dispatcher.derive(batch)
    return end, count


def _lacks_a_sector(local: LocalLog, offset: int, size: int) -> bool:
    """Whether a sector of the record's end reads as zeros: a power cut took it, and the CRC covers the body only."""
    segment, view = local.segments.find(offset), local.record(offset, size)
    span = span_of(view, 0, size) if view is not None else None
    if segment is None or view is None or span is None:
        return True
    at = span.body_at + body_size_of(view, span)
    at += -(offset - segment.start + at) % SECTOR
    # The length of no properties is zeros by right, and may have come to lie in a sector of its own.
    end = size if span.properties_at < span.end else span.properties_at - 2
    return any(not any(view[start : min(start + SECTOR, end)]) for start in range(at, end, SECTOR))


def _damaged_at(local: LocalLog, end: int, synced: int) -> bool:
    """Whether a synced record is no longer whole; nothing, and the beginning of one that a slave was receiving, is none."""
    view = local.slice_from(end, LEFTOVER_BYTES)
    if not any(view) or synced - end < BLANK.size:
        return False
    size, magic = BLANK.codec.unpack_from(view)
    return magic not in (MAGIC_V1, MAGIC_V2) or size <= synced - end


def _cut(local: LocalLog, end: int, *, clean_exit: bool) -> bool:
    segment = local.segments.find(end)
    if segment is None:  # the log ends exactly where its last segment does
        return False
    at = end - segment.start
    leftover = any(segment.view[at : at + LEFTOVER_BYTES]) or local.segments.files[-1] is not segment
    if leftover:
        log.warning("torn_tail_truncated", physical_offset=end, segment=segment.path)
    if leftover or not clean_exit:
        local.segments.truncate(end)
    segment.wrote = at
    return leftover
