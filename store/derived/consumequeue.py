"""Consume queues: per topic and queue, 20 bytes for each message, in order (RocketMQ ConsumeQueue).

Unit n of a queue is at byte n x 20 of its endless run of files. Units are derived from the log and can always be rebuilt from
it. New units gather in memory during one dispatch round, and `write` writes them together.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping

import attrs

from ...message.fields import Field, Layout
from ...world.disk import Disk
from ...world.events import get_logger
from ..errors import BadQueueName, LinkInStore
from ..log.queue_files import OpenFiles
from ..log.segments import Segment, Segments
from ..names import queue_fault, queue_id_of, queue_offset_fault
from .deletions import Deletion, QueueEnd
from .place import Place

log = get_logger(__name__)

UNIT = Layout(
    "consume queue unit",
    (
        Field("physical_offset", "q", "where the record lies in the commit log"),
        Field("size", "i", "bytes of the record"),
        Field("tags_code", "q", "hash of the tag, or the due time in the delay topic"),
    ),
)
UNIT_SIZE = UNIT.size
assert UNIT_SIZE == 20

PRE_BLANK_SIZE = 0x7FFFFFFF
"""The size in filler units: those before a queue's first message, which have the physical offset 0, and those of a gap, which
have the end of the record before it. So offsets never decrease along a queue, and a binary search passes over a gap."""

_pack = UNIT.codec.pack
_BEFORE_FIRST = (0, PRE_BLANK_SIZE)
_PRE_BLANK = _pack(*_BEFORE_FIRST, 0)
_OFFSET_AND_SIZE = struct.Struct(">qi")

GAP_UNITS_MAX = 1 << 24
"""The largest gap of a queue that is filled, in units. A skipped segment of 1 GiB has fewer records than this. A larger gap
means an offset that no broker has assigned; filling it would fill the disk, so the record gets no unit."""
GAP_UNITS_PER_TURN = 1 << 20
"""How many units of a gap are filled in one turn of the event loop, 20 MiB."""
Unit = tuple[int, int, int]
"""Physical offset, record size, tags code."""


@attrs.define(eq=False)
class ConsumeQueue:
    """One queue of one topic."""

    topic: str
    queue_id: int
    segments: Segments
    min_offset: int = 0
    """First unit whose record is still in the log."""
    max_offset: int = 0
    """Next unit to be written, counting those still in memory."""
    physical_end: int = 0
    """End of the last record in this queue; records below it are duplicates."""
    unchanged: bool = False
    """Whether the files are those of the last clean stop, so that their content need not be checked."""
    deletion: Deletion | None = None
    """The last deletion of the topic: units before its queue offset do not count."""
    ends: list[QueueEnd] = attrs.field(factory=list[QueueEnd])
    """Control records that give the next offset of the queue, in log order. If the log of this node has no message of the
    queue, only they prevent that offsets are assigned a second time."""
    _gathered: bytearray = attrs.field(factory=bytearray)
    _low: tuple[int, int] = (-1, 0)
    """A min offset of the log and the first unit whose record is at or behind it, until `correct_min_offset` has used them."""
    _unsynced_from: int = -1
    _sync_failed: bool = False

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool | None:
        """Gather one unit; returns False for a duplicate or an impossible offset, which is dropped.

        Returns None if the unit is behind a gap of which only a part was filled: then the call has to be repeated.
        """
        if queue_offset == self.max_offset:
            self._gathered += _pack(physical_offset, size, tags_code)
            self.max_offset = queue_offset + 1
            self.physical_end = physical_offset + size
            return True
        is_known = physical_offset + size <= self.physical_end or queue_offset < self.max_offset
        if is_known or self._is_impossible(queue_offset, physical_offset):
            return False
        if not self._skip_to(queue_offset):
            return None
        return self.put(queue_offset, physical_offset, size, tags_code)

    def put_units(self, units: bytearray, count: int, physical_end: int) -> None:
        """Gather units that follow those of the queue; `physical_end` is the end of the last one's record."""
        self._gathered += units
        self.max_offset += count
        self.physical_end = physical_end

    def _is_impossible(self, queue_offset: int, physical_offset: int) -> bool:
        """Whether no broker can have assigned this queue offset behind the existing units; logs it if so."""
        gap = queue_offset - self.max_offset if self._has_units or self._gathered else 0
        if queue_offset_fault(queue_offset) is None and gap <= GAP_UNITS_MAX:
            return False
        place = {"topic": self.topic, "queue_id": self.queue_id, "physical_offset": physical_offset}
        log.error("queue_offset_impossible", expected=self.max_offset, found=queue_offset, **place)
        return True

    def _skip_to(self, queue_offset: int) -> bool:
        """Fill the gap before `queue_offset`, or as much of it as one turn allows; returns whether it is filled."""
        # The log does not begin at this queue's first message (a fresh slave, an expired head), or a unit is missing.
        self.write()
        if not self._has_units:
            self.min_offset = self.max_offset = queue_offset
            return True
        log.error("queue_offset_gap", topic=self.topic, queue_id=self.queue_id, expected=self.max_offset, found=queue_offset)
        filler, end = _pack(self.physical_end, PRE_BLANK_SIZE, 0), min(queue_offset, self.max_offset + GAP_UNITS_PER_TURN)
        while self.max_offset < end:
            count = min(end - self.max_offset, self._units_per_file)
            self._gathered += filler * count
            self.max_offset += count
            self.write()
        return end == queue_offset

    @property
    def _has_units(self) -> bool:
        return self.segments.max_offset > self.segments.min_offset

    @property
    def _gathered_from(self) -> int:
        """The number of the first unit that is in memory only."""
        return self.max_offset - len(self._gathered) // UNIT_SIZE

    def write(self) -> None:
        """Write the gathered units.

        Raises:
            OSError: the disk refused; the units stay gathered and `write` may be called again.
        """
        gathered = self._gathered
        if gathered and not self._has_units:
            self._begin_files(self._gathered_from * UNIT_SIZE)
        if self._unsynced_from < 0 and gathered:
            self._unsynced_from = self.segments.max_offset
        while gathered:
            segment = self.segments.last()
            room = segment.size - segment.wrote
            segment.append(gathered[:room])
            del gathered[:room]

    def _begin_files(self, at: int) -> None:
        """Create the file that contains byte `at` of the queue, and fill in the units before it, which this node never had."""
        self._drop_unused(at)
        segment = self.segments.last(at)
        segment.append(_PRE_BLANK * ((at - segment.start) // UNIT_SIZE))

    def _drop_unused(self, at: int) -> None:
        """Delete the files of a queue without units, which a cut may leave, if none of them is for byte `at`."""
        files = self.segments.files
        if files and not self._has_units and not files[0].start <= at < files[0].start + files[0].size:
            self.segments.clear()

    def sync(self) -> None:
        """Sync the written units; blocks."""
        start, self._unsynced_from = self._unsynced_from, -1
        if start >= 0:
            try:
                if self._sync_failed:
                    # Another sync alone would skip what the failed one has not brought to the medium.
                    self.segments.rewrite(start, self.segments.max_offset)
                self.segments.sync(start, self.segments.max_offset)
            except OSError:
                self._unsynced_from = start if self._unsynced_from < 0 else min(start, self._unsynced_from)
                self._sync_failed = True
                raise
            self._sync_failed = False

    def doubt_from(self, physical_offset: int) -> bool:
        """Let the next `sync` write units of records from `physical_offset` on again; returns whether there are any.

        Another process wrote them, and its syncs may have failed.
        """
        start = self._first_unit_at(physical_offset) * UNIT_SIZE
        if start >= self.segments.max_offset:
            return False
        self._unsynced_from, self._sync_failed, self.segments.created = start, True, True
        return True

    @property
    def is_deleted(self) -> bool:
        """Whether the topic was deleted, and the queue has had no message since."""
        return self.deletion is not None and self.max_offset == self.deletion.queue_offset

    def prepare(self, queue_offset: int) -> int:
        """Create the file for the unit of a message that is about to be appended, unless it is there.

        Returns:
            The number of the first unit behind that file.

        Raises:
            OSError: the disk refused. The message must not be appended, because its unit could not be written.
        """
        self._drop_unused(self._gathered_from * UNIT_SIZE)
        return self.segments.prepare(queue_offset * UNIT_SIZE) // UNIT_SIZE

    def units(self, offset: int, count: int) -> bytes:
        """Raw units from `offset` on: at most `count`, all of one file; empty when there are none.

        Units that are not written yet are read from memory: their records are in the log, so consumers need not wait.
        """
        at = offset * UNIT_SIZE
        if self._gathered and offset >= self._gathered_from:
            behind = (offset - self._gathered_from) * UNIT_SIZE
            return bytes(self._gathered[behind : behind + count * UNIT_SIZE])
        segment = self.segments.find(at)
        if segment is None:
            return b""
        inside = at - segment.start
        return segment.file.read(inside, min(count * UNIT_SIZE, segment.wrote - inside))

    def unit(self, offset: int) -> Unit | None:
        """One unit, or None outside the queue."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        raw = self.units(offset, 1)
        return UNIT.codec.unpack(raw) if raw else None

    @property
    def last_unit(self) -> Unit | None:
        """The last written unit, even if its message was deleted; None in a queue without units."""
        end = self.segments.max_offset // UNIT_SIZE
        raw = self.units(end - 1, 1) if end > self.segments.min_offset // UNIT_SIZE else b""
        return UNIT.codec.unpack(raw) if raw else None

    def restart(self, deletion: Deletion) -> None:
        """Hide every message before a deletion of the topic; the offsets continue, and the files are not changed.

        Raises:
            OSError: the disk refused. The caller derives the control record again.
        """
        self.go_on_at(deletion)
        self.deletion = deletion
        self.min_offset = min(max(self.min_offset, deletion.queue_offset), self.max_offset)

    def go_on_at(self, end: QueueEnd) -> None:
        """Continue the queue at the offset in a control record, if the queue ends before that.

        Raises:
            OSError: the disk refused. The caller derives the control record again.
        """
        if self.max_offset < end.queue_offset:
            if self._is_impossible(end.queue_offset, end.physical_offset):
                return
            self._skip_to(end.queue_offset)
        self.note_end(end)

    def note_end(self, end: QueueEnd) -> None:
        """Add a control record to `ends` without changing units; a queue without units continues at its offset."""
        at = bisect_left(self.ends, end.physical_offset, key=_physical_offset)
        if at == len(self.ends) or self.ends[at].physical_offset != end.physical_offset:
            self.ends.insert(at, end)
        if not self._has_units and not self._gathered:
            self._end_at_last_unit()
            self.min_offset = self.max_offset

    @property
    def last_mention(self) -> int:
        """The end of the last record in the log that determines the next offset of this queue."""
        return max(self.physical_end, self.ends[-1].physical_end if self.ends else 0)

    def _place_before(self, physical_offset: int) -> int:
        """The next offset of the queue by the control records before `physical_offset`; 0 if there are none."""
        return next((end.queue_offset for end in reversed(self.ends) if end.physical_end <= physical_offset), 0)

    @property
    def first_number(self) -> int:
        """The number of the first unit of the first file, or of the file that would be the first one."""
        at = self.segments.min_offset if self._has_units else self._gathered_from * UNIT_SIZE
        return (at - at % self.segments.segment_size) // UNIT_SIZE

    def last_unit_before(self, physical_offset: int) -> Unit | None:
        """The last written unit whose record ends at or before `physical_offset`, if there is one."""
        low, high = self.min_offset, self.segments.max_offset // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = UNIT.codec.unpack(self.units(middle, 1))
            if (offset if size == PRE_BLANK_SIZE else offset + size) <= physical_offset:
                low = middle + 1
            else:
                high = middle
        unit = self.unit(low - 1)
        return None if unit is None or unit[1] == PRE_BLANK_SIZE else unit

    @property
    def _units_per_file(self) -> int:
        return self.segments.segment_size // UNIT_SIZE

    def recover(self, *, page_cache_intact: bool) -> None:
        """Find the end: the first unit without an offset and a size. The search begins at the third file from the end.

        Args:
            page_cache_intact: no written byte can have been lost, so the bytes behind the end are not checked.
        """
        files = self.segments.files
        first = max(len(files) - 3, 0)
        while first > 0 and not _is_valid(files[first].file.read(0, UNIT_SIZE)):
            first -= 1  # a power cut has emptied more than three files
        for index in range(first, len(files)):
            segment = files[index]
            segment.wrote = _valid_bytes(segment)
            if segment.wrote < segment.size:
                torn = not page_cache_intact and segment.file.read(segment.wrote, segment.size).strip(b"\0")
                if torn or index + 1 < len(files):
                    self.segments.truncate(segment.end)
                break
        self.min_offset = self.segments.min_offset // UNIT_SIZE
        self._end_at_last_unit()

    def place(self) -> Place | None:
        """The place of the queue; None if it has no files, or not all of it is in them, or their times are unknown."""
        segments = self.segments
        files = tuple((segment.start, segments.disk.modified_ms(segment.path)) for segment in segments.files)
        if not self._has_units or self._gathered or not all(modified_ms > 0 for _, modified_ms in files):
            return None
        return Place(files, self.max_offset, self.physical_end, self.min_offset)

    def take_place(self, place: Place, log_min_offset: int) -> None:
        """Begin and end where the last clean stop says, instead of `recover`; the files are unchanged since then."""
        last = self.segments.files[-1]
        last.wrote = place.max_offset * UNIT_SIZE - last.start
        self.min_offset, self.max_offset, self.physical_end = place.min_offset, place.max_offset, place.physical_end
        self._low, self.unchanged = (log_min_offset, place.min_offset), True

    def _end_at_last_unit(self) -> None:
        self.max_offset = self.segments.max_offset // UNIT_SIZE
        last = self.units(self.max_offset - 1, 1) if self._has_units else b""
        if not last and self.ends:
            self.max_offset = max(self.max_offset, self.ends[-1].queue_offset)
        self.min_offset = min(self.min_offset, self.max_offset)
        offset, size, _ = UNIT.codec.unpack(last) if last else (0, 0, 0)
        self.physical_end = offset if size == PRE_BLANK_SIZE else offset + size

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of records at or beyond `physical_offset`, and the control records there."""
        self._gathered.clear()
        self._low = -1, 0
        while self.ends and self.ends[-1].physical_end > physical_offset:
            self.ends.pop()
        try:
            if (first := self._first_unit_at(physical_offset) * UNIT_SIZE) < self.segments.max_offset:
                self.segments.truncate(first)
        finally:
            self._end_at_last_unit()

    def _first_unit_at(self, physical_offset: int) -> int:
        """The first written unit whose record is at or behind `physical_offset`; the end of the queue if there is none."""
        low, high = self.segments.min_offset // UNIT_SIZE, self.segments.max_offset // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = UNIT.codec.unpack(self.units(middle, 1))
            # After a power cut, units behind the synced ones may hold anything, also zeros.
            if size <= 0 or (offset >= physical_offset and (offset, size) != _BEFORE_FIRST):
                high = middle
            else:
                low = middle + 1
        return low

    def end_before(self, physical_offset: int) -> int:
        """The number of the unit that follows those of the records before `physical_offset`."""
        if not self._has_units and not self._gathered:
            return self._place_before(physical_offset)
        return self.max_offset if self.physical_end <= physical_offset else self._first_unit_at(physical_offset)

    def forget_place(self) -> None:
        """Let the next unit have any queue offset, if no unit is left."""
        if self.segments.files and not self._has_units:
            self.segments.clear()
            self._end_at_last_unit()

    def drop_last(self) -> None:
        """Drop the last unit."""
        self.segments.truncate((self.max_offset - 1) * UNIT_SIZE)
        self._end_at_last_unit()

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Move `min_offset` to the first unit whose record is at or behind `log_min_offset`."""
        while len(self.ends) > 1 and self.ends[0].physical_offset < log_min_offset:
            del self.ends[0]
        if not self._has_units:
            self.min_offset = self._gathered_from
            return
        low = self._low[1] if self._low[0] == log_min_offset else self._first_in_log(log_min_offset)
        self._low = -1, 0
        self.min_offset = min(max(low, self.deletion.queue_offset if self.deletion is not None else 0), self.max_offset)

    def _first_in_log(self, log_min_offset: int) -> int:
        low, high = self.segments.min_offset // UNIT_SIZE, self.segments.max_offset // UNIT_SIZE
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = UNIT.codec.unpack(self.units(middle, 1))
            if offset < log_min_offset or (offset, size) == _BEFORE_FIRST:
                low = middle + 1
            else:
                high = middle
        return low

    def expire(self, log_min_offset: int) -> int:
        """Delete files whose last record is no longer in the log, never the last file; returns how many."""
        deleted = 0
        files = self.segments.files
        while len(files) > 1:
            offset, size = _OFFSET_AND_SIZE.unpack(files[0].file.read(files[0].size - UNIT_SIZE, _OFFSET_AND_SIZE.size))
            if size != PRE_BLANK_SIZE and offset >= log_min_offset:
                break
            self.segments.remove(files[0])
            deleted += 1
        self.correct_min_offset(log_min_offset)
        if self._is_freed_at(log_min_offset):
            deleted += len(files)
            self.segments.clear()
            self._end_at_last_unit()
        return deleted

    def _is_freed_at(self, log_min_offset: int) -> bool:
        """Whether the last file of a deleted queue can go: its messages have left the log, which says where the queue goes on.

        The last file of other queues stays, because RocketMQ takes the next offset from it.
        """
        if not self.is_deleted or not self._has_units or self._gathered or self.physical_end > log_min_offset:
            return False
        end = self.ends[-1] if self.ends else None
        return end is not None and end.physical_offset >= log_min_offset and end.queue_offset == self.max_offset

    def delete(self) -> None:
        """Remove all files of the queue."""
        self._gathered.clear()
        self.ends.clear()
        self.deletion = None
        self.segments.remove_all()


def _physical_offset(end: QueueEnd) -> int:
    return end.physical_offset


def _valid_bytes(segment: Segment) -> int:
    """Bytes of the units before the first one without an offset and a size."""
    low, high = 0, segment.size // UNIT_SIZE
    # Units are written in order and truncated ones are zeroed, so zeros are at the end: a binary search finds the first one.
    while low < high:
        middle = (low + high) // 2
        if _is_valid(segment.file.read(middle * UNIT_SIZE, UNIT_SIZE)):
            low = middle + 1
        else:
            high = middle
    # A power cut may have left a hole before the last units. Neither one valid unit nor two in a row
    # contain 20 zero bytes together: at most 19 are between the last byte of a size and the first of the next.
    hole = segment.file.read(0, low * UNIT_SIZE).find(bytes(UNIT_SIZE))
    return low * UNIT_SIZE if hole < 0 else -(-hole // UNIT_SIZE) * UNIT_SIZE


def _is_valid(raw: bytes) -> bool:
    offset, size, _ = UNIT.codec.unpack(raw)
    return bool(offset >= 0 and size > 0)


@attrs.define(eq=False)
class ConsumeQueues:
    """All queues of a store."""

    disk: Disk
    directory: str
    file_size: int
    table: dict[tuple[str, int], ConsumeQueue] = attrs.field(factory=dict[tuple[str, int], ConsumeQueue])
    """By topic and queue id."""
    _ids: dict[str, set[int]] = attrs.field(factory=dict[str, set[int]])
    """The queue ids in `table`, by topic."""
    open_files: OpenFiles = attrs.field(factory=OpenFiles)
    damaged: bool = False
    """Whether a queue was emptied because a file was missing between others."""

    def load(
        self, *, page_cache_intact: bool, places: Mapping[tuple[str, int], Place] | None = None, log_min_offset: int = 0
    ) -> None:
        """Open every existing queue and find its end (see `ConsumeQueue.recover`).

        Args:
            places: where queues ended at the last clean stop, when the log began at `log_min_offset`.

        Raises:
            WrongSegmentSize: a file has another size. Nothing stays open.
        """
        try:
            for topic in self.disk.list_directory(self.directory):
                if not self._is_own_directory(f"{self.directory}/{topic}"):
                    continue
                for name in self.disk.list_directory(f"{self.directory}/{topic}"):
                    queue_id = queue_id_of(name)
                    if queue_id is not None and self._is_own_directory(f"{self.directory}/{topic}/{name}"):
                        place = places.get((topic, queue_id)) if places else None
                        if place is None or not self._open_at(topic, queue_id, place, log_min_offset):
                            self._open(topic, queue_id, page_cache_intact=page_cache_intact).segments.park()
        except BaseException:
            self.close()
            raise

    def _is_own_directory(self, path: str) -> bool:
        """Whether the path may contain queues; a stray file is logged and ignored.

        Raises:
            LinkInStore: it is a symbolic link, whose target is not part of the store.
        """
        if self.disk.is_link(path):
            raise LinkInStore(path)
        if not self.disk.is_directory(path):
            log.warning("stray_file_ignored", path=path)
            return False
        return True

    def of(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, created if it does not exist yet.

        Raises:
            BadQueueName: it cannot have a directory. Nothing was created.
        """
        return self.table.get((topic, queue_id)) or self._open(topic, queue_id, page_cache_intact=True)

    def _open_at(self, topic: str, queue_id: int, place: Place, log_min_offset: int) -> bool:
        """Open a queue at its place; returns False if its files have changed since the place was written."""
        segments = self._segments_of(topic, queue_id)
        if not place.min_offset <= place.max_offset or not segments.load_unchanged(place.files, place.max_offset * UNIT_SIZE):
            return False
        self.table[topic, queue_id] = ConsumeQueue(topic, queue_id, segments)
        self._ids.setdefault(topic, set()).add(queue_id)
        self.table[topic, queue_id].take_place(place, log_min_offset)
        return True

    def _segments_of(self, topic: str, queue_id: int) -> Segments:
        fault = queue_fault(topic, queue_id)
        if fault is not None:
            raise BadQueueName(fault)
        size = self.file_size - self.file_size % UNIT_SIZE
        return Segments(self.disk, f"{self.directory}/{topic}/{queue_id}", size, open_files=self.open_files)

    def _open(self, topic: str, queue_id: int, *, page_cache_intact: bool) -> ConsumeQueue:
        segments = self._segments_of(topic, queue_id)
        segments.load()
        if (gap := segments.gap) is not None:
            log.error("queue_file_missing", directory=segments.directory, expected_offset=gap)
            segments.clear()
            self.damaged = True
        queue = self.table[topic, queue_id] = ConsumeQueue(topic, queue_id, segments)
        self._ids.setdefault(topic, set()).add(queue_id)
        queue.recover(page_cache_intact=page_cache_intact)
        return queue

    def ids(self, topic: str) -> list[int]:
        """Queues of a topic that have been written to."""
        return sorted(self._ids.get(topic, ()))

    def delete(self, topic: str) -> list[ConsumeQueue]:
        """Remove the queues of a topic and their files."""
        deleted = [self.table[topic, queue_id] for queue_id in self.ids(topic)]
        for queue in deleted:
            self.remove(queue)
        return deleted

    def clear(self) -> None:
        """Remove all queues and their files, so that not even a power cut brings one back.

        Raises:
            OSError: the disk refused; the call may be repeated.
        """
        for queue in list(self.table.values()):
            self.remove(queue)
        for topic in self.disk.list_directory(self.directory):
            self.disk.remove_tree(f"{self.directory}/{topic}")
        if self.disk.exists(self.directory):
            self.disk.sync_directory(self.directory)

    def remove(self, queue: ConsumeQueue) -> None:
        """Remove one queue and its files."""
        queue.delete()
        if self.disk.exists(queue.segments.directory):
            self.disk.remove_tree(queue.segments.directory)
        del self.table[queue.topic, queue.queue_id]  # last: the queue stays known while some of its files remain
        self._ids[queue.topic].remove(queue.queue_id)
        if not self._ids[queue.topic]:
            del self._ids[queue.topic]

    def close(self) -> None:
        for queue in self.table.values():
            queue.segments.close()
        self.table.clear()
        self._ids.clear()
