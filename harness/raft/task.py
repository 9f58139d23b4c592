"""Proposals and their outcomes (SOFA-JRaft `Task` and its closure queue).

Every task ends exactly once: when its last entry is committed in the term in which it was proposed, or when leadership is lost.
In the second case it is unknown whether its entries will be committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from ledgermq.ha.raft.units import LogIndex, Term


@attrs.frozen
class Task:
    """Entries that were proposed together."""

    term: Term
    last_index: LogIndex
    done: Callable[[bool], None]
    """Called with True when all entries are committed, with False when leadership was lost and the outcome is unknown."""


@attrs.define
class TaskQueue:
    """The tasks of one leader that have not ended, in log order."""

    waiting: deque[Task] = attrs.field(factory=deque[Task])

    def __len__(self) -> int:
        return len(self.waiting)

    def append(self, task: Task) -> None:
        """Add a task; its entries must follow those of the tasks before it."""
        assert not self.waiting or self.waiting[-1].last_index < task.last_index
        self.waiting.append(task)

    def commit(self, term: Term, commit_index: LogIndex) -> None:
        """End the tasks up to `commit_index`, which this leader of `term` has committed; tasks of other terms end as lost."""
        waiting = self.waiting
        while waiting and (waiting[0].term != term or waiting[0].last_index <= commit_index):
            task = waiting.popleft()
            task.done(task.term == term)

    def step_down(self) -> None:
        """End all tasks with an unknown outcome, because this node no longer leads."""
        waiting, self.waiting = self.waiting, deque[Task]()
        for task in waiting:
            task.done(False)
