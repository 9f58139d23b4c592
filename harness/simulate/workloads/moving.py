"""Members that pause and resume their queues, and seek in them, while faults go on.

A seek goes to an offset, to the beginning, to the end or to a time. From then on the messages come from there on, whatever was
prefetched, and none is left out; what a seek forward has passed need not be handled. A paused queue hands out nothing.
"""

from __future__ import annotations

import asyncio
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
from ledgermq.testing.hosting import Hosting, in_asyncio, in_thread
from ledgermq.testing.sim.threads import current_thread

from .blocking import INTERRUPTED_SHARE, Blocking
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
        Style(name="moving_ordered_commits", ordered=True, explicit=True, commits=True, members_max=1, leaves=False),
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
            nursery.start_soon(self._change, consumer, consumer, member)
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

    async def _change(self, shell: Consumer, consumer: Consumer, member: str) -> None:
        """Pause, resume and seek at random times; once all faults have ended, let everything be handed out.

        Args:
            shell: what the member calls, which may be another kind of client.
            consumer: the client around which it is.
            member: the name of the member.
        """
        scene = self.scene
        while not scene.healed:
            await self._sleep(scene.pause_seconds(CHANGE_SHARE))
            # A queue that is being taken can be resumed already, and is not announced as one that is paused.
            queues = [queue for queue in shell.queues if queue in self._announced[member]]
            if not queues:
                continue
            chosen = scene.rng.sample(queues, scene.rng.randint(1, len(queues)))
            kind = scene.rng.randrange(4)
            try:
                if kind == 0:
                    self._pause(shell, member, chosen)
                elif kind == 1:
                    await self._seek(shell, consumer, member, chosen[0])
                else:
                    self._resume(shell, member, chosen)
            except (ClientError, KeyboardInterrupt) as error:  # the queue has been given up, or no broker answers
                scene.note(f"{member}: {type(error).__name__}", self._now())
        self._resume(shell, member, None)

    def _pause(self, shell: Consumer, member: str, queues: list[MessageQueue]) -> None:
        if self.scene.rng.random() < 0.3:
            shell.pause()
            self._all_paused.add(member)
            queues = shell.queues
        else:
            shell.pause(queues)
        self._begin_pauses(member, queues)

    def _resume(self, shell: Consumer, member: str, queues: list[MessageQueue] | None) -> None:
        if queues is None or self.scene.rng.random() < 0.5:
            self._all_paused.discard(member)
            self._end_pauses(member, list(self._pauses.get(member, ())))
            shell.resume()
        else:
            self._end_pauses(member, queues)
            shell.resume(queues)

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

    async def _seek(self, shell: Consumer, consumer: Consumer, member: str, queue: MessageQueue) -> None:
        rng, handlings = self.scene.rng, self.scene.history.handlings
        if queue.topic != self.topic:
            return
        source, since = consumer.sources[queue], len(handlings)
        before, end = source.assigned.committable, source.assigned.max_offset
        seek = Seek(self.group, member, _key(queue), 0, self._now(), since)
        self._end_seek(member, queue)
        self.scene.history.seeks.append(seek)  # even if it fails or is cancelled: the queue may have been moved
        kind, offset = rng.randrange(5), None
        try:
            if kind == 0:
                await shell.seek_to_beginning(queue)
            elif kind == 1:
                await shell.seek_to_end(queue)
            elif kind == 2:
                await shell.seek_to_time(queue, self._time_in(queue))
            else:
                offset = rng.randint(0, before if kind == 3 else max(before, end))
                await shell.seek(queue, offset)
        finally:
            found = consumer.sources.get(queue, source)
            seek.passed = (before, max(before, found.assigned.committable))
        # What was handed out meanwhile may have been before the move or after it.
        handed_out = any(one.member == member and one.queue == _key(queue) for one in handlings[since:])
        if not handed_out and found is source:
            seek.exact, seek.offset = True, source.assigned.committable if offset is None else offset
            self._seeks.setdefault(member, {})[queue] = seek
        if self._style.commits:
            await self._commit_once(consumer)

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

    async def _be(self, consumer: Consumer, member: str, host: str) -> None:
        async def change(hosting: Hosting) -> None:
            await self._change(hosting.shell(consumer), consumer, member)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, change, self.scene.rng, INTERRUPTED_SHARE)
            await super(Moving, self)._be(consumer, member, host)  # the threads, and no task that makes the changes

    def _now(self) -> float:
        return current_thread().now

    async def _sleep(self, seconds: float) -> None:
        current_thread().sleep(seconds)


@attrs.define(eq=False)
class MovingTasks(Moving):
    """The same with tasks of asyncio."""

    name: ClassVar[str] = "moving_tasks"
    topic: ClassVar[str] = "MA"
    styles: ClassVar[tuple[Style, ...]] = (
        Style(name="moving_tasks_auto"),
        Style(name="moving_tasks_explicit", explicit=True),
        Style(name="moving_tasks_restarts", restarts=True),
        Style(name="moving_tasks_get_one", take="get_one"),
        Style(name="moving_tasks_ordered", ordered=True),
    )

    async def _be(self, consumer: Consumer, member: str, host: str) -> None:  # noqa: ARG002 - they do not commit by themselves
        async def run(hosting: Hosting) -> None:
            shell = hosting.shell(consumer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._change(shell, consumer, member))
                group.create_task(self._consume(shell, member))

        await in_asyncio(run, self.scene.rng, 0.0)

    def _now(self) -> float:
        return current_thread().now

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
