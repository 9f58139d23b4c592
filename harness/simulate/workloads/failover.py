"""A producer that has one path without faults, of a broker, a name server and its own host, while all others fail."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.message.message import Message
from ledgermq.remoting.codes import RequestCode
from ledgermq.testing.history import TimedSend

from ..scene import Node
from .operator import TOPIC_OF_TWO_QUEUES, Operator
from .plain import SEND_SECONDS
from .workload import Workload

TOPIC = "F"
SENDS_OF_ONE_PRODUCER_MAX = 6
"""A producer is replaced after at most this many sends, because the first ones are those that must find the working path."""


@attrs.define(eq=False)
class Failover(Workload):
    """Sends that must each store their message within their total time."""

    name: ClassVar[str] = "failover"
    codes: ClassVar[frozenset[RequestCode]] = frozenset({RequestCode.SEND_MESSAGE_V2})
    _unjudged: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        scene, spare = self.scene, self.scene.spare
        if spare is None:
            task_status.started()
            return
        operator = Operator(scene)
        for address in (scene.master.address, spare.address):
            await operator.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC_OF_TWO_QUEUES, "topic": TOPIC})
        while not self._is_open(spare, everywhere=True):  # noqa: ASYNC110 - no event is set for this
            await trio.sleep(0.1)
        world = scene.client_world()
        scene.fabric.safe.add(scene.client_hosts[-1])
        task_status.started()
        while True:
            # A send with a number would stay at a broker that may have stored it.
            async with open_producer(
                scene.namesrv, "fp", world=world, send_timeout_seconds=SEND_SECONDS, idempotent=False
            ) as producer:
                is_known = True
                for _ in range(scene.rng.randint(1, SENDS_OF_ONE_PRODUCER_MAX)):
                    is_known = await self._send(producer, spare, is_known=is_known)
                    await trio.sleep(scene.life_seconds * scene.rng.random() * 0.05)

    async def _send(self, producer: Producer, spare: Node, *, is_known: bool) -> bool:
        """Send once; returns whether the producer's route has the open path, if it `is_known` to have had it before."""
        send = TimedSend(self.scene.next_number(), trio.current_time(), SEND_SECONDS)
        was_open = is_known and self._is_open(spare)
        try:
            await producer.send(Message(TOPIC, b"%d;" % send.number))
            send.stored = True
        except ClientError as error:
            send.error = f"{type(error).__name__}: {error}"
        send.ended = trio.current_time()
        if not was_open or not self._is_open(spare):
            self._unjudged += 1
            return False
        self.scene.history.timed_sends.append(send)
        return True

    def _is_open(self, spare: Node, *, everywhere: bool = False) -> bool:
        """Whether every name server that has the topic lists its broker without faults.

        A restarted name server may not, until all brokers have registered again, and clients cannot detect that.
        """
        for process in self.scene.name_servers:
            route = None if process.server is None else process.server.routes.route(TOPIC)
            if route is None:
                if everywhere:
                    return False
                continue
            if not any(broker["brokerName"] == spare.config.broker_name for broker in route["brokerDatas"]):
                return False
        return True

    def counts(self) -> dict[str, int]:
        return {"sends_timed": len(self.scene.history.timed_sends), "sends_not_timed": self._unjudged}
