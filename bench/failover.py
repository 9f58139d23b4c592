"""Print, second by second, what clients observe when a master fails and returns.

Each server is a process on its own machine of a virtual network, which needs the rights of root. The shape is one master, two
masters, or two masters of which one has a slave. Our producer sends one message after the other all the time; a reader
repeatedly reads the first message of one master; a consumer group receives what is sent. After a few seconds that master is
killed (SIGKILL), or suspended (SIGSTOP), so that it accepts connections without answering, or its network is cut, so that
packets to it are lost.
"""

import argparse
import collections
import contextlib
import logging
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import attrs
import trio
from processes import end_in_order

from harness.processes.network import NetworkUnavailable, Place, VirtualNetwork, virtual_network
from harness.processes.pairs import BROKER_PORT, NAMESRV_PORT, Member
from harness.processes.servers import running
from ledgermq.client.admin import Admin, open_admin
from ledgermq.client.consumer import Consumer, open_consumer
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.message.message import Message, MessageQueue
from ledgermq.world.real import World, real_world

TOPIC = "Failover"
QUEUES = 4
NAMESRV, LOST, OTHER, SLAVE, CLIENTS = "namesrv", "lost", "other", "slave", "clients"
SHAPES = {"single": [LOST], "masters": [LOST, OTHER], "slaves": [LOST, OTHER, SLAVE]}
EVENTS = {"kill": ("killed", "up again"), "stop": ("stopped", "goes on"), "cut": ("cut off", "healed")}
SEND_PAUSE = 0.01
READ_PAUSE = 0.05
READ_SECONDS_MAX = 2.0
FOLLOW_SECONDS_MAX = 60.0


@attrs.define
class Second:
    """The calls of one second; a call counts in the second in which it ended."""

    sent: collections.Counter[str] = attrs.field(factory=collections.Counter[str])
    send_ms_max: float = 0.0
    reads: collections.Counter[str] = attrs.field(factory=collections.Counter[str])
    read_ms_max: float = 0.0
    received: int = 0
    event: str = ""


@attrs.define
class Timeline:
    """The observations by second, counted from the fault."""

    fault_at: float
    seconds: collections.defaultdict[int, Second] = attrs.field(factory=lambda: collections.defaultdict(Second))

    def now(self) -> Second:
        return self.seconds[int((trio.current_time() - self.fault_at) // 1)]

    def show(self) -> None:
        print("| second | sends to it | to the other | failed | longest, ms ", end="")
        print("| reads of what it holds | failed | longest, ms | received | event |")
        print("|---" * 10 + "|")
        for number, second in sorted(self.seconds.items())[:-1]:
            sent, reads = second.sent, second.reads
            row = (number, sent[LOST], sent[OTHER], sent["failed"], round(second.send_ms_max), reads["done"])
            row = (*row, reads["failed"], round(second.read_ms_max), second.received, second.event)
            print(f"| {' | '.join(map(str, row))} |")


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
    queue = MessageQueue(TOPIC, LOST, 0)
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
        async with consumer.take() as batch:
            timeline.now().received += len(batch)


@attrs.define
class Stage:
    """The servers, and the fault of one of them."""

    virtual: VirtualNetwork
    members: dict[str, Member]
    nursery: trio.Nursery

    @property
    def clients(self) -> Place:
        return self.virtual[CLIENTS]

    @property
    def namesrv(self) -> str:
        return f"{self.virtual[NAMESRV].host}:{NAMESRV_PORT}"

    @property
    def world(self) -> World:
        return attrs.evolve(real_world(), network=self.clients.network)

    async def apply(self, fault: str, seconds: float) -> None:
        """Inject the fault into the master `LOST`, and end it after `seconds`; returns when the master serves again."""
        lost = self.members[LOST]
        match fault:
            case "kill":
                await lost.kill()
                await trio.sleep(seconds)
                await self.nursery.start(lost.live)
            case "stop":
                await lost.server.pause(seconds)
            case _:
                await self.virtual.part([LOST], [name for name in self.virtual.places if name != LOST])
                await trio.sleep(seconds)
                await self.virtual.heal()


@contextlib.asynccontextmanager
async def _stage(shape: str, folder: Path) -> AsyncGenerator[Stage]:
    """Start all servers, create the topic, and store messages in the queue that the reader reads."""
    names = SHAPES[shape]
    async with virtual_network(NAMESRV, CLIENTS, *names) as virtual, trio.open_nursery() as nursery:
        host = virtual[NAMESRV].host
        arguments = ("namesrv", "--log-level", "warning", "--host", host, "--port", str(NAMESRV_PORT))
        async with running(folder / NAMESRV, *arguments, place=virtual[NAMESRV]) as namesrv:
            await namesrv.up()
            members = {name: Member(virtual[name], folder / name / "store", _settings(virtual, name)) for name in names}
            stage = Stage(virtual, members, nursery)
            async with open_admin(stage.namesrv, world=stage.world) as admin:
                for name, member in members.items():
                    member.store.parent.mkdir(parents=True)
                    if name == SLAVE:  # last: a slave copies topics when it starts and then only every ten seconds
                        await admin.create_topic(TOPIC, queues=QUEUES)
                    await nursery.start(member.live)
                if shape != "slaves":
                    await admin.create_topic(TOPIC, queues=QUEUES)
                await _fill(stage, admin)
            yield stage
            nursery.cancel_scope.cancel()


def _settings(virtual: VirtualNetwork, name: str) -> dict[str, object]:
    slave = name == SLAVE
    return {
        "brokerName": LOST if slave else name,
        "brokerRole": "SLAVE" if slave else "ASYNC_MASTER",
        "brokerId": int(slave),
        "brokerIP1": virtual[name].host,
        "listenPort": BROKER_PORT,
        "haListenPort": BROKER_PORT + 1,
        "haSecret": "bench",
        "syncFrom": "first",
        "namesrvAddr": f"{virtual[NAMESRV].host}:{NAMESRV_PORT}",
    }


async def _fill(stage: Stage, admin: Admin) -> None:
    async with open_producer(stage.namesrv, world=stage.world, idempotent=False) as producer:
        for _ in range(100):
            await producer.send(Message(TOPIC, b"x"), queue=MessageQueue(TOPIC, LOST, 0))
    following = [stage.members[name] for name in (LOST, SLAVE) if name in stage.members]
    with trio.fail_after(FOLLOW_SECONDS_MAX):
        while True:
            found = [await admin.broker_runtime(str(member.address)) for member in following]
            if len({each["commitLogMaxOffset"] for each in found}) == 1:
                return
            await trio.sleep(0.05)


async def _measure(found: argparse.Namespace, folder: Path) -> Timeline:
    """Inject the fault after `--before` seconds, end it after `--down` more, and observe for `--after` more."""
    async with (
        _stage(found.shape, folder) as stage,
        open_producer(stage.namesrv, world=stage.world, idempotent=False) as producer,
        open_pull_consumer(stage.namesrv, "reader", world=stage.world) as reader,
        open_consumer(stage.namesrv, "receiver", TOPIC, world=stage.world) as receiver,
        trio.open_nursery() as nursery,
    ):
        await reader.assign([MessageQueue(TOPIC, LOST, 0)])
        timeline = Timeline(trio.current_time() + found.before)
        nursery.start_soon(_send, producer, timeline)
        nursery.start_soon(_read, reader, timeline)
        nursery.start_soon(_receive, receiver, timeline)
        await trio.sleep_until(timeline.fault_at)
        broken, mended = EVENTS[found.fault]
        timeline.now().event = broken
        await stage.apply(found.fault, found.down)
        timeline.now().event = mended
        await trio.sleep(found.after)
        nursery.cancel_scope.cancel()
    return timeline


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="slaves")
    parser.add_argument("--fault", choices=EVENTS, default="kill")
    parser.add_argument("--before", type=float, default=3, help="seconds before the fault")
    parser.add_argument(
        "--down", type=float, default=15, help="seconds until the master is started again, goes on, or is healed"
    )
    parser.add_argument("--after", type=float, default=35, help="seconds after that")
    found = parser.parse_args()
    end_in_order()
    # Log lines of the clients would appear between the lines of the table.
    logging.getLogger("ledgermq").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="ledgermq-failover-") as folder:
        try:
            trio.run(_measure, found, Path(folder)).show()
        except NetworkUnavailable as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
