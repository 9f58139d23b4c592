"""What a client sees, second by second, when a master dies and comes back: prints the timeline.

Masters `a` and `b` and a slave of `a`, each a process. A producer of ours sends one message after the other all the time;
a reader goes back to the first message of `a` again and again; a consumer group receives what is sent. After a few seconds
`a` is killed (SIGKILL), or with --fault stop it stands still (SIGSTOP): it takes connections and answers nothing.
"""

import argparse
import collections
import logging
import signal

import attrs
import structlog
import trio
from harness import await_route
from processes import end_in_order
from servers import BROKER_NAME, Cluster, Side
from slaves import SECRET, await_equal, beside

from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.message.message import Message, MessageQueue

TOPIC = "Failover"
QUEUES = 4
OTHER = "other"
SEND_PAUSE = 0.01
READ_PAUSE = 0.05
READ_SECONDS_MAX = 2.0
SIDE: Side = "ours"


@attrs.define
class Second:
    """What happened in one second; a call counts in the second in which it ended."""

    sent: collections.Counter[str] = attrs.field(factory=collections.Counter[str])
    send_ms_max: float = 0.0
    reads: collections.Counter[str] = attrs.field(factory=collections.Counter[str])
    read_ms_max: float = 0.0
    received: int = 0
    event: str = ""


@attrs.define
class Timeline:
    """Seconds counted from the fault."""

    fault_at: float
    seconds: collections.defaultdict[int, Second] = attrs.field(factory=lambda: collections.defaultdict(Second))

    def now(self) -> Second:
        return self.seconds[int((trio.current_time() - self.fault_at) // 1)]

    def show(self) -> None:
        print("second | sends: lost master | other | failed | longest ms | reads of the lost master's: done | failed", end="")
        print(" | longest ms | received | event")
        for number, second in sorted(self.seconds.items())[:-1]:
            sent, reads = second.sent, second.reads
            row = (number, sent[BROKER_NAME], sent[OTHER], sent["failed"], round(second.send_ms_max), reads["done"])
            print(" | ".join(map(str, (*row, reads["failed"], round(second.read_ms_max), second.received, second.event))))


async def _send(producer: Producer, timeline: Timeline) -> None:
    while True:
        began = trio.current_time()
        try:
            outcome = (await producer.send(Message(TOPIC, b"x" * 100))).queue.broker_name
        except ClientError:
            outcome = "failed"
        second = timeline.now()
        second.sent[outcome] += 1
        second.send_ms_max = max(second.send_ms_max, (trio.current_time() - began) * 1000)
        await trio.sleep(SEND_PAUSE)


async def _read(consumer: PullConsumer, timeline: Timeline) -> None:
    queue = MessageQueue(TOPIC, BROKER_NAME, 0)
    while True:
        began = trio.current_time()
        await consumer.seek(queue, 0)
        messages = await consumer.poll(1, READ_SECONDS_MAX)
        second = timeline.now()
        second.reads["done" if messages else "failed"] += 1
        second.read_ms_max = max(second.read_ms_max, (trio.current_time() - began) * 1000)
        await trio.sleep(READ_PAUSE)


async def _receive(consumer: Consumer, timeline: Timeline) -> None:
    while True:
        timeline.now().received += len(await consumer.get_many())


async def _measure(lost: Cluster, found: argparse.Namespace) -> Timeline:
    """Break `lost` after `--before` seconds, mend it after `--down` more, and watch for `--after`."""
    namesrv = lost.namesrv_address
    async with (
        open_producer(namesrv) as producer,
        open_pull_consumer(namesrv, "reader") as reader,
        open_consumer(namesrv, "receiver", TOPIC) as receiver,
        trio.open_nursery() as nursery,
    ):
        await reader.assign([MessageQueue(TOPIC, BROKER_NAME, 0)])
        timeline = Timeline(trio.current_time() + found.before)
        nursery.start_soon(_send, producer, timeline)
        nursery.start_soon(_read, reader, timeline)
        nursery.start_soon(_receive, receiver, timeline)
        await trio.sleep_until(timeline.fault_at)
        process = lost.running_broker.popen
        process.send_signal(signal.SIGKILL if found.fault == "kill" else signal.SIGSTOP)
        timeline.now().event = "killed" if found.fault == "kill" else "stopped"
        await trio.sleep_until(timeline.fault_at + found.down)
        timeline.now().event = "started again" if found.fault == "kill" else "goes on"
        if found.fault == "kill":
            await trio.to_thread.run_sync(process.wait)
            await trio.to_thread.run_sync(lost.start_broker)
            timeline.now().event = "up again"
        else:
            process.send_signal(signal.SIGCONT)
        await trio.sleep(found.after)
        nursery.cancel_scope.cancel()
    return timeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", choices=["kill", "stop"], default="kill")
    parser.add_argument("--before", type=float, default=3, help="seconds before the fault")
    parser.add_argument("--down", type=float, default=10, help="seconds until the master is started again, or goes on")
    parser.add_argument("--after", type=float, default=35, help="seconds after that")
    found = parser.parse_args()
    end_in_order()
    # What the clients log of it would stand between the lines of the table.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    keys = {"brokerRole": "ASYNC_MASTER", "haSecret": SECRET, "syncFrom": "first"}
    with (
        Cluster.prepare(SIDE, keys) as lost,
        beside(lost, {"brokerName": OTHER}) as other,
        lost.connect() as connection,
    ):
        with other.connect() as beyond:
            beyond.create_topic(TOPIC, QUEUES)
        connection.create_topic(TOPIC, QUEUES)
        await_route(lost, connection, TOPIC)
        # Topics reach a slave every ten seconds; one that starts now has them at once.
        with beside(lost, {"brokerRole": "SLAVE", "brokerId": "1"}) as slave:
            for number in range(100):
                connection.send(TOPIC, 0, b"x", unique_key=f"{number:032X}", born_ms=0)
            await_equal(lost, slave)
            trio.run(_measure, lost, found).show()


if __name__ == "__main__":
    main()
