"""A DLedger group of real processes under load, whose leader is killed again and again: `python -m harness.processes.dledger`.

A producer keeps many sends in flight and records every acknowledgement. After each kill the time to the next acknowledged send
is measured; then the killed node is started again and must follow the leader. In the end a new consumer group reads
everything, and no acknowledged message may be missing.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import attrs
import trio

from ledgermq.client.admin import Admin, open_admin
from ledgermq.client.errors import ClientError, NoRoute
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.message.message import Message
from ledgermq.testing.embedded import dledger_keys
from ledgermq.testing.ports import BROKER_PORTS, reserved_ports

from .network import Place
from .servers import ServerProcess, broker_arguments, running, running_namesrv

TOPIC = "Killed"
SENDERS = 32
NODES = 3
READY_SECONDS = 60.0
LIFE_SECONDS = (0.5, 2.0)
"""The shortest and the longest time that a leader runs before it is killed."""
SILENCE_SECONDS = 5.0
"""A reader that gets no message for this long has read everything."""
HOST = "127.0.0.1"


@attrs.define(eq=False)
class GroupOfProcesses:
    """The nodes of a group, as processes that can be killed and started again: brokers, and behind them any controllers."""

    directory: Path
    namesrv: str
    settings: Sequence[Mapping[str, object]]
    """The keys of each broker."""
    controllers: Sequence[Path] = ()
    """The file of each controller."""
    places: Sequence[Place] = ()
    """The machines of the nodes on a virtual network; empty if all run here."""
    stacks: dict[int, AsyncExitStack] = attrs.field(factory=dict[int, AsyncExitStack])
    servers: dict[int, ServerProcess] = attrs.field(factory=dict[int, ServerProcess])

    @property
    def nodes(self) -> range:
        """The numbers of all nodes."""
        return range(len(self.settings) + len(self.controllers))

    @property
    def brokers(self) -> range:
        """The numbers of the brokers."""
        return range(len(self.settings))

    def store_of(self, broker: int) -> Path:
        """The directory in which a broker has its store."""
        return self.directory / f"node-{broker}" / "store"

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Start all nodes, and kill those that still run at the end of the block."""
        try:
            async with trio.open_nursery() as nursery:
                for number in self.nodes:
                    nursery.start_soon(self.start, number)
            yield
        finally:
            with trio.CancelScope(shield=True):
                for number in list(self.servers):
                    await self.kill(number)

    async def start(self, number: int) -> None:
        """Start one node, and wait until it serves clients, in whichever role."""
        stack = self.stacks[number] = AsyncExitStack()
        place = self.places[number] if self.places else None
        if number in self.brokers:
            arguments = broker_arguments(self.store_of(number), self.settings[number])
        else:
            arguments = ["controller", "--log-level", "warning", "-c", str(self.controllers[number - len(self.settings)])]
        started = running(self.directory / f"node-{number}", *arguments, place=place)
        self.servers[number] = await stack.enter_async_context(started)
        await self.servers[number].up()

    async def kill(self, number: int) -> None:
        """Kill the process of one node with SIGKILL."""
        await self.servers.pop(number).kill()
        await self.stacks.pop(number).aclose()

    async def leader(self, admin: Admin) -> int:
        """Wait until a broker reports that it is the master; returns its number."""
        with trio.fail_after(READY_SECONDS):
            while True:
                for number in self.brokers:
                    with suppress(ClientError, KeyError):
                        if (await admin.ha_status(str(self.servers[number].address)))["master"]:
                            return number
                await trio.sleep(0.02)


@asynccontextmanager
async def open_group(directory: Path) -> AsyncGenerator[GroupOfProcesses]:
    """Run a name server and three brokers for the length of an `async with` block."""
    with reserved_ports(HOST, NODES, BROKER_PORTS) as ports, reserved_ports(HOST, NODES) as raft_ports:
        async with running_namesrv(directory / "namesrv") as namesrv:
            addresses = [f"{HOST}:{port}" for port in raft_ports]
            shared = {"namesrvAddr": str(namesrv.address), "haSecret": "secret", "mappedFileSizeCommitLog": 64 << 20}
            settings: list[dict[str, object]] = [
                {**shared, "listenPort": ports[at], **dledger_keys(at, addresses)} for at in range(NODES)
            ]
            group = GroupOfProcesses(directory, str(namesrv.address), settings)
            async with group.running():
                yield group


@attrs.define(eq=False)
class Kills:
    """The results of one run."""

    acknowledged: set[int] = attrs.field(factory=set[int])
    failed: int = 0
    seconds: list[float] = attrs.field(factory=list[float])
    """The time from each kill to the next acknowledged send."""
    missing: set[int] = attrs.field(factory=set[int])
    """Messages that were acknowledged and not found in the end."""
    _numbers: count[int] = attrs.field(factory=count)
    _acknowledgement: trio.Event = attrs.field(factory=trio.Event)

    async def send_forever(self, producer: Producer) -> None:
        while True:
            number = next(self._numbers)
            began = self._acknowledgement
            try:
                await producer.send(Message(TOPIC, b"%d" % number + b"x" * 500))
            except ClientError:
                self.failed += 1
            else:
                self.acknowledged.add(number)
                if began is self._acknowledgement:  # a send that began before the kill proves nothing
                    began.set()

    async def kill_leader(self, group: GroupOfProcesses, admin: Admin) -> None:
        """Kill the leader, measure the time to the next acknowledged send, and start the node again."""
        number = await group.leader(admin)
        killed_at = trio.current_time()
        await group.kill(number)
        self._acknowledgement = trio.Event()
        with trio.fail_after(READY_SECONDS):
            await self._acknowledgement.wait()
        self.seconds.append(trio.current_time() - killed_at)
        await group.start(number)

    async def look(self, reader: PullConsumer) -> None:
        """Read all queues from their beginning, and record which acknowledged messages are missing."""
        await reader.assign(await reader.queues(TOPIC))
        for queue in reader.assignment():
            await reader.seek(queue, 0)
        found: set[int] = set()
        while messages := await reader.poll(timeout_seconds=SILENCE_SECONDS):
            found.update(int(message.body.partition(b"x")[0]) for message in messages)
        self.missing = self.acknowledged - found

    def __str__(self) -> str:
        each = " ".join(f"{seconds:.2f}" for seconds in self.seconds)
        return (
            f"{len(self.acknowledged)} messages acknowledged, {self.failed} sends failed, {len(self.missing)} missing\n"
            f"seconds from kill to the next acknowledged send: median {statistics.median(self.seconds):.2f}, longest "
            f"{max(self.seconds):.2f}, each {each}"
        )


async def create_topic(admin: Admin) -> None:
    """Create the topic, as soon as the name server knows a master."""
    with trio.fail_after(READY_SECONDS):
        while True:
            with suppress(NoRoute):
                await admin.create_topic(TOPIC, queues=4)
                return
            await trio.sleep(0.05)


async def run(directory: Path, kills: int, rng: random.Random) -> Kills:
    """Kill the leader `kills` times under load, then read everything."""
    result = Kills()
    async with open_group(directory) as group, open_admin(group.namesrv) as admin:
        await create_topic(admin)
        async with open_producer(group.namesrv, "p", send_timeout_seconds=5.0) as producer, trio.open_nursery() as nursery:
            for _ in range(SENDERS):
                nursery.start_soon(result.send_forever, producer)
            for _ in range(kills):
                await trio.sleep(rng.uniform(*LIFE_SECONDS))
                await result.kill_leader(group, admin)
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        async with open_pull_consumer(group.namesrv, "look") as reader:
            await result.look(reader)
    return result


def main() -> None:
    """Run the command; the exit status is 1 if an acknowledged message is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ledgermq-dledger-") as folder:
        result = trio.run(run, Path(folder), options.kills, random.Random(options.seed))  # noqa: S311 - draws faults
    print(result)  # noqa: T201 - a command
    if result.missing:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
