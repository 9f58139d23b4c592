"""Threads inside a simulated run: real threads, of which one runs at a time while virtual time does not advance.

A thread runs until it waits for the event loop or for a lock; then its driver, a task, does what it waits for and lets it
continue. So the blocking clients run unchanged, and one seed gives one order of events.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import attrs
import outcome
import trio

from ...world.threads import Call

T = TypeVar("T")

_running = threading.local()


class ThreadEndedError(BaseException):
    """Raised in a simulated thread when the run ends."""


def current_thread() -> SimThread:
    """The simulated thread that runs now."""
    thread: SimThread | None = getattr(_running, "thread", None)
    assert thread is not None, "only simulated threads wait for the event loop"
    return thread


@attrs.define(eq=False)
class SimThread:
    """One thread; `drive` runs it as a task of the event loop."""

    body: Callable[[], object]
    now: float = 0.0
    """The virtual time at which the thread last continued."""
    ended: bool = False
    soon: deque[Callable[[], object]] = attrs.field(factory=deque[Callable[[], object]])
    """Functions that the event loop calls when the thread waits next."""
    _request: Callable[[], Awaitable[Any]] | None = None
    _answer: outcome.Outcome[Any] | None = None
    _failure: BaseException | None = None
    _may_run: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    _waits: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    _cancelled: bool = False

    def wait_for(self, function: Callable[[], Awaitable[T]]) -> T:
        """Let the driver await something; called in the thread."""
        if self._cancelled:
            raise ThreadEndedError
        self._request = function
        self._waits.release()
        self._may_run.acquire()
        answer = self._answer
        assert answer is not None
        result: T = answer.unwrap()
        return result

    def sleep(self, seconds: float) -> None:
        """Wait for some virtual time; called in the thread."""
        self.wait_for(partial(trio.sleep, seconds))

    async def drive(self) -> None:
        """Run the thread to its end; an exception that escapes from it is raised here.

        Cancellation: whatever the thread waits for ends with `ThreadEndedError`.
        """
        threading.Thread(target=self._run, daemon=True).start()
        cancelled: trio.Cancelled | None = None
        while not self._go_on():
            request = self._request
            assert request is not None
            if cancelled is None:
                self._answer = answer = await outcome.acapture(request)
                error: object = getattr(answer, "error", None)
                if isinstance(error, trio.Cancelled):
                    cancelled, self._cancelled = error, True
            if cancelled is not None:
                self._answer = outcome.Error(ThreadEndedError())
        if cancelled is not None:
            raise cancelled
        if self._failure is not None:
            raise self._failure

    def _go_on(self) -> bool:
        """Let the thread run until it waits; returns whether it has ended."""
        self.now = trio.current_time()
        self._may_run.release()
        self._waits.acquire()
        while self.soon:
            self.soon.popleft()()
        return self.ended

    def _run(self) -> None:
        self._may_run.acquire()
        _running.thread = self
        try:
            self.body()
        except ThreadEndedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the driver
            self._failure = error
        self.ended = True
        self._waits.release()


@attrs.define(eq=False)
class SimThreadLoop:
    """How simulated threads reach the event loop (has what clients need of a `ThreadLoop`)."""

    rng: random.Random
    interrupts: float = 0.0
    """The probability that a call is interrupted (Ctrl-C), while it waits or when it already has its result."""
    interrupted: int = 0
    nursery: trio.Nursery | None = None
    """Where the calls of an event loop of asyncio run; threads, which wait for their calls, need none."""
    failure: None = None

    def call(self, function: Callable[[], Awaitable[T]], undo: Callable[[T], object] = lambda _: None) -> T:
        """Run an async function and wait for its result; `undo` is called with a result whose caller was interrupted."""

        async def run() -> T:
            if self.rng.random() >= self.interrupts:
                return await function()
            with trio.move_on_after(self.rng.random() ** 4 * 30):
                result = await function()
                undo(result)
            self.interrupted += 1
            raise KeyboardInterrupt

        return current_thread().wait_for(run)

    def begin(self, call: Call[Any]) -> None:
        """Start a call for whose end the thread does not wait."""
        assert self.nursery is not None
        self.soon(partial(self.nursery.start_soon, call.run))

    def start(self, function: Callable[[], Awaitable[object]]) -> bool:
        """Start a task in the event loop, which alone may call this."""
        assert self.nursery is not None
        self.nursery.start_soon(function)
        return True

    def abandon(self, call: Call[Any]) -> None:
        """Cancel a call, or undo its result."""
        self.soon(call.abandon)

    @property
    def is_ours(self) -> bool:
        return True

    def soon(self, function: Callable[[], object]) -> None:
        """Let the event loop call a function, after the functions that were passed before."""
        thread: SimThread | None = getattr(_running, "thread", None)
        if thread is not None:
            thread.soon.append(function)
        elif trio.lowlevel.in_trio_run():
            function()


@attrs.define(eq=False)
class SimLock:
    """A lock between simulated threads, which get it in the order in which they wait."""

    held: bool = False
    _waiting: deque[trio.Event] = attrs.field(factory=deque[trio.Event])

    def __enter__(self) -> None:
        while self.held:
            event = trio.Event()
            self._waiting.append(event)
            current_thread().wait_for(event.wait)
        self.held = True

    def __exit__(self, *_: object) -> None:
        self.held = False
        if self._waiting:
            current_thread().soon.append(self._waiting.popleft().set)
