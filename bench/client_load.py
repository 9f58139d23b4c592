"""LedgerMQ's own client under load, in a separate process that `own_client.py` starts and measures.

It prints one JSON object a second: messages so far, failures so far, and the last failure.
"""

import argparse
import asyncio
import gc
import json
import logging
import statistics
import time
from collections.abc import Awaitable, Callable

import attrs
import trio

from ledgermq import aio
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.message.message import Message

BODY_BYTES = 1024
LONE_SENDS = 1000
WARMUP_SECONDS = 1.0


@attrs.define
class Progress:
    messages: int = 0
    failures: int = 0
    last_failure: str = ""

    async def print_every_second(self) -> None:
        while True:
            await trio.sleep(1)
            print(json.dumps(attrs.asdict(self)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["produce", "consume", "send-trio", "send-asyncio"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--in-flight", type=int, default=256, help="sends that wait for their answers at once")
    parser.add_argument("--seconds", type=float, default=5, help="how long send-trio and send-asyncio send concurrently")
    found = parser.parse_args()
    logging.getLogger("ledgermq").setLevel(logging.WARNING)
    progress = Progress()
    # The servers do the same, because messages create containers but no cycles. Apache's program also sets its own heap size.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

    if found.role.startswith("send-"):
        sends = Sends(Message(topic=found.topic, body=b"x" * BODY_BYTES), found.in_flight, found.seconds)
        if found.role == "send-trio":
            trio.run(sends.in_trio, found.namesrv, found.group)
        else:
            asyncio.run(sends.in_asyncio(found.namesrv, found.group))
        return

    async def load() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(progress.print_every_second)
            if found.role == "produce":
                await _produce(progress, found.namesrv, found.topic, found.group, found.in_flight)
            else:
                await _consume(progress, found.namesrv, found.topic, found.group)

    trio.run(load)


@attrs.define
class Sends:
    """Lone sends and then many at once, with the client for trio or for asyncio; prints what each took."""

    message: Message
    in_flight: int
    seconds: float
    sent: int = 0

    async def in_trio(self, namesrv: str, group: str) -> None:
        async with open_producer(namesrv=namesrv, group=group) as producer:
            lone = await self._lone(producer.send)
            async with trio.open_nursery() as nursery:
                for _ in range(self.in_flight):
                    nursery.start_soon(self._send_for_ever, producer.send)
                await self._measure(lone, trio.sleep)
                nursery.cancel_scope.cancel()

    async def in_asyncio(self, namesrv: str, group: str) -> None:
        async with aio.open_producer(namesrv=namesrv, group=group) as producer:
            lone = await self._lone(producer.send)
            tasks = [asyncio.create_task(self._send_for_ever(producer.send)) for _ in range(self.in_flight)]
            await self._measure(lone, asyncio.sleep)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _lone(self, send: Callable[[Message], Awaitable[object]]) -> float:
        """The median time of a send that is alone, in seconds."""
        times: list[float] = []
        for _ in range(LONE_SENDS):
            began = time.perf_counter()
            await send(self.message)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    async def _send_for_ever(self, send: Callable[[Message], Awaitable[object]]) -> None:
        while True:
            await send(self.message)
            self.sent += 1

    async def _measure(self, lone: float, sleep: Callable[[float], Awaitable[object]]) -> None:
        await sleep(WARMUP_SECONDS)
        before, began, cpu = self.sent, time.perf_counter(), time.process_time()
        await sleep(self.seconds)
        sent, cpu, seconds = self.sent - before, time.process_time() - cpu, time.perf_counter() - began
        print(json.dumps({"lone us": lone * 1e6, "msg/s": sent / seconds, "cpu us/msg": cpu * 1e6 / sent}), flush=True)


async def _produce(progress: Progress, namesrv: str, topic: str, group: str, in_flight: int) -> None:
    message = Message(topic=topic, body=b"x" * BODY_BYTES)
    async with open_producer(namesrv=namesrv, group=group) as producer, trio.open_nursery() as nursery:

        async def send_for_ever() -> None:
            while True:
                try:
                    await producer.send(message)
                except ClientError as error:
                    progress.failures += 1
                    progress.last_failure = str(error)
                else:
                    progress.messages += 1

        for _ in range(in_flight):
            nursery.start_soon(send_for_ever)


async def _consume(progress: Progress, namesrv: str, topic: str, group: str) -> None:
    async with open_consumer(namesrv=namesrv, group=group, topics=topic) as consumer:
        async for message in consumer:
            # Apache's program also reads every message that it receives.
            if len(message.body) != BODY_BYTES or not message.born_timestamp:
                progress.failures += 1
            progress.messages += 1


if __name__ == "__main__":
    main()
