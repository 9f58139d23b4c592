"""The consume queues and the table of topics of a store, read while a broker may be writing. Nothing is locked or written.

A broker adds a record to a consume queue only when consumers may see it: once its group has committed it, once its transaction
is committed, and never if it is a control record. So messages are read up to the end of a queue's units, on a node of
a Raft group as on a master or a slave; the committed index in the ledger's checkpoint is older and is not needed.

A unit may be visible before it is complete. Ends are looked up first, the record at the end is checked, and a range is read
only after its end is known.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import attrs
import numpy as np

from ..message.flags import PERM_READ
from ..message.numbers import is_digits
from ..store.derived.consumequeue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE
from ..store.offline import NAME_DIGITS
from ..world.disk import Disk, RealDisk
from .deleted import Deletions
from .errors import BadOption, CorruptFile
from .log_files import SegmentFiles, numbered
from .options import PARTITION_BYTES
from .ranges import QueueRange, Sample

SAMPLES_LEAST, SAMPLES_MAX = 256, 16_384
"""How many units of a queue are read for planning, so many that they stand for a task's bytes each if that is possible. The
units between two samples are assumed to be like the first of them. Reading the most of them takes a fraction of a second."""
UNITS_AT_ONCE = 1_000_000

UNIT_DTYPE = np.dtype([(field.name, {"q": ">i8", "i": ">i4"}[field.code]) for field in UNIT.fields])
assert UNIT_DTYPE.itemsize == UNIT_SIZE

Array = Any


@attrs.define(eq=False)
class QueueFiles:
    """The consume queue of one queue. A queue offset is the number of a unit."""

    directory: str
    queue_id: int
    disk: Disk = attrs.field(factory=RealDisk)
    _floor: int = 0
    """The offset of the first message after the last deletion of the topic."""
    _files: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    """The first unit and the number of units of each file."""
    _end: int = -1

    def refresh(self) -> None:
        """List the files that exist now."""
        files: list[tuple[int, int]] = []
        for name in numbered(self.disk, self.directory):
            try:
                files.append((int(name) // UNIT_SIZE, self.disk.size(f"{self.directory}/{name}") // UNIT_SIZE))
            except FileNotFoundError:
                continue
        self._files = files

    def first_offset(self) -> int:
        """Return the offset of the first unit whose file exists and whose message was not deleted with its topic."""
        return max(self._files[0][0], self._floor) if self._files else 0

    def units(self, start: int, end: int) -> Array:
        """Return the units from `start` to `end - 1`, up to the first one whose file does not exist."""
        parts: list[Array] = []
        while start < end:
            at = bisect_right(self._files, start, key=lambda file: file[0]) - 1
            if at < 0 or start >= sum(self._files[at]):
                break
            first, count = self._files[at]
            high = min(end, first + count)
            try:
                file = self.disk.open(f"{self.directory}/{first * UNIT_SIZE:0{NAME_DIGITS}d}", read_only=True)
            except FileNotFoundError:
                break
            try:
                raw = file.read((start - first) * UNIT_SIZE, (high - start) * UNIT_SIZE)
            finally:
                file.close()
            parts.append(np.frombuffer(raw[: len(raw) - len(raw) % UNIT_SIZE], UNIT_DTYPE))
            if len(raw) < (high - start) * UNIT_SIZE:
                break
            start = high
        return np.concatenate(parts) if parts else np.zeros(0, UNIT_DTYPE)

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return physical offset, size and tags code of one unit; zeros if it does not exist."""
        found = self.units(offset, offset + 1)
        return tuple(found[0].tolist()) if len(found) else (0, 0, 0)

    def find_end(self, log: SegmentFiles) -> tuple[int, int]:
        """Return the end of the queue, and the end of the last record before it in the log; (0, 0) if the queue is empty."""
        if not self._files:
            return 0, 0
        low = self._files[0][0]
        end, derived_end = max(self._find_end(), low), 0
        while end > low:
            offset, size, _ = self.unit(end - 1)
            if size == PRE_BLANK_SIZE or offset < log.min_offset:
                break
            if log.holds(self.queue_id, end - 1, offset, size):
                derived_end = offset + size
                break
            end -= 1  # its record is not complete yet, or was truncated
        self._end = end
        return end, derived_end

    def limit(self, first_offset: int) -> None:
        """Hide all messages before this offset."""
        self._floor = first_offset

    def find_begin(self, log: SegmentFiles, end: int, deletions: Deletions, topic: str) -> int:
        """Return the first offset whose record is in the log and was not deleted with its topic."""
        if not self._files:
            return 0
        low = self._files[0][0]
        self._floor = deletions.offset_of(topic, self.queue_id)
        position = max(log.min_offset, deletions.position_of(topic))
        first = self.first_at(position, low, end)
        if deletions.position_of(topic):
            self._floor = max(self._floor, first)
        return min(max(first, self._floor), end)

    def _find_end(self) -> int:
        known = self._end
        if known > 0 and self.unit(known - 1)[1] > 0:
            step = 1  # doubled each time, because the queue may have grown a lot
            while self.unit(known + step - 1)[1] > 0:
                step *= 2
            return self._first_empty(known + step // 2, known + step - 1)
        last = next((file for file in reversed(self._files) if self.unit(file[0])[1] > 0), self._files[0])
        return self._first_empty(last[0], sum(last))

    def _first_empty(self, low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            if self.unit(middle)[1] > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def first_at(self, physical_offset: int, low: int, high: int) -> int:
        """Return the first unit in [low, high) whose record is at or after `physical_offset`; `high` if there is none."""
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = self.unit(middle)
            if size > 0 and (offset < physical_offset or (offset, size) == (0, PRE_BLANK_SIZE)):
                low = middle + 1
            else:
                high = middle
        return low

    def first_since(self, log: SegmentFiles, timestamp_ms: int, low: int, high: int) -> int:
        """Return the first offset in [low, high) that was stored at `timestamp_ms` or later; `high` if there is none."""
        while low < high:
            middle = (low + high) // 2
            stored = log.store_timestamp(self.unit(middle)[0])
            if stored is not None and stored < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def samples(self, each: QueueRange) -> tuple[Sample, ...]:
        """Return evenly spread units of a range, each with the bytes of all units that it represents."""
        self.refresh()
        count = min(each.count, SAMPLES_LEAST)
        if each.count <= UNITS_AT_ONCE // 16:
            units = self.units(each.start, each.end)
            places = np.arange(count) * len(units) // count if len(units) else np.zeros(0, np.int64)
            sizes = np.where(units["size"] == PRE_BLANK_SIZE, 0, units["size"]).astype(np.int64)
            weights = np.add.reduceat(sizes, places) if len(places) else places
            rows = zip((each.start + places).tolist(), units["physical_offset"][places].tolist(), weights.tolist(), strict=True)
            return tuple(Sample(*row) for row in rows)
        found = self._spread(each, count)
        more = min(sum(sample.weight for sample in found) // PARTITION_BYTES, each.count, SAMPLES_MAX)
        return found if more <= count else self._spread(each, more)

    def _spread(self, each: QueueRange, count: int) -> tuple[Sample, ...]:
        found: list[Sample] = []
        for at in range(count):
            low, high = each.start + each.count * at // count, each.start + each.count * (at + 1) // count
            offset, size, _ = self.unit(low)
            if size > 0:
                found.append(Sample(low, offset, 0 if size == PRE_BLANK_SIZE else size * (high - low)))
        return tuple(found)


@attrs.frozen
class _Listed:
    """A topic in the broker's table."""

    read_queues: int
    write_queues: int
    perm: int

    @property
    def queues_max(self) -> int:
        """The number of queues that the topic has for readers or for writers. They differ while queues are being removed."""
        return max(self.read_queues, self.write_queues)


@attrs.frozen
class _Table:
    """The broker's table of topics."""

    topics: Mapping[str, _Listed]
    log_offset: int | None
    """The table contains all topics that have messages before this physical offset; None if an Apache broker wrote it."""


@attrs.define(eq=False)
class Store:
    """One store directory."""

    root: str
    broker_name: str
    disk: Disk = attrs.field(factory=RealDisk)
    log: SegmentFiles = attrs.field(init=False)
    deletions: Deletions = attrs.field(init=False)
    _queues: dict[tuple[str, int], QueueFiles] = attrs.field(factory=dict[tuple[str, int], QueueFiles])

    def __attrs_post_init__(self) -> None:
        self.log = SegmentFiles(self.root, self.disk)
        self.deletions = Deletions(self.root, self.log, self.disk)

    def check(self) -> None:
        """Check that the directory is a store.

        Raises:
            BadOption: names the path and what is missing.
        """
        if not self.disk.is_directory(self.root):
            raise BadOption("storePath", self.root, "there is no such directory on this machine")
        if not any(self.disk.is_directory(directory) for directory in self.log.directories()):
            raise BadOption(
                "storePath", self.root, "it holds no 'commitlog' directory; a broker's storePathRootDir is expected"
            )

    def topics(self, wanted: Iterable[str] | None = None) -> dict[str, int]:
        """Return readable topics and their numbers of queues, from the table of topics and from the directories of queues.

        A broker writes the table shortly after it has created a topic or added queues, and a slave copies it only every few
        seconds. So queues that are not in the table count if they have messages that are newer than the table. Other
        directories that are not in it belong to deleted topics.

        Args:
            wanted: only these topics are looked up; all if None.
        """
        table = self._table()
        there = self.disk.list_directory(f"{self.root}/consumequeue")
        names = {*there, *(table.topics if table is not None else ())}
        if wanted is not None:
            names &= set(wanted)
        directories = set(there) & names
        found: dict[str, int] = {}
        is_refreshed = False
        for name in sorted(names):
            listed = table.topics.get(name) if table is not None else None
            if listed is not None and not listed.perm & PERM_READ:
                continue
            ids = self._stored_queues(name) if name in directories else []
            if table is not None:
                ids = [each for each in ids if each >= (listed.queues_max if listed is not None else 0)]
                if ids and not is_refreshed:
                    self.log.refresh()
                    is_refreshed = True
                ids = [each for each in ids if self._is_newer(name, each, table)]
            count = max([each + 1 for each in ids] + ([listed.read_queues] if listed is not None else []), default=0)
            if count:
                found[name] = count
        return found

    def _stored_queues(self, topic: str) -> list[int]:
        """Return the ids of the queues of a topic that have a directory."""
        return [int(each) for each in self.disk.list_directory(f"{self.root}/consumequeue/{topic}") if is_digits(each)]

    def _is_newer(self, topic: str, queue_id: int, table: _Table) -> bool:
        """Return whether the newest message of a queue was appended after the table of topics was written."""
        if table.log_offset is None:  # an Apache broker wrote it, which writes it before the first message of a topic
            return False
        files = self.queue(topic, queue_id)
        files.refresh()
        _, record_end = files.find_end(self.log)
        return record_end > table.log_offset

    def _table(self) -> _Table | None:
        """Return the broker's table of topics; None if the store is a copy without it."""
        path = f"{self.root}/config/topics.json"
        try:
            file = self.disk.open(path, read_only=True)
        except FileNotFoundError:
            return None
        try:
            text = file.read(0, file.size)
        finally:
            file.close()
        try:
            stored = cast("dict[str, Any]", json.loads(text))
            return _Table(
                {
                    name: _Listed(int(each["readQueueNums"]), int(each["writeQueueNums"]), int(each["perm"]))
                    for name, each in stored["topicConfigTable"].items()
                },
                None if stored.get("logOffset") is None else int(stored["logOffset"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(path, "the broker's table of topics", repr(error)) from error

    def queue(self, topic: str, queue_id: int) -> QueueFiles:
        """Return the consume queue of a queue; its files need not exist yet."""
        key = (topic, queue_id)
        if key not in self._queues:
            self._queues[key] = QueueFiles(f"{self.root}/consumequeue/{topic}/{queue_id}", queue_id, self.disk)
        return self._queues[key]

    def bounds(self, queues: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Return the offset of the oldest message of each queue, and the one that its next message will get."""
        self.log.refresh()
        ends: dict[tuple[str, int], int] = {}
        derived_end = 0
        for key in queues:
            files = self.queue(*key)
            files.refresh()
            ends[key], derived = files.find_end(self.log)
            derived_end = max(derived_end, derived)
        self.deletions.refresh(derived_end)
        return {key: (self.queue(*key).find_begin(self.log, end, self.deletions, key[0]), end) for key, end in ends.items()}

    def prepare(self, queues: Iterable[tuple[str, int]]) -> None:
        """List the files that exist now, and read only from the file of deletions which messages were deleted with topics.

        The planner of a task has searched the log for deletions too. A task reads what was valid then.
        """
        self.log.refresh()
        self.deletions.load()
        for topic, queue_id in queues:
            files = self.queue(topic, queue_id)
            files.refresh()
            files.limit(self.deletions.offset_of(topic, queue_id))


def open_stores(paths: Iterable[str], broker_names: Iterable[str]) -> dict[str, Store]:
    """Open stores, by broker name; raises as `Store.check` does."""
    stores = {name: Store(path, name) for path, name in zip(paths, broker_names, strict=True)}
    for store in stores.values():
        store.check()
    return stores
