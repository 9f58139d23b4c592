"""`python -m harness.processes.watched FILE ARGUMENTS...`: the command `ledgermq`, with the turns of its event loop measured.

Every step of a task that takes more than `NOTED_SECONDS` of the main thread's CPU time is appended to FILE as one JSON object a
line, with the requests that it handled and the place where it was after `PLACED_SECONDS`, and so is every such pass of the loop
over all runnable tasks. CPU time is measured because other work on the machine must not count. On SIGUSR1 the number of old
objects that are garbage in cycles, which a server does not collect, is written beside FILE.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import trio

from ledgermq.cli.main import main as command
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.dispatcher import Dispatcher
from ledgermq.remoting.server import ServerConnection

from .census import take_on_signal, watch_memory

NOTED_SECONDS = 0.02
PLACED_SECONDS, SAMPLE_SECONDS, FRAMES_NOTED_MAX = 0.05, 0.02, 6
REQUESTS_NOTED_MAX = 20
KINDS_NOTED_MAX = 6


def _place_of(thread: int) -> str:
    """Where a thread is. No frame is kept, because a frame keeps everything alive that its local variables refer to."""
    frame = sys._current_frames()[thread]  # noqa: SLF001 - documented, in spite of its name  # pyright: ignore[reportPrivateUsage]
    return " ".join(f"{Path(one.filename).name}:{one.lineno}" for one in traceback.extract_stack(frame)[-FRAMES_NOTED_MAX:])


class TurnWatch(trio.abc.Instrument):
    """Writes long turns to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pass_began = self._step_began = time.thread_time()
        self.requests: list[str] = []
        """The requests that the current step has handled, and what else is known of it."""
        self._placed = 0.0
        """The beginning of the last step of which the place was noted."""
        self._main = threading.main_thread().ident or 0
        self.ended = threading.Event()
        """Ends the thread that samples, once it is set."""

    def after_io_wait(self, timeout: float) -> None:
        del timeout
        self._pass_began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self._note("pass", time.thread_time() - self._pass_began)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.requests.clear()
        self._step_began = time.thread_time()

    def leave_out(self, seconds: float) -> None:
        """Do not count CPU time that the current step has spent on a measurement."""
        self._pass_began += seconds
        self._step_began += seconds

    def sample(self) -> None:
        """Note again and again, in a thread of its own, where the main thread is in a step that has become long."""
        clock = time.pthread_getcpuclockid(self._main)
        while not self.ended.wait(SAMPLE_SECONDS):
            began = self._step_began
            if began != self._placed and time.clock_gettime(clock) - began > PLACED_SECONDS:
                self.requests.append("in " + _place_of(self._main))
                self._placed = began

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._step_began
        if seconds > NOTED_SECONDS:
            self._note("step", seconds, " ".join((task.name, *self.requests[:REQUESTS_NOTED_MAX])))

    def _note(self, what: str, seconds: float, name: str = "") -> None:
        if seconds > NOTED_SECONDS:
            with self._path.open("a") as file:
                file.write(json.dumps({"what": what, "cpu_ms": round(seconds * 1000), "task": name}) + "\n")


def _note_requests(watch: TurnWatch) -> None:
    handle = Dispatcher.handle

    def noted(self: Dispatcher, connection: ServerConnection, requests: list[RemotingCommand]) -> int:
        handled = handle(self, connection, requests)
        watch.requests += [f"{request.code}:{len(request.body)}" for request in requests[:handled]]
        return handled

    Dispatcher.handle = noted  # type: ignore[method-assign]
    wait = Dispatcher._wait  # noqa: SLF001 - the one place where a task learns of its request  # pyright: ignore[reportPrivateUsage]

    async def named(self: Dispatcher, connection: ServerConnection, request: RemotingCommand) -> None:
        trio.lowlevel.current_task().name = f"request {request.code}:{len(request.body)}"
        await wait(self, connection, request)

    Dispatcher._wait = named  # type: ignore[method-assign] # noqa: SLF001


def _note_collections(watch: TurnWatch) -> None:
    """Name the long collections of garbage, which happen in whatever step allocates then."""
    began = 0.0

    def note(phase: str, found: Mapping[str, int]) -> None:
        nonlocal began
        now = time.thread_time()
        if phase == "start":
            began = now
        elif now - began > NOTED_SECONDS / 2:
            watch.requests.append(f"gc{found['generation']}:{(now - began) * 1000:.0f}ms")

    gc.callbacks.append(note)


def _note_garbage_on_signal(path: Path) -> None:
    """On SIGUSR1 collect all objects, which a server does not do by itself, and note how many are garbage in cycles."""

    def note(_number: int, _frame: object) -> None:
        gc.collect(1)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        kinds = Counter(type(garbage).__qualname__ for garbage in gc.garbage)
        path.write_text(json.dumps({"objects": len(gc.garbage), "kinds": kinds.most_common(KINDS_NOTED_MAX)}))
        gc.garbage.clear()

    signal.signal(signal.SIGUSR1, note)


def main() -> None:
    """Run `ledgermq` with a `TurnWatch` in its event loop."""
    path = Path(sys.argv[1])
    del sys.argv[1]
    run, watch = trio.run, TurnWatch(path)
    _note_requests(watch)
    _note_collections(watch)
    _note_garbage_on_signal(path.with_suffix(".garbage"))
    threading.Thread(target=watch.sample, daemon=True).start()
    take_on_signal(path.with_suffix(".memory"), watch.leave_out)
    watch_memory()
    trio.run = partial(run, instruments=[watch])  # type: ignore[assignment]
    command()


if __name__ == "__main__":
    main()
