"""Tasks end exactly once: committed, or unknown."""

from __future__ import annotations

from harness.raft.task import Task, TaskQueue


def a_queue(*tasks: tuple[int, int]) -> tuple[TaskQueue, dict[int, bool]]:
    queue, ended = TaskQueue(), dict[int, bool]()
    for term, last_index in tasks:
        queue.append(Task(term, last_index, lambda committed, index=last_index: ended.update({index: committed})))  # type: ignore[misc]
    return queue, ended


def test_tasks_end_when_their_last_entry_is_committed() -> None:
    queue, ended = a_queue((1, 3), (1, 5))

    queue.commit(1, 4)

    assert ended == {3: True}
    assert len(queue) == 1


def test_tasks_of_an_earlier_term_are_unknown_in_a_later_one() -> None:
    queue, ended = a_queue((1, 3), (2, 5))

    queue.commit(2, 5)

    assert ended == {3: False, 5: True}


def test_all_tasks_are_unknown_when_leadership_is_lost() -> None:
    queue, ended = a_queue((1, 3), (1, 5))

    queue.step_down()
    queue.step_down()

    assert ended == {3: False, 5: False}
