"""What is known of the messages of a send that was cancelled or interrupted.

Trio, asyncio and threads recognise no subclass of their cancellations, so these pass through a program as they are, and what is
known is noted in them. The note counts in the task or thread whose send it was: a nursery, a `TaskGroup` or `asyncio.gather`
raises the cancellation of one task where others may have sent their messages.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from weakref import ref

import trio

from .errors import ClientError, SendCancelled
from .sending import SendResult

T = TypeVar("T")
Outcome = SendResult | ClientError

_NOTED = "_ledgermq_send"
_OPEN: tuple[type[BaseException], ...] = (trio.Cancelled, KeyboardInterrupt, BaseExceptionGroup)
_TIMEOUTS = (TimeoutError, trio.TooSlowError)


def note_outcomes(error: BaseException, outcomes: Sequence[Outcome]) -> None:
    """Note in a cancellation, in the task or thread that it cancels, what is known of each message of the send."""
    setattr(error, _NOTED, (ref(_here()), outcomes))
    stored, possible = sum(isinstance(each, SendResult) for each in outcomes), sum(map(_may_be_stored, outcomes))
    error.add_note(
        f"of the {len(outcomes)} messages of the send {stored} were stored, {possible - stored} may have been stored"
    )


def may_have_been_stored(error: BaseException) -> bool:
    """Whether a message of a send that failed or was cancelled may be in the log; with several, whether any may be.

    Args:
        error: a `ClientError`, or what cancelled the send: `trio.Cancelled`, `asyncio.CancelledError` or `KeyboardInterrupt`,
            also the `TooSlowError` of `trio.fail_after` and the `TimeoutError` of `asyncio.timeout`.
            A cancellation that comes from another task, as with `asyncio.gather`, rules nothing out: it may be that of one of
            several sends. On Python 3.11 `asyncio.wait_for` runs the send in such a task, so use `asyncio.timeout`. Nor does a
            group of errors, because a nursery or `TaskGroup` cancels the other sends without naming them; ask for each error
            of the group what is known of its own send.
    """
    at = _decisive(error)
    if at is None:
        return False
    if hasattr(at, _NOTED):
        noted = known_outcomes(at)
        return noted is None or any(map(_may_be_stored, noted))
    return bool(getattr(at, "may_have_been_stored", True))


def known_outcomes(error: BaseException) -> list[Outcome] | None:
    """What is known of each message of a `send`, `send_batch` or `send_many` that was cancelled, in their order.

    Each is a `SendResult` or the error of the message, as `send_many` returns them; for one that had no outcome yet, a
    `SendCancelled`, whose `may_have_been_stored` is False if no request with the message was begun.

    Args:
        error: as for `may_have_been_stored`, raised in the task or thread that asks.

    Returns: None if nothing is known: the error is no cancellation of a send, or that of a send in another task.
    """
    noted: tuple[ref[object], Sequence[Outcome]] | None = getattr(_decisive(error), _NOTED, None)
    return list(noted[1]) if noted is not None and noted[0]() is _here() else None


async def noting(send: Callable[[], Awaitable[T]], known: list[Outcome]) -> T:
    """Make a send in the client's thread, and leave the outcomes in `known`, also when it is cancelled there."""
    try:
        result: Any = await send()
    except trio.Cancelled as error:
        known += known_outcomes(error) or ()
        raise
    known += result if isinstance(result, list) else [result]
    return result  # type: ignore[no-any-return]


def unknown(count: int, *, begun: bool) -> list[Outcome]:
    """The outcomes of so many messages that share a request, or wait for one."""
    return [SendCancelled(may_have_been_stored=begun) for _ in range(count)]


def _may_be_stored(outcome: Outcome) -> bool:
    return isinstance(outcome, SendResult) or outcome.may_have_been_stored


def _decisive(error: BaseException) -> BaseException | None:
    """The first error of a chain that says what has become of a send, or that leaves it open; None if there is none."""
    at: BaseException | None = error
    while at is not None:
        if hasattr(at, _NOTED) or hasattr(at, "may_have_been_stored"):
            return at
        # What follows in the chain may be an error of before, during whose handling this cancellation came.
        if isinstance(at, _OPEN) or ((asyncio := _asyncio()) is not None and isinstance(at, asyncio.CancelledError)):
            return at
        following = at.__cause__ or (None if isinstance(at, TimeoutError) else at.__context__)
        if following is None and isinstance(at, _TIMEOUTS):
            return at
        at = following
    return None


def _here() -> object:
    """The task that runs, or the thread outside of tasks."""
    if trio.lowlevel.in_trio_task():
        return trio.lowlevel.current_task()
    task: object = None
    if (asyncio := _asyncio()) is not None:
        with suppress(RuntimeError):
            task = asyncio.current_task()
    return task or threading.current_thread()


def _asyncio() -> Any:
    """The module if the program uses it; importing it here would cost each program that does not its time."""
    return sys.modules.get("asyncio")
