"""One queue that a consumer reads: what was pulled, what was handed out, what may be committed (RocketMQ `ProcessQueue`). Pure.

Invariant: every message below `committable` is done with; `committable` never passes a message that is not. What was pulled and
is not done with is bounded in number and bytes; beyond that the queue is not pulled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from ..message.message import MessageQueue
from .received import ReceivedMessage

MESSAGES_PER_QUEUE_MAX = 1000
"""RocketMQ's `pullThresholdForQueue`."""

BYTES_PER_QUEUE_MAX = 16 * 1024 * 1024
"""A sixth of RocketMQ's: with 64 queues a consumer still fits into a small container."""


def _nothing() -> None:
    pass


@attrs.define(eq=False)
class AssignedQueue:
    """The state of one queue on one consumer.

    Args:
        queue: which one.
        next_offset: where to pull next.
        on_room: called when the queue was full and is not any more.
    """

    queue: MessageQueue
    next_offset: int
    messages_max: int = MESSAGES_PER_QUEUE_MAX
    bytes_max: int = BYTES_PER_QUEUE_MAX
    on_room: Callable[[], None] = _nothing
    committed: int | None = None
    """What the broker (or the file) was told last."""
    epoch: int = 0
    """Goes up with every reset, so that a pull that was out meanwhile is known to be stale."""
    paused: bool = False
    """Nothing is handed out while this is set."""
    broker_id: int = 0
    """From which member to pull, by the broker's own hint."""
    max_offset: int = 0
    """The broker's newest, as of the last answer."""
    buffered: deque[ReceivedMessage] = attrs.field(factory=deque[ReceivedMessage])
    """Pulled and not handed out."""
    _pending: dict[int, ReceivedMessage] = attrs.field(factory=dict[int, ReceivedMessage])
    """Pulled and not done with, in the order of their offsets."""
    _pending_bytes: int = 0
    _full: bool = False

    @property
    def has_room(self) -> bool:
        """Whether the queue may be pulled."""
        return len(self._pending) < self.messages_max and self._pending_bytes < self.bytes_max

    @property
    def handed_out(self) -> int:
        """Messages handed out and not done with."""
        return max(0, len(self._pending) - len(self.buffered))

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    @property
    def pending_offsets(self) -> tuple[int, int] | None:
        """First and last offset that is not done with."""
        return (next(iter(self._pending)), next(reversed(self._pending))) if self._pending else None

    @property
    def committable(self) -> int:
        """The offset at which a successor may start."""
        for queue_offset in self._pending:
            return queue_offset
        return self.next_offset

    def wait_for_room(self) -> bool:
        """Whether the puller has to wait; if so, `on_room` will be called."""
        self._full = not self.has_room
        return self._full

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Take the messages of one pull answer, in order."""
        pending, pulled_bytes = self._pending, 0
        for message in messages:
            pending[message.queue_offset] = message
            pulled_bytes += message.size
        self._pending_bytes += pulled_bytes
        self.buffered.extend(messages)
        self.next_offset = next_offset

    def take(self, count: int) -> list[ReceivedMessage]:
        """Hand out at most `count` messages."""
        buffered = self.buffered
        if len(buffered) <= count:
            messages = list(buffered)
            buffered.clear()
            return messages
        return [buffered.popleft() for _ in range(count)]

    def ack(self, message: ReceivedMessage) -> bool:
        """Note that a message is done with; False if it was already, or belongs to a time before a reset."""
        if self._pending.get(message.queue_offset) is not message:
            return False
        del self._pending[message.queue_offset]
        self._pending_bytes -= message.size
        if self._full and self.has_room:
            self._full = False
            self.on_room()
        return True

    def put_back(self, message: ReceivedMessage) -> bool:
        """Make a message that was handed out the next one again; False if it is not ours any more."""
        if self._pending.get(message.queue_offset) is not message:
            return False
        message.local_redeliveries += 1
        self.buffered.appendleft(message)
        return True

    def put_back_from(self, message: ReceivedMessage) -> bool:
        """Put back a message and everything handed out behind it, so that the order of the queue is kept."""
        waiting = self.buffered[0].queue_offset if self.buffered else self.next_offset
        behind = [other for offset, other in self._pending.items() if message.queue_offset < offset < waiting]
        if self._pending.get(message.queue_offset) is not message:
            return False
        self.buffered.extendleft(reversed(behind))
        return self.put_back(message)

    def move(self, next_offset: int) -> None:
        """Go on where the broker says that the queue does.

        If that is further back, it does not have what came from there on: not any more, or not yet, where another member was
        ahead of it. What was pulled before that still counts, for nobody would pull it again.
        """
        if next_offset >= self.next_offset:
            self.reset(next_offset)
            return
        kept = {offset: message for offset, message in self._pending.items() if offset < next_offset}
        waiting = [message for message in self.buffered if message.queue_offset < next_offset]
        self.reset(next_offset)
        self._pending.update(kept)
        self._pending_bytes = sum(message.size for message in kept.values())
        self.buffered.extend(waiting)

    def reset(self, next_offset: int) -> None:
        """Forget everything pulled and go on at `next_offset`; messages handed out are not ours any more."""
        self.epoch += 1
        self.next_offset = next_offset
        self.buffered.clear()
        self._pending.clear()
        self._pending_bytes = 0
        if self._full:
            self._full = False
            self.on_room()
