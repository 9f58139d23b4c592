"""A group that begins at the end of empty queues, leaves, and returns: it must get all messages sent since it began."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Put

from .operator import Operator
from .plain import SEND_SECONDS
from .workload import Workload, note_failure, number_in

TOPIC, GROUP = "BE", "beg"
QUEUES = 2
COPIED_SECONDS = 30.0
"""How long to wait until all brokers have the first offsets of the group; the run goes on in any case."""
PERSISTED_SECONDS = 15.0
"""After this time every broker has written its tables to its disk."""


@attrs.define(eq=False)
class Beginnings(Workload):
    """Nothing is skipped, although a new group begins at the end of its queues."""

    name: ClassVar[str] = "beginnings"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()
    seen: set[int] = attrs.field(factory=set[int])
    _sent: list[Put] = attrs.field(factory=list[Put])
    _returns: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        operator = Operator(self.scene)
        await operator.create_topic(TOPIC, QUEUES)
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(self._consume, begun)
            await begun.wait()
            await self._until_copied()
            nursery.start_soon(self._produce)
            task_status.started()

    async def _until_copied(self) -> None:
        """Wait until every broker has the group's first offsets, because a crash that loses them makes the group a new one."""

        def known() -> bool:
            stores = [node.broker.offsets.of(GROUP, TOPIC) for node in self.scene.nodes if node.broker is not None]
            return all(len(offsets) == QUEUES for offsets in stores)

        with trio.move_on_after(COPIED_SECONDS):
            while not known():  # noqa: ASYNC110 - no event is set for this
                await trio.sleep(0.1)
            await trio.sleep(PERSISTED_SECONDS)

    async def _consume(self, begun: trio.Event) -> None:
        scene = self.scene
        world = scene.client_world()
        while True:
            stays = float("inf") if scene.healed else scene.life_seconds * scene.rng.uniform(0.1, 0.6)
            try:
                async with open_consumer(scene.namesrv, GROUP, TOPIC, consume_from=ConsumeFrom.LAST, world=world) as consumer:
                    while not begun.is_set():
                        if len([queue for queue in consumer.queues if queue.topic == TOPIC]) == QUEUES:
                            begun.set()
                        await trio.sleep(0.01)
                    with trio.move_on_after(stays):
                        async for message in consumer:
                            self.seen.add(number_in(message.body))
            except ClientError as error:
                scene.note(f"beginnings: {type(error).__name__}")
            self._returns += 1
            await trio.sleep(scene.life_seconds * scene.rng.random() * 0.6)

    async def _produce(self) -> None:
        scene = self.scene
        world = scene.client_world()
        async with open_producer(scene.namesrv, "bep", world=world, send_timeout_seconds=SEND_SECONDS) as producer:
            while True:
                await trio.sleep(scene.life_seconds * scene.rng.random() * 0.3)
                if scene.healed:
                    continue
                put = Put(scene.next_number(), 0, (TOPIC, 0), scene.epoch)
                scene.history.puts.append(put)
                self._sent.append(put)
                try:
                    result = await producer.send(Message(TOPIC, b"%d;" % put.number))
                except ClientError as error:
                    note_failure(put, error)
                    continue
                put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
                put.acknowledged, put.answered = result.status.name == "SEND_OK", scene.epoch

    def lacking(self) -> str:
        if not self.scene.history.survives(0, self.scene.epoch):
            return ""
        missing = sorted({put.number for put in self._sent if put.acknowledged} - self.seen)
        return f"the group lacks {len(missing)} messages: {missing[:5]}" if missing else ""

    def counts(self) -> dict[str, int]:
        return {"returns": self._returns}
