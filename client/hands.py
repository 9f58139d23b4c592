"""What each task has in hand under automatic acknowledgement: it says that it has finished by asking for more.

A task that ends without asking again has said nothing, so what it had in hand is handed out again.
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
    """By the identity of the task, which another one may get as soon as it has ended."""

    def settle(self) -> None:
        """Acknowledge what the current task has in hand."""
        task = trio.lowlevel.current_task()
        hand = self._hands.get(id(task))
        if hand is not None and hand.task() is task:
            messages, hand.messages = hand.messages, []
            for message in messages:
                message.settle()

    def hold(self, messages: Sequence[ReceivedMessage]) -> None:
        """Note that the current task has been given messages."""
        self._hand_of(trio.lowlevel.current_task()).messages.extend(messages)

    def leave(self, task: trio.lowlevel.Task, message: ReceivedMessage) -> None:
        """Note that `task` has left a loop with a message in hand; from any thread, for a collector may find the loop."""
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
                # A collector may run in any thread, and in the middle of anything.
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._ended, number, new)

            new = hand = self._hands[number] = _Hand(weakref.ref(task, ended))
        return hand

    def _ended(self, number: int, hand: _Hand) -> None:
        if self._hands.get(number) is hand:  # else another task has come to the same identity meanwhile
            del self._hands[number]
        self._abandon(hand.messages)

    def _abandon(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            message.abandon()
