"""Short words for what tests do with a broker."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ledgermq import Message, SendResult, blocking
from ledgermq.message.message import MessageQueue

READ_SECONDS = 120.0


def create_topic(namesrv: str, topic: str, queues: int = 4) -> None:
    with blocking.open_admin(namesrv) as admin:
        admin.call(lambda each: each.create_topic(topic, queues=queues))


def delete_topic(namesrv: str, topic: str) -> None:
    with blocking.open_admin(namesrv) as admin:
        admin.call(lambda each: each.delete_topic(topic))


def send(namesrv: str, topic: str, count: int, begin: int = 0) -> None:
    """Send numbered messages, half of them tagged `paid`."""
    with blocking.open_producer(namesrv, group="tests", send_timeout_seconds=60) as producer:
        outcomes = producer.send_many(
            Message(topic, b"%06d" % number, tag="paid" if number % 2 else "new", keys=[f"k{number}"])
            for number in range(begin, begin + count)
        )
    assert all(isinstance(outcome, SendResult) for outcome in outcomes), outcomes


def bodies(namesrv: str, topic: str) -> dict[MessageQueue, list[bytes]]:
    """Every message of a topic, by queue, as the plain client reads it."""
    found: dict[MessageQueue, list[bytes]] = {}
    with blocking.open_pull_consumer(namesrv, "oracle") as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_beginning(queue)
            found[queue] = []
        with blocking.open_admin(namesrv) as admin:
            ends = {queue: admin.call(lambda each, queue=queue: each.queue_range(queue))[1] for queue in queues}
        deadline = time.monotonic() + READ_SECONDS
        while any(consumer.position(queue) < end for queue, end in ends.items()):
            assert time.monotonic() < deadline, "the queues were not read to their ends in time"
            for message in consumer.poll(timeout_seconds=1):
                found[message.queue].append(message.body)
    return found


def all_bodies(namesrv: str, topic: str) -> list[bytes]:
    """The same, sorted, of all queues."""
    return sorted(body for found in bodies(namesrv, topic).values() for body in found)


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return sorted(b"%06d" % number for number in numbers)
