"""The unacknowledged messages of each task in auto mode; a task acknowledges them by asking for more.

The messages of a task that ends without asking for more are handed out again.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress

import attrs
import trio

from .received import ReceivedMessage


@attrs.define(eq=False)
class _Hand:
    """The messages of one task."""

    task: weakref.ref[trio.lowlevel.Task]
    messages: list[ReceivedMessage] = attrs.field(factory=list[ReceivedMessage])


@attrs.define(eq=False)
class Hands:
    """The messages that the tasks of one consumer have in hand."""

    _token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    _hands: dict[int, _Hand] = attrs.field(factory=dict[int, _Hand])
    """Keyed by the identity of the task, which a later task may reuse."""

    def settle(self) -> None:
        """Acknowledge the messages of the current task."""
        task = trio.lowlevel.current_task()
        hand = self._hands.get(id(task))
        if hand is not None and hand.task() is task:
            messages, hand.messages = hand.messages, []
            for message in messages:
                message.settle()

    def hold(self, messages: Sequence[ReceivedMessage]) -> None:
        """Record that the current task got messages."""
        self._hand_of(trio.lowlevel.current_task()).messages.extend(messages)

    def leave(self, task: trio.lowlevel.Task, message: ReceivedMessage) -> None:
        """Record that `task` has left a loop with a message in hand; the garbage collector may call this in any thread."""
        if trio.lowlevel.in_trio_run():
            self._hand_of(task).messages.append(message)
        else:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._abandon, [message])

    def _hand_of(self, task: trio.lowlevel.Task) -> _Hand:
        number = id(task)
        hand = self._hands.get(number)
        if hand is None or hand.task() is not task:

            def ended(_: object) -> None:
                # The garbage collector may run in any thread and at any point.
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._ended, number, new)

            new = hand = self._hands[number] = _Hand(weakref.ref(task, ended))
        return hand

    def _ended(self, number: int, hand: _Hand) -> None:
        if self._hands.get(number) is hand:  # otherwise another task has reused the identity
            del self._hands[number]
        self._abandon(hand.messages)

    def _abandon(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            message.abandon()
