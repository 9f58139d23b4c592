"""Handing pulled messages out: which queue is next, and who waits for the next message.

A queue that has messages to hand out stands in the line once; it goes to the end after each turn, so that a full queue does not
starve the others. In orderly consumption a queue leaves the line until everything handed out of it is done with.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs
import trio

from ..message.message import MessageQueue
from .assigned import AssignedQueue
from .errors import Closed
from .fetch import Fetcher
from .received import HANDED_OUT, ReceivedMessage

LOCK_LOST_SECONDS = 30.0
"""RocketMQ: a lock that was not renewed for so long counts as lost."""

MESSAGES_PER_TURN = 32
"""Messages that one queue hands out one by one before it is the next one's turn."""


class TakesBack(Protocol):
    """Who decides about messages that are not acknowledged."""

    async def retry(self, source: Source, message: ReceivedMessage, delay_level: int) -> None: ...

    def abandon(self, source: Source, message: ReceivedMessage) -> None: ...


@attrs.define(eq=False)
class Source:
    """One assigned queue as the origin of messages."""

    assigned: AssignedQueue
    orderly: bool
    line: Line
    takes_back: TakesBack
    on_idle: trio.Event = attrs.field(factory=trio.Event)
    """Set when nothing of an orderly queue is in work any more, after it was dropped."""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    """Of its pull loop."""
    fetcher: Fetcher | None = None
    """What fills it."""
    dropped: bool = False
    in_line: bool = False
    suspended: bool = False
    """An orderly queue that waits before it hands its first message out again."""
    locked_until: float = 0.0
    """Until when our lock on an orderly queue holds if it is not renewed, on trio's clock."""

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
        """Whether the queue is ours alone, as far as we know."""
        return trio.current_time() < self.locked_until

    def check_open(self) -> None:
        if self.line.closed:
            raise Closed("the consumer is closed")

    def ack(self, message: ReceivedMessage) -> None:
        self.assigned.ack(message)
        if self.orderly:
            self.look_for_idle()

    def look_for_idle(self) -> None:
        """Go on with an orderly queue of which nothing is in work any more."""
        if self.assigned.in_work:
            return
        if self.dropped:
            self.on_idle.set()
        else:
            self.line.offer(self)

    def drop(self) -> None:
        """Stop reading: nothing more is pulled or handed out, what is in work may be finished."""
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

    def abandon(self, message: ReceivedMessage) -> None:
        self.takes_back.abandon(self, message)


@attrs.define(eq=False)
class Line:
    """The queues that have something to hand out, and the tasks that wait for it."""

    _ready: deque[Source] = attrs.field(factory=deque[Source])
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot)
    _turn: int = 0
    """Messages that the queue in front has handed out one by one."""
    closed: bool = False

    def offer(self, source: Source) -> None:
        """Let a queue stand in the line if it has something to hand out."""
        if not source.in_line and source.ready():
            source.in_line = True
            self._ready.append(source)
            self._waiting.unpark()

    def take(self, count: int) -> list[ReceivedMessage]:
        """At most `count` messages, of one queue alone if it is orderly; none if nothing is there."""
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

    def take_one(self) -> ReceivedMessage | None:
        """One message, for less than `take` costs; None if nothing is there."""
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
        """Let all tasks that wait look again, and find that nothing comes any more."""
        self.closed = True
        self._waiting.unpark_all()

    def wake_one(self) -> None:
        """Let one waiting task look again."""
        self._waiting.unpark()

    async def wait(self) -> None:
        """Wait until there may be something to take."""
        await self._waiting.park()

    def _return(self, source: Source) -> None:
        source.in_line = True
        self._ready.appendleft(source)
