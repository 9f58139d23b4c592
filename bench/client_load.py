"""LedgerMQ's own client under load, in a separate process that `own_client.py` starts and measures.

It prints one JSON object a second: messages so far, failures so far, and the last failure.
"""

import argparse
import gc
import json
import logging

import attrs
import trio

from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import open_producer
from ledgermq.message.message import Message

BODY_BYTES = 1024


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
    parser.add_argument("role", choices=["produce", "consume"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--in-flight", type=int, default=256, help="sends that wait for their answers at once")
    found = parser.parse_args()
    logging.getLogger("ledgermq").setLevel(logging.WARNING)
    progress = Progress()
    # The servers do the same, because messages create containers but no cycles. Apache's program also sets its own heap size.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)

    async def load() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(progress.print_every_second)
            if found.role == "produce":
                await _produce(progress, found.namesrv, found.topic, found.group, found.in_flight)
            else:
                await _consume(progress, found.namesrv, found.topic, found.group)

    trio.run(load)


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
