"""Groups that begin at the end of queues, leave, and return: they must get all messages sent since they began.

One group is there from the start. Others begin later, one after the other, and each of them returns soon when it can reach only
slaves, to which the master has not copied its offset yet.
"""

from __future__ import annotations

from itertools import count
from typing import ClassVar

import attrs
import trio

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Put
from ledgermq.world.real import World

from .operator import Operator
from .plain import SEND_SECONDS
from .workload import LOOK_SECONDS, Workload, note_failure, number_in

TOPIC, GROUP = "BE", "beg"
QUEUES = 2
COPIED_SECONDS = 30.0
"""How long to wait until all brokers have the first offsets of the group; the run goes on in any case."""
PERSISTED_SECONDS = 15.0
"""After this time every broker has written its tables to its disk."""
LATE_MESSAGES, LATE_BYTES = 8, 3000
"""The messages that are sent while a late group is away: they evict the first ones of their queues from a small page cache."""
ALONE_SECONDS, RETURN_SECONDS = 2.0, 45.0
"""After its start the member of a late group cannot reach the master for the first time. In the second one it finds out that it
can, which heartbeats show every 30 s, and commits."""
TAKEN_SECONDS = 5.0
"""How long to wait until a late group has taken its queues."""


@attrs.define(eq=False)
class LateGroup:
    """A group that has begun while the queues had messages."""

    name: str
    epoch: int
    begun: dict[int, int]
    """Its first offsets, which the master has, by queue id."""
    seen: set[int] = attrs.field(factory=set[int])


@attrs.define(eq=False)
class Beginnings(Workload):
    """Nothing is skipped, although a new group begins at the end of its queues."""

    name: ClassVar[str] = "beginnings"
    codes: ClassVar[frozenset[RequestCode]] = frozenset()
    seen: set[int] = attrs.field(factory=set[int])
    _sent: list[Put] = attrs.field(factory=list[Put])
    _returns: int = 0
    _late: list[LateGroup] = attrs.field(factory=list[LateGroup])
    _away: str = ""
    """The late group that is away, or returns and cannot reach the master."""
    _found: list[str] = attrs.field(factory=list[str])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        operator = Operator(self.scene)
        await operator.create_topic(TOPIC, QUEUES)
        async with trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(self._consume, begun)
            await begun.wait()
            await self._until_copied()
            nursery.start_soon(self._produce)
            nursery.start_soon(self._begin_late)
            nursery.start_soon(self._look)
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
                if not scene.healed:
                    await self._send(producer, 0)

    async def _send(self, producer: Producer, number: int, padding: bytes = b"") -> None:
        scene = self.scene
        put = Put(scene.next_number(), number, (TOPIC, 0), scene.epoch)
        scene.history.puts.append(put)
        self._sent.append(put)
        try:
            result = await producer.send(Message(TOPIC, b"%d;%b" % (put.number, padding)))
        except ClientError as error:
            note_failure(put, error)
            return
        put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
        put.acknowledged, put.answered = result.status.name == "SEND_OK", scene.epoch

    # ---------------------------------------------------------------- late groups

    async def _begin_late(self) -> None:
        """Let one late group after the other begin, leave, and return while its member cannot reach the master."""
        scene = self.scene
        world, member_world = scene.client_world(), scene.client_world()
        member_host = scene.client_hosts[-1]
        async with open_producer(scene.namesrv, "bel", world=world, send_timeout_seconds=SEND_SECONDS) as producer:
            for number in count():
                await trio.sleep(scene.life_seconds * scene.rng.random() * 0.3)
                if scene.healed or not scene.slaves:
                    continue
                group = await self._begun(f"{GROUP}-{number}", member_world)
                if group is None or scene.healed:
                    continue
                self._late.append(group)
                for _ in range(LATE_MESSAGES):
                    await self._send(producer, 1, bytes(LATE_BYTES))
                self._away = group.name
                await self._return(group, member_world, member_host)
                self._away = ""

    async def _begun(self, name: str, world: World) -> LateGroup | None:
        """A new group whose first offsets the master has; None if it could not begin soon."""
        scene = self.scene
        epoch, begun = scene.epoch, dict[int, int]()
        try:
            with trio.move_on_after(TAKEN_SECONDS):
                async with open_consumer(scene.namesrv, name, TOPIC, consume_from=ConsumeFrom.LAST, world=world):
                    while len(begun) < QUEUES:
                        await trio.sleep(0.05)
                        begun = self._committed(name)
        except ClientError as error:
            scene.note(f"beginnings of {name}: {type(error).__name__}")
        return LateGroup(name, epoch, begun) if len(begun) == QUEUES and epoch == scene.epoch else None

    async def _return(self, group: LateGroup, world: World, host: str) -> None:
        """Be a member that cannot reach the master at first."""
        scene = self.scene
        if not scene.healed:
            scene.fabric.part([host], [scene.master.host])
        with trio.move_on_after(RETURN_SECONDS):
            try:
                async with (
                    open_consumer(scene.namesrv, group.name, TOPIC, consume_from=ConsumeFrom.LAST, world=world) as consumer,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(self._heal_soon)
                    async for message in consumer:
                        group.seen.add(number_in(message.body))
            except ClientError as error:
                scene.note(f"return of {group.name}: {type(error).__name__}")

    async def _heal_soon(self) -> None:
        await trio.sleep(ALONE_SECONDS)
        self.scene.fabric.heal()

    def _committed(self, group: str) -> dict[int, int]:
        """The offsets of a group that the master has, by queue id."""
        broker = self.scene.serving
        return dict(broker.offsets.of(group, TOPIC)) if broker is not None else {}

    async def _look(self) -> None:
        """Check that no late group has committed what its member has not got."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            for group in self._late:
                if group.epoch == self.scene.epoch:  # the end of a master may lose the first offsets
                    self._judge(group)

    def _judge(self, group: LateGroup) -> None:
        committed = self._committed(group.name)
        for put in self._sent:
            queue_id = put.queue[1]
            passed = put.acknowledged and group.begun[queue_id] <= put.queue_offset < committed.get(queue_id, 0)
            if passed and put.number not in group.seen:
                self._found.append(
                    f"{group.name} began at {group.begun[queue_id]} of queue {queue_id} and has committed "
                    f"{committed[queue_id]}, but has not got message {put.number} at {put.queue_offset}"
                )

    def lacking(self) -> str:
        if self._away:
            return f"{self._away} is about to return"
        if not self.scene.history.survives(0, self.scene.epoch):
            return ""
        missing = sorted({put.number for put in self._sent if put.acknowledged} - self.seen)
        return f"the group lacks {len(missing)} messages: {missing[:5]}" if missing else ""

    def violations(self) -> list[str]:
        return self._found

    def counts(self) -> dict[str, int]:
        return {"returns": self._returns, "late_groups": len(self._late)}
