"""Offsets that administrators store, reset and clone while a consumer reads, and messages consumed directly on request."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Position, Put

from ..scene import Node
from .operator import Operator
from .plain import SEND_SECONDS
from .workload import LOOK_SECONDS, Workload, number_in

TOPIC, GROUP = "O", "og"
COPIES = ("oc0", "oc1")
"""Groups without members, whose offsets administrators set."""


@attrs.define(eq=False)
class Offsets(Workload):
    """No offset is ever beyond the end of its queue, and a group whose offsets are reset still gets every message."""

    name: ClassVar[str] = "offsets"
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            RequestCode.CLONE_GROUP_OFFSET,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
        }
    )
    seen: set[int] = attrs.field(factory=set[int])
    _sent: dict[int, Put] = attrs.field(factory=dict[int, Put])
    _client_id: str = ""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world, operator = scene.client_world(), Operator(scene)
        async with (
            open_consumer(scene.namesrv, GROUP, TOPIC, consume_from=ConsumeFrom.FIRST, world=world) as consumer,
            trio.open_nursery() as nursery,
        ):
            self._client_id = consumer.client_id
            await nursery.start(self._produce)
            nursery.start_soon(self._consume, consumer)
            nursery.start_soon(self._look)
            task_status.started()
            while True:
                if not scene.healed:
                    await self._move(operator)
                await operator.pause(0.2)

    async def _produce(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world = scene.client_world()
        async with open_producer(scene.namesrv, "op", world=world, send_timeout_seconds=SEND_SECONDS) as producer:
            task_status.started()
            while True:
                put = Put(scene.next_number(), 0, (TOPIC, 0), scene.epoch)
                try:
                    result = await producer.send(Message(TOPIC, b"%d;" % put.number))
                except ClientError as error:
                    scene.note(f"offsets put {put.number}: {type(error).__name__}")
                else:
                    put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
                    put.acknowledged, put.answered = result.status.name == "SEND_OK", scene.epoch
                    put.physical_offset = int(result.offset_message_id[-16:], 16)
                    self._sent[put.number] = put
                    scene.history.puts.append(put)
                await trio.sleep(scene.pause_seconds(0.1))

    async def _consume(self, consumer: Consumer) -> None:
        async for message in consumer:
            self.seen.add(number_in(message.body))

    async def _move(self, operator: Operator) -> None:
        rng, scene = self.scene.rng, self.scene
        kind, copy, queue_id = rng.randrange(5), rng.choice(COPIES), rng.randrange(2)
        broker = scene.serving
        if kind == 0:
            # Reset to a time in the past, never forward, because members must still get every message.
            timestamp = scene.master.clock.wall_ms() - round(scene.life_seconds * rng.random() * 1000)
            fields = {"topic": TOPIC, "group": GROUP, "timestamp": timestamp, "isForce": False}
            await operator.ask_master(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        elif kind == 1:
            fields = {"topic": TOPIC, "group": copy, "timestamp": 0, "isForce": True}
            await operator.ask_master(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        elif kind == 2:
            fields = {"srcGroup": GROUP, "destGroup": copy, "topic": TOPIC, "offline": True}
            await operator.ask_master(RequestCode.CLONE_GROUP_OFFSET, fields)
        elif kind == 3 and broker is not None:
            offset = rng.randint(0, max(broker.store.max_offset(TOPIC, queue_id), 0))
            fields = {"consumerGroup": copy, "topic": TOPIC, "queueId": queue_id, "commitOffset": offset}
            await operator.ask_master(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        elif kind == 4 and broker is not None and self._sent:
            put = self._sent[rng.choice(sorted(self._sent))]
            if not any(
                number_in(decode_record(one).body) == put.number
                for one in broker.store.get(*put.queue, put.queue_offset, 1).slices
            ):
                return  # the master has lost the message, and another one may be at its offset
            # A message id is address and physical offset in hex, as RocketMQ writes them.
            host = bytes(map(int, scene.master.host.split("."))).hex()
            message_id = f"{host}{scene.master.address.port:08x}{put.physical_offset:016x}".upper()
            fields = {"consumerGroup": GROUP, "clientId": self._client_id, "msgId": message_id, "topic": TOPIC}
            await operator.ask_master(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)

    async def _look(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            broker = self.scene.serving
            if broker is not None:
                self._look_at(self.scene.master, broker)

    def started(self, node: Node, broker: Broker) -> None:
        if self.scene.is_master(node):
            self._look_at(node, broker)

    def _look_at(self, node: Node, broker: Broker) -> None:
        """Record the offsets of all groups of all topics."""
        for (topic, group), queues in broker.offsets.table.items():
            for queue_id, offset in queues.items():
                end = broker.store.max_offset(topic, queue_id)
                now, epoch = trio.current_time(), self.scene.epoch
                position = Position(group, (topic, queue_id), offset, end, node.host, now, epoch)
                self.scene.history.positions.append(position)

    def lacking(self) -> str:
        history = self.scene.history
        if not history.consumers_follow(self.scene.epoch):
            return ""
        missing = sorted({put.number for put in self._sent.values() if put.acknowledged} - self.seen)
        return f"the consumer lacks {len(missing)} messages: {missing[:5]}" if missing else ""

    def counts(self) -> dict[str, int]:
        return {"positions_checked": len(self.scene.history.positions)}
