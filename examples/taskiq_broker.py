"""A broker for taskiq: its tasks are messages of one topic, and its workers one consumer group.

    broker = LedgerBroker("127.0.0.1:9876")

    @broker.task
    async def bill(order: int) -> None: ...

    await bill.kiq(42)                                  # in the application
    taskiq worker shop.tasks:broker                     # the workers

A task is acknowledged when taskiq says so, by default when its result has been saved. One whose worker dies before runs again
at another worker. The label `delay_level` delays a task by one of RocketMQ's levels, 1 (a second) to 18 (two hours).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from ledgermq import ConsumeFrom, Message, aio

GET_SECONDS = 1.0
"""How long a worker waits for a message before it looks again whether it is to end."""


class LedgerBroker(AsyncBroker):
    """Sends taskiq's tasks to a topic, and hands them out to its workers.

    Args:
        namesrv: the name servers; by default `$LEDGERMQ_NAMESRV`.
        topic: the topic of the tasks.
        group: the consumer group of the workers, and the producer group of those who ask for tasks.
    """

    def __init__(self, namesrv: str | Iterable[str] | None = None, *, topic: str = "tasks", group: str = "workers") -> None:
        super().__init__()
        self._namesrv, self._topic, self._group = namesrv, topic, group
        self._clients = AsyncExitStack()
        self._producer: aio.AioProducer | None = None
        self._consumer: aio.AioConsumer | None = None

    async def startup(self) -> None:
        await super().startup()
        self._producer = await self._clients.enter_async_context(aio.open_producer(self._namesrv, group=self._group))
        if self.is_worker_process:
            self._consumer = await self._clients.enter_async_context(
                aio.open_consumer(self._namesrv, self._group, self._topic, ack="explicit", consume_from=ConsumeFrom.FIRST)
            )

    async def shutdown(self) -> None:
        await self._clients.aclose()
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        if self._producer is None:
            raise RuntimeError("the broker has not been started: await broker.startup() first")
        delay_level = int(message.labels.get("delay_level", 0))
        await self._producer.send(
            Message(self._topic, message.message, tag=message.task_name, keys=[message.task_id], delay_level=delay_level)
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        if self._consumer is None:
            raise RuntimeError("the broker has not been started as a worker: set is_worker_process before startup()")
        while True:
            message = await self._consumer.get_one(GET_SECONDS)
            if message is not None:
                yield AckableMessage(data=message.body, ack=message.ack)
