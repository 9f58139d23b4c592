"""A trio loop in a thread of its own: calls of other threads, their failures, interruptions and the end of the loop."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio.testing

from ledgermq.world.threads import FUNCTIONS_PER_TURN, LoopEndedError, OtherProcessError, ThreadLoop, opened_in_thread

SECONDS_MAX = 30
"""Longer than any busy machine takes for what follows."""


@asynccontextmanager
async def something() -> AsyncGenerator[list[str]]:
    """Notes how its block ended."""
    events: list[str] = []
    try:
        yield events
    except BaseException:
        events.append("cancelled")
        raise
    events.append("closed")


def test_a_call_returns_its_result_or_raises_its_failure() -> None:
    """The loop goes on after a failure."""

    async def add() -> int:
        await trio.lowlevel.checkpoint()
        return 1 + 1

    async def fail() -> int:
        raise ValueError("no number")

    with opened_in_thread(something, "loop") as (events, loop):
        assert loop.call(add) == 2
        with pytest.raises(ValueError, match="no number"):
            loop.call(fail)
        assert loop.call(add) == 2

    assert events == ["closed"]


def test_calls_of_several_threads_run_concurrently() -> None:
    """Each of two waits for the other one, so neither would end alone."""
    with opened_in_thread(something, "loop") as (_, loop):
        reached: list[trio.Event] = []

        async def make() -> None:
            reached.extend((trio.Event(), trio.Event()))

        loop.call(make)

        async def meet(own: int) -> int:
            reached[own].set()
            with trio.fail_after(SECONDS_MAX):
                await reached[1 - own].wait()
            return own

        found: list[int] = []

        def ask(own: int) -> None:
            found.append(loop.call(lambda: meet(own)))

        threads = [threading.Thread(target=ask, args=(own,)) for own in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS_MAX)

    assert sorted(found) == [0, 1]


def test_an_exception_in_the_block_cancels_what_is_open() -> None:
    """It is raised here as it was."""
    with pytest.raises(ZeroDivisionError), opened_in_thread(something, "loop") as (events, _):
        raise ZeroDivisionError

    assert events == ["cancelled"]


def test_what_cannot_be_opened_is_raised_and_leaves_no_thread() -> None:
    @asynccontextmanager
    async def nothing() -> AsyncGenerator[None]:
        raise OSError("nothing there")
        yield

    with pytest.raises(OSError, match="nothing there"), opened_in_thread(nothing, "unopened loop"):
        pass
    assert not any(thread.name == "unopened loop" for thread in threading.enumerate())


def test_calls_after_the_end_are_refused() -> None:
    """By then there is no loop that could run them, so they have done nothing."""
    with opened_in_thread(something, "loop") as (_, loop):
        pass

    with pytest.raises(LoopEndedError) as refused:
        loop.call(trio.lowlevel.checkpoint)
    assert not refused.value.begun
    with pytest.raises(LoopEndedError):
        loop.soon(lambda: None)


def test_a_call_from_the_thread_of_the_loop_is_refused() -> None:
    """It would wait for itself; a call of the same thread to another loop is made."""
    with opened_in_thread(something, "loop") as (_, loop), opened_in_thread(something, "other") as (_, other):

        async def call(called: ThreadLoop) -> None:
            called.call(trio.lowlevel.checkpoint)

        loop.call(partial(call, other))
        with pytest.raises(RuntimeError, match="would wait for itself"):
            loop.call(partial(call, loop))


def test_tasks_of_the_loop_get_turns_among_many_functions() -> None:
    """Heartbeats and answers do not wait until all that was passed at once has run; its order is kept."""
    turns, seen = [0], list[int]()

    async def take_turns() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            turns[0] += 1

    async def start() -> None:
        assert loop.start(take_turns)

    with opened_in_thread(something, "loop") as (_, loop):
        loop.call(start)
        passed = threading.Event()
        loop.soon(passed.wait)
        ran: list[int] = []
        for number in range(3 * FUNCTIONS_PER_TURN):
            loop.soon(partial(ran.append, number))
            loop.soon(lambda: seen.append(turns[0]))
        passed.set()
        loop.call(trio.lowlevel.checkpoint)

    assert ran == list(range(3 * FUNCTIONS_PER_TURN))
    assert max(Counter(seen).values()) <= FUNCTIONS_PER_TURN


def test_all_functions_run_that_were_passed_before_the_end() -> None:
    """Callers of other threads may wait for them, and trio takes no more wake-ups then."""
    ran: list[int] = []
    with opened_in_thread(something, "loop") as (_, loop):
        last = threading.Event()
        loop.soon(last.wait)
        loop.request_end(cancel=True)
        for number in range(20 * FUNCTIONS_PER_TURN):
            loop.soon(partial(ran.append, number))
        last.set()

    assert ran == list(range(20 * FUNCTIONS_PER_TURN))


def test_a_loop_that_has_ended_keeps_nothing_of_later_calls() -> None:
    """A program may go on for long with a client that has failed."""
    with opened_in_thread(something, "loop") as (_, loop):
        pass
    function = partial(str)
    left = weakref.ref(function)

    with pytest.raises(LoopEndedError):
        loop.soon(function)
    del function
    gc.collect()

    assert left() is None


def test_calls_say_that_nobody_kept_the_block_open() -> None:
    """A context manager that is entered by hand and dropped ends its loop at once."""
    _, loop = opened_in_thread(something, "loop").__enter__()
    gc.collect()

    with pytest.raises(LoopEndedError) as refused:
        loop.call(trio.lowlevel.checkpoint)
    assert "context manager" in str(refused.value.__cause__)


def run_program(program: str) -> tuple[str, str]:
    """Run a program of its own to its end; returns what it wrote to both of its outputs."""
    head = """
import os, threading
from contextlib import ExitStack, asynccontextmanager
import trio
from ledgermq.world import threads
"""
    done = subprocess.run(
        [sys.executable, "-c", head + program], capture_output=True, text=True, timeout=SECONDS_MAX, check=True
    )
    return done.stdout, done.stderr


def test_a_thread_that_could_not_be_started_does_not_disturb_the_end_of_the_program() -> None:
    """The machine may have no more threads; then there is nothing to close."""
    printed = run_program(
        """
def refuse(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
try:
    threads.opened_in_thread(None, "loop").__enter__()
except RuntimeError as error:
    print(error)
"""
    )
    assert printed == ("can't start new thread\n", "")


def test_at_the_end_of_the_program_all_loops_are_closed_at_once() -> None:
    """Here each waits until the other one is asked to close, so that one after the other would take their whole time."""
    printed = run_program(
        f"""
threads.EXIT_SECONDS = {2 * SECONDS_MAX}
closing = []

@asynccontextmanager
async def waiting():
    try:
        yield "open"
    finally:
        closing.append(1)
        with trio.CancelScope(shield=True):
            while len(closing) < 2:
                await trio.sleep(0.001)
        os.write(1, b"closed\\n")

stack = ExitStack()
for _ in range(2):
    stack.enter_context(threads.opened_in_thread(waiting, "loop"))
"""
    )
    assert printed == ("closed\n" * 2, "")


def test_calls_name_the_failure_with_which_the_loop_ended(caplog: pytest.LogCaptureFixture) -> None:
    """The one under way, and those that come later; it is logged too, because nobody may ever call again."""

    @asynccontextmanager
    async def breaking() -> AsyncGenerator[trio.Event]:
        async with trio.open_nursery() as nursery:
            breaks = trio.Event()

            async def fail() -> None:
                await breaks.wait()
                raise ValueError("a bug")

            nursery.start_soon(fail)
            yield breaks

    async def wait(breaks: trio.Event) -> None:
        breaks.set()
        await trio.sleep_forever()

    with pytest.raises(LoopEndedError) as under_way, opened_in_thread(breaking, "loop") as (breaks, loop):
        loop.call(partial(wait, breaks))
    with pytest.raises(LoopEndedError, match="has ended") as later:
        loop.call(trio.lowlevel.checkpoint)

    failure = pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug"))
    assert all(failure.matches(raised.value.__cause__) for raised in (under_way, later))
    (record,) = caplog.records
    assert record.getMessage() == "thread_failed thread='loop'"
    assert record.exc_info is not None
    assert failure.matches(record.exc_info[1])


@pytest.mark.parametrize("cancel", [False, True])
def test_a_call_under_way_at_the_end_is_cancelled(cancel: bool) -> None:
    """It does not wait for ever, and says that it may have done something; `cancel` ends the loop as an exception does."""
    began, begun, threads = threading.Event(), list[bool](), list[threading.Thread]()

    async def wait() -> None:
        began.set()
        await trio.sleep_forever()

    def call(loop: ThreadLoop) -> None:
        try:
            loop.call(wait)
        except LoopEndedError as error:
            begun.append(error.begun)

    with suppress(ZeroDivisionError), opened_in_thread(something, "loop") as (_, loop):
        threads.append(threading.Thread(target=call, args=(loop,)))
        threads[0].start()
        assert began.wait(SECONDS_MAX)
        if cancel:
            raise ZeroDivisionError
    threads[0].join(SECONDS_MAX)

    assert begun == [True]


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseExceptionGroup("", [SystemExit(3)])]
)
def test_whatever_a_call_raises_reaches_its_caller(error: BaseException) -> None:
    """Even what would end the thread; the loop goes on."""

    async def fail() -> None:
        raise error

    async def answer() -> int:
        return 7

    with opened_in_thread(something, "loop") as (_, loop):
        with pytest.raises(type(error)) as raised:
            loop.call(fail)
        assert raised.value is error
        assert loop.call(answer) == 7


def test_a_call_that_was_cancelled_with_the_loop_does_not_raise_that() -> None:
    """A cancellation of trio, or a group with one, means nothing outside of trio."""
    began, ended = threading.Event(), list[BaseException]()

    async def wait() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            began.set()
            try:
                await trio.sleep_forever()
            finally:
                raise SystemExit

    def call(loop: ThreadLoop) -> None:
        try:
            loop.call(wait)
        except BaseException as error:  # noqa: BLE001 - looked at below
            ended.append(error)

    with opened_in_thread(something, "loop") as (_, loop):
        thread = threading.Thread(target=call, args=(loop,))
        thread.start()
        assert began.wait(SECONDS_MAX)
    thread.join(SECONDS_MAX)

    assert [type(error) for error in ended] == [LoopEndedError]


async def test_a_call_is_refused_when_the_object_is_closed_and_the_loop_runs_on() -> None:
    """Callers in other threads reach the loop for a moment after the end of what it kept open."""
    loop, opened = ThreadLoop(), queue.SimpleQueue[list[str] | None]()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.live, something, opened.put)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()

    with pytest.raises(LoopEndedError):
        await trio.to_thread.run_sync(loop.call, trio.lowlevel.checkpoint, abandon_on_cancel=True)


def test_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child has the object, but not the thread; the error names both processes."""
    own = os.getpid()
    with opened_in_thread(something, "loop") as (_, loop):
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: own + 1)
            assert not loop.is_ours
            with pytest.raises(OtherProcessError, match=rf"process {own}, and this is process {own + 1}"):
                loop.call(trio.lowlevel.checkpoint)
        loop.call(trio.lowlevel.checkpoint)
