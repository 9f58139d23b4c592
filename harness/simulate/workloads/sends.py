"""Sends of every kind except the plain one: batches, oneway, the oldest request code; and reads without waiting."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.sending import SendResult
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.testing.history import Put

from .operator import Operator
from .plain import SEND_SECONDS
from .workload import Workload, note_failure

TOPIC, GROUP = "S", "sg"


@attrs.define(eq=False)
class Sends(Workload):
    """The checkers of plain messages must hold for these sends too."""

    name: ClassVar[str] = "sends"
    codes: ClassVar[frozenset[RequestCode]] = frozenset(
        {RequestCode.SEND_MESSAGE, RequestCode.SEND_BATCH_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
    )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene = self.scene
        world, operator = scene.client_world(), Operator(scene)
        async with open_producer(scene.namesrv, "sp", world=world, send_timeout_seconds=SEND_SECONDS) as producer:
            task_status.started()
            while True:
                kind = scene.rng.randrange(4)
                if kind == 0:
                    await self._send_batch(producer)
                elif kind == 1:
                    await self._send_oneway(producer)
                elif kind == 2:
                    await self._send_long_named(operator)
                else:
                    fields = {
                        "consumerGroup": GROUP,
                        "topic": TOPIC,
                        "queueId": 0,
                        "queueOffset": 0,
                        "maxMsgNums": 32,
                        "sysFlag": 4,
                        "commitOffset": 0,
                        "suspendTimeoutMillis": 0,
                        "subscription": "*",
                        "subVersion": 0,
                        "expressionType": "TAG",
                    }
                    await operator.ask_master(RequestCode.LITE_PULL_MESSAGE, fields)
                await operator.pause(0.1)

    def _puts(self, count: int) -> list[Put]:
        scene = self.scene
        puts = [Put(scene.next_number(), 0, (TOPIC, 0), scene.epoch) for _ in range(count)]
        scene.history.puts += puts
        return puts

    async def _send_batch(self, producer: Producer) -> None:
        puts = self._puts(self.scene.rng.randint(2, 5))
        for put in puts:
            put.batch = puts[0].number
        try:
            results = await producer.send_batch([Message(TOPIC, b"%d;" % put.number) for put in puts])
        except ClientError as error:
            self.scene.note(f"batch of {puts[0].number}: {type(error).__name__}")
            for put in puts:
                note_failure(put, error)
            return
        for put, result in zip(puts, results, strict=True):
            self._answered(put, result)

    def _answered(self, put: Put, result: SendResult) -> None:
        put.queue, put.queue_offset = (TOPIC, int(result.queue.queue_id)), result.queue_offset
        put.acknowledged, put.answered = result.status.name == "SEND_OK", self.scene.epoch

    async def _send_oneway(self, producer: Producer) -> None:
        (put,) = self._puts(1)
        try:
            await producer.send_oneway(Message(TOPIC, b"%d;" % put.number))
        except ClientError as error:
            self.scene.note(f"oneway {put.number}: {type(error).__name__}")

    async def _send_long_named(self, operator: Operator) -> None:
        """Send a message with the long field names of old clients."""
        (put,) = self._puts(1)
        fields = {
            "producerGroup": "sp",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": 2,
            "queueId": 0,
            "sysFlag": 0,
            "bornTimestamp": operator.world.clock.wall_ms(),
            "flag": 0,
            "properties": "",
            "reconsumeTimes": 0,
            "unitMode": False,
        }
        answer = await operator.ask_master(RequestCode.SEND_MESSAGE, fields, b"%d;" % put.number)
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            put.queue, put.queue_offset = (TOPIC, int(answer.ext["queueId"])), int(answer.ext["queueOffset"])
            put.acknowledged, put.answered = True, self.scene.epoch
