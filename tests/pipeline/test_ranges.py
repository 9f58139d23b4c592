"""Planning: exact, within bounds, and a function of its arguments."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.options import Split
from ledgermq.pipeline.ranges import Extent, QueueRange, Sample, Task, admit, plan_bytes, plan_queues, ranges_between

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
    extents, locate = in_one_log(wanted, samples)

    tasks = plan_bytes(extents, split, locate)

    assert covered(tasks) == covered([tuple(wanted)])
    assert all(task and all(each.count > 0 for each in task) for task in tasks)
    assert split.records_max is None or max(map(_records, tasks), default=0) <= split.records_max
    assert tasks == plan_bytes(in_one_log(wanted, samples)[0], split, locate)


def _records(task: Task) -> int:
    return sum(each.count for each in task)


def in_one_log(wanted: list[QueueRange], samples: int):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Records of 100 bytes that all queues append in turn, each at its own pace."""

    def place(each: QueueRange, offset: int) -> int:
        return (offset * 1000 // each.count) * 100

    extents: list[Extent] = []
    for each in wanted:
        count = min(samples, each.count)
        borders = [each.start + each.count * at // count for at in range(count + 1)]
        found = [Sample(place(each, low), (high - low) * 100) for low, high in itertools.pairwise(borders)]
        extents.append(Extent(each, tuple(found)))

    def locate(each: QueueRange, physical_offset: int) -> int:
        return next((offset for offset in range(each.start, each.end) if place(each, offset) >= physical_offset), each.end)

    return extents, locate


def test_tasks_from_files_have_even_bytes() -> None:
    """Ten queues, ten tasks: each reads a tenth of the log with a part of every queue."""
    wanted = [QueueRange(MessageQueue("T", "a", number), 0, 2000) for number in range(10)]
    extents, locate = in_one_log(wanted, 256)

    tasks = plan_bytes(extents, Split(10), locate)

    assert len(tasks) == 10
    assert all(len(task) == 10 for task in tasks)
    assert max(map(_records, tasks)) < 1.1 * min(map(_records, tasks))


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
