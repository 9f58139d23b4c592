"""One queue that a consumer reads: which messages are pulled, handed out and committable (RocketMQ `ProcessQueue`). Pure.

Each delivery of a message has one state, which only this module changes:

    buffered → handed out → done, when it is acknowledged
                          → given back → done, when a broker has accepted it
                                       → redelivered, when no broker has: a new delivery is buffered in its place
                          → forgotten, when the queue is moved to another offset → done, when it is acknowledged or given back

Invariant: every message below `committable` is done; `committable` never passes one that is not. Only a message that is handed
out can be acknowledged, and each delivery once. The memory for messages is bounded, per queue and over all queues.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence

import attrs

from ..message.message import MessageQueue
from .received import BUFFERED, DONE, FORGOTTEN, GIVEN_BACK, HANDED_OUT, REDELIVERED, ReceivedMessage

PULL_MESSAGES_MAX = 32
"""How many messages one pull asks for by default."""

MESSAGES_PER_QUEUE_MAX = 1000
"""A queue with this many messages that are not done is not pulled (RocketMQ `pullThresholdForQueue`)."""

BYTES_PER_QUEUE_MAX = 16 * 1024 * 1024
"""A queue that holds this many bytes is not pulled; a sixth of RocketMQ's `pullThresholdSizeForQueue`."""

BYTES_MAX = 64 * 1024 * 1024
"""While all queues together hold this many bytes, only empty ones are pulled; a consumer of hundreds of queues then
fits into a small container."""


def _references(objects: Collection[object]) -> list[int]:
    """How many references there are to each object; 0 where Python does not count them."""
    count: Callable[[object], int] = getattr(sys, "getrefcount", lambda _: 0)
    return [count(each) for each in objects]


_OWN_REFERENCES = _references({0: object()}.values())[0] or 1
"""The references to a message that nothing but its `AssignedQueue` refers to, counted as `_references` counts them."""


def _nothing() -> None:
    pass


@attrs.define(eq=False)
class HeldBytes:
    """The memory that all queues of one consumer use together."""

    bytes_max: int = BYTES_MAX
    held: int = 0
    received: int = 0
    """How many messages were received; this and the next two for `Consumer.statistics`."""
    acknowledged: int = 0
    failed: int = 0
    _waiting: dict[AssignedQueue, None] = attrs.field(factory=lambda: dict[AssignedQueue, None]())  # noqa: PLW0108

    @property
    def has_room(self) -> bool:
        return self.held < self.bytes_max

    def wait(self, queue: AssignedQueue) -> None:
        """Notify `queue` when there is room."""
        self._waiting[queue] = None

    def release(self, size: int) -> None:
        """Record that `size` bytes are not held any more."""
        self.held -= size
        if self._waiting and self.has_room:
            waiting, self._waiting = self._waiting, {}
            for queue in waiting:
                queue.look_for_room()


@attrs.define(eq=False)
class AssignedQueue:
    """The state of one queue on one consumer.

    Args:
        queue: the queue that is read.
        next_offset: the offset to pull next.
        on_room: called when a queue that was full has room again.
    """

    queue: MessageQueue
    next_offset: int
    messages_max: int = MESSAGES_PER_QUEUE_MAX
    bytes_max: int = BYTES_PER_QUEUE_MAX
    on_room: Callable[[], None] = _nothing
    committed: int | None = None
    """The offset that was last sent to the broker (or written to the file)."""
    may_commit: bool = True
    """False while the master of the queue may have an offset of the group that we do not know; then nothing is committed."""
    all_queues: HeldBytes = attrs.field(factory=HeldBytes)
    epoch: int = 0
    """Increases with every reset, so that the answer to an earlier pull is recognised as stale."""
    paused: bool = False
    """While this is set, no message is handed out."""
    broker_id: int = 0
    """The member to pull from, as the broker last suggested."""
    max_offset: int = 0
    """The end of the queue on the broker, as of the last answer."""
    buffered: deque[ReceivedMessage] = attrs.field(factory=deque[ReceivedMessage])
    """Messages that are pulled and not handed out."""
    handed_out: int = 0
    """How many deliveries the application has, forgotten ones included."""
    given_back: int = 0
    """How many deliveries were given back and wait for a broker to accept them."""
    _pending: dict[int, ReceivedMessage] = attrs.field(factory=dict[int, ReceivedMessage])
    """Messages that are pulled and not done, in the order of their offsets."""
    _forgotten: list[ReceivedMessage] = attrs.field(factory=list[ReceivedMessage])
    """Messages that are handed out although the queue was moved to another offset since."""
    _held: int = 0
    """The size of the pull answers with at least one message that is not done; 0 once the queue is stopped."""
    _stopped: bool = False
    _full: bool = False

    @property
    def has_room(self) -> bool:
        """Whether the queue may be pulled; an empty one always may, so that no other queue can block it."""
        return not self._pending or (
            len(self._pending) < self.messages_max and self._held < self.bytes_max and self.all_queues.has_room
        )

    @property
    def in_work(self) -> bool:
        """Whether a message of the queue is still being processed."""
        return bool(self.handed_out or self.given_back)

    @property
    def pending(self) -> int:
        """How many messages are pulled and not done."""
        return len(self._pending)

    @property
    def held_bytes(self) -> int:
        """The memory that the queue uses: a pull answer is freed when all its messages are done."""
        return self._held

    @property
    def pending_offsets(self) -> tuple[int, int] | None:
        """The first and last offset that is not done; None if there is none."""
        return (next(iter(self._pending)), next(reversed(self._pending))) if self._pending else None

    @property
    def committable(self) -> int:
        """The offset to commit: the next consumer of the queue starts there."""
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
        """Buffer the messages of one pull answer, in order."""
        if messages:
            pending, answer = self._pending, messages[0].answer
            for message in messages:
                pending[message.queue_offset] = message
            answer.open = len(messages)
            self._held += answer.size
            self.all_queues.held += answer.size
            self.all_queues.received += len(messages)
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
        """Record that a message is done; False if this delivery is not handed out, or was forgotten."""
        if message.state == HANDED_OUT:
            self.handed_out -= 1
            self.all_queues.acknowledged += 1
            self._done(message)
            return True
        self._drop_forgotten(message)
        return False

    def dropped(self) -> list[ReceivedMessage]:
        """The messages that are handed out although nothing else refers to them: nobody can acknowledge them any more."""
        if not self.handed_out:
            return []
        return [
            message
            for messages in (self._pending.values(), self._forgotten)
            for message, references in zip(messages, _references(messages), strict=True)
            if references == _OWN_REFERENCES and message.in_hand
        ]

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
        """Record that a message that was given back is done, because a broker has accepted it."""
        if message.state == GIVEN_BACK:
            self.given_back -= 1
            self._done(message)

    def redeliver(self, message: ReceivedMessage) -> bool:
        """Make a message that was given back the next one again; False if the queue was moved in the meantime."""
        if message.state != GIVEN_BACK:
            return False
        self.given_back -= 1
        self._buffer_again([message], 1)
        return True

    def put_back(self, message: ReceivedMessage) -> bool:
        """Make a message that was handed out, but not seen by the application, the next one again; False as for `ack`."""
        if not self.give_back(message):
            return False
        self.given_back -= 1
        self._buffer_again([message], 0)
        return True

    def redeliver_in_order(self, message: ReceivedMessage) -> bool:
        """Redeliver a message and those handed out behind it, which keeps the order of the queue; False as for `redeliver`."""
        behind = [
            other for offset, other in self._pending.items() if offset > message.queue_offset and other.state == HANDED_OUT
        ]
        if message.state != GIVEN_BACK:
            return False
        self.given_back -= 1
        self.handed_out -= len(behind)
        self._buffer_again(behind, 0)
        self._buffer_again([message], 1)
        # An earlier message may have come back before, while a broker was asked to take this one.
        in_order = sorted(self.buffered, key=lambda each: each.queue_offset)
        self.buffered.clear()
        self.buffered.extend(in_order)
        return True

    def _buffer_again(self, messages: Sequence[ReceivedMessage], redeliveries: int) -> None:
        deliveries = [message.again(redeliveries) for message in messages]
        for old, new in zip(messages, deliveries, strict=True):
            old.state = REDELIVERED
            self._pending[new.queue_offset] = new  # a dictionary keeps the place of an existing key, so the order stays
        self.buffered.extendleft(reversed(deliveries))

    def move(self, next_offset: int) -> None:
        """Continue at the offset that the broker names.

        If that is further back, the broker lacks the messages from there on: it has lost them, or it is behind the member that
        we pulled from before. Messages below that offset still count, because they would not be pulled again.
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
        """Drop everything that was pulled and continue at `next_offset`; messages that are handed out are forgotten."""
        self.epoch += 1
        self.buffered.clear()
        for message in list(self._pending.values()):
            self._forget(message)
        self.next_offset = next_offset
        self.look_for_room()

    def stop(self) -> None:
        """Drop buffered messages for the next consumer; handed-out ones may still be acknowledged, a pending pull is void.

        The memory of the queue counts no longer, because nobody may ever finish what is handed out or comes back.
        """
        self.epoch += 1
        self._stopped = True
        held, self._held = self._held, 0
        self.all_queues.release(held)
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
            self._forgotten.append(message)

    def _drop_forgotten(self, message: ReceivedMessage) -> None:
        if message.state == FORGOTTEN:
            message.state = DONE
            self._forgotten.remove(message)
            self.handed_out -= 1

    def _done(self, message: ReceivedMessage) -> None:
        message.state = DONE
        del self._pending[message.queue_offset]
        answer = message.answer
        answer.open -= 1
        if not answer.open and not self._stopped:
            self._held -= answer.size
            self.all_queues.release(answer.size)
        if self._full:
            self.look_for_room()
