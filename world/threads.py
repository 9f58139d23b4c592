"""Trio code for callers that are plain threads: a loop in a thread of its own for as long as a `with` block lasts.

The thread is a daemon, so that a block which is never left does not keep the interpreter from ending; an exit handler then
closes what is open. A forked child has the objects but not the thread, so its calls are refused.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Generic, TypeVar

import attrs
import outcome
import trio

Opened = TypeVar("Opened")
Answer = TypeVar("Answer")

EXIT_SECONDS = 5.0
"""How long the interpreter waits at its end for one loop to close what is open in it."""


class LoopEndedError(Exception):
    """The loop has ended or is ending; the call was not begun, or it was cancelled."""


class OtherProcessError(Exception):
    """The loop runs in the process `process_id`, which forked this one."""

    def __init__(self, process_id: int) -> None:
        super().__init__(f"it was opened by process {process_id}, and this is process {os.getpid()}, forked from it")
        self.process_id = process_id


def _keep(_: object) -> None:
    pass


@attrs.define(eq=False)
class _Call(Generic[Answer]):
    """One call of a waiting thread."""

    function: Callable[[], Awaitable[Answer]]
    undo: Callable[[Answer], object]
    ended: threading.Event = attrs.field(factory=threading.Event)
    outcome: outcome.Outcome[Answer] | None = None
    abandoned: bool = False
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self) -> None:
        """Call the function in the loop, and undo its result if the caller no longer waits for it."""
        try:
            with self.scope:
                self.outcome = await outcome.acapture(self.function)
                if isinstance(self.outcome, outcome.Error) and not isinstance(self.outcome.error, Exception):
                    self.outcome.unwrap()
        finally:
            if self.abandoned:
                self.undo_now()
            self.ended.set()

    def undo_now(self) -> None:
        if isinstance(self.outcome, outcome.Value):
            self.undo(self.outcome.value)
            self.outcome = None

    def abandon(self) -> None:
        """Cancel the call, or undo it if it has ended already."""
        self.abandoned = True
        self.scope.cancel()
        if self.ended.is_set():
            self.undo_now()


@attrs.define(eq=False)
class ThreadLoop:
    """A trio loop in a thread of its own, as other threads reach it."""

    thread: threading.Thread = attrs.field(init=False)
    _process_id: int = attrs.field(factory=os.getpid)
    _token: trio.lowlevel.TrioToken | None = None
    _nursery: trio.Nursery | None = None
    _finished: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    _failures: list[BaseException] = attrs.field(factory=list[BaseException])
    _cancelled: bool = False

    def call(self, function: Callable[[], Awaitable[Answer]], undo: Callable[[Answer], object] = _keep) -> Answer:
        """Run an async function in the loop and wait for its result.

        Args:
            function: what to run.
            undo: called in the loop with a result that this thread does not get, because waiting for it was interrupted.

        Raises:
            LoopEndedError, OtherProcessError: see there.
            KeyboardInterrupt: the function has been cancelled, or its result undone.
        """
        call = _Call(function, undo)

        def start() -> None:
            if self._nursery is None or self._finished.is_set():
                call.ended.set()
            else:
                self._nursery.start_soon(call.run)

        self.soon(start)
        try:
            call.ended.wait()
            result = call.outcome
        except BaseException:
            with suppress(LoopEndedError):
                self.soon(call.abandon)
            raise
        if result is None or (isinstance(result, outcome.Error) and not isinstance(result.error, Exception)):
            raise LoopEndedError
        return result.unwrap()

    def soon(self, function: Callable[[], object]) -> None:
        """Run a plain function in the loop soon, after those that were passed before it; it must not raise.

        Raises:
            LoopEndedError, OtherProcessError: see there.
        """
        if os.getpid() != self._process_id:
            raise OtherProcessError(self._process_id)
        if self._token is None:
            raise LoopEndedError
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError as error:
            raise LoopEndedError from error

    @property
    def is_ours(self) -> bool:
        """Whether this process runs the loop, and did not fork from the one that does."""
        return os.getpid() == self._process_id

    async def live(
        self,
        open_async: Callable[[], AbstractAsyncContextManager[Opened]],
        opened: queue.SimpleQueue[Opened | None],
    ) -> None:
        """Keep the object open until the end is requested."""
        self._token = trio.lowlevel.current_trio_token()
        if self._cancelled:
            return
        failure: BaseException | None = None
        with self._scope:
            async with trio.open_nursery() as nursery:
                # Inside the nursery: closing the object ends the calls under way, with a clearer error than a cancellation.
                try:
                    async with open_async() as value:
                        self._nursery = nursery
                        opened.put(value)
                        await self._finished.wait()
                except BaseException as error:  # noqa: BLE001 - raised again outside the nursery, which would wrap it
                    failure = error
                self._nursery = None  # from here on calls are refused, because the nursery is about to be closed
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure

    def run(
        self,
        open_async: Callable[[], AbstractAsyncContextManager[Opened]],
        opened: queue.SimpleQueue[Opened | None],
    ) -> None:
        """The main function of the thread."""
        try:
            trio.run(self.live, open_async, opened)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            self._failures.append(error)
        _living.discard(self)
        opened.put(None)

    def end(self, *, cancel: bool, seconds: float | None = None) -> None:
        """End the loop, in order or by cancelling, and wait for its thread."""
        self._cancelled = cancel  # for a loop that has only just begun
        stop = self._scope.cancel if cancel else self._finished.set
        with suppress(LoopEndedError):  # it ended by itself; its failure is raised by `check`
            self.soon(stop)
        self.thread.join(seconds)

    def check(self) -> None:
        """Raise the exception with which the loop ended, if any."""
        if self._failures:
            raise self._failures[0]


_living: set[ThreadLoop] = set()


@atexit.register
def _end_all() -> None:
    for loop in list(_living):
        if loop.is_ours:
            loop.end(cancel=True, seconds=EXIT_SECONDS)


@contextmanager
def opened_in_thread(
    open_async: Callable[[], AbstractAsyncContextManager[Opened]], thread_name: str
) -> Generator[tuple[Opened, ThreadLoop]]:
    """Open an object in a trio loop of a new thread until the block ends; gives the object and the loop.

    Leaving the block normally leaves the async block normally, an exception cancels it. What fails in the loop is raised here.
    Interrupting the opening (Ctrl-C) cancels it. In a forked child leaving the block does nothing.
    """
    opened: queue.SimpleQueue[Opened | None] = queue.SimpleQueue()
    loop = ThreadLoop()
    loop.thread = threading.Thread(target=loop.run, args=(open_async, opened), name=thread_name, daemon=True)
    _living.add(loop)
    loop.thread.start()
    try:
        found = opened.get()
    except BaseException:
        loop.end(cancel=True)
        raise
    if found is None:
        loop.thread.join()
        loop.check()
        raise LoopEndedError
    try:
        yield found, loop
    except BaseException:
        if loop.is_ours:
            loop.end(cancel=True)
        raise
    if loop.is_ours:
        loop.end(cancel=False)
        loop.check()
