"""Trio code for callers that are plain threads: a loop in a thread of its own for as long as a `with` block lasts."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TypeVar

import trio

Opened = TypeVar("Opened")


@contextmanager
def opened_in_thread(
    open_async: Callable[[], AbstractAsyncContextManager[Opened]], thread_name: str
) -> Generator[tuple[Opened, trio.lowlevel.TrioToken]]:
    """Start a thread, open something in its loop, and end both with the block; what is opened, and the way into the loop.

    Leaving the block normally leaves the async block normally, an exception cancels it. What fails in the loop is raised here.
    """
    opened: queue.SimpleQueue[tuple[Opened, trio.lowlevel.TrioToken] | None] = queue.SimpleQueue()
    failures: list[BaseException] = []
    finished, scope = trio.Event(), trio.CancelScope()

    async def live() -> None:
        with scope:
            async with open_async() as value:
                opened.put((value, trio.lowlevel.current_trio_token()))
                await finished.wait()

    def run() -> None:
        try:
            trio.run(live)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            failures.append(error)
        opened.put(None)

    # Not a daemon thread: those are torn down in the middle of a call when the interpreter ends.
    thread = threading.Thread(target=run, name=thread_name)
    thread.start()
    found = opened.get()
    if found is None:
        thread.join()
        raise failures[0]

    def end(stop: Callable[[], object]) -> None:
        with suppress(trio.RunFinishedError):  # it ended by itself; its failure is raised below
            found[1].run_sync_soon(stop)
        thread.join()

    try:
        yield found
    except BaseException:
        end(scope.cancel)
        raise
    end(finished.set)
    if failures:
        raise failures[0]
