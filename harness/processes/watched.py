"""`python -m harness.processes.watched FILE ARGUMENTS...`: the command `ledgermq`, with the turns of its event loop measured.

Every step of a task that takes more than `NOTED_SECONDS` of the main thread's CPU time is appended to FILE as one JSON object a
line, and so is every pass of the loop over all tasks that can run. CPU time, because a busy machine must not count.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import trio

from ledgermq.cli.main import main as command

NOTED_SECONDS = 0.02


class TurnWatch(trio.abc.Instrument):
    """Writes down long turns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._pass_began = self._step_began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        del timeout
        self._pass_began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self._note("pass", time.thread_time() - self._pass_began)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self._step_began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._step_began
        if seconds > NOTED_SECONDS:
            self._note("step", seconds, task.name)

    def _note(self, what: str, seconds: float, name: str = "") -> None:
        if seconds > NOTED_SECONDS:
            self._file.write(json.dumps({"what": what, "cpu_ms": round(seconds * 1000), "task": name}) + "\n")


def main() -> None:
    """Run `ledgermq` with a watch in its event loop."""
    path = Path(sys.argv[1])
    del sys.argv[1]
    run = trio.run
    trio.run = partial(run, instruments=[TurnWatch(path)])  # type: ignore[assignment]
    command()


if __name__ == "__main__":
    main()
