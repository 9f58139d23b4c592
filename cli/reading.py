"""Reading queues up to the ends that they had when a command began. A queue that stops before its end is an error."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import click

from ..client.pull import PullConsumer
from ..client.received import ReceivedMessage
from ..message.message import MessageQueue

LOOK_SECONDS = 0.2
"""How long one poll waits for a message, until the progress of the queues is looked at."""
STALL_SECONDS = 30.0
"""For how long polls may get nothing while a queue makes no progress; a master that hangs is left for a slave in 7 s."""


class Stalled(click.ClickException):
    """A queue makes no progress although it is not read to its end."""


@attrs.define(eq=False)
class StallWatch:
    """Notices queues that make no progress.

    Only the time of polls that got nothing counts, so a slow reader of the output is no stall, nor is a suspended process.
    """

    _polls: dict[tuple[MessageQueue, int], int] = attrs.field(factory=dict[tuple[MessageQueue, int], int])
    """How many polls have got nothing since a queue was read up to an offset."""

    def poll_got_nothing(self, unread: Mapping[MessageQueue, int]) -> None:
        """Record a poll of `LOOK_SECONDS` without a message.

        Args:
            unread: the queues that are not read to their ends, and up to which offset each is read.

        Raises:
            Stalled: one of them has made no progress for `STALL_SECONDS`.
        """
        self._polls = {place: self._polls.get(place, 0) + 1 for place in unread.items()}
        stalled = sorted(queue for (queue, _), polls in self._polls.items() if polls * LOOK_SECONDS > STALL_SECONDS)
        if stalled:
            queues = ", ".join(map(str, stalled))
            raise Stalled(f"nothing has come for {STALL_SECONDS:.0f} s from {queues}, and not all was read")


@attrs.define(eq=False)
class BoundedReader:
    """Reads the assigned queues of a pull consumer, each up to an end; a queue that is read is paused."""

    _consumer: PullConsumer
    _ends: Mapping[MessageQueue, int]
    """The ends of the queues that are not read yet."""
    _watch: StallWatch = attrs.field(factory=StallWatch)

    async def take(self) -> list[ReceivedMessage]:
        """Take the next messages below the ends; an empty list when all of them were taken.

        Raises:
            Stalled: a queue makes no progress.
        """
        while self._unread():
            messages = await self._consumer.poll(timeout_seconds=LOOK_SECONDS)
            if wanted := [message for message in messages if message.queue_offset < self._ends[message.queue]]:
                return wanted
            if not messages:
                self._watch.poll_got_nothing(self._unread())
        return []

    def _unread(self) -> dict[MessageQueue, int]:
        """The queues that are not read to their ends, and up to which offset each is read; the others are paused."""
        unread = {queue: at for queue, end in self._ends.items() if (at := self._consumer.read_offset(queue)) < end}
        # Otherwise the new messages of a busy topic would keep a poll from getting nothing.
        self._consumer.pause(self._ends.keys() - unread.keys())
        self._ends = {queue: self._ends[queue] for queue in unread}
        return unread
