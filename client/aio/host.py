"""The thread of one client as tasks of asyncio reach it: calls and their cancellation, wake-ups, opening and closing.

The trio client runs in a thread of its own, so heartbeats, lease renewals and commits go on while the program blocks its event
loop. Invariant: whatever waits for one of the two loops is handed over together, with one wake-up of that loop.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context, copy_context
from functools import partial
from inspect import isawaitable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import attrs
import trio

from ...world.threads import ABANDONED_SECONDS, Call, ThreadLoop
from ..cancelled import Outcome, note_outcomes, noting
from ..errors import Closed, WrongEventLoop
from ..hosted import AWAITED, Client, Host, contained, in_words_of_clients
from ..redelivery import SEND_BACK_AT_CLOSE_SECONDS

P = ParamSpec("P")
T = TypeVar("T")
Shell = TypeVar("Shell")


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs this task.

    Raises:
        WrongEventLoop: asyncio does not run it.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise WrongEventLoop(
            "this client runs in tasks of asyncio, and none runs here: call it inside asyncio.run(...), "
            "or use ledgermq.blocking in plain threads and the clients of ledgermq itself in trio"
        ) from error


@attrs.define(eq=False)
class Wakeups:
    """Carries outcomes from the client's thread to the event loop, which is woken once for all that wait."""

    _event_loop: asyncio.AbstractEventLoop
    _outcomes: deque[tuple[asyncio.Future[Any], Any]] = attrs.field(factory=deque[tuple[asyncio.Future[Any], Any]])
    _woken: bool = False
    """Whether the loop has been woken and has not yet taken what waits. Only the client's thread sets it."""
    waiting: set[asyncio.Future[Any]] = attrs.field(factory=set[asyncio.Future[Any]])
    """The futures of all calls for which a task waits."""
    ended: bool = False

    def end(self, failure: BaseException | None) -> None:
        """Fail the calls that are left when the thread has ended, because its failure has left them without an outcome."""
        self.ended = True
        for future in self.waiting:
            if not future.done():
                error = Closed("the client ended during the call", may_have_been_stored=True)
                error.__cause__ = failure
                future.set_exception(error)

    def add(self, future: asyncio.Future[Any], outcome: object) -> None:
        """Set the result of a future, or its exception, in the event loop; called in the client's thread."""
        self._outcomes.append((future, outcome))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the event loop was closed, and nobody waits any more
                self._event_loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._woken = False  # before the outcomes are taken, so that one that is added meanwhile wakes the loop again
        while self._outcomes:
            future, outcome = self._outcomes.popleft()
            if future.done():  # its task was cancelled
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


@attrs.define(eq=False)
class AioHost(Host[Client]):
    """The thread in which one client runs, as tasks of one event loop call it."""

    event_loop: asyncio.AbstractEventLoop
    wakeups: Wakeups
    closed: bool = False
    processing: set[asyncio.Task[Any]] = attrs.field(factory=set[asyncio.Task[Any]])
    """The tasks that run `process`. Closing waits for the cancelled ones, whose handlers give back what they have."""

    async def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an async function of the client in its thread and wait for the result.

        Raises:
            Closed: the client is closed. OtherProcess: it was opened by another process.
            WrongEventLoop: it was opened in another event loop.
        Cancellation: the function is cancelled.
        """
        return await self.ask(partial(function, *args, **kwargs))

    async def ask(self, function: Callable[[], Awaitable[T]], undo: Callable[[T], object] = lambda _: None) -> T:
        """Like `run`; if the wait is cancelled, `undo` is called in the client's thread with a result that comes later."""
        self.check_caller()
        future: asyncio.Future[None] = self.event_loop.create_future()
        call = Call(function, undo, partial(self.wakeups.add, future, None))
        with in_words_of_clients():
            self._loop.begin(call)
            self.wakeups.waiting.add(future)
            try:
                await future
            except BaseException:
                self._loop.abandon(call)
                raise
            finally:
                self.wakeups.waiting.discard(future)
            return call.result(self._loop.failure)

    async def run_send(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `run`, for a function that sends: if it is cancelled, what is known of each message is noted in the error."""
        known: list[Outcome] = []
        ended: asyncio.Future[None] = self.event_loop.create_future()

        async def send() -> T:
            try:
                return await noting(partial(function, *args, **kwargs), known)
            finally:
                self.wakeups.add(ended, None)

        try:
            return await self.ask(send)
        except asyncio.CancelledError as error:
            await asyncio.wait([ended], timeout=ABANDONED_SECONDS)
            if known:
                note_outcomes(error, known)
            raise

    def check_caller(self) -> None:
        """Raise `OtherProcess` or `WrongEventLoop` unless the caller is a task of the loop in which the client was opened."""
        if not self._loop.is_ours:
            with in_words_of_clients():
                self._loop.soon(lambda: None)
        if running_loop() is not self.event_loop:
            raise WrongEventLoop(
                "this client was opened in another event loop, whose tasks alone can use it: open one in each event loop"
            )

    def __del__(self) -> None:
        if not self.closed and self._loop.is_ours:
            self._loop.request_end(cancel=True)
            warnings.warn(f"unclosed {self.client!r}: open it with `async with`", ResourceWarning, source=self, stacklevel=2)


@attrs.define(eq=False)
class Opening(Generic[Client, Shell]):
    """What an `open_...` returns: `async with` opens the client, in a thread of its own, and closes it."""

    _open_async: Callable[..., AbstractAsyncContextManager[Client]]
    _shell: Callable[[AioHost[Client]], Shell]
    _arguments: Sequence[Any]
    _options: Mapping[str, Any]
    _thread: ThreadLoop | None = None
    _ended: asyncio.Future[None] | None = None
    _host: AioHost[Client] | None = None

    async def __aenter__(self) -> Shell:
        """Open the client.

        Raises: as in the trio client; also `WrongEventLoop`.
        Cancellation: the client is closed.
        """
        event_loop = running_loop()
        if self._thread is not None:
            raise Closed(f"{self!r} has been used already: call {self._name} again for another client")
        opened: asyncio.Future[Client | None] = event_loop.create_future()
        self._ended = ended = event_loop.create_future()
        wakeups = Wakeups(event_loop)
        self._thread = thread = ThreadLoop()

        def change(client: Client | None) -> None:
            if client is None:
                ended.set_result(None)
                wakeups.end(thread.failure)
            if not opened.done():
                opened.set_result(client)

        def changed(client: Client | None) -> None:
            with suppress(RuntimeError):  # the event loop was closed before the client
                event_loop.call_soon_threadsafe(change, client)

        options = {name: _in_loop(event_loop, name, option) for name, option in self._options.items()}
        thread.open(partial(self._open_async, *self._arguments, **options), "ledgermq-client", changed)
        try:
            client = await opened
        except BaseException:
            await self._end(thread, ended, cancel=True)
            raise
        if client is None:
            thread.thread.join()
            thread.check()
            raise Closed("the client was closed while it was opened")
        self._host = AioHost(client, thread, event_loop, wakeups)
        return self._shell(self._host)

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client: in order, or after an exception by cancelling it, as in the trio client.

        Cancellation: closing is hurried, and ends within the limits of a cancelled trio client.
        """
        host, thread, ended = self._host, self._thread, self._ended
        assert host is not None
        assert thread is not None
        assert ended is not None
        host.closed = True
        if not thread.is_ours:
            return
        if running_loop() is not host.event_loop:
            thread.end(cancel=True)
            raise WrongEventLoop("this client was opened in another event loop, so it was closed without waiting for its calls")
        if error_type is None and (ending := [task for task in host.processing if task.cancelling()]):
            try:
                await asyncio.wait(ending, timeout=SEND_BACK_AT_CLOSE_SECONDS)
            except BaseException:
                await self._end(thread, ended, cancel=True)
                raise
        await self._end(thread, ended, cancel=error_type is not None)
        if error_type is None:
            thread.check()

    async def _end(self, thread: ThreadLoop, ended: asyncio.Future[None], *, cancel: bool) -> None:
        thread.request_end(cancel=cancel)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError as error:
                cancelled = error
                thread.request_end(cancel=True)
        thread.thread.join()
        if cancelled is not None:
            raise cancelled

    @property
    def _name(self) -> str:
        return f"ledgermq.aio.{self._open_async.__name__}(...)"

    def __repr__(self) -> str:
        return f"<{self._name}>"

    if not TYPE_CHECKING:  # a type checker reports these by itself

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"no client is open yet: use `async with {self._name} as client:` and then `client.{name}`")

        def __await__(self) -> object:
            raise TypeError(
                f"a client is open for the length of a block: use `async with {self._name} as client:`, not `await`"
            )

        def __enter__(self) -> object:
            raise TypeError(f"use `async with {self._name} as client:` in asyncio, and ledgermq.blocking in plain threads")

        def __exit__(self, *_: object) -> None: ...


async def _awaited_in_loop(
    event_loop: asyncio.AbstractEventLoop, context: Context, callback: Callable[..., Any], *arguments: object
) -> object:
    """Call a function or an async function in the event loop, and wait for it in the client's thread.

    Cancellation: the call is cancelled.
    """
    token, ended = trio.lowlevel.current_trio_token(), trio.Event()
    calls: list[asyncio.Task[object]] = []

    async def call() -> object:
        answer = callback(*arguments)
        return await answer if isawaitable(answer) else answer

    def notify(_: asyncio.Task[object]) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(ended.set)

    def begin() -> None:
        calls.append(event_loop.create_task(call(), context=context))
        calls[0].add_done_callback(notify)

    def cancel() -> None:
        calls[0].cancel()

    event_loop.call_soon_threadsafe(begin)
    try:
        await ended.wait()
    except trio.Cancelled:
        with suppress(RuntimeError):  # the event loop was closed
            event_loop.call_soon_threadsafe(cancel)
        raise
    return contained(calls[0].result)()


def _in_loop(event_loop: asyncio.AbstractEventLoop, name: str, option: Any) -> Any:
    """Let a callback, which is an option `on_...`, run in the event loop, in the context of whoever opens the client."""
    if not name.startswith("on_") or not callable(option):
        return option
    context = copy_context()
    if name in AWAITED:
        return partial(_awaited_in_loop, event_loop, context, option)

    running: set[asyncio.Future[object]] = set()  # asyncio itself has only weak references to tasks

    def begin(*arguments: object) -> None:
        answer = option(*arguments)
        if isawaitable(answer):
            task: asyncio.Future[object] = asyncio.ensure_future(answer)
            running.add(task)
            task.add_done_callback(running.discard)

    def call(*arguments: object) -> None:
        with suppress(RuntimeError):  # the event loop was closed before the client
            event_loop.call_soon_threadsafe(begin, *arguments, context=context)

    return call
