"""Producers and a consumer of plain messages, a group that leaves early, and readers on slaves.

All are the project's own clients except the readers, which read a slave's store directly as a pull would.
"""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.client.sending import SendResult
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Commit, Put, Queue, Read

from ..scene import Node
from .workload import LOOK_SECONDS, Workload, note_failure, number_in

TOPIC = "T"
GROUP, LEAVING_GROUP = "g", "lg"
PRODUCERS = 2
SEND_SECONDS = 3.0
READ_AT_ONCE = 32
LEAVES_AFTER = 5
"""The number of messages after which the group leaves."""


@attrs.define(eq=False)
class Plain(Workload):
    """At-least-once delivery in its simplest form."""

    name: ClassVar[str] = "plain"
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.PULL_MESSAGE,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.HEART_BEAT,
            RequestCode.UNREGISTER_CLIENT,
            RequestCode.REGISTER_BROKER,
            RequestCode.UNREGISTER_BROKER,
        }
    )
    seen: set[int] = attrs.field(factory=set[int])
    _epochs: dict[int, int] = attrs.field(factory=dict[int, int])
    """The life of the nodes in which each message was sent."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            for producer in range(PRODUCERS):
                await nursery.start(self._produce, producer)
            await nursery.start(self._consume)
            await nursery.start(self._leave)
            for node in self.scene.nodes:
                nursery.start_soon(self._read_slave, node)
            nursery.start_soon(self._look_at_commits)
            task_status.started()

    def lacking(self) -> str:
        history = self.scene.history
        # A consumer that is ahead of a log which lost its unsynced tail skips the messages that replace the tail.
        if not history.consumers_follow(self.scene.epoch):
            return ""
        kept = (put for put in history.puts if put.acknowledged and put.queue_offset >= history.expired.get(put.queue, 0))
        missing = sorted({put.number for put in kept if put.queue[0] == TOPIC} - self.seen)
        return f"the consumer lacks {len(missing)} messages: {missing[:5]}" if missing else ""

    def started(self, node: Node, broker: Broker) -> None:
        if self.scene.is_master(node):
            self._note_commits(broker)

    def counts(self) -> dict[str, int]:
        history = self.scene.history
        copies = sum(put.copies is not None for put in history.puts)
        return {"copies_checked": copies, "commits_checked": len(history.commits)}

    # ---------------------------------------------------------------- messages

    async def _produce(self, producer: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        rng, world = scene.rng, scene.client_world()
        async with open_producer(scene.namesrv, f"p{producer}", world=world, send_timeout_seconds=SEND_SECONDS) as client:
            task_status.started()
            while True:
                put = Put(scene.next_number(), producer, (TOPIC, 0), scene.epoch, sent_at=trio.current_time())
                self._epochs[put.number] = put.epoch
                scene.history.puts.append(put)
                try:
                    result = await client.send(Message(TOPIC, b"%d;" % put.number + rng.randbytes(rng.randrange(600))))
                except ClientError as error:
                    scene.note(f"producer {producer} put {put.number}: {type(error).__name__}")
                    note_failure(put, error)
                else:
                    self._answered(put, result)
                await trio.sleep(scene.pause_seconds(0.05))

    def _answered(self, put: Put, result: SendResult) -> None:
        scene = self.scene
        put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
        # An answer that arrives after a failure was sent before it, so the put counts for the life in which it was sent.
        put.acknowledged = result.status.name == "SEND_OK"
        put.answered, put.answered_at = scene.epoch, trio.current_time()
        put.physical_offset = int(result.offset_message_id[-16:], 16)
        put.copies = scene.copies(put)
        scene.note(f"producer {put.producer} put {put.number} at {put.queue}@{put.queue_offset}: {result.status.name}")

    async def _consume(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world = scene.client_world()
        async with open_consumer(scene.namesrv, GROUP, TOPIC, consume_from=ConsumeFrom.FIRST, world=world) as consumer:
            task_status.started()
            async for message in consumer:
                number = number_in(message.body)
                self.seen.add(number)
                # The message may have been in flight for a while, but it was not read before the life in which it was sent.
                queue = (TOPIC, int(message.queue.queue_id))
                scene.history.reads.append(Read(queue, message.queue_offset, number, self._epochs[number], GROUP))

    async def _read_slave(self, node: Node) -> None:
        """Read everything readable on a slave, as a consumer does that its master redirects or that cannot reach the master."""
        scene = self.scene
        offsets: dict[int, int] = {}
        while True:
            await trio.sleep(scene.read_seconds())
            store = None if node.broker is None or scene.is_master(node) else node.broker.store
            for queue_id in store.queue_ids(TOPIC) if store is not None else ():
                assert store is not None
                low, high = store.min_offset(TOPIC, queue_id), store.max_offset(TOPIC, queue_id)
                offset = min(max(offsets.get(queue_id, low), low), high)
                for record in store.get(TOPIC, queue_id, offset, READ_AT_ONCE).slices:
                    number = number_in(decode_record(record).body)
                    # Without SYNC_FLUSH messages that the master has lost may stay readable on a slave until it is informed.
                    epoch = self._epochs[number]
                    scene.history.reads.append(Read((TOPIC, queue_id), offset, number, epoch, f"reader at {node.host}"))
                    offset += 1
                offsets[queue_id] = offset

    # ---------------------------------------------------------------- committed offsets

    async def _leave(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Consume a few messages in a group and leave for good, so that only the broker's table keeps its offsets."""
        scene = self.scene
        world = scene.client_world()
        async with open_consumer(scene.namesrv, LEAVING_GROUP, TOPIC, consume_from=ConsumeFrom.FIRST, world=world) as consumer:
            task_status.started()
            for _ in range(LEAVES_AFTER):
                async with consumer.take(1):
                    pass
        scene.note("a group has left")

    async def _look_at_commits(self) -> None:
        while True:
            broker = self.scene.serving
            if broker is not None:
                self._note_commits(broker)
            await trio.sleep(LOOK_SECONDS)

    def _note_commits(self, broker: Broker) -> None:
        """Record the committed offsets of each group on the broker."""
        history = self.scene.history
        known = {(one.group, one.queue) for one in history.commits}
        for group in (GROUP, LEAVING_GROUP):
            offsets = broker.offsets.of(group, TOPIC)
            for queue_id in range(2):
                queue: Queue = (TOPIC, queue_id)
                if queue_id in offsets or (group, queue) in known:
                    offset = offsets.get(queue_id, 0)
                    history.commits.append(Commit(trio.current_time(), group, queue, offset, self.scene.epoch))
