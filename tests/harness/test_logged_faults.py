"""Which logged events a simulator counts as faults of ours."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from harness.logged_faults import logged_faults
from ledgermq.world import supervision
from ledgermq.world.supervision import keep_running


async def run_once(error: Exception) -> None:
    """Let a task fail, and end it before it begins again."""

    async def fail() -> None:
        raise error

    with trio.move_on_after(supervision.RESTART_SECONDS / 2):
        await keep_running("a task", fail)


async def test_a_task_that_fails_is_a_fault_unless_a_disk_or_network_is_why(autojump_clock: MockClock) -> None:
    """The message says what was raised, and where."""
    with logged_faults() as faults:
        await run_once(OSError(5, "Input/output error"))
        assert faults == []
        await run_once(KeyError("queue"))

    (fault,) = faults
    assert fault.startswith("task_failed: KeyError: 'queue' at harness/test_logged_faults.py:")
