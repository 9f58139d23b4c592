"""A pull consumer that assigns, polls, seeks, pauses and commits, on trio, in a thread or under asyncio, while faults go on.

It reads the topic of `plain`. Whatever it has done before, each queue comes offset by offset from where it was moved last, a
paused queue hands out nothing, and what is committed is the position.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import ClassVar

import attrs
import trio

from ledgermq.client.errors import ClientError, Closed
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.message.message import MessageQueue
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Queue
from ledgermq.testing.hosting import KINDS, Hosting

from .blocking import INTERRUPTED_SHARE
from .plain import TOPIC
from .workload import Workload

GROUP = "polling"
POLL_SECONDS = 5.0
STEP_SHARE = 0.02
"""The longest time between two calls, as a share of a life."""
CANCELLED_SHARE = 0.3
"""The share of the polls of tasks that are cancelled if they take longer than a moment; threads are interrupted instead."""
OFFSETS_MAX = 1 << 62


@attrs.define(eq=False)
class Polling(Workload):
    """One application after the other, in a group for which nobody else commits."""

    name: ClassVar[str] = "polling"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()
    _kind: str = ""
    _next: dict[MessageQueue, int] = attrs.field(factory=dict[MessageQueue, int])
    """By assigned queue, the offset of the message that must come next."""
    _moved: dict[MessageQueue, Collection[int]] = attrs.field(factory=dict[MessageQueue, Collection[int]])
    """The queues whose position has to be asked for, and where it may be."""
    _paused: set[MessageQueue] = attrs.field(factory=set[MessageQueue])
    _committed: dict[MessageQueue, set[int]] = attrs.field(factory=dict[MessageQueue, set[int]])
    """The offsets of all commits, and 0, at which the group begins."""
    _unanswered: dict[MessageQueue, set[int]] = attrs.field(factory=dict[MessageQueue, set[int]])
    """The offsets of commits that have failed, and may arrive later."""
    _stored_at: dict[MessageQueue, dict[int, int]] = attrs.field(factory=dict[MessageQueue, dict[int, int]])
    """The timestamps of the messages that came, by offset."""
    _found: list[str] = attrs.field(factory=list[str])
    _counted: Counter[str] = attrs.field(factory=Counter[str])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world = scene.client_world()
        task_status.started()
        while True:
            seconds = inf if scene.healed else scene.life_seconds * scene.rng.uniform(0.3, 2.0)
            self._kind = scene.rng.choice(sorted(KINDS))
            scene.note(f"polling: {self._kind}")
            async with open_pull_consumer(scene.namesrv, GROUP, world=world) as consumer:

                async def work(hosting: Hosting, consumer: PullConsumer = consumer) -> None:
                    await self._work(hosting, hosting.shell(consumer))

                with trio.move_on_after(seconds):
                    await KINDS[self._kind](work, scene.rng, INTERRUPTED_SHARE)
            self._next.clear()
            self._moved.clear()
            self._paused.clear()
            await trio.sleep(scene.pause_seconds(0.1))

    async def _work(self, hosting: Hosting, pulling: PullConsumer) -> None:
        """Make random calls; once all faults have ended, read all queues from where they are to their ends."""
        scene = self.scene
        steps = (self._assign, self._commit, self._pause, self._resume, self._seek, *[self._poll] * 5)
        while True:
            await hosting.sleep(0.0 if scene.healed else scene.pause_seconds(STEP_SHARE))
            try:
                await self._ask_for_positions(pulling)
                if not self._next or (scene.healed and len(self._next) < len(await pulling.queues(TOPIC))):
                    await self._assign(pulling)
                elif scene.healed:
                    await (self._resume if self._paused else self._poll)(pulling)
                else:
                    await scene.rng.choice(steps)(pulling)
            except Closed:
                return
            except (ClientError, KeyboardInterrupt):
                self._counted["pull_calls_failed"] += 1

    async def _ask_for_positions(self, pulling: PullConsumer) -> None:
        for queue in sorted(self._moved):
            committed = await pulling.committed(queue)
            if committed is not None:
                self._expect(queue, "has committed", committed, self._committed.setdefault(queue, {0}))
            position = pulling.position(queue)
            self._expect(queue, "is moved to", position, self._moved.pop(queue))
            self._next[queue] = position

    async def _assign(self, pulling: PullConsumer) -> None:
        rng, queues = self.scene.rng, await pulling.queues(TOPIC)
        chosen = queues if self.scene.healed else rng.sample(queues, rng.randint(1, len(queues)))
        try:
            await pulling.assign(chosen)
        finally:
            assigned = pulling.assignment()
            for queue in [queue for queue in self._next if queue not in assigned]:
                del self._next[queue]
                self._moved.pop(queue, None)
                self._paused.discard(queue)
            for queue in assigned:
                if queue not in self._next:
                    self._next[queue] = 0
                    self._moved[queue] = self._committed.setdefault(queue, {0})

    async def _poll(self, pulling: PullConsumer) -> None:
        rng = self.scene.rng
        async with self._limited():
            for message in await pulling.poll(1000 if self.scene.healed else rng.randint(1, 40), POLL_SECONDS * rng.random()):
                queue, offset = message.queue, message.queue_offset
                self._expect(queue, "hands out", offset, () if queue in self._paused else (self._next.get(queue, -1),))
                self._next[queue] = offset + 1
                self._stored_at.setdefault(queue, {})[offset] = message.store_timestamp
                self._counted[f"polled_{self._kind}"] += 1
            for queue, expected in self._next.items():
                self._expect(queue, "has the position", pulling.position(queue), (expected,))

    @asynccontextmanager
    async def _limited(self) -> AsyncGenerator[None]:
        seconds = POLL_SECONDS * self.scene.rng.random()
        if self._kind == "threads" or self.scene.rng.random() > CANCELLED_SHARE:
            yield
        elif self._kind == "trio":
            with trio.move_on_after(seconds):
                yield
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    yield

    async def _pause(self, pulling: PullConsumer) -> None:
        queues = self._some()
        pulling.pause(queues)
        self._paused.update(queues)
        self._counted["pull_pauses"] += 1

    async def _resume(self, pulling: PullConsumer) -> None:
        queues = self._some()
        self._paused.difference_update(queues)
        pulling.resume(queues)

    def _some(self) -> list[MessageQueue]:
        rng = self.scene.rng
        return rng.sample(sorted(self._next), rng.randint(1, len(self._next)))

    async def _seek(self, pulling: PullConsumer) -> None:
        rng, queue = self.scene.rng, self._some()[0]
        end = 1 + max(self._acknowledged(queue), default=-1)
        anywhere, kind = range(OFFSETS_MAX), rng.randrange(5)
        self._counted["pull_seeks"] += 1
        if kind == 0:
            self._moved[queue] = {self._next[queue], 0}
            await pulling.seek_to_beginning(queue)
            self._moved[queue] = {0}
        elif kind == 1:
            self._moved[queue] = anywhere
            await pulling.seek_to_end(queue)
            if not self.scene.slaves:  # one that is behind may have been asked
                self._moved[queue] = range(end, OFFSETS_MAX)
        elif kind == 2 and self._stored_at.get(queue):
            self._moved[queue] = anywhere
            await self._seek_to_time(pulling, queue)
        else:
            offset = rng.randint(0, end)
            self._moved[queue] = {self._next[queue], offset}
            await pulling.seek(queue, offset)
            self._moved[queue] = {offset}

    async def _seek_to_time(self, pulling: PullConsumer, queue: MessageQueue) -> None:
        scene, times = self.scene, self._stored_at[queue]
        latest = scene.rng.choice(sorted(times))
        earlier = [offset for offset, time in times.items() if time < times[latest]]
        await pulling.seek_to_time(queue, times[latest])
        # Clocks that jump leave a queue in no order of time, and a slave may be behind.
        if not any(any(node.clock.injected.values()) for node in scene.nodes):
            self._moved[queue] = range(0 if scene.slaves else max(earlier, default=-1) + 1, latest + 1)

    async def _commit(self, pulling: PullConsumer) -> None:
        scene, queues = self.scene, self._some()
        kind, epoch = scene.rng.randrange(3), scene.epoch
        if kind == 0:
            wanted = dict(self._next)
        else:
            wanted = {queues[0]: self._next[queues[0]] if kind == 1 else scene.rng.randint(0, self._next[queues[0]])}
        for queue, offset in wanted.items():
            self._committed.setdefault(queue, {0}).add(offset)
        try:
            if kind == 0:
                await pulling.commit()
            elif kind == 1:
                await pulling.commit(queues[0])
            else:
                await pulling.commit(queues[0], wanted[queues[0]])
        except BaseException:
            for queue, offset in wanted.items():
                self._unanswered.setdefault(queue, set()).add(offset)
            raise
        broker = scene.serving
        if broker is not None and epoch == scene.epoch:
            self._counted["pull_commits"] += 1
            stored = broker.offsets.of(GROUP, TOPIC)
            for queue, offset in wanted.items():
                may_be = (offset, *self._unanswered.get(queue, ()))
                self._expect(queue, f"has committed {offset}, and the broker has", stored.get(int(queue.queue_id)), may_be)

    # ---------------------------------------------------------------- observations

    def _expect(self, queue: MessageQueue, what: str, offset: int | None, may_be: Collection[int]) -> None:
        if offset not in may_be:
            self._found.append(f"{self._kind}: {queue} {what} {offset}, and not {may_be}")

    def _acknowledged(self, queue: MessageQueue) -> list[int]:
        """The offsets of the messages of a queue that were acknowledged."""
        key: Queue = (TOPIC, int(queue.queue_id))
        return [put.queue_offset for put in self.scene.history.puts if put.acknowledged and put.queue == key]

    def lacking(self) -> str:
        if not self.scene.history.consumers_follow(self.scene.epoch):
            return ""
        if not self._next:
            return "no queue is assigned to the pull consumer"
        missing = [
            offset for queue, position in self._next.items() for offset in self._acknowledged(queue) if offset >= position
        ]
        return f"the pull consumer lacks {len(missing)} messages behind its positions {self._next}" if missing else ""

    def violations(self) -> list[str]:
        # A reader that is ahead of a log which has lost its tail is moved.
        return self._found if self.scene.history.consumers_follow(self.scene.epoch) else []

    def counts(self) -> dict[str, int]:
        return dict(self._counted)
