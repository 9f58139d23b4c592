"""The journal in which services under test record their messages, from any task or thread, for the checkers of a history."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import attrs

from ledgermq.client.errors import ClientError
from ledgermq.client.received import RecordView
from ledgermq.client.sending import SendResult
from ledgermq.testing.history import Handling, History, Put

COMMIT_SECONDS = 10.0
"""A kill of the broker may lose commits of this many seconds: it writes them every 5 s, and the machine is busy."""
FAILING_SHARE = 0.05
FAILURES_MAX = 2
"""The most failures of one message, fewer than the retries of its group."""


class HandlerFailed(Exception):
    """A handler failed as planned."""


def number_of(message: RecordView) -> int:
    """The number at the beginning of a body."""
    return int(message.body.partition(b";")[0])


@attrs.define(eq=False)
class Journal:
    """The history of one run; appending to a list is safe between threads."""

    rng: random.Random
    history: History = attrs.field(factory=lambda: History(sync_flush=True, commit_seconds=COMMIT_SECONDS))
    errors: Counter[str] = attrs.field(factory=Counter[str])
    """How many sends failed, by the class of their error."""
    sends_over_time: list[str] = attrs.field(factory=list[str])
    _numbers: Iterator[int] = attrs.field(factory=lambda: count(1))
    _failures: dict[int, int] = attrs.field(factory=dict[int, int])
    """How often the handling of each message is still to fail."""

    def new_put(self, topic: str, producer: int = 0) -> Put:
        """Record a message that is about to be sent; without a producer number it counts as from a separate one."""
        number = next(self._numbers)
        put = Put(number, producer or -number, (topic, 0), 0, sent_at=time.monotonic())
        if self.rng.random() < FAILING_SHARE:
            self._failures[number] = self.rng.randint(1, FAILURES_MAX)
        self.history.puts.append(put)
        return put

    def answered(self, put: Put, outcome: SendResult | ClientError, seconds_max: float) -> None:
        """Record the outcome of a put, and whether the send took more than `seconds_max`."""
        put.answered_at = time.monotonic()
        if put.answered_at - put.sent_at > seconds_max:
            self.sends_over_time.append(f"the send of {put.number} took {put.answered_at - put.sent_at:.1f} s: {outcome}")
        if isinstance(outcome, SendResult):
            put.queue, put.queue_offset = (put.queue[0], int(outcome.queue.queue_id)), outcome.queue_offset
            put.acknowledged = outcome.status.name == "SEND_OK"
        else:
            put.refused = not outcome.may_have_been_stored
            self.errors[type(outcome).__name__] += 1

    @contextmanager
    def block(self, group: str, member: str, messages: Sequence[RecordView]) -> Generator[None]:
        """Record that a block gives back all its messages if the handler fails, also those that it has not begun to handle."""
        try:
            yield
        except HandlerFailed:
            now = time.monotonic()
            for message in messages:
                queue = (message.queue.topic, int(message.queue.queue_id))
                one = Handling(group, member, queue, message.queue_offset, number_of(message), now, ended=now, settled_at=now)
                self.history.handlings.append(one)
            raise

    @contextmanager
    def handling(
        self, group: str, member: str, message: RecordView, *, ordered: bool = False, fails: bool = True
    ) -> Generator[Handling]:
        """Record one delivery to a handler, which fails at the end of the block if that is planned and `fails` is set.

        Raises:
            HandlerFailed: the failure was planned. The delivery counts as sent back.
        """
        queue = (message.queue.topic, int(message.queue.queue_id))
        number = number_of(message)
        one = Handling(group, member, queue, message.queue_offset, number, time.monotonic(), ordered=ordered)
        self.history.handlings.append(one)
        try:
            yield one
            if fails and self._failures.get(number, 0) > 0:
                self._failures[number] -= 1
                one.settled_at = one.ended = time.monotonic()
                raise HandlerFailed(f"message {number} fails by plan")
            one.settled_at = one.ended = time.monotonic()
            one.done = True
        finally:
            one.ended = min(one.ended, time.monotonic())
