"""Consumer groups of every kind, with handlers that fail, stall and are cancelled, and members that join and leave.

Every delivery is in the history, with the moment from which on the group may commit it, for the checkers of consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.client.assigned import BYTES_MAX, MESSAGES_PER_QUEUE_MAX
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.delivery import Source
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.client.received import ReceivedMessage, RecordView
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.message import Message, MessageQueue
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import Commit, Handling, Put

from ..scene import Node
from .plain import SEND_SECONDS
from .workload import LOOK_SECONDS, Workload, note_failure, number_in

FAILURES_MAX = 2
"""The most failures of one message, fewer than the retries of the group."""


CUT_SHARE = 0.3
"""The share of commits during which a member cannot reach the master, so that they must fail."""
REPAIRED_SECONDS = 20.0
"""Longer than a pull is held, and each pull carries the offset that is to be committed."""
STALL_SHARE = 0.03
STALL_SECONDS = (10.0, 70.0)


class HandlerFailed(Exception):
    """A handler failed as planned."""


class LoopLeft(Exception):
    """A handler failed as planned, and the application logs it and begins its loop again."""


@attrs.frozen(kw_only=True)
class Style:
    """How the members of a group consume."""

    name: str
    explicit: bool = False
    ordered: bool = False
    take: str = "iterate"
    """How messages are received: `iterate`, `break` (leave the loop after each message), `get_one`, `get_many`, `block`,
    `process`."""
    members_max: int = 3
    leaves: bool = True
    """Whether members are closed and opened again."""
    messages_per_queue_max: int = MESSAGES_PER_QUEUE_MAX
    bytes_max: int = BYTES_MAX
    raises: bool = False
    """Whether a failure leaves the block of the consumer instead of causing a retry."""
    restarts: bool = False
    """Whether a failure leaves the loop, which begins again, or drops the message, instead of causing a retry."""
    stalls: bool = False
    """Whether handlers sometimes take longer than a rebalance or the renewal of a lock."""
    commits: bool = False
    """Whether members call `commit` themselves."""


@attrs.define(eq=False)
class Members(Workload):
    """One group of a drawn style, its producer, and what its members have handled."""

    name: ClassVar[str] = "members"
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.UNREGISTER_CLIENT}
    )
    topic: ClassVar[str] = "M"
    styles: ClassVar[tuple[Style, ...]] = ()
    _style: Style = attrs.field(init=False)
    _sent: list[Put] = attrs.field(factory=list[Put])
    _failures: dict[int, int] = attrs.field(factory=dict[int, int])
    _done: set[int] = attrs.field(factory=set[int])
    _found: list[str] = attrs.field(factory=list[str])
    _consumers: list[Consumer] = attrs.field(factory=list[Consumer])
    """The members that are open."""
    _announced: dict[str, set[MessageQueue]] = attrs.field(factory=dict[str, set[MessageQueue]])
    """By member, the queues of which it may hand out messages."""
    _copied: dict[str, dict[int, int]] = attrs.field(factory=dict[str, dict[int, int]])
    """The group's offsets on each slave, as they were when it ran last."""

    def __attrs_post_init__(self) -> None:
        self._style = self.scene.rng.choice(self.styles)
        self.scene.history.subscriptions.add((self.group, self.topic))

    @property
    def group(self) -> str:
        return f"group-{self.name}"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.scene.note(f"{self.name}: {self._style}")
        async with trio.open_nursery() as nursery:
            await nursery.start(self._produce)
            for number in range(self.scene.rng.randint(1, self._style.members_max)):
                nursery.start_soon(self._be_member, number)
            nursery.start_soon(self._look_at_commits)
            task_status.started()

    # ---------------------------------------------------------------- messages

    async def _produce(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world = scene.client_world()
        async with open_producer(scene.namesrv, "mp", world=world, send_timeout_seconds=SEND_SECONDS) as producer:
            task_status.started()
            while True:
                await trio.sleep(scene.life_seconds * scene.rng.random() * 0.05)
                if scene.healed:
                    continue
                put = Put(scene.next_number(), 0, (self.topic, 0), scene.epoch, sent_at=trio.current_time())
                if scene.rng.random() < 0.2:
                    self._failures[put.number] = scene.rng.randint(1, FAILURES_MAX)
                scene.history.puts.append(put)
                self._sent.append(put)
                try:
                    result = await producer.send(Message(self.topic, b"%d;" % put.number))
                except ClientError as error:
                    scene.note(f"{self.name} put {put.number}: {type(error).__name__}")
                    note_failure(put, error)
                    continue
                put.queue, put.queue_offset = (self.topic, int(result.queue.queue_id)), result.queue_offset
                put.acknowledged, put.answered = result.status.name == "SEND_OK", scene.epoch
                put.answered_at = trio.current_time()

    # ---------------------------------------------------------------- members

    async def _be_member(self, number: int) -> None:
        """Open a consumer and consume, for a while or until the end, repeatedly."""
        scene, style = self.scene, self._style
        world, opened = scene.client_world(), 0
        host = scene.client_hosts[-1]
        while True:
            opened += 1
            name = f"{self.name}-{number}.{opened}"
            self._announced[name] = set[MessageQueue]()
            seconds = scene.life_seconds * scene.rng.uniform(0.3, 2.0) if style.leaves and not scene.healed else float("inf")
            try:
                async with open_consumer(
                    scene.namesrv,
                    self.group,
                    self.topic,
                    ack="explicit" if style.explicit else "auto",
                    orderly=style.ordered,
                    consume_from=ConsumeFrom.FIRST,
                    messages_per_queue_max=style.messages_per_queue_max,
                    bytes_max=style.bytes_max,
                    on_assigned=partial(self._assigned, name),
                    on_revoked=partial(self._given_up, name),
                    world=world,
                ) as consumer:
                    self._consumers.append(consumer)
                    try:
                        with trio.move_on_after(seconds):
                            await self._be(consumer, name, host)
                    finally:
                        self._consumers.remove(consumer)
                    scene.note(f"{name} leaves")
            except HandlerFailed:
                scene.note(f"{name} fails")
            except ClientError as error:
                scene.note(f"{name}: {type(error).__name__}")
            await trio.sleep(scene.life_seconds * scene.rng.random() * 0.1)

    def _assigned(self, member: str, queues: Sequence[MessageQueue]) -> None:
        """Handle the callback of queues that a member has taken."""
        if again := self._announced[member].intersection(queues):
            self._found.append(f"{member} was assigned {sorted(again)} twice, without `on_revoked` in between")
        self._announced[member].update(queues)

    def _given_up(self, member: str, queues: Sequence[MessageQueue]) -> None:
        """Handle the callback of queues of which a member hands out nothing more."""
        if never := set(queues) - self._announced[member]:
            self._found.append(f"{sorted(never)} of {member} were revoked, and not assigned before")
        self._announced[member].difference_update(queues)

    async def _be(self, consumer: Consumer, member: str, host: str) -> None:
        """Run a member: consume, and commit if its style says so; exceptions are raised unchanged."""
        if not self._style.commits:
            await self._consume(consumer, member)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._commit, consumer, host)
            await self._consume(consumer, member)

    def _now(self) -> float:
        """The time where members handle messages."""
        return trio.current_time()

    async def _sleep(self, seconds: float) -> None:
        """Let a member wait while it handles a message."""
        await trio.sleep(seconds)

    async def _commit(self, consumer: Consumer, host: str) -> None:
        """Commit at random times, sometimes without a way to the master."""
        scene = self.scene
        while True:
            await trio.sleep(scene.life_seconds * scene.rng.random() * 0.2)
            cut = not scene.healed and scene.rng.random() < CUT_SHARE
            if cut:
                scene.fabric.part([host], [scene.master.host])
            await self._commit_once(consumer)
            if cut:
                scene.fabric.heal()

    def _is_shared(self, source: Source, consumer: Consumer) -> bool:
        """Whether another member reads the queue too, as happens during a rebalance: it may commit a lower offset."""
        return any(source.queue in each.sources for each in self._consumers if each is not consumer)

    async def _commit_once(self, consumer: Consumer) -> None:
        """Commit; after a commit without error the master must have the offsets."""
        scene, epoch = self.scene, self.scene.epoch
        wanted = {
            source: (source.assigned.committable, source.assigned.epoch)
            for source in consumer.sources.values()
            if source.assigned.committed != source.assigned.committable and not self._is_shared(source, consumer)
        }
        try:
            await consumer.commit()
        except ClientError as error:
            scene.note(f"{self.name} commit: {type(error).__name__}")
            return
        others = self._others(wanted, consumer, epoch)
        answered = [each for each in others if wanted[each][0] <= (each.assigned.committed or 0) <= each.assigned.committable]
        if answered:
            # An earlier request without an answer has arrived later, and the next pull carries the offset again.
            await trio.sleep(REPAIRED_SECONDS)
            still = self._others(wanted, consumer, epoch)
            others = {each: stored for each, stored in others.items() if each in still or each not in answered}
        for source, stored in others.items():
            self._found.append(f"{wanted[source][0]} of {source.queue} was committed without an error, and {stored} is there")

    def _others(self, wanted: Mapping[Source, tuple[int, int]], consumer: Consumer, epoch: int) -> dict[Source, int | None]:
        """The queues of a consumer of which the master has another offset than is wanted, and which.

        A higher one counts if the member was always alone: it has moved the queue back.
        """
        broker = self.scene.master.broker
        if broker is None or epoch != self.scene.epoch:
            return {}
        alone = self._style.members_max == 1 and not self._style.leaves
        others: dict[Source, int | None] = {}
        for source, (offset, moves) in wanted.items():
            stored = broker.offsets.of(self.group, source.queue.topic).get(source.queue.queue_id)
            moved = source.assigned.epoch != moves  # as where the queue ends earlier now, after a power cut
            if moved or consumer.sources.get(source.queue) is not source or self._is_shared(source, consumer):
                continue
            if stored is None or stored < offset or (alone and stored > source.assigned.committable):
                others[source] = stored
        return others

    async def _consume(self, consumer: Consumer, member: str) -> None:
        style = self._style
        if style.take == "process":

            async def handle(message: ReceivedMessage) -> None:
                handling = self._begin(message, member, self._now())
                try:
                    await self._handle(handling)
                    handling.settled_at = self._now()
                    handling.done = True
                    self._done.add(handling.number)
                except HandlerFailed:
                    handling.settled_at = self._now()
                    raise
                finally:
                    handling.ended = self._now()

            await consumer.process(handle, tasks=1 if style.ordered else self.scene.rng.randint(1, 3))
        elif style.take == "get_many":
            while True:
                failed = set[MessageQueue]()
                for message in await consumer.get_many(self.scene.rng.randint(1, 8), 5.0):
                    if message.queue in failed:  # later messages of an ordered queue wait for the failed one
                        await message.retry()
                    elif not await self._settle(message, member) and style.ordered:
                        failed.add(message.queue)
        elif style.take == "get_one":
            while True:
                found = await consumer.get_one(5.0)
                with suppress(LoopLeft):
                    if found is not None:
                        await self._settle(found, member)
                found = None
        elif style.take == "block":
            while True:
                with suppress(LoopLeft):
                    async with consumer.take(self.scene.rng.randint(1, 8), 5.0) as messages:
                        await self._settle_all(messages, member)
        else:
            while True:
                with suppress(LoopLeft):
                    async for message in consumer:
                        await self._settle(message, member)
                        if style.take == "break":
                            break

    async def _settle_all(self, messages: Sequence[ReceivedMessage], member: str) -> None:
        """Handle the messages of a block; if one fails, all of them are given back."""
        try:
            for message in messages:
                await self._settle(message, member)
        except (LoopLeft, trio.Cancelled, asyncio.CancelledError):
            self._given_back(messages, member, self._now())
            raise

    def _given_back(self, messages: Sequence[RecordView], member: str, now: float) -> None:
        """Record that messages are given back unhandled; those of an ordered queue come again here."""
        for message in messages if not self._style.ordered else ():
            handling = self._begin(message, member, now)
            handling.settled_at = handling.ended = now

    async def _settle(self, message: ReceivedMessage, member: str) -> bool:
        """Handle a message, then acknowledge or retry it, as its group does; returns whether it was handled completely."""
        handling = self._begin(message, member, self._now())
        try:
            await self._handle(handling)
        except HandlerFailed:
            if self._style.raises:
                raise
            handling.settled_at = self._now()
            handling.ended = handling.settled_at
            if self._style.restarts:
                raise LoopLeft from None
            await message.retry()
            return False
        else:
            handling.settled_at = self._now()
            handling.done = True
            self._done.add(handling.number)
            if self._style.explicit or self._style.take in ("get_one", "get_many", "break"):
                await message.ack()
            return True
        finally:
            handling.ended = min(handling.ended, self._now())

    def _begin(self, message: RecordView, member: str, now: float) -> Handling:
        queue = (message.queue.topic, int(message.queue.queue_id))
        if message.queue not in self._announced[member] and self._style.take not in ("get_many", "block"):
            self._found.append(f"{member} was given {queue}@{message.queue_offset}, and the queue is not assigned to it")
        handling = Handling(
            self.group,
            member,
            queue,
            message.queue_offset,
            number_in(message.body),
            now,
            ordered=self._style.ordered,
        )
        self.scene.history.handlings.append(handling)
        return handling

    async def _handle(self, handling: Handling) -> None:
        """Handle a message as an application does: it takes time, sometimes stalls, and fails as planned."""
        scene = self.scene
        try:
            await self._sleep(scene.life_seconds * scene.rng.random() ** 4 * 0.1)
            if self._style.stalls and not scene.healed and scene.rng.random() < STALL_SHARE:
                await self._sleep(scene.rng.uniform(*STALL_SECONDS))
        except (trio.Cancelled, asyncio.CancelledError):
            if not self._style.ordered:  # given back to a broker, and the position may pass it
                handling.settled_at = self._now()
            raise
        if self._failures.get(handling.number, 0) > 0:
            self._failures[handling.number] -= 1
            raise HandlerFailed

    # ---------------------------------------------------------------- observations

    async def _look_at_commits(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            self._look_at_memory()
            broker = self.scene.serving
            if broker is not None:
                self._look(broker)

    def _look_at_memory(self) -> None:
        """Whatever has become of other queues, a consumer counts the memory of those that it reads."""
        for consumer in self._consumers:
            held = sum(source.assigned.held_bytes for source in consumer.sources.values())
            counted = consumer.statistics().held_bytes
            if counted != held:
                self._found.append(f"{consumer!r} counts {counted} bytes, and its queues hold {held}")

    def started(self, node: Node, broker: Broker) -> None:
        if self.scene.is_master(node):
            self._look(broker)

    def _look(self, broker: Broker) -> None:
        scene, history = self.scene, self.scene.history
        for node in scene.copying:
            if node.broker is not None:
                self._copied[node.host] = dict(node.broker.offsets.of(self.group, self.topic))
        for queue_id, offset in broker.offsets.of(self.group, self.topic).items():
            commit = Commit(trio.current_time(), self.group, (self.topic, queue_id), offset, scene.epoch)
            copies = [self._copied.get(node.host, {}).get(queue_id, 0) for node in scene.copying]
            history.member_commits.append(commit)
            history.common_commits.append(attrs.evolve(commit, offset=min(offset, *copies) if copies else offset))

    def lacking(self) -> str:
        if not self.scene.history.consumers_follow(self.scene.epoch):
            return ""
        kept = (put for put in self._sent if put.acknowledged and not self._is_passed(put))
        missing = sorted({put.number for put in kept} - self._done)
        return f"{self._style.name}: {len(missing)} messages were not handled: {missing[:5]}" if missing else ""

    def _is_passed(self, put: Put) -> bool:
        return self.scene.history.passed_to(self.group, put.queue, put.queue_offset) > put.queue_offset

    def violations(self) -> list[str]:
        return self._found

    def counts(self) -> dict[str, int]:
        handled = sum(one.group == self.group for one in self.scene.history.handlings)
        return {"handled": handled, f"groups_{self._style.name}": 1}


@attrs.define(eq=False)
class Concurrent(Members):
    """Members that handle messages in any order."""

    name: ClassVar[str] = "concurrent"
    styles: ClassVar[tuple[Style, ...]] = (
        Style(name="explicit", explicit=True),
        Style(name="process", take="process"),
        Style(name="explicit_get_many", explicit=True, take="get_many"),
        Style(name="auto"),
        Style(name="auto_restarts", restarts=True),
        Style(name="block_restarts", take="block", restarts=True),
    )


@attrs.define(eq=False)
class Ordered(Members):
    """Members that lock queues and handle the messages of each in order."""

    name: ClassVar[str] = "ordered"
    topic: ClassVar[str] = "Q"
    codes: ClassVar[frozenset[RequestCode]] = frozenset({RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ})
    styles: ClassVar[tuple[Style, ...]] = (
        Style(name="ordered_process", ordered=True, take="process"),
        Style(name="ordered_explicit", ordered=True, explicit=True),
        Style(name="ordered_auto", ordered=True),
        Style(name="ordered_get_many", ordered=True, explicit=True, take="get_many"),
    )
