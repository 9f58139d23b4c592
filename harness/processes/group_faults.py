"""Faults of a group of real processes on a virtual network, under load, and what its answers to clients promised.

Producers and a reader work on a machine of their own while nodes are killed with SIGKILL, stopped with SIGSTOP, or cut off:
from everybody, from the other nodes alone, in one direction, or by taking their link away; sometimes two faults meet. After
each fault the time to the next acknowledged send is measured. All acknowledgements and all reads are judged in the end:

1. Each acknowledged message is where its acknowledgement said, and what a reader was given is still there.
2. The offsets of each queue have no gap.
3. After all is healed, sends are acknowledged again and every broker reaches the same log, byte for byte.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import trio

from ledgermq.client.admin import Admin, open_admin
from ledgermq.client.errors import ClientError
from ledgermq.client.producer import Producer, open_producer
from ledgermq.client.pull import PullConsumer, open_pull_consumer
from ledgermq.client.sending import SendStatus
from ledgermq.message.message import Message
from ledgermq.world.real import World, real_world

from ..stored_offsets import queue_offset_faults
from .dledger import READY_SECONDS, SENDERS, SILENCE_SECONDS, TOPIC, GroupOfProcesses, create_topic
from .network import NetworkUnavailable, VirtualNetwork, virtual_network
from .report import VIOLATIONS_SHOWN_MAX, Report, drawn_seed, print_line
from .servers import ServerProcess, running

NAMESRV, CLIENTS = "namesrv", "clients"
NAMESRV_PORT, BROKER_PORT = 9876, 10911
BETWEEN_SECONDS = (0.2, 2.0)
"""The shortest and the longest time without a fault."""
FAULT_SECONDS = (0.3, 6.0)
"""The shortest and the longest time that a fault lasts."""
MASTER_SHARE = 0.7
"""How often the node of a fault is the one that leads the brokers."""
SECOND_FAULT_SHARE = 0.2
"""How often a second fault meets the first one, so that no majority may be left."""
BODY_BYTES = 100
SEND_PAUSE_SECONDS = 0.01
"""The pause of each sender between two sends. Without it an hour fills tens of gigabytes, and a full disk is another fault."""

Place = tuple[int, int]
"""The queue and the offset of a message."""


@attrs.frozen
class Kind:
    """What distinguishes the groups of one mode."""

    name: str
    """The module whose command runs such a group."""
    opened: Callable[[Path], AbstractAsyncContextManager[tuple[VirtualNetwork, GroupOfProcesses]]]
    """Runs a group in a directory for the length of an `async with` block."""
    is_whole: Callable[[list[dict[str, Any]]], bool]
    """Whether a group survives any one fault, as all its brokers report: a deposed master may not know it yet."""
    whole_for_seconds: float
    """How long a group must have been whole: it may not have noticed yet what the last fault has done to a connection."""
    end_of: Callable[[dict[str, Any]], int | None]
    """The end of a broker's log as its status reports it; None if the broker does not know yet whether all of it stays."""
    log_of: Callable[[Path], bytes]
    """The bytes of the log of a store, with the zero bytes behind its last record."""


def node_name(number: int) -> str:
    return f"n{number}"


@attrs.define(eq=False)
class Acknowledgements:
    """The answers to clients."""

    acknowledged: dict[int, Place] = attrs.field(factory=dict[int, Place])
    seen: dict[Place, int] = attrs.field(factory=dict[Place, int])
    """What a reader was given while faults happened."""
    unconfirmed: int = 0
    """How many sends were answered that their message is stored, but not in as many copies as the group promises."""
    failed: int = 0
    violations: list[str] = attrs.field(factory=list[str])
    _numbers: count[int] = attrs.field(factory=count)
    _next: trio.Event = attrs.field(factory=trio.Event)

    async def send_forever(self, producer: Producer) -> None:
        while True:
            number, began = next(self._numbers), self._next
            try:
                result = await producer.send(Message(TOPIC, b"%d" % number + b"x" * BODY_BYTES))
            except ClientError:
                self.failed += 1
            else:
                if result.status is not SendStatus.SEND_OK:
                    self.unconfirmed += 1
                else:
                    self.acknowledged[number] = (result.queue.queue_id, result.queue_offset)
                    if began is self._next:  # a send that began before the fault proves nothing
                        began.set()
            await trio.sleep(SEND_PAUSE_SECONDS)

    async def read_forever(self, reader: PullConsumer) -> None:
        while True:
            for place, number in await self._read(reader):
                if self.seen.setdefault(place, number) != number:
                    self.violations.append(f"{place} was message {self.seen[place]}, and message {number} later")

    async def _read(self, reader: PullConsumer) -> list[tuple[Place, int]]:
        messages = await reader.poll(timeout_seconds=SILENCE_SECONDS)
        return [((each.queue.queue_id, each.queue_offset), int(each.body.partition(b"x")[0])) for each in messages]

    async def next_one(self) -> float:
        """Wait for the acknowledgement of a send that begins now; returns how long that took, in seconds."""
        began = trio.current_time()
        self._next = trio.Event()
        with trio.fail_after(READY_SECONDS):
            await self._next.wait()
        return trio.current_time() - began

    async def judge(self, reader: PullConsumer) -> None:
        """Read everything, and compare it with the answers to clients."""
        await from_the_beginning(reader)
        found: dict[Place, int] = {}
        while read := await self._read(reader):
            found.update(read)
        answers = [*((number, place, "acknowledged") for number, place in self.acknowledged.items())]
        answers += [(number, place, "read") for place, number in self.seen.items()]
        self.violations += [
            f"message {number} was {how} at {place}, where {found.get(place, 'nothing')} is now"
            for number, place, how in answers
            if found.get(place) != number
        ]
        ends: dict[int, int] = {}
        for queue_id, offset in found:
            ends[queue_id] = max(ends.get(queue_id, -1), offset)
        if len(found) != sum(end + 1 for end in ends.values()):
            self.violations.append(f"{len(found)} messages were read of queues that end at {ends}")


async def from_the_beginning(reader: PullConsumer) -> None:
    await reader.assign(await reader.queues(TOPIC))
    for queue in reader.assignment():
        await reader.seek(queue, 0)


@asynccontextmanager
async def machines(directory: Path, nodes: int) -> AsyncGenerator[tuple[VirtualNetwork, ServerProcess]]:
    """Create a machine for each node and for clients, and one on which a name server runs.

    Raises:
        NetworkUnavailable: such a network cannot be created here. Nothing was started.
    """
    async with virtual_network(NAMESRV, *map(node_name, range(nodes)), CLIENTS) as virtual:
        place = virtual[NAMESRV]
        arguments = ("namesrv", "--log-level", "warning", "--host", place.host, "--port", str(NAMESRV_PORT))
        async with running(directory / NAMESRV, *arguments, place=place) as namesrv:
            await namesrv.up()
            yield virtual, namesrv


@attrs.define(eq=False)
class GroupFaults:
    """One group, the faults that it meets, and what came of them."""

    kind: Kind
    virtual: VirtualNetwork
    group: GroupOfProcesses
    admin: Admin
    rng: random.Random
    report: Report
    answers: Acknowledgements = attrs.field(factory=Acknowledgements)
    seconds: dict[str, list[float]] = attrs.field(factory=lambda: defaultdict[str, list[float]](list))
    """The times from each single fault to the next acknowledged send, by the kind of fault."""
    doubles: int = 0
    """How often two faults met."""
    healed_seconds: list[float] = attrs.field(factory=list[float])
    """The times from the end of each fault to the next acknowledged send."""
    whole_seconds: list[float] = attrs.field(factory=list[float])
    """The times from there until the group survives the next fault."""
    _paused: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self, minutes: float) -> None:
        """Inject faults one after the other until the time is over; then all nodes run and nothing is cut."""
        end = trio.current_time() + 60 * minutes
        while trio.current_time() < end:
            await trio.sleep(self.rng.uniform(*BETWEEN_SECONDS))
            async with trio.open_nursery() as pauses:
                await self._fault(pauses)
                pauses.cancel_scope.cancel()  # a process that is still paused goes on
            await self.virtual.heal()
            for number in self.group.nodes:
                if number not in self.group.servers:
                    await self.group.start(number)
            self.healed_seconds.append(await self.answers.next_one())
            await self._become_whole()

    async def _become_whole(self) -> None:
        began = since = trio.current_time()
        with trio.fail_after(READY_SECONDS):
            while trio.current_time() <= since + self.kind.whole_for_seconds:
                await trio.sleep(0.02)
                try:
                    whole = self.kind.is_whole(await self._statuses())
                except ClientError:
                    whole = False
                if not whole:
                    since = trio.current_time()
        self.whole_seconds.append(since - began)

    async def _statuses(self) -> list[dict[str, Any]]:
        """What all brokers report of the replication; raises `ClientError` if one does not answer."""
        servers = [self.group.servers[number] for number in self.group.brokers]
        return [await self.admin.ha_status(str(server.address)) for server in servers]

    async def _next_one(self, what: str) -> float:
        try:
            return await self.answers.next_one()
        except trio.TooSlowError:
            self.report(f"{what}: no acknowledgement for {READY_SECONDS} s")
            for number in self.group.brokers:
                with suppress(ClientError, KeyError):
                    self.report(f"node {number}: {await self.admin.ha_status(str(self.group.servers[number].address))}")
            raise

    async def _fault(self, pauses: trio.Nursery) -> None:
        kinds: list[Callable[[int, trio.Nursery], Awaitable[str]]] = [
            self._kill, self._kill, self._pause, self._isolate, self._part_from_nodes, self._cut_one_way, self._unplug,
        ]  # fmt: skip
        leader = await self.group.leader(self.admin)
        number = leader if self.rng.random() < MASTER_SHARE else self._another(leader)
        role = "master" if number == leader else "slave" if number in self.group.brokers else "controller"
        what = f"{role} {await self.rng.choice(kinds)(number, pauses)}"
        if self.rng.random() < SECOND_FAULT_SHARE:
            other = self._another(number)
            self.report(f"{what}, and then another node {await self.rng.choice(kinds)(other, pauses)}")
            self.doubles += 1
        else:
            seconds = await self._next_one(what)
            self.seconds[what].append(seconds)
            self.report(f"{what}: next acknowledgement after {seconds:.2f} s")
        await trio.sleep(self.rng.uniform(*FAULT_SECONDS))

    def _another(self, number: int) -> int:
        return self.rng.choice([other for other in self.group.nodes if other != number])

    async def _kill(self, number: int, _pauses: trio.Nursery) -> str:
        await self.group.kill(number)
        return "killed"

    async def _pause(self, number: int, pauses: trio.Nursery) -> str:
        await pauses.start(self.group.servers[number].pause, READY_SECONDS)
        return "paused"

    async def _isolate(self, number: int, _pauses: trio.Nursery) -> str:
        await self.virtual.part([node_name(number)], [name for name in self.virtual.places if name != node_name(number)])
        return "cut off from everybody"

    async def _part_from_nodes(self, number: int, _pauses: trio.Nursery) -> str:
        others = [node_name(other) for other in self.group.nodes if other != number]
        await self.virtual.part([node_name(number)], others)
        return "cut off from the nodes"

    async def _cut_one_way(self, number: int, _pauses: trio.Nursery) -> str:
        await self.virtual.cut(node_name(number), node_name(self._another(number)))
        return "not heard by one node"

    async def _unplug(self, number: int, _pauses: trio.Nursery) -> str:
        await self.virtual.unplug(node_name(number))
        return "without its link"

    async def compare(self) -> None:
        """Wait until the logs of all brokers have one end, stop all nodes, judge and compare the logs."""
        agreed = await self._agreed_end()
        group = self.group
        for number in reversed(group.nodes):
            if status := await group.servers[number].stop():
                self.answers.violations.append(f"a clean stop of node {number} ended with exit status {status}")
        self.answers.violations += differences([self.kind.log_of(group.store_of(number)) for number in group.brokers], agreed)
        for number in group.brokers:
            faults = queue_offset_faults(real_world().disk, str(group.store_of(number)))
            self.answers.violations += [f"node {number}: {fault}" for fault in faults]

    async def _agreed_end(self) -> int:
        """Wait until all brokers report one end; returns it."""
        ends: list[int | None] = []
        with trio.move_on_after(READY_SECONDS):
            while True:
                with suppress(ClientError):
                    ends = [self.kind.end_of(status) for status in await self._statuses()]
                    if len(set(ends)) == 1 and (end := ends[0]) is not None:
                        return end
                await trio.sleep(0.1)
        self.answers.violations.append(f"{READY_SECONDS} s later the logs end at {ends}; None is an end that is not confirmed")
        return 0

    def __str__(self) -> str:
        rows = [f"{what}: {_times(found)}" for what, found in sorted(self.seconds.items())]
        rows += [f"two faults at once: {self.doubles}", f"end of a fault: {_times(self.healed_seconds)}"]
        whole = self.whole_seconds
        rows.append(
            f"from there until any one fault is survived: {statistics.median(whole):.2f} s (median), {max(whole):.2f} s"
        )
        return "\n".join(rows)


def differences(logs: Sequence[bytes], agreed: int) -> list[str]:
    """Describe how logs differ below the end that all brokers have reported, or below what all of them have."""
    end = max(agreed, min(len(log.rstrip(b"\0")) for log in logs))
    if len({log[:end] for log in logs}) == 1:
        return []
    return [f"the logs differ below {end}; they end at {[len(log.rstrip(bytes(1))) for log in logs]}"]


def _times(found: Sequence[float]) -> str:
    return f"{len(found)}, to the next acknowledgement {statistics.median(found):.2f} s (median), {max(found):.2f} s (longest)"


async def run(kind: Kind, directory: Path, minutes: float, rng: random.Random, report: Report) -> GroupFaults:
    """Inject faults under load, heal everything, and judge the answers to clients.

    Raises:
        NetworkUnavailable: such a network cannot be created here.
        trio.TooSlowError: no send was acknowledged, or no broker led, for a minute although enough nodes could talk.
    """
    async with kind.opened(directory) as (virtual, group):
        world = attrs.evolve(real_world(), network=virtual[CLIENTS].network)
        async with open_admin(group.namesrv, world=world) as admin:
            await create_topic(admin)
            faults = GroupFaults(kind, virtual, group, admin, rng, report)
            await under_load(faults, world, minutes)
            await faults.compare()
            return faults


async def under_load(faults: GroupFaults, world: World, minutes: float) -> None:
    """Run the faults while clients send and read, and judge in the end."""
    namesrv, answers = faults.group.namesrv, faults.answers
    async with open_producer(namesrv, "p", send_timeout_seconds=5.0, world=world) as producer:
        async with open_pull_consumer(namesrv, "reader", world=world) as reader, trio.open_nursery() as nursery:
            await from_the_beginning(reader)
            for _ in range(SENDERS):
                nursery.start_soon(answers.send_forever, producer)
            nursery.start_soon(answers.read_forever, reader)
            await faults.run(minutes)
            nursery.cancel_scope.cancel()
        async with open_pull_consumer(namesrv, "judge", world=world) as reader:
            await answers.judge(reader)


def command(kind: Kind, description: str | None) -> int:
    """Run such a group as a command; returns its exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m harness.processes.{kind.name}", description=description)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are injected (10)")
    parser.add_argument("--seed", type=int, help="what to draw from; a new one by default")
    options = parser.parse_args()
    seed = drawn_seed(options.seed)
    print_line(f"seed {seed}")
    with tempfile.TemporaryDirectory(prefix=f"ledgermq-{kind.name}-") as folder:
        try:
            faults = trio.run(run, kind, Path(folder), options.minutes, random.Random(seed), print_line)  # noqa: S311 - draws faults
        except NetworkUnavailable as error:
            print_line(f"no virtual network here: {error}")
            return 2
    answers = faults.answers
    print_line(str(faults))
    print_line(f"{len(answers.acknowledged)} acknowledged, {answers.unconfirmed} unconfirmed, {answers.failed} sends failed")
    print_line(f"{len(answers.seen)} read meanwhile")
    print_line(f"{len(answers.violations)} violations")
    for violation in answers.violations[:VIOLATIONS_SHOWN_MAX]:
        print_line(violation)
    return 1 if answers.violations else 0
