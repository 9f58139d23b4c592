"""Handing out pulled messages: the order of the queues, and the tasks that wait for a message.

A queue with messages to hand out is in the line once and moves to its end after each turn, so that a full queue does not
starve the others. In orderly consumption a queue leaves the line until everything handed out of it is done.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

import attrs
import trio

from ..message.message import MessageQueue
from .assigned import AssignedQueue
from .errors import Closed
from .fetch import Fetcher
from .received import HANDED_OUT, ReceivedMessage

LOCK_LOST_SECONDS = 30.0
"""A lock that was not renewed for this time counts as lost, as in RocketMQ."""

MESSAGES_PER_TURN = 32
"""After this many messages handed out one by one, it is the turn of the next queue."""


class TakesBack(Protocol):
    """Decides what happens to messages that are not acknowledged."""

    async def retry(self, source: Source, message: ReceivedMessage, delay_level: int) -> None: ...

    def give_back(self, source: Source, message: ReceivedMessage) -> None: ...


@attrs.define(eq=False)
class Source:
    """One assigned queue as the origin of messages."""

    assigned: AssignedQueue
    orderly: bool
    line: Line
    takes_back: TakesBack
    on_idle: trio.Event = attrs.field(factory=trio.Event)
    """Set when no message of a dropped orderly queue is being processed any more."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """The cancel scope of its pull loop."""
    fetcher: Fetcher | None = None
    """Pulls messages into `assigned`."""
    announced: bool = False
    """Whether `on_assigned` has been called with the queue, and `on_revoked` has not returned since."""
    dropped: bool = False
    in_line: bool = False
    suspended: bool = False
    """Whether an orderly queue pauses before it hands its first message out again."""
    locked_until: float = 0.0
    """When our lock on an orderly queue expires unless it is renewed, by trio's clock."""
    lock_expired: bool = False
    """Whether that time has passed, for other threads; set within a second."""

    @property
    def queue(self) -> MessageQueue:
        return self.assigned.queue

    def start(self, nursery: trio.Nursery) -> None:
        """Start the pull loop, which ends with `scope`."""
        fetcher = self.fetcher
        assert fetcher is not None
        self.scope = scope = trio.CancelScope()

        async def fetch() -> None:
            with scope:
                await fetcher.run()

        nursery.start_soon(fetch)

    def ready(self) -> bool:
        """Whether a message may be handed out now."""
        if self.dropped or self.assigned.paused or not self.assigned.buffered:
            return False
        if not self.orderly:
            return True
        return not self.suspended and not self.assigned.in_work and self.is_locked

    @property
    def is_locked(self) -> bool:
        """Whether our lock on the queue has not expired, as far as we know."""
        return trio.current_time() < self.locked_until

    @property
    def withheld(self) -> bool:
        """Whether no message may be handed out now, not even one that has crossed to another thread already."""
        return self.assigned.paused or self.dropped or self.lock_expired

    def resume(self) -> None:
        """Hand out messages again."""
        self.assigned.paused = False
        self.line.offer(self)

    def check_open(self) -> None:
        if self.line.closed:
            raise Closed("the consumer is closed")

    def ack(self, message: ReceivedMessage) -> None:
        self.assigned.ack(message)
        if self.orderly:
            self.look_for_idle()

    def look_for_idle(self) -> None:
        """Continue with an orderly queue if none of its messages is being processed."""
        if self.assigned.in_work:
            return
        if self.dropped:
            self.on_idle.set()
        else:
            self.line.offer(self)

    def drop(self) -> None:
        """Stop reading: no more messages are pulled or handed out; those being processed may be finished."""
        self.dropped = True
        self.scope.cancel()
        self.assigned.stop()

    async def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        await self.takes_back.retry(self, message, delay_level)

    def put_back(self, message: ReceivedMessage) -> None:
        self.assigned.put_back(message)
        if self.dropped:
            self.look_for_idle()
        else:
            self.line.offer(self)

    def give_back(self, message: ReceivedMessage) -> None:
        self.takes_back.give_back(self, message)


@attrs.define(eq=False)
class Line:
    """The queues that have messages to hand out, and the tasks that wait for messages."""

    _ready: deque[Source] = attrs.field(factory=deque[Source])
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _turn: int = 0
    """How many messages the queue in front has handed out one by one in this turn."""
    closed: bool = False

    def offer(self, source: Source) -> None:
        """Append a queue to the line if it has a message to hand out."""
        if not source.in_line and source.ready():
            source.in_line = True
            self._ready.append(source)
            self._waiting.unpark()

    def take(self, count: int) -> list[ReceivedMessage]:
        """Take at most `count` messages, all of one queue if it is orderly; an empty list if there are none."""
        messages: list[ReceivedMessage] = []
        line = self._ready
        while line and len(messages) < count:
            source = line.popleft()
            source.in_line = False
            if not source.ready():
                continue
            if source.orderly:
                if messages:
                    self._return(source)
                    break
                messages = source.assigned.take(count)
                break
            messages += source.assigned.take(count - len(messages))
            if source.assigned.buffered:
                source.in_line = True
                line.append(source)
        if line:
            self._waiting.unpark()  # another waiting task may take the rest
        return messages

    def take_one(self) -> ReceivedMessage[Any] | None:
        """Take one message, at a lower cost than `take`; None if there is none."""
        line = self._ready
        while line:
            source = line[0]
            if not source.ready():
                self._leave()
                continue
            assigned = source.assigned
            buffered = assigned.buffered
            message = buffered.popleft()
            message.state = HANDED_OUT
            assigned.handed_out += 1
            if source.orderly or not buffered:
                self._leave()
            else:
                self._turn += 1
                if self._turn >= MESSAGES_PER_TURN:
                    self._turn = 0
                    line.rotate(-1)
            if line and self._waiting:
                self._waiting.unpark()
            return message
        return None

    def _leave(self) -> None:
        self._ready.popleft().in_line = False
        self._turn = 0

    def close(self) -> None:
        """Wake all waiting tasks, which then find the line closed."""
        self.closed = True
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all waiting tasks."""
        self._waiting.unpark_all()

    def wake_one(self) -> None:
        """Wake one waiting task."""
        self._waiting.unpark()

    async def wait(self) -> None:
        """Wait until there may be a message to take."""
        await self._waiting.park()

    def _return(self, source: Source) -> None:
        source.in_line = True
        self._ready.appendleft(source)
