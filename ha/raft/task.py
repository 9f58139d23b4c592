"""Proposals and their outcomes (SOFA-JRaft `Task` and its closure queue).

Every task ends exactly once: when its last entry is committed in the term in which it was proposed, or when leadership is lost.
In the second case nobody knows yet whether its entries will be committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from .units import LogIndex, Term


@attrs.frozen
class Task:
    """Entries that were proposed together."""

    term: Term
    last_index: LogIndex
    done: Callable[[bool], None]
    """Called with True when all entries are committed, with False when leadership was lost and the outcome is unknown."""


@attrs.define
class TaskQueue:
    """The tasks of one leader that are not decided yet, in the order of the log."""

    waiting: deque[Task] = attrs.field(factory=deque[Task])

    def __len__(self) -> int:
        return len(self.waiting)

    def append(self, task: Task) -> None:
        """Wait for a task; its entries follow those of the tasks before it."""
        assert not self.waiting or self.waiting[-1].last_index < task.last_index
        self.waiting.append(task)

    def commit(self, term: Term, commit_index: LogIndex) -> None:
        """End what is committed up to `commit_index` by this node, which leads `term`; tasks of other terms are lost."""
        waiting = self.waiting
        while waiting and (waiting[0].term != term or waiting[0].last_index <= commit_index):
            task = waiting.popleft()
            task.done(task.term == term)

    def step_down(self) -> None:
        """End all tasks because this node does not lead any more: their outcome is unknown."""
        waiting, self.waiting = self.waiting, deque[Task]()
        for task in waiting:
            task.done(False)
