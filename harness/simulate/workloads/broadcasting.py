"""Members that each get every message and keep their offsets on their own disks; they begin at the end of an empty topic."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.offsets import LocalOffsets
from ledgermq.client.producer import open_producer
from ledgermq.client.subscription import ConsumeFrom, MessageModel
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Commit, Handling, Put
from ledgermq.world.real import World

from .operator import Operator
from .plain import SEND_SECONDS
from .workload import LOOK_SECONDS, Workload, note_failure, number_in

TOPIC, GROUP, OFFSETS = "B", "bg", "offsets.json"
MEMBERS_MAX = 3
QUEUES, QUEUES_MAX = 2, 4


@attrs.define(eq=False)
class Broadcasting(Workload):
    """Every member handles every message, also after absences, and also those in queues that the topic gets later."""

    name: ClassVar[str] = "broadcasting"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()
    _grows: bool = attrs.field(init=False)
    """Whether the topic gets more queues; in that case no member leaves."""
    _sent: list[Put] = attrs.field(factory=list[Put])
    _done: dict[str, set[int]] = attrs.field(factory=dict[str, set[int]])
    _ready: int = 0

    def __attrs_post_init__(self) -> None:
        self._grows = self.scene.rng.random() < 0.5

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene, operator = self.scene, Operator(self.scene)
        await operator.create_topic(TOPIC, QUEUES)
        members = scene.rng.randint(1, MEMBERS_MAX)
        async with trio.open_nursery() as nursery:
            for number in range(members):
                world = scene.client_world()
                nursery.start_soon(self._be_member, f"{GROUP}-{number}", world)
                nursery.start_soon(self._look_at_offsets, f"{GROUP}-{number}", world)
            while self._ready < members:  # noqa: ASYNC110 - they begin at the end of queues that are still empty
                await trio.sleep(0.1)
            nursery.start_soon(self._produce)
            task_status.started()
            queues = QUEUES
            while self._grows:
                await operator.pause(0.5)
                queues = min(queues + 1, QUEUES_MAX)
                if not scene.healed:
                    await operator.create_topic(TOPIC, queues)

    async def _produce(self) -> None:
        scene = self.scene
        world = scene.client_world()
        async with open_producer(scene.namesrv, "bp", world=world, send_timeout_seconds=SEND_SECONDS) as producer:
            while True:
                await trio.sleep(scene.life_seconds * scene.rng.random() * 0.05)
                if scene.healed:
                    continue
                put = Put(scene.next_number(), 0, (TOPIC, 0), scene.epoch, sent_at=trio.current_time())
                scene.history.puts.append(put)
                self._sent.append(put)
                try:
                    result = await producer.send(Message(TOPIC, b"%d;" % put.number))
                except ClientError as error:
                    note_failure(put, error)
                    continue
                put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
                put.acknowledged, put.answered = result.status.name == "SEND_OK", scene.epoch
                put.answered_at = trio.current_time()

    async def _be_member(self, name: str, world: World) -> None:
        scene, ready = self.scene, False
        while True:
            stays = self._grows or scene.healed or not ready
            seconds = float("inf") if stays else scene.life_seconds * scene.rng.uniform(0.3, 2.0)
            try:
                async with open_consumer(
                    scene.namesrv,
                    GROUP,
                    TOPIC,
                    model=MessageModel.BROADCASTING,
                    consume_from=ConsumeFrom.LAST,
                    offsets_path=OFFSETS,
                    world=world,
                ) as consumer:
                    while not ready:
                        ready = len(consumer.queues) >= QUEUES
                        await trio.sleep(0.01)
                        self._ready += ready
                        seconds = float("inf") if self._grows else scene.life_seconds
                    with trio.move_on_after(seconds):
                        await self._consume(consumer, name)
            except ClientError as error:
                scene.note(f"{name}: {type(error).__name__}")
            await trio.sleep(scene.life_seconds * scene.rng.random() * 0.3)

    async def _consume(self, consumer: Consumer, name: str) -> None:
        scene = self.scene
        async for message in consumer:
            queue = (TOPIC, int(message.queue.queue_id))
            number = number_in(message.body)
            one = Handling(name, name, queue, message.queue_offset, number, trio.current_time())
            scene.history.handlings.append(one)
            try:
                await trio.sleep(scene.life_seconds * scene.rng.random() ** 4 * 0.1)
                one.settled_at, one.done = trio.current_time(), True
                self._done.setdefault(name, set()).add(number)
            finally:
                one.ended = trio.current_time()

    async def _look_at_offsets(self, name: str, world: World) -> None:
        """Record the offsets in the file of a member."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            offsets = LocalOffsets(world.disk, OFFSETS)
            offsets.load()
            for queue, offset in offsets.known.items():
                commit = Commit(trio.current_time(), name, (TOPIC, int(queue.queue_id)), offset, self.scene.epoch)
                self.scene.history.member_commits.append(commit)

    def lacking(self) -> str:
        if not self.scene.history.survives(0, self.scene.epoch):
            return ""
        wanted = {put.number for put in self._sent if put.acknowledged}
        for name, done in self._done.items():
            if missing := sorted(wanted - done):
                return f"{name} lacks {len(missing)} messages: {missing[:5]}"
        return ""

    def counts(self) -> dict[str, int]:
        return {"broadcast": sum(map(len, self._done.values()))}
