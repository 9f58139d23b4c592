"""Trio code for callers that are plain threads: a loop in a thread of its own for as long as a `with` block lasts.

The thread is a daemon, so that a block which is never left does not keep the interpreter from ending; an exit handler then
closes what is open. A forked child has the objects but not the thread, so its calls are refused.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Generic, TypeVar, cast

import attrs
import outcome
import trio

from .events import get_logger

Opened = TypeVar("Opened")
Answer = TypeVar("Answer")

log = get_logger(__name__)

EXIT_SECONDS = 5.0
"""How long the interpreter waits at its end for all loops to close what is open in them."""
ABANDONED_SECONDS = 1.0
"""How long an interrupted caller waits until its call has been cancelled in the loop."""
FUNCTIONS_PER_TURN = 1000
"""How many functions of other threads run before the tasks of the loop get a turn."""


class LoopEndedError(Exception):
    """The loop has ended or is ending; a call that had `begun` was cancelled. Its cause is the loop's failure, if any."""

    def __init__(self, *, begun: bool = False) -> None:
        super().__init__(f"the event loop of the other thread has ended{' during the call' if begun else ''}")
        self.begun = begun


class OtherProcessError(Exception):
    """The loop runs in the process `process_id`, which forked this one."""

    def __init__(self, process_id: int) -> None:
        super().__init__(f"it was opened by process {process_id}, and this is process {os.getpid()}, forked from it")
        self.process_id = process_id


def _keep(_: object) -> None:
    pass


@attrs.define(eq=False)
class Call(Generic[Answer]):
    """One call into the loop from outside of it.

    Args:
        function: what to run in the loop.
        undo: called in the loop with a result that the caller does not get, because waiting for it was interrupted.
        notify: called in the loop when the call has ended, however it ended; it must not raise.
    """

    function: Callable[[], Awaitable[Answer]]
    undo: Callable[[Answer], object]
    notify: Callable[[], object]
    _outcome: outcome.Outcome[Answer] | None = None
    _begun: bool = False
    _ended: bool = False
    _abandoned: bool = False
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self) -> None:
        """Call the function in the loop, and undo its result if the caller no longer waits for it."""
        self._begun = True
        with self._scope:
            self._outcome = await outcome.acapture(self.function)
        self.end()

    def end(self) -> None:
        """Note that the call has ended, and notify the caller."""
        self._ended = True
        self._undo_if_abandoned()
        self.notify()

    def abandon(self) -> None:
        """Cancel the call, or undo it if it has ended already."""
        self._abandoned = True
        self._scope.cancel()
        if self._ended:
            self._undo_if_abandoned()

    def _undo_if_abandoned(self) -> None:
        if self._abandoned and isinstance(self._outcome, outcome.Value):
            self.undo(self._outcome.value)
            self._outcome = None

    def result(self, failure: BaseException | None) -> Answer:
        """The result of an ended call, or what its function raised, even if that is a `SystemExit`: the caller has caused it.

        Args:
            failure: that of the loop.

        Raises:
            LoopEndedError: the loop ended first.
        """
        result = self._outcome
        if result is None or (isinstance(result, outcome.Error) and _is_cancellation(result.error)):
            raise LoopEndedError(begun=self._begun) from failure
        return result.unwrap()


def _is_cancellation(error: BaseException) -> bool:
    """Whether trio has cancelled what raised this error."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_cancellation, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return isinstance(error, trio.Cancelled)


@attrs.define(eq=False)
class ThreadLoop:
    """A trio loop in a thread of its own, as other threads reach it."""

    thread: threading.Thread = attrs.field(init=False)
    _process_id: int = attrs.field(factory=os.getpid)
    _token: trio.lowlevel.TrioToken | None = None
    _nursery: trio.Nursery | None = None
    _finished: trio.Event = attrs.field(factory=trio.Event)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    failure: BaseException | None = None
    """Why the loop ended, unless it was ended."""
    _cancelled: bool = False
    _passed: deque[Callable[[], object]] = attrs.field(factory=deque[Callable[[], object]])
    """The functions that wait for the loop."""
    _woken: bool = False
    """Whether the loop has been woken and has not yet begun to run what waits: one wake-up is enough for many functions."""
    _waking: threading.RLock = attrs.field(factory=threading.RLock)
    """Guards `_woken`: if the loop ends, no thread may rely on the wake-up of another one that failed. Reentrant, because the
    garbage collector may pass a function at any point."""

    def call(self, function: Callable[[], Awaitable[Answer]], undo: Callable[[Answer], object] = _keep) -> Answer:
        """Run an async function in the loop and wait for its result; see `Call`.

        Raises:
            LoopEndedError, OtherProcessError: see there.
            RuntimeError: the caller is the loop's own thread.
            KeyboardInterrupt: the function has been cancelled, or its result undone; one that does not end within
                `ABANDONED_SECONDS` ends later.
        """
        if trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is self._token:
            raise RuntimeError("this function runs in the thread that it calls, so the call would wait for itself")
        ended = threading.Event()
        call = Call(function, undo, ended.set)
        self.begin(call)
        try:
            ended.wait()
        except BaseException:
            self.abandon(call)
            ended.wait(ABANDONED_SECONDS)
            raise
        return call.result(self.failure)

    def begin(self, call: Call[Answer]) -> None:
        """Start a call; it ends at once, without a result, if the loop is ending.

        Raises:
            LoopEndedError, OtherProcessError: see there.
        """

        def start() -> None:
            if not self.start(call.run):
                call.end()

        self.soon(start)

    def abandon(self, call: Call[Answer]) -> None:
        """Cancel a call whose caller no longer waits for it, or undo its result."""
        with suppress(LoopEndedError):
            self.soon(call.abandon)

    def start(self, function: Callable[[], Awaitable[object]]) -> bool:
        """Start a task in the loop, which must not raise; only the loop may call this. False if the loop is ending."""
        if self._nursery is None or self._finished.is_set():
            return False
        self._nursery.start_soon(function)
        return True

    def soon(self, function: Callable[[], object]) -> None:
        """Run a plain function in the loop soon, after those that were passed before it; it must not raise.

        Raises:
            LoopEndedError, OtherProcessError: see there.
        """
        if os.getpid() != self._process_id:
            raise OtherProcessError(self._process_id)
        if self._token is None:
            raise LoopEndedError from self.failure
        with self._waking:
            try:
                self._wake(self._token)
            except trio.RunFinishedError as error:
                raise LoopEndedError from self.failure or error
            self._passed.append(function)

    def _wake(self, token: trio.lowlevel.TrioToken) -> None:
        if not self._woken:
            token.run_sync_soon(self._run_passed, token)
            self._woken = True

    def _run_passed(self, token: trio.lowlevel.TrioToken) -> None:
        with self._waking:
            self._woken = False
        self._run_some(FUNCTIONS_PER_TURN)
        if self._passed:
            try:
                with self._waking:
                    self._wake(token)
            except trio.RunFinishedError:  # there are no further turns, and callers wait for the rest
                self._run_some(len(self._passed))

    def _run_some(self, count: int) -> None:
        for _ in range(min(count, len(self._passed))):
            self._passed.popleft()()

    @property
    def is_ours(self) -> bool:
        """Whether this process runs the loop, and did not fork from the one that does."""
        return os.getpid() == self._process_id

    def open(
        self,
        open_async: Callable[[], AbstractAsyncContextManager[Opened]],
        thread_name: str,
        changed: Callable[[Opened | None], object],
    ) -> None:
        """Start the thread, which opens an object and keeps it open until the end is requested.

        Args:
            open_async: opens the object, in the loop.
            thread_name: names the thread.
            changed: called in the thread with the object once it is open, and with None when the loop has ended.
        """
        self.thread = threading.Thread(target=self.run, args=(open_async, changed), name=thread_name, daemon=True)
        self.thread.start()

    async def live(
        self, open_async: Callable[[], AbstractAsyncContextManager[Opened]], changed: Callable[[Opened | None], object]
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
                        changed(value)
                        await self._finished.wait()
                except BaseException as error:  # raised again outside the nursery, which would wrap it
                    failure = error
                    if not _is_cancellation(error):
                        self.failure = error  # the calls that end with the nursery name it
                        if self._nursery is not None:  # otherwise it could not be opened, which is raised where that was asked
                            log.error("thread_failed", exc_info=error, thread=threading.current_thread().name)
                self._nursery = None  # from here on calls are refused, because the nursery is about to be closed
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure

    def run(
        self, open_async: Callable[[], AbstractAsyncContextManager[Opened]], changed: Callable[[Opened | None], object]
    ) -> None:
        """The main function of the thread."""
        _living.add(self)
        try:
            trio.run(self.live, open_async, changed)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for it
            self.failure = error
        _living.discard(self)
        changed(None)

    def request_end(self, *, cancel: bool) -> None:
        """Let the loop end, in order or by cancelling; `changed` is called when it has."""
        self._cancelled = cancel  # for a loop that has only just begun
        stop = self._scope.cancel if cancel else self._finished.set
        with suppress(LoopEndedError):  # it ended by itself; its failure is raised by `check`
            self.soon(stop)

    def end(self, *, cancel: bool) -> None:
        """End the loop, in order or by cancelling, and wait for its thread."""
        self.request_end(cancel=cancel)
        self.thread.join()

    def check(self) -> None:
        """Raise the exception with which the loop ended, if any."""
        if self.failure is not None:
            raise self.failure


_living: set[ThreadLoop] = set()


@atexit.register
def _end_all() -> None:
    loops = [loop for loop in list(_living) if loop.is_ours]
    for loop in loops:
        loop.request_end(cancel=True)
    deadline = time.monotonic() + EXIT_SECONDS
    for loop in loops:
        loop.thread.join(max(0.0, deadline - time.monotonic()))


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
    loop.open(open_async, thread_name, opened.put)
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
    except BaseException as error:
        if isinstance(error, GeneratorExit):  # nobody sees this one
            loop.failure = RuntimeError("the context manager that kept it open was dropped: use `with`, or keep it as long")
        if loop.is_ours:
            loop.end(cancel=True)
        raise
    if loop.is_ours:
        loop.end(cancel=False)
        loop.check()
