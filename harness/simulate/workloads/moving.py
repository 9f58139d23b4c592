"""Members that pause and resume their queues, and seek back in them, while faults go on.

A seek goes to an offset, to the beginning or to a time, and never forward: everything must still be handled. From then on the
messages come again, and the first one is that of the offset, whatever was prefetched. A paused queue hands out nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs
import trio

from ledgermq.client.consumer import Consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.received import RecordView
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Handling, Pause, Queue, Seek

from .blocking import Blocking
from .members import Members, Style

CHANGE_SHARE = 0.15
"""The longest time between two changes of a member, as a share of a life."""


def _key(queue: MessageQueue) -> Queue:
    return (queue.topic, int(queue.queue_id))


@attrs.define(eq=False, slots=False)  # with slots, it could not be combined with another kind of members
class Moving(Members):
    """One group whose members each have one loop: it begins to handle a message in the moment in which it is handed out."""

    name: ClassVar[str] = "moving"
    topic: ClassVar[str] = "MV"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()
    styles: ClassVar[tuple[Style, ...]] = (
        Style(name="moving_explicit", explicit=True),
        Style(name="moving_auto", members_max=2),
        Style(name="moving_ordered", ordered=True, explicit=True),
        Style(name="moving_ordered_auto", ordered=True, members_max=2),
    )
    _pauses: dict[str, dict[MessageQueue, Pause]] = attrs.field(factory=dict[str, dict[MessageQueue, Pause]])
    """By member, the pauses of the queues that hand out nothing now."""
    _all_paused: set[str] = attrs.field(factory=set[str])
    """The members that have paused all queues, also those that they take later."""
    _seeks: dict[str, dict[MessageQueue, Seek]] = attrs.field(factory=dict[str, dict[MessageQueue, Seek]])
    """By member, the last seek in each queue that it reads."""
    _stored_at: dict[MessageQueue, list[int]] = attrs.field(factory=dict[MessageQueue, list[int]])
    """The timestamps of some messages that were handed out."""

    async def _be(self, consumer: Consumer, member: str, host: str) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._change, consumer, member)
            await super()._be(consumer, member, host)

    def _assigned(self, member: str, queues: Sequence[MessageQueue]) -> None:
        super()._assigned(member, queues)
        if member in self._all_paused:
            self._begin_pauses(member, queues)

    def _given_up(self, member: str, queues: Sequence[MessageQueue]) -> None:
        super()._given_up(member, queues)
        self._end_pauses(member, queues)
        for queue in queues:
            self._end_seek(member, queue)

    def _begin(self, message: RecordView, member: str, now: float) -> Handling:
        if message.queue.topic == self.topic:
            self._stored_at.setdefault(message.queue, []).append(message.store_timestamp)
        return super()._begin(message, member, now)

    # ---------------------------------------------------------------- changes

    async def _change(self, consumer: Consumer, member: str) -> None:
        """Pause, resume and seek at random times; once all faults have ended, let everything be handed out."""
        scene = self.scene
        while not scene.healed:
            await trio.sleep(scene.pause_seconds(CHANGE_SHARE))
            queues = consumer.queues
            if not queues:
                continue
            kind = scene.rng.choice((self._pause, self._resume, self._resume, self._seek))
            try:
                await kind(consumer, member, scene.rng.sample(queues, scene.rng.randint(1, len(queues))))
            except ClientError as error:  # the queue has been given up, or no broker answers
                scene.note(f"{member}: {type(error).__name__}")
        await self._resume(consumer, member, None)

    async def _pause(self, consumer: Consumer, member: str, queues: list[MessageQueue]) -> None:
        if self.scene.rng.random() < 0.3:
            consumer.pause()
            self._all_paused.add(member)
            queues = consumer.queues
        else:
            consumer.pause(queues)
        self._begin_pauses(member, queues)
        await trio.lowlevel.checkpoint()

    async def _resume(self, consumer: Consumer, member: str, queues: list[MessageQueue] | None) -> None:
        if queues is None or self.scene.rng.random() < 0.5:
            self._all_paused.discard(member)
            self._end_pauses(member, list(self._pauses.get(member, ())))
            consumer.resume()
        else:
            self._end_pauses(member, queues)
            consumer.resume(queues)
        await trio.lowlevel.checkpoint()

    def _begin_pauses(self, member: str, queues: Sequence[MessageQueue]) -> None:
        handlings = self.scene.history.handlings
        for queue in queues:
            if queue not in self._pauses.setdefault(member, {}):
                self._pauses[member][queue] = pause = Pause(member, _key(queue), len(handlings))
                self.scene.history.pauses.append(pause)

    def _end_pauses(self, member: str, queues: Sequence[MessageQueue]) -> None:
        for queue in queues:
            pause = self._pauses.get(member, {}).pop(queue, None)
            if pause is not None:
                pause.until = len(self.scene.history.handlings)

    async def _seek(self, consumer: Consumer, member: str, queues: list[MessageQueue]) -> None:
        rng, handlings = self.scene.rng, self.scene.history.handlings
        queue = queues[0]
        if queue.topic != self.topic:
            return
        source, since = consumer.sources[queue], len(handlings)
        seek = Seek(self.group, member, _key(queue), 0, trio.current_time(), since)
        self._end_seek(member, queue)
        self.scene.history.seeks.append(seek)  # even if it fails or is cancelled: the queue may have been moved
        kind, offset = rng.randrange(3), None
        if kind == 0:
            offset = rng.randint(0, source.assigned.committable)
            await consumer.seek(queue, offset)
        elif kind == 1:
            await consumer.seek_to_beginning(queue)
        else:
            await consumer.seek_to_time(queue, self._time_in(queue))
        # What was handed out meanwhile may have been before the move or after it.
        handed_out = any(one.member == member and one.queue == _key(queue) for one in handlings[since:])
        if not handed_out and consumer.sources.get(queue) is source:
            seek.exact, seek.offset = True, source.assigned.committable if offset is None else offset
            self._seeks.setdefault(member, {})[queue] = seek

    def _time_in(self, queue: MessageQueue) -> int:
        """A time at which a message was stored that has been handed out, if the clocks let the times of a queue increase."""
        times = self._stored_at.get(queue)
        set_wrong = any(any(node.clock.injected.values()) for node in self.scene.nodes)
        return 0 if not times or set_wrong else self.scene.rng.choice(times)

    def _end_seek(self, member: str, queue: MessageQueue) -> None:
        seek = self._seeks.get(member, {}).pop(queue, None)
        if seek is not None:
            seek.until = len(self.scene.history.handlings)

    def counts(self) -> dict[str, int]:
        history = self.scene.history
        return {**super().counts(), "pauses": len(history.pauses), "seeks": len(history.seeks)}


@attrs.define(eq=False)
class MovingThreads(Moving, Blocking):
    """The same with threads that share a blocking consumer, to which many messages cross before they are handed out."""

    name: ClassVar[str] = "moving_threads"
    topic: ClassVar[str] = "MT"
    styles: ClassVar[tuple[Style, ...]] = (
        Style(name="moving_threads_auto"),
        Style(name="moving_threads_break", take="break"),
        Style(name="moving_threads_ordered", ordered=True),
    )
