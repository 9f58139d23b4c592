"""Planning: exact, within bounds, and a function of its arguments."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.options import Split
from ledgermq.pipeline.ranges import Extent, QueueRange, Sample, Task, admit, in_parts, plan_bytes, plan_queues, ranges_between

queues = st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b"]), st.integers(0, 5))
ranges = st.dictionaries(queues, st.tuples(st.integers(0, 1000), st.integers(1, 3000)), max_size=8).map(
    lambda found: [QueueRange(queue, start, start + count) for queue, (start, count) in found.items()]
)
splits = st.builds(
    Split, st.integers(1, 20), st.one_of(st.none(), st.integers(1, 500)), st.sampled_from([1000, 100_000, 10_000_000])
)


def covered(tasks: list[Task]) -> Counter[tuple[MessageQueue, int]]:
    return Counter((each.queue, offset) for task in tasks for each in task for offset in range(each.start, each.end))


@given(ranges, splits)
def test_reading_through_a_broker_covers_every_message_once(wanted: list[QueueRange], split: Split) -> None:
    """No task is empty, none has more than it may."""
    tasks = plan_queues(wanted, split)

    assert covered(tasks) == covered([tuple(wanted)])
    assert all(task and all(each.count > 0 for each in task) for task in tasks)
    assert split.records_max is None or max(map(_records, tasks), default=0) <= split.records_max
    assert 2 * len(tasks) >= min(split.partitions_min, _records(tuple(wanted)))


@given(ranges, splits, st.integers(1, 300))
def test_reading_files_covers_every_message_once(wanted: list[QueueRange], split: Split, samples: int) -> None:
    """However few messages stand for the others."""
    tasks = plan_bytes(in_one_log(wanted, samples), split)

    assert covered(tasks) == covered([tuple(wanted)])
    assert all(task and all(each.count > 0 for each in task) for task in tasks)
    assert split.records_max is None or max(map(_records, tasks), default=0) <= split.records_max
    assert tasks == plan_bytes(in_one_log(wanted, samples), split)


def _records(task: Task) -> int:
    return sum(each.count for each in task)


def in_one_log(wanted: list[QueueRange], samples: int) -> list[Extent]:
    """Records of 100 bytes that all queues append in turn, each at its own pace."""

    def place(each: QueueRange, offset: int) -> int:
        return (offset * 1000 // each.count) * 100

    extents: list[Extent] = []
    for each in wanted:
        count = min(samples, each.count)
        borders = [each.start + each.count * at // count for at in range(count + 1)]
        found = [Sample(low, place(each, low), (high - low) * 100) for low, high in itertools.pairwise(borders)]
        extents.append(Extent(each, tuple(found)))
    return extents


def test_tasks_from_files_have_even_bytes() -> None:
    """Ten queues, ten tasks: each reads a tenth of the log with a part of every queue."""
    wanted = [QueueRange(MessageQueue("T", "a", number), 0, 2000) for number in range(10)]
    tasks = plan_bytes(in_one_log(wanted, 256), Split(10))

    assert len(tasks) == 10
    assert all(len(task) == 10 for task in tasks)
    assert max(map(_records, tasks)) < 1.1 * min(map(_records, tasks))


def test_a_section_begins_where_its_first_record_is() -> None:
    """If every message is a sample, nothing is read twice."""
    wanted = [QueueRange(MessageQueue("T", "a", 0), 5, 105), QueueRange(MessageQueue("T", "a", 1), 0, 50)]
    extents = in_one_log(wanted, 1000)

    tasks = plan_bytes(extents, Split(7))
    placed = {(extent.range.queue, each.queue_offset): each.physical_offset for extent in extents for each in extent.samples}
    sections = [[placed[each.queue, offset] for each in task for offset in range(each.start, each.end)] for task in tasks]

    assert len(tasks) == 7
    assert all(max(first) < min(second) for first, second in itertools.pairwise(sections))


TEN_TB = 10 * 10**12


@pytest.mark.parametrize(("queue_count", "task_bytes"), [(8, 128 << 20), (256, 9_600_000_000)])
def test_ten_terabytes_for_a_hundred_executors_are_planned_in_one_pass(queue_count: int, task_bytes: int) -> None:
    """About 75,000 tasks of eight queues, 1,042 of 256: as even as the samples say, far more than samples of one queue."""
    count, sampled = TEN_TB // 1000 // queue_count, 4096 // queue_count * 8
    extents = [
        Extent(
            QueueRange(MessageQueue("T", "a", number), 0, count),
            tuple(
                Sample(count * at // sampled, TEN_TB * at // sampled + 1000 * number, TEN_TB // queue_count // sampled)
                for at in range(sampled)
            ),
        )
        for number in range(queue_count)
    ]

    began = time.process_time()
    tasks = plan_bytes(extents, Split(bytes_max=task_bytes))
    seconds = time.process_time() - began

    sizes = [_records(task) * 1000 for task in tasks]
    assert sum(sizes) == count * 1000 * queue_count
    assert len(tasks) >= TEN_TB // task_bytes
    assert max(sizes) < 1.3 * task_bytes
    assert sum(map(len, tasks)) <= len(tasks) * queue_count < 700_000, "a hundred bytes each"
    assert seconds < 60, "256 queues took three times as long when each border was looked up in its file"


def test_a_queue_is_not_divided_where_its_order_counts() -> None:
    """Small queues share a task; parts of one queue would be read, and so written, beside each other."""
    queues = [MessageQueue("T", "a", number) for number in range(5)]
    wanted = [QueueRange(queue, 0, 10 if number else 5_000_000) for number, queue in enumerate(queues)]

    ordered, divided = (plan_queues(wanted, Split(keeps_order=each)) for each in (True, False))

    assert ordered == [(wanted[0],), tuple(wanted[1:])]
    assert len(divided) > 8


@given(ranges, st.integers(1, 700))
def test_a_task_is_read_in_parts_that_keep_the_order_of_queues(wanted: list[QueueRange], records_max: int) -> None:
    """Not more records than fit into memory are located at a time; rounding adds one of each queue at most."""
    parts = list(in_parts(wanted, records_max))

    assert covered(parts) == covered([tuple(wanted)])
    assert all(_records(part) <= records_max + len(wanted) for part in parts)
    for queue in {each.queue for each in wanted}:
        own = [each for part in parts for each in part if each.queue == queue]
        assert all(first.end == second.start for first, second in itertools.pairwise(own))


def test_a_few_messages_of_many_queues_are_one_task() -> None:
    """Each task costs more than a few messages do."""
    wanted = [QueueRange(MessageQueue("T", "a", number), 0, 10) for number in range(50)]

    assert plan_queues(wanted, Split()) == [tuple(wanted)]


def test_a_queue_that_is_new_begins_at_its_first_message() -> None:
    """It is in the end of a range only."""
    old, new = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)

    assert ranges_between({old: 3}, {old: 5, new: 2}) == [QueueRange(old, 3, 5), QueueRange(new, 0, 2)]
    assert ranges_between({old: 5}, {old: 5}) == []


@given(st.dictionaries(queues, st.tuples(st.integers(0, 50), st.integers(0, 10_000)), min_size=1), st.integers(1, 5000))
def test_a_limit_is_shared_in_proportion(backlog: dict[MessageQueue, tuple[int, int]], limit: int) -> None:
    """Nobody starves, nothing passes the end, and the limit is passed by one message for each queue at most."""
    start = {queue: begin for queue, (begin, _) in backlog.items()}
    latest = {queue: begin + count for queue, (begin, count) in backlog.items()}

    end = admit(start, latest, limit)

    taken = {queue: end[queue] - start[queue] for queue in backlog}
    assert all((0 < taken[queue] <= count) if count else taken[queue] == 0 for queue, (_, count) in backlog.items())
    assert sum(taken.values()) <= limit + len(backlog)
    assert sum(taken.values()) >= min(limit, sum(count for _, count in backlog.values())) - len(backlog)


def test_an_end_below_the_start_never_goes_back() -> None:
    """A shorter replica has taken over; the stream waits for it."""
    queue = MessageQueue("T", "a", 0)

    assert admit({queue: 10}, {queue: 4}, 100) == {queue: 10}
