"""Topics that are created, changed and deleted while producers and consumers use them."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.checkers.changes import UNKNOWN_SECONDS
from ledgermq.testing.history import Look, Put

from ..scene import Node
from .operator import Operator
from .plain import SEND_SECONDS
from .workload import LOOK_SECONDS, Workload, note_failure, number_in

LASTING, DELETED, GROUP = "L", "C", "cg"
CHANGED = (LASTING, "created")
"""Topics that are changed and not deleted."""
QUEUES_MAX = 4


@attrs.define(eq=False)
class Topics(Workload):
    """A topic that is changed loses no message, and an answered change of it is kept."""

    name: ClassVar[str] = "topics"
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST}
    )
    topic: ClassVar[str] = LASTING
    seen: set[int] = attrs.field(factory=set[int])
    _sent: list[Put] = attrs.field(factory=list[Put])
    _queues: int = 2

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        operator = Operator(self.scene)
        await operator.create_topic(self.topic, 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_often)
            await nursery.start(self._produce)
            await nursery.start(self._consume)
            task_status.started()
            while True:
                await operator.pause(0.2)
                if not self.scene.healed:
                    await self.change(operator)

    async def change(self, operator: Operator) -> None:
        """Change the topic once; queues are only added, because messages in removed queues become unreadable."""
        self._queues += self._queues < QUEUES_MAX
        if self.scene.rng.random() < 0.5:
            await operator.create_topic(self.topic, self._queues)
        else:
            topics = [
                {
                    "topicName": name,
                    "readQueueNums": self._queues,
                    "writeQueueNums": self._queues,
                    "perm": 6,
                    "topicFilterType": "SINGLE_TAG",
                }
                for name in CHANGED
            ]
            values = {f"topic {name}": f"{self._queues}/6" for name in CHANGED}
            code, address = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.scene.asked.address
            await operator.change(values, address, code, {}, {"topicConfigList": topics})

    async def _look_often(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            if (broker := self.scene.serving) is not None:
                self._look_at(self.scene.master, broker)

    def started(self, node: Node, broker: Broker) -> None:
        if self.scene.is_master(node):
            self._look_at(node, broker)

    def _look_at(self, node: Node, broker: Broker) -> None:
        for name in CHANGED:
            config = broker.topics.topics.get(name)
            value = f"{config.write_queue_nums}/{config.perm}" if config is not None else None
            look = Look(f"topic {name}", value, node.host, trio.current_time(), self.scene.epoch)
            self.scene.history.looks.append(look)

    async def _produce(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world = scene.client_world()
        async with open_producer(scene.namesrv, "cp", world=world, send_timeout_seconds=SEND_SECONDS) as producer:
            task_status.started()
            while True:
                put = Put(scene.next_number(), 0, (self.topic, 0), scene.epoch, sent_at=trio.current_time())
                scene.history.puts.append(put)
                self._sent.append(put)
                try:
                    result = await producer.send(Message(self.topic, b"%d;" % put.number))
                except ClientError as error:
                    scene.note(f"{self.name} put {put.number}: {type(error).__name__}")
                    note_failure(put, error)
                else:
                    put.queue, put.queue_offset = (self.topic, int(result.queue.queue_id)), result.queue_offset
                    put.acknowledged, put.answered = result.status.name == "SEND_OK", scene.epoch
                    put.answered_at = trio.current_time()
                    scene.note(f"{self.name} put {put.number} at {put.queue}@{put.queue_offset}: {result.status.name}")
                await trio.sleep(scene.pause_seconds(0.05))

    async def _consume(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world, group = scene.client_world(), f"{GROUP}-{self.name}"
        async with open_consumer(scene.namesrv, group, self.topic, consume_from=ConsumeFrom.FIRST, world=world) as consumer:
            task_status.started()
            async for message in consumer:
                self.seen.add(number_in(message.body))

    def wanted(self) -> set[int]:
        """The messages that the consumer must get."""
        if not self.scene.history.consumers_follow(self.scene.epoch):
            return set()
        return {put.number for put in self._sent if put.acknowledged}

    def lacking(self) -> str:
        missing = sorted(self.wanted() - self.seen)
        return f"the consumer lacks {len(missing)} messages: {missing[:5]}" if missing else ""


@attrs.define(eq=False)
class Deletions(Topics):
    """A topic that is deleted in use loses its messages, but none that is sent to it afterwards."""

    name: ClassVar[str] = "deletions"
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_TOPIC_IN_NAMESRV}
    )
    topic: ClassVar[str] = DELETED
    _deleted: int = 0

    async def change(self, operator: Operator) -> None:
        self._deleted += await operator.delete_topic(self.topic)
        if self.scene.rng.random() < 0.7:  # else the next send creates it, or the next start recovers it from its messages
            await operator.pause(0.05)
            await operator.create_topic(self.topic, 2)

    def wanted(self) -> set[int]:
        ends = [
            min(one.answered_at, one.began + UNKNOWN_SECONDS) for one in self.scene.history.deletions if one.topic == self.topic
        ]
        last = max(ends, default=0.0)
        return {put.number for put in self._sent if put.sent_at > last} & super().wanted()

    def counts(self) -> dict[str, int]:
        return {"topics_deleted": self._deleted}
