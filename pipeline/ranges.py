"""Divides ranges of queue offsets into tasks of equal work. Pure: the result depends on the arguments alone.

A streaming query plans the same ranges again after a crash and must get the same tasks. So the number of cores and the present
end of a log are not used here.

There are two kinds of plan. Through a broker a task reads ranges of single queues. From a store's files a task reads a section
of the log with all records in it that belong to the wanted queues; if each task read one queue, every page of the log would be
fetched once for every queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

from ..message.message import MessageQueue
from .options import Split

SMALL_RECORDS = 20_000
SMALL_BYTES = 4 * 1024 * 1024
"""The least work that justifies a further task, unless the user asks for more tasks."""
TASKS_AIM = 8
"""Plans with enough work have at least this many tasks, so that a few cores are used."""
RECORD_BYTES = 1024
"""The assumed size of a record where none was looked at."""
RECORDS_MAX = 1_000_000
"""The most records of which a task has the consume queue units in memory, 20 bytes each. Larger tasks are read in parts."""


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
    """A message that represents those after it: where it is, and the bytes of all of them."""

    queue_offset: int
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


Task = tuple[QueueRange, ...]


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the ranges that are not empty, by queue; a queue without a start begins at 0."""
    return [QueueRange(queue, start.get(queue, 0), end[queue]) for queue in sorted(end) if end[queue] > start.get(queue, 0)]


def task_count(records: int, size: int, split: Split) -> int:
    """Return how many tasks are needed for this many records and bytes."""
    useful = min(max(size // SMALL_BYTES, records // SMALL_RECORDS), TASKS_AIM)
    wanted = max(
        -(-size // split.bytes_max), -(-records // (split.records_max or records or 1)), split.partitions_min, useful, 1
    )
    return min(wanted, max(records, 1))


def plan_queues(ranges: Sequence[QueueRange], split: Split, record_bytes: int = RECORD_BYTES) -> list[Task]:
    """Plan ranges queue by queue: each queue is cut into equal parts unless its order counts, and small parts share a task.

    Args:
        ranges: none empty.
        split: the bounds of a task.
        record_bytes: the assumed size of a record.
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
        parts = 1 if split.keeps_order else -(-each.count // share)
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


def plan_bytes(extents: Sequence[Extent], split: Split) -> list[Task]:
    """Plan ranges that are read from a store's files: sections of the log with equal bytes of wanted records.

    Where a section begins in a queue is interpolated between samples, so a plan reads nothing and takes one pass over queues
    and sections. A task may so begin a little before or behind its section in one of its queues, which costs a few pages of the
    log that are read twice; every message is in one task.

    Args:
        extents: of one store, none empty.
        split: the bounds of a task; they are kept as far as the samples are accurate.
    """
    records = sum(extent.range.count for extent in extents)
    size = sum(extent.bytes for extent in extents)
    if not records:
        return []
    wanted = task_count(records, size, split)
    if wanted == 1:
        return [tuple(extent.range for extent in extents)]
    cuts = _cuts(extents, size, wanted)
    tasks: list[list[QueueRange]] = [[] for _ in range(len(cuts) + 1)]
    for extent in extents:
        each = extent.range
        for at, (low, high) in enumerate(pairwise((each.start, *_borders(extent, cuts), each.end))):
            if high > low:
                tasks[at].append(QueueRange(each.queue, low, high))
    if split.records_max is not None:
        return [task for whole in tasks if whole for task in _limited(whole, split.records_max)]
    return [tuple(task) for task in tasks if task]


def _borders(extent: Extent, cuts: Sequence[int]) -> Iterator[int]:
    """Yield the queue offset that belongs to each physical offset, interpolated between samples and rounded up."""
    samples, end = extent.samples, extent.range.end
    if not samples:
        yield from (end for _ in cuts)
        return
    last = samples[-1]
    points = [(sample.physical_offset, sample.queue_offset) for sample in samples]
    points.append((last.physical_offset + max(last.weight, 1), end))
    at, reached = 0, extent.range.start
    for cut in cuts:
        while at < len(points) and points[at][0] < cut:
            at += 1
        if at == len(points):
            reached = end
        elif at:
            (low, first), (high, behind) = points[at - 1], points[at]
            reached = max(reached, min(first - (low - cut) * (behind - first) // (high - low), end))
        yield reached


def in_parts(task: Sequence[QueueRange], records_max: int) -> Iterator[Task]:
    """Yield the parts in which a task is read one after the other: each queue in its order, all in the same proportion."""
    total = sum(each.count for each in task)
    parts = max(-(-total // records_max), 1)
    for part in range(parts):
        cut = ((each, each.start + each.count * part // parts, each.start + each.count * (part + 1) // parts) for each in task)
        yield tuple(QueueRange(each.queue, low, high) for each, low, high in cut if high > low)


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


def _cuts(extents: Sequence[Extent], total: int, parts: int) -> list[int]:
    """Return the physical offsets that divide the bytes of extents into equal parts.

    The bytes of a sample lie between it and the next one of its queue, evenly as far as anybody knows. They are put there in
    points of an eighth of a part, those of different queues beside each other, so that parts are about equal however many
    samples there are.
    """
    largest = max(total // parts // 8, 1)
    points: list[tuple[int, int]] = []
    for shift, extent in enumerate(extents):
        ends = [*(sample.physical_offset for sample in extent.samples[1:]), 0]
        for sample, end in zip(extent.samples, ends, strict=True):
            count = -(-sample.weight // largest)
            span = (end or sample.physical_offset + sample.weight) - sample.physical_offset
            for at in range(count):
                weight = sample.weight * (at + 1) // count - sample.weight * at // count
                points.append((sample.physical_offset + span * (at * len(extents) + shift) // (count * len(extents)), weight))
    points.sort()
    cuts: set[int] = set()
    part, before = 1, 0
    for position, weight in points:
        while part < parts and before * parts >= total * part:
            cuts.add(position)
            part += 1
        before += weight
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
