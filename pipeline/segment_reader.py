"""Reads a task from a store's files. Units of consume queues locate the records, from which `batches` builds columns.

Records of all queues are read in the order of the log. Within a queue that is the order of its offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from ..message.strings import string_hash
from ..store.derived.consumequeue import PRE_BLANK_SIZE
from .batches import Batches, Expected, Fault, Records, check_crcs, cut_rows, read_heads
from .errors import CorruptStore, DataLoss
from .log_files import SegmentFile
from .options import Content
from .ranges import RECORDS_MAX, QueueRange, in_parts
from .store_files import QueueFiles, Store

Array = Any
Warn = Callable[[str], None]

MESSAGE_WAS_REMOVED = "its file has been deleted by retention, or was never copied"


@attrs.define(eq=False)
class Reader:
    """The common part of reading through brokers and from files: columns, tags, and the handling of damaged records."""

    batches: Batches
    content: Content
    fail_on_data_loss: bool
    warn: Warn

    def emit(self, records: Records, faults: list[Fault], place: Callable[[int], tuple[str, int]]) -> Iterator[Array]:
        """Yield batches of records, and handle those that cannot be read according to the option `mode`.

        Args:
            records: those that can be read.
            faults: the others, by their index among all that were read.
            place: returns path and physical offset for such an index.

        Raises:
            CorruptStore: in the mode FAILFAST, for the first fault.
        """
        texts = [self._judge(text, *place(row)) for row, text in faults]
        if self.content.verify_crc and len(records):
            wrong = check_crcs(records)
            texts += [self._judge(text, *self._place(records, row, place)) for row, text in wrong]
            records = _without(records, wrong)
        if self.content.tags and len(records):
            records = self._tagged(records)
        if len(records):
            for batch, _, failed in self.batches.build(records):
                texts += [self._judge(text, *self._place(records, row, place)) for row, text in failed]
                if batch.num_rows:
                    yield batch
        yield from self.corrupt(texts)

    def corrupt(self, texts: Sequence[str]) -> Iterator[Array]:
        """Yield a batch with what `judge` has said of damaged records, in the mode PERMISSIVE."""
        if texts and self.content.mode == "PERMISSIVE":
            yield self.batches.corrupt(texts)

    def _place(self, records: Records, row: int, place: Callable[[int], tuple[str, int]]) -> tuple[str, int]:
        path, _ = place(-1)
        return path, int(records.expected.physical_offsets[row])

    def _judge(self, text: str, path: str, physical_offset: int) -> str:
        return self.judge(f"{path}, physical offset {physical_offset}", text)

    def judge(self, place: str, text: str) -> str:
        """Return what is to be said of a damaged record that is passed over.

        Raises:
            CorruptStore: in the mode FAILFAST.
        """
        if self.content.mode == "FAILFAST":
            raise CorruptStore(place, text)
        self.warn(f"{place}: {text}; the record is passed over")
        return f"{place}: {text}"

    def _tagged(self, records: Records) -> Records:
        """Keep the records with one of the wanted tags. Units hold hashes only, and different tags may have the same hash."""
        tags = records.properties.values_of("TAGS").to_pylist()
        wanted = set(self.content.tags)
        rows = np.array([row for row, tag in enumerate(tags) if tag in wanted], np.int64)
        return records if len(rows) == len(records) else records.take(rows)

    def lose(self, queue: object, reason: str) -> None:
        """Report messages that no longer exist.

        Raises:
            DataLoss: `failOnDataLoss` is on.
        """
        if self.fail_on_data_loss:
            raise DataLoss(queue, reason)
        self.warn(f"{queue}: {reason}; going on without them")


def _without(records: Records, faults: list[Fault]) -> Records:
    if not faults:
        return records
    kept = np.ones(len(records), bool)
    kept[[row for row, _ in faults]] = False
    return records.take(np.flatnonzero(kept))


@attrs.define(eq=False)
class _Units:
    """The consume queue units of all ranges of a task, in the order of the log."""

    physical_offsets: Array
    sizes: Array
    queue_offsets: Array
    queue_index: Array

    def take(self, chosen: Array) -> _Units:
        return _Units(self.physical_offsets[chosen], self.sizes[chosen], self.queue_offsets[chosen], self.queue_index[chosen])


def read_segments(store: Store, task: Sequence[QueueRange], reader: Reader) -> Iterator[Array]:
    """Read a task's messages from a store's files as record batches.

    Raises:
        DataLoss: messages of the task no longer exist, and `failOnDataLoss` is on.
        CorruptStore: a record is damaged, in the mode FAILFAST.
    """
    store.prepare((each.queue.topic, each.queue.queue_id) for each in task)
    for part in in_parts(task, RECORDS_MAX):
        yield from _read_part(store, part, reader)


def _read_part(store: Store, task: Sequence[QueueRange], reader: Reader) -> Iterator[Array]:
    units = _units_of(store, task, reader)
    queues = [each.queue for each in task]
    low = 0
    while low < len(units.physical_offsets):
        file = store.log.find(int(units.physical_offsets[low]))
        high = low + 1 if file is None else int(np.searchsorted(units.physical_offsets, file.end))
        part = units.take(slice(low, high))
        low = high
        piece = store.log.piece(file) if file is not None else None
        if file is None or piece is None:
            at = int(part.queue_index[0])
            count = len(part.physical_offsets)
            reader.lose(queues[at], f"{count} messages from offset {part.queue_offsets[0]} on: {MESSAGE_WAS_REMOVED}")
            continue
        for rows in cut_rows(part.sizes):
            yield from _batches_of(file, piece, part.take(rows), queues, reader)


def _batches_of(file: SegmentFile, piece: Any, units: _Units, queues: Sequence[Any], reader: Reader) -> Iterator[Array]:
    expected = Expected(units.sizes, units.physical_offsets, units.queue_offsets, queues, units.queue_index)
    records, faults = read_heads(piece, units.physical_offsets - file.start, expected)

    def place(row: int) -> tuple[str, int]:
        return file.path, int(units.physical_offsets[row])

    described = [
        (row, f"{text} ({queues[int(units.queue_index[row])]}, queue offset {int(units.queue_offsets[row])})")
        for row, text in faults
    ]
    yield from reader.emit(records, described, place)


def _units_of(store: Store, task: Sequence[QueueRange], reader: Reader) -> _Units:
    wanted_codes = np.array([string_hash(tag) for tag in reader.content.tags], np.int64)
    parts: list[_Units] = []
    for index, each in enumerate(task):
        files = store.queue(each.queue.topic, each.queue.queue_id)
        first, units = _present(files, each, reader)
        offsets = units["physical_offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        kept = (sizes > 0) & (sizes != PRE_BLANK_SIZE)
        kept &= offsets >= store.log.min_offset
        lost = len(kept) - int(np.count_nonzero(kept))
        if lost:
            at = first + int(np.flatnonzero(~kept)[0])
            reader.lose(each.queue, f"{lost} messages from offset {at} on are no longer in the log of {store.root}")
        if len(wanted_codes):
            kept &= np.isin(units["tags_code"].astype(np.int64), wanted_codes)
        rows = np.flatnonzero(kept)
        parts.append(_Units(offsets[rows], sizes[rows], first + rows, np.full(len(rows), index, np.int32)))
    if not parts:
        empty = np.zeros(0, np.int64)
        return _Units(empty, empty, empty, empty)
    if len(parts) == 1:
        return parts[0]
    merged = _Units(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in attrs.fields(_Units)))
    return merged.take(np.argsort(merged.physical_offsets, kind="stable"))


def _present(files: QueueFiles, each: QueueRange, reader: Reader) -> tuple[int, Array]:
    """Return the units of a range that exist, and the offset of the first one."""
    units = files.units(each.start, each.end)
    first = files.first_offset()
    if len(units) == each.count and first <= each.start:
        return each.start, units
    if first > each.start:
        begin = min(first, each.end)
        reader.lose(each.queue, f"offsets {each.start} to {begin - 1} are gone, the oldest message has offset {first}")
        units = files.units(begin, each.end)
    else:
        begin = each.start
    if begin + len(units) < each.end:
        reader.lose(each.queue, f"offset {begin + len(units)} was planned, but the queue in {files.directory} ends there now")
    return begin, units
