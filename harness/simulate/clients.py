"""What clients do on the floor of whole nodes, and what they are told: the history that the checkers judge.

Producers and a consumer of plain messages, one of delayed ones, one that fails by plan, a group that leaves early, and readers
on slaves. All are the project's own clients but the last, which ask a slave's store as a pull would.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from ledgermq.broker.broker import Broker
from ledgermq.broker.topics import dlq_topic
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.sending import SendResult
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message
from ledgermq.store.message_store import MessageStore
from ledgermq.testing.history import Commit, History, Put, Queue, Read, Trial
from ledgermq.testing.sim.clock import SimClock
from ledgermq.world.network import Address
from ledgermq.world.real import World

NAMESRV = Address("10.0.0.1", 9876)
TOPIC, DELAYED, FAILING = "T", "D", "R"
DELAY_LEVELS = "1s 5s 1s 2s 2s 4s"
"""The third and those after it are for failed messages."""
DELAYS_MS = (1000, 5000)
"""Of the first delay levels."""
GROUP, FAILING_GROUP, LEAVING_GROUP = "g", "rg", "lg"
PRODUCERS = 2
ALWAYS = 1 << 30
"""How often a message fails that no retry can save."""
CLIENT_HOSTS = tuple(f"10.0.2.{at}" for at in range(PRODUCERS + 4))
SEND_SECONDS = 3.0
LOOK_SECONDS = 0.5
READ_AT_ONCE = 32
LEAVES_AFTER = 5
"""Messages after which the group that leaves has seen enough."""


class Member(Protocol):
    """One broker, as the clients' side looks at it."""

    @property
    def broker(self) -> Broker | None:
        """While it serves."""
        ...

    @property
    def clock(self) -> SimClock: ...

    @property
    def is_slave(self) -> bool: ...

    @property
    def host(self) -> str: ...


@attrs.define(eq=False)
class Clients:
    """All clients of one run."""

    history: History
    lots: random.Random
    life_seconds: float
    members: list[Member]
    """The master first."""
    world_of: Callable[[str], World]
    say: Callable[[str], None]
    seen: set[int] = attrs.field(factory=set[int])
    delayed: int = 0
    """Delayed messages that have come."""
    early: list[str] = attrs.field(factory=list[str])
    healed: bool = False
    """Nothing fails any more."""
    _number: int = 0
    _letters: int = 0
    """Dead letters that have been looked at."""

    @property
    def epoch(self) -> int:
        return len(self.history.ends)

    async def run(self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled; started when all are there, for one that finds no name server at its start ends."""
        with scope:
            async with trio.open_nursery() as nursery:
                for producer in range(PRODUCERS):
                    await nursery.start(self._produce, producer)
                await nursery.start(self._consume)
                await nursery.start(self._delay)
                await nursery.start(self._fail)
                await nursery.start(self._leave)
                for member in self.members[1:]:
                    nursery.start_soon(self._read_slave, member)
                nursery.start_soon(self._look_at_commits)
                task_status.started()

    # ---------------------------------------------------------------- plain messages

    async def _produce(self, producer: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        lots, world = self.lots, self.world_of(CLIENT_HOSTS[producer])
        async with open_producer(str(NAMESRV), f"p{producer}", world=world, send_timeout_seconds=SEND_SECONDS) as client:
            task_status.started()
            while True:
                self._number += 1
                put = Put(self._number, producer, (TOPIC, 0), self.epoch)
                self.history.puts.append(put)
                try:
                    result = await client.send(Message(TOPIC, b"%d;" % put.number + lots.randbytes(lots.randrange(600))))
                except ClientError as error:
                    self.say(f"producer {producer} put {put.number}: {type(error).__name__}")
                else:
                    self._answered(put, result)
                await trio.sleep(self.life_seconds * lots.random() * 0.05)

    def _answered(self, put: Put, result: SendResult) -> None:
        put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
        # An answer that came after a failure was given before it, so it counts as of the life it was asked in.
        put.acknowledged = result.status.name == "SEND_OK"
        put.answered = self.epoch
        put.physical_offset = int(result.offset_message_id[-16:], 16)
        if put.answered == put.epoch and self.history.copies > 1:
            put.copies = sum(self._holds(member, put) for member in self.members)
        self.say(f"producer {put.producer} put {put.number} at {put.queue}@{put.queue_offset}: {result.status.name}")

    def _holds(self, member: Member, put: Put) -> bool:
        if member.broker is None:
            return False
        log = member.broker.store.log
        if not log.min_offset <= put.physical_offset < log.max_offset:
            return False
        view = log.slice_from(put.physical_offset, log.max_offset - put.physical_offset)
        return b"%d;" % put.number in bytes(view[:200])

    async def _consume(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        world = self.world_of(CLIENT_HOSTS[PRODUCERS])
        async with open_consumer(str(NAMESRV), GROUP, TOPIC, consume_from=ConsumeFrom.FIRST, world=world) as consumer:
            task_status.started()
            async for message in consumer:
                number = number_in(message.body)
                self.seen.add(number)
                # It may have been under way for a while, but no longer than since it was sent.
                epoch = self.history.puts[number - 1].epoch
                queue = (TOPIC, int(message.queue.queue_id))
                self.history.reads.append(Read(queue, message.queue_offset, number, epoch, GROUP))

    async def _read_slave(self, member: Member) -> None:
        """Read whatever a slave shows, as fast as it does: who is sent there by his broker, or cut off from it, does so."""
        offsets: dict[int, int] = {}
        while True:
            await trio.sleep(self.life_seconds * self.lots.random() * 0.01)
            store = None if member.broker is None else member.broker.store
            for queue_id in store.queue_ids(TOPIC) if store is not None else ():
                assert store is not None
                low, high = store.min_offset(TOPIC, queue_id), store.max_offset(TOPIC, queue_id)
                offset = min(max(offsets.get(queue_id, low), low), high)
                for record in store.get(TOPIC, queue_id, offset, READ_AT_ONCE).slices:
                    number = number_in(decode_record(record).body)
                    # Without SYNC_FLUSH a slave may show what its master has lost already, until it hears of that.
                    epoch = self.history.puts[number - 1].epoch
                    self.history.reads.append(Read((TOPIC, queue_id), offset, number, epoch, f"reader at {member.host}"))
                    offset += 1
                offsets[queue_id] = offset

    # ---------------------------------------------------------------- delayed messages

    async def _delay(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send delayed messages, and look at when they come: never before their time, by the clock of the broker."""
        world, clock = self.world_of(CLIENT_HOSTS[PRODUCERS + 1]), self.members[0].clock
        async with (
            open_producer(str(NAMESRV), "d", world=world, send_timeout_seconds=SEND_SECONDS) as producer,
            open_consumer(str(NAMESRV), "dg", DELAYED, consume_from=ConsumeFrom.FIRST, world=world) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._send_delayed, producer)
            task_status.started()
            async for message in consumer:
                due_ms, jumps_back = map(int, message.body.split(b";"))
                now_ms = clock.wall_ms()
                self.delayed += 1
                if now_ms < due_ms and clock.jumps_back == jumps_back:
                    self.early.append(f"a message that is due at {due_ms} ms came at {now_ms} ms")

    async def _send_delayed(self, producer: Producer) -> None:
        clock = self.members[0].clock
        while True:
            level = self.lots.randint(1, len(DELAYS_MS))
            body = b"%d;%d" % (clock.wall_ms() + DELAYS_MS[level - 1], clock.jumps_back)
            with contextlib.suppress(ClientError):
                await producer.send(Message(DELAYED, body, delay_level=level))
            await trio.sleep(self.life_seconds * self.lots.random() * 0.2)

    # ---------------------------------------------------------------- messages whose consumer fails

    async def _fail(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        world, history = self.world_of(CLIENT_HOSTS[PRODUCERS + 2]), self.history
        async with (
            open_producer(str(NAMESRV), "r", world=world, send_timeout_seconds=SEND_SECONDS) as producer,
            open_consumer(
                str(NAMESRV),
                FAILING_GROUP,
                FAILING,
                ack="explicit",
                consume_from=ConsumeFrom.FIRST,
                reconsume_times_max=history.retries_max,
                world=world,
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._send_failing, producer)
            task_status.started()
            async for message in consumer:
                await self._attempt(message)

    async def _attempt(self, message: ReceivedMessage) -> None:
        trial = self.history.trials[number_in(message.body)]
        trial.attempts.add(message.reconsume_times)
        trial.copies.add(message.reconsume_times - message.local_redeliveries)
        self.say(f"attempt {message.reconsume_times} at {trial.number}, which fails {trial.failures} times")
        if message.reconsume_times < trial.failures:
            await message.retry()
        else:
            trial.done = True
            message.ack_now()

    async def _send_failing(self, producer: Producer) -> None:
        trials, retries_max = self.history.trials, self.history.retries_max
        while not self.healed:  # what is sent from then on is not waited for
            failures = self.lots.choice((*range(retries_max + 1), ALWAYS))
            trial = Trial(len(trials), failures, self.epoch)
            trials.append(trial)
            with contextlib.suppress(ClientError):
                result = await producer.send(Message(FAILING, b"%d;" % trial.number))
                trial.acknowledged = result.status.name == "SEND_OK"
            await trio.sleep(self.life_seconds * self.lots.random() * 0.3)

    def look_at_letters(self, store: MessageStore) -> None:
        """Note the dead letters that have come since the last look."""
        topic = dlq_topic(FAILING_GROUP)
        while self._letters < store.max_offset(topic, 0):
            result = store.get(topic, 0, self._letters, READ_AT_ONCE)
            for record in result.slices:
                letter = decode_record(record)
                self.history.trials[number_in(letter.body)].dead.append(letter.reconsume_times)
            self._letters = result.next_offset

    # ---------------------------------------------------------------- committed offsets

    async def _leave(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """A group that consumes a little and is gone: nobody commits again what its broker should remember."""
        world = self.world_of(CLIENT_HOSTS[PRODUCERS + 3])
        async with open_consumer(str(NAMESRV), LEAVING_GROUP, TOPIC, consume_from=ConsumeFrom.FIRST, world=world) as consumer:
            task_status.started()
            for _ in range(LEAVES_AFTER):
                await consumer.get_one()
        self.say("a group has left")

    async def _look_at_commits(self) -> None:
        while True:
            broker = self.members[0].broker
            if broker is not None:
                self.note_commits(broker)
            await trio.sleep(LOOK_SECONDS)

    def note_commits(self, broker: Broker) -> None:
        """Write down how far each group is on the broker."""
        known = {(one.group, one.queue) for one in self.history.commits}
        for group in (GROUP, LEAVING_GROUP):
            offsets = broker.offsets.of(group, TOPIC)
            for queue_id in range(2):
                queue: Queue = (TOPIC, queue_id)
                if queue_id in offsets or (group, queue) in known:
                    offset = offsets.get(queue_id, 0)
                    self.history.commits.append(Commit(trio.current_time(), group, queue, offset, self.epoch))


def number_in(body: bytes) -> int:
    """The number that a body begins with."""
    return int(body.partition(b";")[0])
