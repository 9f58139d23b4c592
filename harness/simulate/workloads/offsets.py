"""Offsets that administrators store, reset and clone while queues change their reader, and messages consumed directly.

Resets that are sent in the answers to pulls are judged: the group must get all messages behind them again, by any member.
"""

from __future__ import annotations

from math import inf
from typing import ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.json import loads, message_queue_of
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.java_properties import write_properties
from ledgermq.testing.history import Position, Put

from ..scene import Node
from .operator import Operator
from .plain import SEND_SECONDS
from .workload import LOOK_SECONDS, Workload, note_failure, number_in

TOPIC, GROUP = "O", "og"
COPIES = ("oc0", "oc1")
"""Groups without members, whose offsets administrators set."""
REBALANCE_SECONDS = 0.5
"""About how long it takes from the opening of a consumer until other members have given up their queues."""

HANDLING_SHARE = 0.05
"""The longest time for which a member handles one message, as a share of a node's life; the producer pauses twice as long."""


@attrs.frozen
class Reset:
    """A reset in the answers to pulls that was itself answered."""

    asked_at: float
    epoch: int
    offsets: dict[int, int]
    """The group's new offset by queue id."""


@attrs.define(eq=False)
class Offsets(Workload):
    """No offset is ever beyond the end of its queue, and a group gets every message, after a reset those behind it again."""

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
    _seen: dict[int, float] = attrs.field(factory=dict[int, float])
    """When each message was handed out last."""
    _resets: list[Reset] = attrs.field(factory=list[Reset])
    _found: list[str] = attrs.field(factory=list[str])
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
            nursery.start_soon(self._visit, operator)
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
                scene.history.puts.append(put)
                try:
                    result = await producer.send(Message(TOPIC, b"%d;" % put.number))
                except ClientError as error:
                    scene.note(f"offsets put {put.number}: {type(error).__name__}")
                    note_failure(put, error)
                else:
                    put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
                    put.acknowledged, put.answered = result.status.name == "SEND_OK", scene.epoch
                    put.physical_offset = int(result.offset_message_id[-16:], 16)
                    self._sent[put.number] = put
                await trio.sleep(scene.pause_seconds(0.1))

    async def _consume(self, consumer: Consumer) -> None:
        """Handle messages slowly, so that a member may lose a queue before it has repeated all messages behind a reset."""
        scene = self.scene
        async for message in consumer:
            self._seen[number_in(message.body)] = trio.current_time()
            if not scene.healed:
                await trio.sleep(scene.pause_seconds(HANDLING_SHARE))

    async def _visit(self, operator: Operator) -> None:
        """Be a second member, which takes queues and gives them back; half of the time offsets are reset as it takes them."""
        scene = self.scene
        world = scene.client_world()
        while True:
            await operator.pause(0.3)
            if scene.healed:
                continue
            async with trio.open_nursery() as nursery:
                if scene.rng.random() < 0.5:
                    nursery.start_soon(self._reset_soon, operator)
                with trio.move_on_after(scene.pause_seconds(0.3)):
                    try:
                        async with open_consumer(
                            scene.namesrv, GROUP, TOPIC, consume_from=ConsumeFrom.FIRST, world=world
                        ) as consumer:
                            await self._consume(consumer)
                    except ClientError as error:
                        scene.note(f"offsets visitor: {type(error).__name__}")

    async def _reset_soon(self, operator: Operator) -> None:
        await trio.sleep(self.scene.rng.random() * REBALANCE_SECONDS)
        await self._reset(operator)

    async def _reset(self, operator: Operator) -> None:
        """Reset the group to a time in the past, never forward, because members must still get every message."""
        scene = self.scene
        if scene.rng.random() < 0.7:
            entries = {"useServerSideResetOffset": "true"}
            await operator.ask_master(RequestCode.UPDATE_BROKER_CONFIG, body=write_properties(entries).encode())
        timestamp = scene.master.clock.wall_ms() - round(scene.life_seconds * scene.rng.random() * 1000)
        fields = {"topic": TOPIC, "group": GROUP, "timestamp": timestamp, "isForce": False}
        broker, asked_at, epoch = scene.serving, trio.current_time(), scene.epoch
        server_side = broker is not None and broker.config.use_server_side_reset_offset
        answer = await operator.ask_master(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        if answer is None or answer.code != ResponseCode.SUCCESS or broker is None or broker is not scene.serving:
            return
        if server_side and broker.config.use_server_side_reset_offset:
            table = loads(answer.body)["offsetTable"]
            offsets = {int(message_queue_of(key).queue_id): int(offset) for key, offset in table.items()}
            self._resets.append(Reset(asked_at, epoch, offsets))

    async def _move(self, operator: Operator) -> None:
        rng, scene = self.scene.rng, self.scene
        kind, copy, queue_id = rng.randrange(5), rng.choice(COPIES), rng.randrange(2)
        broker = scene.serving
        if kind == 0:
            await self._reset(operator)
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
            if not _is_stored(put, broker):
                return
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
        """Record the offsets of all groups of all topics, and judge the resets of our group."""
        for reset in self._resets:
            if reset.epoch == self.scene.epoch:  # a broker that ends forgets which members have not followed
                self._judge(reset, broker)
        for (topic, group), queues in broker.offsets.table.items():
            for queue_id, offset in queues.items():
                end = broker.store.max_offset(topic, queue_id)
                now, epoch = trio.current_time(), self.scene.epoch
                position = Position(group, (topic, queue_id), offset, end, node.host, now, epoch)
                self.scene.history.positions.append(position)

    def _judge(self, reset: Reset, broker: Broker) -> None:
        """Check that the group has committed nothing behind a reset that was not handed out again since."""
        committed = broker.offsets.of(GROUP, TOPIC)
        for put in self._sent.values():
            if not put.acknowledged or put.queue[1] not in reset.offsets:
                continue
            lowest = max(reset.offsets[put.queue[1]], broker.store.min_offset(*put.queue))
            passed = lowest <= put.queue_offset < committed.get(put.queue[1], 0)
            if passed and self._seen.get(put.number, -inf) < reset.asked_at and _is_stored(put, broker):
                self._found.append(
                    f"message {put.number} at {put.queue}@{put.queue_offset} did not come again after the reset to "
                    f"{reset.offsets[put.queue[1]]} at {reset.asked_at:.2f} s, and {committed[put.queue[1]]} is committed"
                )

    def lacking(self) -> str:
        history = self.scene.history
        if not history.consumers_follow(self.scene.epoch):
            return ""
        missing = sorted({put.number for put in self._sent.values() if put.acknowledged} - self._seen.keys())
        if missing:
            return f"the consumer lacks {len(missing)} messages: {missing[:5]}"
        return ""

    def violations(self) -> list[str]:
        return self._found

    def counts(self) -> dict[str, int]:
        return {"positions_checked": len(self.scene.history.positions), "resets_judged": len(self._resets)}


def _is_stored(put: Put, broker: Broker) -> bool:
    """Whether the broker still has the message; a power cut may take one that was not synced, and another takes its offset."""
    found = broker.store.get(*put.queue, put.queue_offset, 1).slices
    return any(number_in(decode_record(one).body) == put.number for one in found)
