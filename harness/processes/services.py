"""Two typical applications, one on trio and one on a pool of threads, which record everything they do in a journal.

Each sends plain messages from many concurrent tasks or threads, ordered messages one after the other from a few, and messages
to a topic that is meanwhile deleted and created again. Each consumes them in groups of every kind, whose members come and go.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import trio

from ledgermq import ConsumeFrom, Message, MessageModel, blocking, open_consumer, open_producer
from ledgermq.client.blocking import BlockingConsumer, BlockingMessage, BlockingProducer
from ledgermq.client.consumer import Consumer
from ledgermq.client.errors import ClientError, Closed
from ledgermq.client.producer import Producer
from ledgermq.client.received import ReceivedMessage

from .journal import HandlerFailed, Journal

PLAIN, ORDERED, DELETED = "SoakPlain", "SoakOrdered", "SoakDeleted"
SEND_SECONDS = 3.0
OVERDUE_SECONDS = SEND_SECONDS + 3.0
"""A send that takes longer counts as over its total time; the tolerance is for a busy machine."""
PLAIN_SENDERS, ORDERED_SENDERS = 6, 3
MEMBER_SECONDS = (20.0, 90.0)
"""The range of the time that a member stays in its group before it leaves and joins again."""
AWAY_SECONDS = (0.1, 2.0)
THREADS_PER_CONSUMER = 3
HANDLING_SECONDS_MAX = 0.05
GET_SECONDS = 1.0
CLOSED_SECONDS = 30.0
"""A thread that still waits this long after its consumer was closed was not notified, which is a violation."""

BROADCAST_GROUP, DELETED_GROUP = "soak-broadcast", "soak-deleted"
EXPLICIT_GROUP, BLOCK_GROUP = "soak-explicit", "soak-block"
PROCESS_GROUPS = ("soak-process", "soak-ordered-process")
CONCURRENT_GROUPS = ("soak-auto", EXPLICIT_GROUP, BLOCK_GROUP, PROCESS_GROUPS[0])
ORDERED_GROUPS = ("soak-ordered-auto", PROCESS_GROUPS[1])
SUBSCRIPTIONS = (
    *((group, PLAIN) for group in CONCURRENT_GROUPS),
    *((group, ORDERED) for group in ORDERED_GROUPS),
    (BROADCAST_GROUP, PLAIN),
)
"""Groups that must handle every acknowledged message, with their topics."""


@attrs.define(eq=False)
class Service:
    """What both services have in common."""

    namesrv: str
    journal: Journal
    rng: random.Random
    directory: Path
    rate: float
    """How many messages one sender sends per second on average."""

    def pause(self) -> float:
        """Seconds between two sends."""
        return self.rng.uniform(0.5, 1.5) / self.rate

    def senders(self) -> Iterator[tuple[str, int]]:
        """Topic and producer number of each sender; with number 0 each message counts as from a separate producer."""
        yield from ((PLAIN, 0) for _ in range(PLAIN_SENDERS))
        yield from ((ORDERED, number + 1) for number in range(ORDERED_SENDERS))
        yield DELETED, 0

    def members(self) -> Iterator[tuple[str, str, str]]:
        """Group, topic and name of each member."""
        for group in CONCURRENT_GROUPS:
            yield from ((group, PLAIN, f"{group}-{member}") for member in range(2))
        for group in ORDERED_GROUPS:
            yield from ((group, ORDERED, f"{group}-{member}") for member in range(2))
        yield DELETED_GROUP, DELETED, DELETED_GROUP
        yield BROADCAST_GROUP, PLAIN, BROADCAST_GROUP

    def options(self, group: str, topic: str, name: str) -> dict[str, Any]:
        """The consumer options of a member."""
        broadcasting = group == BROADCAST_GROUP
        return {
            "ack": "explicit" if group == EXPLICIT_GROUP else "auto",
            "orderly": topic == ORDERED,
            "model": MessageModel.BROADCASTING if broadcasting else MessageModel.CLUSTERING,
            "consume_from": ConsumeFrom.FIRST,
            "offsets_path": str(self.directory / f"{name}.json") if broadcasting else None,
        }


@attrs.define(eq=False)
class TrioService(Service):
    """Tasks that share one producer, and consumers in tasks of their own."""

    stopping: trio.Event = attrs.field(factory=trio.Event)
    """Set when sending must end."""

    async def run(self) -> None:
        """Send until `stopping`, and consume until cancelled."""
        async with trio.open_nursery() as nursery:
            for member in self.members():
                nursery.start_soon(self._be_member, *member)
            async with (
                open_producer(self.namesrv, "soak", send_timeout_seconds=SEND_SECONDS) as producer,
                trio.open_nursery() as sending,
            ):
                for topic, number in self.senders():
                    sending.start_soon(self._send, producer, topic, number)

    async def _send(self, producer: Producer, topic: str, number: int) -> None:
        while not self.stopping.is_set():
            put = self.journal.new_put(topic, number)
            key = f"key-{number}" if topic == ORDERED else None
            try:
                self.journal.answered(put, await producer.send(Message(topic, b"%d;" % put.number), key=key), OVERDUE_SECONDS)
            except ClientError as error:
                self.journal.answered(put, error, OVERDUE_SECONDS)
            await trio.sleep(self.pause())

    async def _be_member(self, group: str, topic: str, name: str) -> None:
        opened = 0
        while True:
            opened += 1
            with suppress(ClientError):
                async with open_consumer(self.namesrv, group, topic, **self.options(group, topic, name)) as consumer:
                    with trio.move_on_after(self.rng.uniform(*MEMBER_SECONDS)):
                        await self._consume(consumer, f"{name}.{opened}")
            await trio.sleep(self.rng.uniform(*AWAY_SECONDS))

    async def _consume(self, consumer: Consumer, member: str) -> None:
        async def handle(message: ReceivedMessage) -> None:
            fails = consumer.options.model is MessageModel.CLUSTERING  # broadcast messages are not redelivered
            with self.journal.handling(consumer.group, member, message, ordered=consumer.options.orderly, fails=fails):
                await trio.sleep(self.rng.random() * HANDLING_SECONDS_MAX)

        if consumer.group in PROCESS_GROUPS:
            await consumer.process(handle, tasks=2)
        elif consumer.group == EXPLICIT_GROUP:
            while True:
                for message in await consumer.get_many(8, GET_SECONDS):
                    if await _succeeds(handle, message):
                        await message.ack()
        elif consumer.group == BLOCK_GROUP:
            while True:
                with suppress(HandlerFailed):
                    async with consumer.take(8, GET_SECONDS) as messages:
                        with self.journal.block(consumer.group, member, messages):
                            for message in messages:
                                await handle(message)
        else:
            while True:
                with suppress(HandlerFailed):
                    async for message in consumer:
                        await handle(message)


async def _succeeds(handle: Callable[[ReceivedMessage], Awaitable[None]], message: ReceivedMessage) -> bool:
    try:
        await handle(message)
    except HandlerFailed:
        await message.retry(delay_level=1)
        return False
    return True


@attrs.define(eq=False)
class ThreadService(Service):
    """A pool of threads that share one producer, as the handlers of a web server do, and threads that consume."""

    stopping: threading.Event = attrs.field(factory=threading.Event)
    """Set when sending must end."""
    ended: threading.Event = attrs.field(factory=threading.Event)
    """Set when consuming must end."""
    failures: list[str] = attrs.field(factory=list[str])
    """Exceptions that ended threads too early, and threads that never ended."""

    def run(self) -> None:
        """Send until `stopping`, and consume until `ended`."""
        threads = [threading.Thread(target=self._guarded, args=(self._be_member, *each)) for each in self.members()]
        for thread in threads:
            thread.start()
        with (
            blocking.open_producer(self.namesrv, "soak", send_timeout_seconds=SEND_SECONDS) as producer,
            ThreadPoolExecutor(PLAIN_SENDERS + ORDERED_SENDERS + 1) as pool,
        ):
            for topic, number in self.senders():
                pool.submit(self._guarded, self._send, producer, topic, number)
        for thread in threads:
            thread.join()

    def _guarded(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001 - every exception that ends a thread is a finding
            self.failures.append(f"{function.__name__}{arguments[-3:]} ended: {type(error).__name__}: {error}")

    def _send(self, producer: BlockingProducer, topic: str, number: int) -> None:
        while not self.stopping.is_set():
            put = self.journal.new_put(topic, number)
            key = f"key-{number}" if topic == ORDERED else None
            try:
                self.journal.answered(put, producer.send(Message(topic, b"%d;" % put.number), key=key), OVERDUE_SECONDS)
            except ClientError as error:
                self.journal.answered(put, error, OVERDUE_SECONDS)
            self.stopping.wait(self.pause())

    def _be_member(self, group: str, topic: str, name: str) -> None:
        opened = 0
        while not self.ended.is_set():
            opened += 1
            threads: list[threading.Thread] = []
            with (
                suppress(ClientError),
                blocking.open_consumer(self.namesrv, group, topic, **self.options(group, topic, name)) as consumer,
            ):
                for _ in range(THREADS_PER_CONSUMER):
                    work = self._consume, consumer, f"{name}.{opened}"
                    threads.append(threading.Thread(target=self._guarded, args=work, daemon=True))
                    threads[-1].start()
                self.ended.wait(self.rng.uniform(*MEMBER_SECONDS))
            for thread in threads:
                thread.join(CLOSED_SECONDS)
                if thread.is_alive():
                    self.failures.append(f"a thread of {name}.{opened} waits for a consumer that is closed")
            self.ended.wait(self.rng.uniform(*AWAY_SECONDS))

    def _consume(self, consumer: BlockingConsumer, member: str) -> None:
        group = consumer.host.client.group
        with suppress(Closed):
            if group in PROCESS_GROUPS:
                while True:
                    if (one := consumer.get_one(GET_SECONDS)) is not None and self._succeeds(consumer, one, member):
                        one.ack()
            elif group == EXPLICIT_GROUP:
                while True:
                    for message in consumer.get_many(8, GET_SECONDS):
                        if self._succeeds(consumer, message, member):
                            message.ack()
            elif group == BLOCK_GROUP:
                while True:
                    with (
                        suppress(HandlerFailed),
                        consumer.take(8, GET_SECONDS) as messages,
                        self.journal.block(group, member, messages),
                    ):
                        for message in messages:
                            self._handle(consumer, message, member)
            else:
                while True:
                    with suppress(HandlerFailed):
                        for message in consumer:
                            self._handle(consumer, message, member)

    def _handle(self, consumer: BlockingConsumer, message: BlockingMessage, member: str) -> None:
        client = consumer.host.client
        fails = client.options.model is MessageModel.CLUSTERING  # broadcast messages are not redelivered by every way
        with self.journal.handling(client.group, member, message, ordered=client.options.orderly, fails=fails):
            self.ended.wait(self.rng.random() * HANDLING_SECONDS_MAX)

    def _succeeds(self, consumer: BlockingConsumer, message: BlockingMessage, member: str) -> bool:
        try:
            self._handle(consumer, message, member)
        except HandlerFailed:
            message.retry(delay_level=1)
            return False
        return True
