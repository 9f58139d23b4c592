"""Divides ranges of queue offsets into tasks of equal work. Pure: the result depends on the arguments alone.

A streaming query plans the same ranges again after a crash and must get the same tasks. So the number of cores and the present
end of a log are not used here.

There are two kinds of plan. Through a broker a task reads ranges of single queues. From a store's files a task reads a section
of the log with all records in it that belong to the wanted queues; if each task read one queue, every page of the log would be
fetched once for every queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import attrs

from ..message.message import MessageQueue
from .options import Split

SMALL_RECORDS = 20_000
SMALL_BYTES = 4 * 1024 * 1024
"""The least work that justifies a further task, unless the user asks for more tasks."""
TASKS_AIM = 8
"""Plans with enough work have at least this many tasks, so that a few cores are used."""
RECORDS_MAX = 1_000_000
"""The most records of a task, whatever their size: it has all its consume queue units in memory, 20 bytes each."""


@attrs.frozen
class QueueRange:
    """The messages of one queue from offset `start` to offset `end - 1`."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@attrs.frozen
class Sample:
    """A message that represents those after it: its physical offset, and the bytes of all of them."""

    physical_offset: int
    weight: int


@attrs.frozen
class Extent:
    """Where the messages of a range are in a store's log."""

    range: QueueRange
    samples: tuple[Sample, ...]
    """Samples in the order of the log. The sum of their weights is the size of the range in bytes."""

    @property
    def bytes(self) -> int:
        return sum(sample.weight for sample in self.samples)


Locate = Callable[[QueueRange, int], int]
"""Returns the first queue offset of a range whose record is at or after a physical offset; the end of the range if none is."""

Task = tuple[QueueRange, ...]


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the ranges that are not empty, by queue; a queue without a start begins at 0."""
    return [QueueRange(queue, start.get(queue, 0), end[queue]) for queue in sorted(end) if end[queue] > start.get(queue, 0)]


def task_count(records: int, size: int, split: Split) -> int:
    """Return how many tasks are needed for this many records and bytes."""
    useful = min(max(size // SMALL_BYTES, records // SMALL_RECORDS), TASKS_AIM)
    wanted = max(
        -(-size // split.bytes_max), -(-records // (split.records_max or RECORDS_MAX)), split.partitions_min, useful, 1
    )
    return min(wanted, max(records, 1))


def plan_queues(ranges: Sequence[QueueRange], split: Split, record_bytes: int = 1024) -> list[Task]:
    """Plan ranges that are read through a broker: each queue is cut into equal parts, and small parts share a task.

    Args:
        ranges: none empty.
        split: the bounds of a task.
        record_bytes: the assumed size of a record, because a broker only returns how many there are.
    """
    total = sum(each.count for each in ranges)
    if not total:
        return []
    wanted = task_count(total, total * record_bytes, split)
    if wanted == 1:
        return [tuple(ranges)]
    share = -(-total // wanted)
    pieces: list[QueueRange] = []
    for each in ranges:
        parts = -(-each.count // share)
        cuts = [each.start + each.count * part // parts for part in range(parts + 1)]
        pieces += [QueueRange(each.queue, low, high) for low, high in pairwise(cuts)]
    return _packed(pieces, share)


def existing(tasks: Sequence[Task], ranges: Sequence[QueueRange]) -> list[Task]:
    """Return tasks with those messages only that are in `ranges`, which has at most one range of each queue.

    A task that has none left remains, without ranges: the sink knows tasks by their numbers.
    """
    exist = {each.queue: each for each in ranges}
    found: list[Task] = []
    for task in tasks:
        pieces: list[QueueRange] = []
        for piece in task:
            bounds = exist.get(piece.queue, QueueRange(piece.queue, 0, 0))
            low, high = max(piece.start, bounds.start), min(piece.end, bounds.end)
            if low < high:
                pieces.append(QueueRange(piece.queue, low, high))
        found.append(tuple(pieces))
    return found


def _packed(pieces: list[QueueRange], share: int) -> list[Task]:
    tasks: list[Task] = []
    gathered: list[QueueRange] = []
    count = 0
    for piece in pieces:
        if gathered and count + piece.count > share:
            tasks.append(tuple(gathered))
            gathered, count = [], 0
        gathered.append(piece)
        count += piece.count
    tasks.append(tuple(gathered))
    return tasks


def plan_bytes(extents: Sequence[Extent], split: Split, locate: Locate) -> list[Task]:
    """Plan ranges that are read from a store's files: sections of the log with equal bytes of wanted records.

    Args:
        extents: of one store, none empty.
        split: the bounds of a task; they are kept as far as the samples are accurate.
        locate: finds the queue offset for a physical offset.
    """
    records = sum(extent.range.count for extent in extents)
    size = sum(extent.bytes for extent in extents)
    if not records:
        return []
    wanted = task_count(records, size, split)
    if wanted == 1:
        return [tuple(extent.range for extent in extents)]
    cuts = _cuts([sample for extent in extents for sample in extent.samples], wanted)
    tasks: list[list[QueueRange]] = [[] for _ in range(len(cuts) + 1)]
    for extent in extents:
        each = extent.range
        borders = [each.start, *(locate(each, cut) for cut in cuts), each.end]
        for at, (low, high) in enumerate(pairwise(borders)):
            if high > low:
                tasks[at].append(QueueRange(each.queue, low, high))
    if split.records_max is not None:
        return [task for whole in tasks if whole for task in _limited(whole, split.records_max)]
    return [tuple(task) for task in tasks if task]


def _limited(task: list[QueueRange], records_max: int) -> list[Task]:
    """Divide a task that is too large because samples were inaccurate.

    Every queue is cut in the same proportion, so that each part still covers about one section of the log.
    """
    total = sum(each.count for each in task)
    parts = -(-total // records_max)
    if parts == 1:
        return [tuple(task)]
    pieces: list[QueueRange] = []
    for each in task:
        count = min(parts, each.count)
        cuts = [each.start + each.count * part // count for part in range(count + 1)]
        pieces += [QueueRange(each.queue, low, high) for low, high in pairwise(cuts)]
    return _packed(pieces, records_max)


def _cuts(samples: list[Sample], parts: int) -> list[int]:
    """Return the physical offsets that divide the weight of samples into equal parts."""
    samples.sort(key=lambda sample: sample.physical_offset)
    sums: list[int] = []
    total = 0
    for sample in samples:
        total += sample.weight
        sums.append(total)
    cuts = {samples[bisect_left(sums, -(-total * part // parts))].physical_offset for part in range(1, parts)}
    return sorted(cuts)


def admit(start: Mapping[MessageQueue, int], latest: Mapping[MessageQueue, int], offsets_max: int) -> dict[MessageQueue, int]:
    """Return the end of a micro-batch of about `offsets_max` messages, in proportion to the backlog of each queue.

    Every queue with a backlog gets at least one message, so the sum may exceed the limit by the number of queues.
    """
    backlog = {queue: max(end - start.get(queue, 0), 0) for queue, end in latest.items()}
    total = sum(backlog.values())
    if total <= offsets_max:
        return {queue: max(end, start.get(queue, 0)) for queue, end in latest.items()}
    return {
        queue: start.get(queue, 0) + (max(count * offsets_max // total, 1) if count else 0) for queue, count in backlog.items()
    }
