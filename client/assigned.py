"""One queue that a consumer reads: what was pulled, what was handed out, what may be committed (RocketMQ `ProcessQueue`). Pure.

Each delivery of a message is in one state, which this module alone changes:

    buffered → handed out → done, when it is acknowledged
                          → given back → done, when a broker has taken it
                                       → redelivered, when none has: a new delivery is buffered in its place
                          → forgotten, when the queue is moved to another offset → done, when it is acknowledged or given back

Invariant: every message below `committable` is done with; `committable` never passes a message that is not. Only what is handed
out can be acknowledged, and each delivery once. What is held in memory is bounded, in this queue and over all queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import attrs

from ..message.message import MessageQueue
from .received import BUFFERED, DONE, FORGOTTEN, GIVEN_BACK, HANDED_OUT, REDELIVERED, ReceivedMessage

MESSAGES_PER_QUEUE_MAX = 1000
"""RocketMQ's `pullThresholdForQueue`."""

BYTES_PER_QUEUE_MAX = 16 * 1024 * 1024
"""A sixth of RocketMQ's `pullThresholdSizeForQueue`."""

BYTES_MAX = 64 * 1024 * 1024
"""Over all queues: a consumer of hundreds of queues still fits into a small container."""


def _nothing() -> None:
    pass


@attrs.define(eq=False)
class HeldBytes:
    """The memory that all queues of one consumer hold together."""

    bytes_max: int = BYTES_MAX
    held: int = 0
    _waiting: dict[AssignedQueue, None] = attrs.field(factory=lambda: dict[AssignedQueue, None]())  # noqa: PLW0108

    @property
    def has_room(self) -> bool:
        return self.held < self.bytes_max

    def wait(self, queue: AssignedQueue) -> None:
        """Let `queue` be told when there is room."""
        self._waiting[queue] = None

    def release(self, size: int) -> None:
        """Note that so many bytes are not held any more."""
        self.held -= size
        if self._waiting and self.has_room:
            waiting, self._waiting = self._waiting, {}
            for queue in waiting:
                queue.look_for_room()


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
    all_queues: HeldBytes = attrs.field(factory=HeldBytes)
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
    handed_out: int = 0
    """Deliveries in the application's hands, forgotten ones too."""
    given_back: int = 0
    """Deliveries that were given back and of which is not known yet whether a broker takes them."""
    _pending: dict[int, ReceivedMessage] = attrs.field(factory=dict[int, ReceivedMessage])
    """Pulled and not done with, in the order of their offsets."""
    _held: int = 0
    """Bytes of the pull answers that have a message which is not done with."""
    _full: bool = False

    @property
    def has_room(self) -> bool:
        """Whether the queue may be pulled; one that holds nothing always may, so that no other queue can stop it."""
        return not self._pending or (
            len(self._pending) < self.messages_max and self._held < self.bytes_max and self.all_queues.has_room
        )

    @property
    def in_work(self) -> bool:
        """Whether anybody still works on a message of the queue."""
        return bool(self.handed_out or self.given_back)

    @property
    def pending(self) -> int:
        """Messages pulled and not done with."""
        return len(self._pending)

    @property
    def held_bytes(self) -> int:
        """Memory that the queue holds: whole pull answers, as long as one of their messages is not done with."""
        return self._held

    @property
    def pending_offsets(self) -> tuple[int, int] | None:
        """First and last offset that is not done with."""
        return (next(iter(self._pending)), next(reversed(self._pending))) if self._pending else None

    @property
    def committable(self) -> int:
        """The offset at which a successor may start."""
        for queue_offset in self._pending:
            return min(queue_offset, self.next_offset)
        return self.next_offset

    def wait_for_room(self) -> bool:
        """Whether the puller has to wait; if so, `on_room` will be called."""
        self._full = not self.has_room
        if self._full:
            self.all_queues.wait(self)
        return self._full

    def look_for_room(self) -> None:
        """Call `on_room` if the puller waits and there is room now."""
        if self._full and self.has_room:
            self._full = False
            self.on_room()
        elif self._full:
            self.all_queues.wait(self)

    def add(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Take the messages of one pull answer, in order."""
        if messages:
            pending, answer = self._pending, messages[0].answer
            for message in messages:
                pending[message.queue_offset] = message
            answer.open = len(messages)
            self._held += answer.size
            self.all_queues.held += answer.size
            self.buffered.extend(messages)
        self.next_offset = next_offset

    def take(self, count: int) -> list[ReceivedMessage]:
        """Hand out at most `count` messages."""
        buffered = self.buffered
        if len(buffered) <= count:
            messages = list(buffered)
            buffered.clear()
        else:
            messages = [buffered.popleft() for _ in range(count)]
        for message in messages:
            message.state = HANDED_OUT
        self.handed_out += len(messages)
        return messages

    def ack(self, message: ReceivedMessage) -> bool:
        """Note that a message is done with; False if this delivery of it is not in hand, or counts no more."""
        if message.state == HANDED_OUT:
            self.handed_out -= 1
            self._done(message)
            return True
        self._drop_forgotten(message)
        return False

    def give_back(self, message: ReceivedMessage) -> bool:
        """Take back a message that was handed out, until `finish` or `redeliver`; False as for `ack`."""
        if message.state == HANDED_OUT:
            message.state = GIVEN_BACK
            self.handed_out -= 1
            self.given_back += 1
            return True
        self._drop_forgotten(message)
        return False

    def finish(self, message: ReceivedMessage) -> None:
        """Note that a message that was given back is done with: a broker has taken it."""
        if message.state == GIVEN_BACK:
            self.given_back -= 1
            self._done(message)

    def redeliver(self, message: ReceivedMessage) -> bool:
        """Make a message that was given back the next one again; False if the queue was moved meanwhile."""
        if message.state != GIVEN_BACK:
            return False
        self.given_back -= 1
        self._buffer_again([message], 1)
        return True

    def put_back(self, message: ReceivedMessage) -> bool:
        """Make a message that was handed out, but that nobody has seen, the next one again; False as for `ack`."""
        if not self.give_back(message):
            return False
        self.given_back -= 1
        self._buffer_again([message], 0)
        return True

    def redeliver_in_order(self, message: ReceivedMessage) -> bool:
        """The same, together with everything handed out behind it, so that the order of the queue is kept."""
        behind = [
            other for offset, other in self._pending.items() if offset > message.queue_offset and other.state == HANDED_OUT
        ]
        if message.state != GIVEN_BACK:
            return False
        self.given_back -= 1
        self.handed_out -= len(behind)
        self._buffer_again(behind, 0)
        self._buffer_again([message], 1)
        return True

    def _buffer_again(self, messages: Sequence[ReceivedMessage], redeliveries: int) -> None:
        deliveries = [message.again(redeliveries) for message in messages]
        for old, new in zip(messages, deliveries, strict=True):
            old.state = REDELIVERED
            self._pending[new.queue_offset] = new  # at the place that the offset has in the order already
        self.buffered.extendleft(reversed(deliveries))

    def move(self, next_offset: int) -> None:
        """Go on where the broker says that the queue does.

        If that is further back, it does not have what came from there on: not any more, or not yet, where another member was
        ahead of it. What was pulled before that still counts, for nobody would pull it again.
        """
        if next_offset >= self.next_offset:
            self.reset(next_offset)
            return
        self.epoch += 1
        for message in [message for offset, message in self._pending.items() if offset >= next_offset]:
            self._forget(message)
        waiting = [message for message in self.buffered if message.state == BUFFERED]
        self.buffered.clear()
        self.buffered.extend(waiting)
        self.next_offset = next_offset
        self.look_for_room()

    def reset(self, next_offset: int) -> None:
        """Forget everything pulled and go on at `next_offset`; messages handed out count no more."""
        self.epoch += 1
        self.buffered.clear()
        for message in list(self._pending.values()):
            self._forget(message)
        self.next_offset = next_offset
        self.look_for_room()

    def stop(self) -> None:
        """Drop what waits, for a successor: what is in hand may still be done with, and a pull that is out counts no more."""
        self.epoch += 1
        for message in list(self.buffered):
            self.next_offset = min(self.next_offset, message.queue_offset)
            self._done(message)
        self.buffered.clear()

    def _forget(self, message: ReceivedMessage) -> None:
        state = message.state
        self.given_back -= state == GIVEN_BACK
        self._done(message)
        if state == HANDED_OUT:
            message.state = FORGOTTEN

    def _drop_forgotten(self, message: ReceivedMessage) -> None:
        if message.state == FORGOTTEN:
            message.state = DONE
            self.handed_out -= 1

    def _done(self, message: ReceivedMessage) -> None:
        message.state = DONE
        del self._pending[message.queue_offset]
        answer = message.answer
        answer.open -= 1
        if not answer.open:
            self._held -= answer.size
            self.all_queues.release(answer.size)
        if self._full:
            self.look_for_room()
