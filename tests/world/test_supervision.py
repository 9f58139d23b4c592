"""Tasks that no peer's input may end."""

from __future__ import annotations

import pytest
import trio

from ledgermq.testing.logs import capture_logs
from ledgermq.world.supervision import RESTART_SECONDS, keep_running


async def test_a_task_that_raises_is_started_again(autojump_clock: trio.testing.MockClock) -> None:
    """After a pause, and with a line in the log; one that returns is done."""
    attempts: list[float] = []

    async def run() -> None:
        attempts.append(trio.current_time())
        if len(attempts) < 3:
            raise TypeError("Integer exceeds 64-bit range")
        await trio.lowlevel.checkpoint()

    with capture_logs() as events:
        await keep_running("table topics.json", run)

    assert [round(later - attempts[0]) for later in attempts] == [0, RESTART_SECONDS, 2 * RESTART_SECONDS]
    assert [event["event"] for event in events] == ["task_failed", "task_failed"]
    assert events[0]["reason"] == "TypeError: Integer exceeds 64-bit range"


async def test_a_cancelled_task_ends() -> None:
    """Cancellation is no failure."""
    with trio.move_on_after(0) as scope:
        await keep_running("sleeper", trio.sleep_forever)

    assert scope.cancelled_caught
    with pytest.raises(KeyboardInterrupt):
        await keep_running("interrupted", _interrupt)


async def _interrupt() -> None:
    await trio.lowlevel.checkpoint()
    raise KeyboardInterrupt
