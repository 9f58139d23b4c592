"""Clients that are closed while other tasks wait on them: each task must be notified, with a correct result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

import attrs
import trio

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.pull import open_pull_consumer
from ledgermq.client.received import ReceivedMessage
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Put, Wait
from ledgermq.world.real import World

from .operator import Operator
from .plain import SEND_SECONDS
from .workload import Workload, note_failure

TOPIC, QUIET_TOPIC, GROUP = "E", "EQ", "eg"
SENDERS = 3
OPEN_SHARE = 0.3
"""The longest time that a client is open, as a share of a life."""


@attrs.define(eq=False)
class Closing(Workload):
    """Ends the blocks of consumers of an empty topic, and of producers with sends in flight."""

    name: ClassVar[str] = "closing"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene, operator = self.scene, Operator(self.scene)
        await operator.create_topic(QUIET_TOPIC, 2)
        world = scene.client_world()
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                await operator.pause(0.1)
                kind = scene.rng.choice((self._close_consumer, self._close_pull_consumer, self._close_producer))
                try:
                    await kind(nursery, world)
                except ClientError as error:
                    scene.note(f"closing: {type(error).__name__}")

    def _open_seconds(self) -> float:
        return self.scene.life_seconds * self.scene.rng.random() * OPEN_SHARE

    async def _wait(self, what: str, act: Callable[[], Awaitable[object]], wait: Wait) -> None:
        wait.what = what
        try:
            await act()
        except ClientError as error:
            wait.error = type(error).__name__
        wait.ended_at = trio.current_time()

    def _start(self, nursery: trio.Nursery, what: str, act: Callable[[], Awaitable[object]]) -> Wait:
        wait = Wait(what)
        nursery.start_soon(self._wait, what, act, wait)
        return wait

    def _closed(self, waits: list[Wait]) -> None:
        """Record the end of a client's block; waits that ended well before it are not judged."""
        now = trio.current_time()
        for wait in waits:
            if wait.ended_at >= now - SEND_SECONDS:
                wait.closed_at = now
                self.scene.history.waits.append(wait)

    async def _close_consumer(self, nursery: trio.Nursery, world: World) -> None:
        async def handle(_: ReceivedMessage) -> None:
            await trio.lowlevel.checkpoint()

        async with open_consumer(
            self.scene.namesrv, GROUP, QUIET_TOPIC, orderly=self.scene.rng.random() < 0.3, world=world
        ) as consumer:
            waits = [
                self._start(nursery, "get_one", consumer.get_one),
                self._start(nursery, "get_many", consumer.get_many),
                self._start(nursery, "process", lambda: consumer.process(handle, tasks=2)),
                self._start(nursery, "async for", lambda: anext(aiter(consumer))),
            ]
            await trio.sleep(self._open_seconds())
        self._closed(waits)

    async def _close_pull_consumer(self, nursery: trio.Nursery, world: World) -> None:
        async with open_pull_consumer(self.scene.namesrv, GROUP, world=world) as consumer:
            await consumer.assign(await consumer.queues(QUIET_TOPIC))
            waits = [self._start(nursery, "poll", consumer.poll)]
            await trio.sleep(self._open_seconds())
        self._closed(waits)

    async def _close_producer(self, nursery: trio.Nursery, world: World) -> None:
        """End a producer with sends in flight: none may hang, and none may report as not stored a message that was stored."""
        scene = self.scene
        async with open_producer(scene.namesrv, "ep", world=world, send_timeout_seconds=SEND_SECONDS) as producer:
            for _ in range(SENDERS):
                nursery.start_soon(self._send, producer)
            await trio.sleep(scene.rng.choice((0.0, 0.001, self._open_seconds())))

    async def _send(self, producer: Producer) -> None:
        scene = self.scene
        while True:
            put = Put(scene.next_number(), 0, (TOPIC, 0), scene.epoch, sent_at=trio.current_time())
            scene.history.puts.append(put)
            wait = Wait(f"the send of {put.number}")
            try:
                result = await producer.send(Message(TOPIC, b"%d;" % put.number))
            except ClientError as error:
                note_failure(put, error)
                wait.error = type(error).__name__
                if wait.error == "Closed":
                    return
            else:
                put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
                put.producer = -put.number  # other senders of this producer send concurrently
                put.acknowledged, put.answered = result.status.name == "SEND_OK", scene.epoch

    def counts(self) -> dict[str, int]:
        return {"waits": len(self.scene.history.waits)}
