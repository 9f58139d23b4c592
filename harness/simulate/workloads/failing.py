"""Messages whose handler fails as planned: they are retried, and become dead letters if every retry fails."""

from __future__ import annotations

import contextlib
from typing import ClassVar

import attrs
import trio

from ledgermq.broker.tables.topics import dlq_topic
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.received import ReceivedMessage
from ledgermq.client.subscription import ConsumeFrom
from ledgermq.message.layout import decode_record
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.store.message_store import MessageStore
from ledgermq.testing.history import Trial

from .plain import READ_AT_ONCE, SEND_SECONDS
from .workload import Workload, number_in

TOPIC, GROUP = "R", "rg"
ALWAYS = 1 << 30
"""The number of planned failures of a message that fails in every retry."""


@attrs.define(eq=False)
class Failing(Workload):
    """Retries and dead letters, which `retries_end_in_the_dead_letters` checks."""

    name: ClassVar[str] = "failing"
    codes: ClassVar[frozenset[RequestCode]] = frozenset({RequestCode.CONSUMER_SEND_MSG_BACK})
    _letters: int = 0
    """How many dead letters have been recorded."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world = scene.client_world()
        async with (
            open_producer(scene.namesrv, "r", world=world, send_timeout_seconds=SEND_SECONDS) as producer,
            open_consumer(
                scene.namesrv,
                GROUP,
                TOPIC,
                ack="explicit",
                consume_from=ConsumeFrom.FIRST,
                reconsume_times_max=scene.history.retries_max,
                world=world,
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._send, producer)
            task_status.started()
            async for message in consumer:
                await self._attempt(message)

    async def _attempt(self, message: ReceivedMessage) -> None:
        trial = self.scene.history.trials[number_in(message.body)]
        trial.attempts.add(message.reconsume_times)
        trial.copies.add(message.reconsume_times - message.local_redeliveries)
        self.scene.note(f"attempt {message.reconsume_times} at {trial.number}, which fails {trial.failures} times")
        if message.reconsume_times < trial.failures:
            await message.retry()
        else:
            trial.done = True
            message.ack_now()

    async def _send(self, producer: Producer) -> None:
        scene = self.scene
        trials, retries_max = scene.history.trials, scene.history.retries_max
        while not scene.healed:
            failures = scene.rng.choice((*range(retries_max + 1), ALWAYS))
            trial = Trial(len(trials), failures, scene.epoch)
            trials.append(trial)
            with contextlib.suppress(ClientError):
                result = await producer.send(Message(TOPIC, b"%d;" % trial.number))
                trial.acknowledged = result.status.name == "SEND_OK"
            await trio.sleep(scene.life_seconds * scene.rng.random() * 0.3)

    def lacking(self) -> str:
        scene = self.scene
        broker = scene.serving
        if broker is None:
            return "nobody takes messages"
        self.look(broker.store)
        whole = scene.history.consumers_follow(scene.epoch)
        tried = [trial for trial in scene.history.trials if trial.acknowledged and whole]
        open_ones = [trial.number for trial in tried if not trial.done and not trial.dead]
        return f"messages {open_ones[:5]} were neither taken nor are they dead letters" if open_ones else ""

    def look(self, store: MessageStore) -> None:
        """Record the dead letters that were stored since the last call."""
        topic = dlq_topic(GROUP)
        while self._letters < store.max_offset(topic, 0):
            result = store.get(topic, 0, self._letters, READ_AT_ONCE)
            for record in result.slices:
                letter = decode_record(record)
                self.scene.history.trials[number_in(letter.body)].dead.append(letter.reconsume_times)
            self._letters = result.next_offset

    def counts(self) -> dict[str, int]:
        trials = self.scene.history.trials
        dead = sum(len(trial.dead) for trial in trials)
        return {"dead_letters": dead, "retries": sum(len(trial.attempts - {0}) for trial in trials)}
