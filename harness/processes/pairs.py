"""A SYNC_MASTER and its slave as real processes on a virtual network: kill either, cut paths, and judge both logs.

A run counts the lives of the master. While producers and readers work, faults are drawn: cuts in one or both directions between
any machines, unplugged links, paused processes, a killed slave, a full disk of the slave. Then the master is killed, and before
it starts again the slave is examined alone: its log must have every message that was answered PUT_OK, and its queues must be
consistent. After healing, the slave must reach the end of the master's log and pass the same checkers as the master; after the
last life both logs must be equal byte for byte.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from math import inf
from pathlib import Path

import attrs
import orjson
import trio

from ledgermq.message.layout import span_of
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RemotingError
from ledgermq.testing.checkers import (
    STORE_CHECKERS,
    Checker,
    check_history,
    nothing_is_stored_twice_or_invented,
    nothing_read_is_lost,
    order_within_a_queue_holds,
    queue_offsets_are_dense,
    queue_offsets_are_given_once,
)
from ledgermq.testing.history import End, History, Snapshot
from ledgermq.world.network import Address
from ledgermq.world.real import real_world

from ..outcome import Outcome
from ..stored_offsets import queue_offset_faults
from .load import (
    DELETION_CHECKERS,
    NUMBER_DIGITS,
    PULL_SETTINGS,
    TOPIC,
    Load,
    create_topic,
    message_ids_name_their_messages,
)
from .network import Place, VirtualNetwork, virtual_network
from .report import Report
from .servers import SEGMENT_SIZE, ServerProcess, broker_arguments, running

NAMESRV, MASTER, SLAVE, CLIENTS = "namesrv", "master", "slave", "clients"
NAMESRV_PORT, BROKER_PORT = 9876, 10911
SECRET = "between machines of this test"  # noqa: S105
PAIR_SETTINGS = {
    "brokerClusterName": "faults",
    "listenPort": BROKER_PORT,
    "haListenPort": BROKER_PORT + 1,
    "haSecret": SECRET,
    "syncFrom": "first",
    "slaveTimeout": 1000,
    "haSendHeartbeatInterval": 400,
    "haHousekeepingInterval": 2000,
    "registerNameServerPeriod": 10_000,
    "cleanFileForciblyEnable": "false",
}
"""Settings of both brokers; time-outs are short, so that a half-open connection is closed within seconds."""
SLAVE_DISK_BYTES = 1 << 30
SETTLE_SECONDS = 60.0
"""A healed pair that is not in sync after this time fails the run; it usually takes a few seconds."""
CALL_SECONDS = 5.0
FAULTS_PER_LIFE_MAX = 3
BEFORE_FAULT_SECONDS = (0.05, 0.6)
FAULT_SECONDS = (0.1, 3.0)
DELETED_SHARE, PROMOTED_SHARE, BACKED_UP_SHARE, RESTORED_SHARE = 0.2, 0.25, 0.3, 0.2
"""The probability of each act of an operator in one life of the master."""
REFUSED = "ha_connection_refused"
"""The event that a slave logs when it refuses the log of its master."""
# A reader of the master may be ahead of the slave, which must only have what was answered PUT_OK.
SLAVE_CHECKERS: tuple[Checker, ...] = tuple(check for check in STORE_CHECKERS if check is not nothing_read_is_lost)
# Without its master a slave makes readable only what was readable according to the last frame of the master.
LONE_SLAVE_CHECKERS: tuple[Checker, ...] = (
    queue_offsets_are_dense,
    nothing_is_stored_twice_or_invented,
    order_within_a_queue_holds,
)


@attrs.define(eq=False)
class Member:
    """One broker of the pair, which runs until it is killed or stopped, and can be started again."""

    place: Place
    store: Path
    settings: dict[str, object]
    start_seconds: float = 0.0
    _server: ServerProcess | None = None
    _ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def address(self) -> Address:
        return Address(self.place.host, BROKER_PORT)

    @property
    def runs(self) -> bool:
        return self._server is not None

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None, f"the {self.place.name} does not run"
        return self._server

    async def live(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process and wait until it is killed or stopped; in any case it does not outlive this call."""
        began = time.monotonic()
        self._ended = trio.Event()
        try:
            async with running(self.store.parent, *broker_arguments(self.store, self.settings), place=self.place) as server:
                await server.up()
                self._server, self.start_seconds = server, time.monotonic() - began
                task_status.started()
                await self._ended.wait()
        finally:
            self._server = None

    async def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        server, self._server = self.server, None
        await server.kill()
        self._ended.set()

    async def stop(self) -> int:
        """Stop the broker cleanly; returns its exit status."""
        server, self._server = self.server, None
        status = await server.stop()
        self._ended.set()
        return status


async def runtime_of(place: Place, address: Address) -> dict[str, str]:
    """The runtime information of a broker, by key; empty if it refuses.

    Raises:
        RemotingError: the broker is down.
    """
    async with connected(address, network=place.network) as channel:
        answer = await channel.call(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO), CALL_SECONDS)
    table: dict[str, str] = orjson.loads(answer.body)["table"] if answer.code == ResponseCode.SUCCESS else {}
    return table


@attrs.define(eq=False)
class Pair:
    """A virtual network with a name server, a master, a slave and a machine for clients."""

    virtual: VirtualNetwork
    master: Member
    slave: Member
    nursery: trio.Nursery

    @property
    def clients(self) -> Place:
        return self.virtual[CLIENTS]

    def swap(self) -> None:
        """Exchange the roles of both brokers, neither of which runs."""
        for key in ("brokerRole", "brokerId"):
            self.master.settings[key], self.slave.settings[key] = self.slave.settings[key], self.master.settings[key]
        self.master.settings["haAcceptLoss"] = "true"  # what the old master alone has was not acknowledged
        self.slave.settings.pop("haAcceptLoss", None)
        self.master, self.slave = self.slave, self.master

    async def settle(self) -> bool:
        """Wait until the slave has the master's whole log and all of it is readable on both; returns whether this is so."""
        with trio.move_on_after(SETTLE_SECONDS):
            while True:
                with suppress(RemotingError):
                    found = [await runtime_of(self.clients, member.address) for member in (self.master, self.slave)]
                    ends = {each.get("commitLogMaxOffset") for each in found}
                    if len(ends) == 1 and None not in ends and all(each["dispatchBehindBytes"] == "0" for each in found):
                        return True
                await trio.sleep(0.05)
        return False

    async def slave_knows_topic(self) -> bool:
        """Whether the slave has the topic in its table, without which it answers no pulls of it."""
        async with connected(self.slave.address, network=self.clients.network) as channel:
            answer = await channel.call(RemotingCommand(RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC}), CALL_SECONDS)
        return answer.code == ResponseCode.SUCCESS

    async def topic_kept(self) -> None:
        """Wait until the slave has the topic on its disk, without which it could not serve its messages alone."""
        path = self.slave.place.seen(self.slave.store / "config" / "topics.json")
        with trio.fail_after(SETTLE_SECONDS):
            while not path.exists() or TOPIC.encode() not in path.read_bytes():  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.02)


@asynccontextmanager
async def running_pair(directory: Path, settings: dict[str, object], *, small_disk: bool = False) -> AsyncGenerator[Pair]:
    """Start a name server and a pair on a virtual network, and wait until the slave is in sync.

    Raises:
        NetworkUnavailable: such a network cannot be created here. Nothing was started.
    """
    async with virtual_network(NAMESRV, MASTER, SLAVE, CLIENTS) as virtual, trio.open_nursery() as nursery:
        names = virtual[NAMESRV]
        keys: dict[str, object] = {**PULL_SETTINGS, **PAIR_SETTINGS, "namesrvAddr": f"{names.host}:{NAMESRV_PORT}", **settings}
        members = [
            Member(
                virtual[name],
                directory / name / "disk" / "store",
                {**keys, "brokerIP1": virtual[name].host, "brokerRole": role, "brokerId": broker_id},
            )
            for name, role, broker_id in ((MASTER, "SYNC_MASTER", 0), (SLAVE, "SLAVE", 1))
        ]
        for member in members:
            member.store.parent.mkdir(parents=True, exist_ok=True)
        master, slave = members
        if small_disk:
            await slave.place.mount_small_disk(slave.store.parent, SLAVE_DISK_BYTES)
        arguments = ("namesrv", "--log-level", "warning", "--host", names.host, "--port", str(NAMESRV_PORT))
        async with running(directory / NAMESRV, *arguments, place=names) as namesrv:
            await namesrv.up()
            await nursery.start(master.live)
            await create_topic(virtual[CLIENTS].network, master.address)
            await nursery.start(slave.live)
            pair = Pair(virtual, master, slave, nursery)
            if not await pair.settle():
                raise trio.TooSlowError("the slave did not join")
            await pair.topic_kept()
            yield pair
            nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class PairFaults:
    """One pair, and the lives of its master."""

    directory: Path
    sync_flush: bool
    rng: random.Random
    report: Report
    faults_per_life_max: int = FAULTS_PER_LIFE_MAX
    fault_seconds: tuple[float, float] = FAULT_SECONDS
    acknowledged_min: int = 0
    """How many puts are acknowledged at least in each life of the master, before its first fault."""
    operated: bool = False
    """Whether operators delete the topic in use, start the slave as the master, and restore the master from an older copy."""
    outcome: Outcome = attrs.field(init=False)
    _backup: tuple[Member, Path] | None = None
    """A member, and a copy of its store."""

    def __attrs_post_init__(self) -> None:
        self.outcome = Outcome(History(self.sync_flush))

    async def run(self, kills: int, seconds: float = inf) -> Outcome:
        """Kill brokers `kills` times in total, or as often as `seconds` allow, then check that everything is there.

        Raises:
            NetworkUnavailable: such a network cannot be created here.
        """
        began = time.monotonic()
        history = self.outcome.history
        settings: dict[str, object] = {"flushDiskType": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH"}
        async with running_pair(self.directory, settings, small_disk=True) as pair:
            load = Load(history, self.rng, pair.clients.network)
            while self.outcome.faults["kills"] < kills and time.monotonic() < began + seconds:
                await self._life(pair, load)
            snapshot = await self._look(load, pair.master, STORE_CHECKERS)
            self.outcome.violations += await load.read_to_the_end(pair.master.address, snapshot)
            for member in (pair.master, pair.slave):
                if status := await member.stop():
                    self._found(f"a clean stop of the {member.place.name} ended with exit status {status}")
            self._compare(pair)
            self.outcome.faults += pair.virtual.injected
        self.outcome.violations += load.skipped
        self.outcome.violations += check_history(history, (queue_offsets_are_given_once,))
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    async def _life(self, pair: Pair, load: Load) -> None:
        """Run load and faults, kill the master, examine the slave alone, and bring both back."""
        before = sum(put.acknowledged for put in load.history.puts)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run, pair.master.address)
            await load.acknowledged(self.acknowledged_min)
            for _ in range(self.rng.randint(1, self.faults_per_life_max)):
                await trio.sleep(self.rng.uniform(*BEFORE_FAULT_SECONDS))
                await self.rng.choice(self._faults())(pair)
            if self.operated and self.rng.random() < DELETED_SHARE:
                nursery.start_soon(self._delete, pair, load)
                await trio.sleep(self.rng.uniform(*BEFORE_FAULT_SECONDS))
            await pair.master.kill()
            nursery.cancel_scope.cancel()
        self.outcome.faults["kills"] += 1
        load.history.ends.append(End.KILL)
        acknowledged = sum(put.acknowledged for put in load.history.puts) - before
        await self._mend(pair)
        self.outcome.violations += acknowledged_are_in_the_log(load.history, commitlog(pair.slave))
        if await pair.slave_knows_topic():  # else the topic was deleted, and its new entry is not copied yet
            await self._look(load, pair.slave, LONE_SLAVE_CHECKERS)
        if self.operated and self._backup is not None and self.rng.random() < RESTORED_SHARE:
            await self._restore(pair, load)
        elif self.operated and self.rng.random() < PROMOTED_SHARE:
            await self._promote(pair, load)
        else:
            if self.operated and self.rng.random() < BACKED_UP_SHARE:
                self._back_up(pair.master)
            await self._start(pair, pair.master)
        if not await pair.settle():
            self._found(
                f"life {load.epoch}: {SETTLE_SECONDS:.0f} s after all was healed the slave does not show the master's log"
            )
        if load.history.deletions:
            await create_topic(pair.clients.network, pair.master.address)
            with trio.fail_after(SETTLE_SECONDS):
                while not await pair.slave_knows_topic():  # noqa: ASYNC110 - another process copies it
                    await trio.sleep(0.1)
        await self._look(load, pair.master, (*STORE_CHECKERS, *DELETION_CHECKERS))
        await self._look(load, pair.slave, (*SLAVE_CHECKERS, *DELETION_CHECKERS))
        self.report(f"kill {self.outcome.faults['kills']}: {acknowledged} messages acknowledged in this life")

    def _faults(self) -> list[Callable[[Pair], Awaitable[None]]]:
        return [self._cut, self._part, self._unplug, self._pause, self._fill_disk, self._kill_slave, self._kill_slave]

    async def _delete(self, pair: Pair, load: Load) -> None:
        self.outcome.faults["deletions"] += 1
        with suppress(RemotingError):
            await load.delete_topic(pair.master.address)

    async def _promote(self, pair: Pair, load: Load) -> None:
        """Start the slave as the master and the old master, which does not run, as its slave."""
        self.outcome.faults["promotions"] += 1
        load.history.promotions.append(load.epoch - 1)
        await pair.slave.kill()
        pair.swap()
        await self._start(pair, pair.master)
        await self._start(pair, pair.slave)

    def _back_up(self, member: Member) -> None:
        copy = self.directory / "backup"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(member.place.seen(member.store), copy)
        self._backup = member, copy

    async def _restore(self, pair: Pair, load: Load) -> None:
        """Start a member with an older copy of its store as the master; when its slave has refused it, promote the slave."""
        assert self._backup is not None
        member, copy = self._backup
        if member is not pair.master:
            await self._promote(pair, load)
            return
        self.outcome.faults["restores"] += 1
        self._backup = None
        if pair.slave.settings.pop("haAcceptLoss", None) is not None:  # it accepted only what it lost when it became a slave
            await pair.slave.kill()
            await self._start(pair, pair.slave)
        store = member.place.seen(member.store)
        shutil.rmtree(store)
        shutil.copytree(copy, store)
        before = len(pair.slave.server.errors)
        await self._start(pair, pair.master)
        with trio.move_on_after(SETTLE_SECONDS):
            while REFUSED not in pair.slave.server.errors[before:]:  # noqa: ASYNC110 - another process writes it
                await trio.sleep(0.05)
        if REFUSED not in pair.slave.server.errors[before:]:
            self._found(f"life {load.epoch}: the slave did not refuse a master with an older copy of its store")
        self.outcome.violations += acknowledged_are_in_the_log(load.history, commitlog(pair.slave))
        await pair.master.kill()
        await self._promote(pair, load)

    async def _some_time(self) -> None:
        await trio.sleep(self.rng.uniform(*self.fault_seconds))

    async def _now_and_then_heal(self, pair: Pair) -> None:
        """Heal after a while, or in some cases leave the fault until the master is killed."""
        await self._some_time()
        if self.rng.random() < 0.7:
            await pair.virtual.heal()

    async def _cut(self, pair: Pair) -> None:
        await pair.virtual.cut(*self.rng.sample([NAMESRV, MASTER, SLAVE, CLIENTS], 2))
        await self._now_and_then_heal(pair)

    async def _part(self, pair: Pair) -> None:
        names = [NAMESRV, MASTER, SLAVE, CLIENTS]
        some = self.rng.sample(names, self.rng.randint(1, len(names) - 1))
        await pair.virtual.part(some, [name for name in names if name not in some])
        await self._now_and_then_heal(pair)

    async def _unplug(self, pair: Pair) -> None:
        await pair.virtual.unplug(self.rng.choice((MASTER, SLAVE)))
        await self._now_and_then_heal(pair)

    async def _pause(self, pair: Pair) -> None:
        member = self.rng.choice((pair.master, pair.slave))
        if member.runs:
            self.outcome.faults["pauses"] += 1
            await member.server.pause(self.rng.uniform(*self.fault_seconds))

    async def _fill_disk(self, pair: Pair) -> None:
        """Fill the slave's disk for a while, or until after the master was killed."""
        if pair.slave.place.name != SLAVE:
            return  # the disk of the other machine is not a small one
        self.outcome.faults["full disks of the slave"] += 1
        fill(self._ballast(pair))
        await self._some_time()
        if self.rng.random() < 0.7:
            self._ballast(pair).unlink()

    async def _kill_slave(self, pair: Pair) -> None:
        """Kill the slave; it usually starts again before the master is killed, possibly while paths are cut."""
        if not pair.slave.runs:
            return
        await pair.slave.kill()
        self.outcome.faults["kills"] += 1
        self.outcome.faults["kills of the slave"] += 1
        await self._some_time()
        if self.rng.random() < 0.7 and not self._ballast(pair).exists():
            await self._start(pair, pair.slave)

    async def _mend(self, pair: Pair) -> None:
        await pair.virtual.heal()
        self._ballast(pair).unlink(missing_ok=True)
        if not pair.slave.runs:
            await self._start(pair, pair.slave)

    async def _start(self, pair: Pair, member: Member) -> None:
        await pair.nursery.start(member.live)
        self.outcome.start_seconds_max = max(self.outcome.start_seconds_max, member.start_seconds)

    def _ballast(self, pair: Pair) -> Path:
        member = pair.slave if pair.slave.place.name == SLAVE else pair.master
        return member.place.seen(member.store.parent / "ballast")

    async def _look(self, load: Load, member: Member, checkers: tuple[Checker, ...]) -> Snapshot:
        snapshot = await load.look(member.address)
        history = attrs.evolve(load.history, snapshots=[snapshot])
        found = check_history(history, (*checkers, message_ids_name_their_messages))
        self.outcome.violations += [f"{member.place.name}: {violation}" for violation in found]
        return snapshot

    def _compare(self, pair: Pair) -> None:
        """Judge and compare both logs after a clean stop of both brokers."""
        logs = [commitlog(member) for member in (pair.master, pair.slave)]
        if logs[0] != logs[1]:
            self._found(f"the logs differ: {[{start: len(content) for start, content in log.items()} for log in logs]}")
        for member in (pair.master, pair.slave):
            for fault in queue_offset_faults(real_world().disk, str(member.place.seen(member.store))):
                self._found(f"{member.place.name}: {fault}")

    def _found(self, violation: str) -> None:
        self.outcome.violations.append(violation)


def fill(path: Path) -> None:
    """Fill a file system except for less than a page."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


def commitlog(member: Member) -> dict[int, bytes]:
    """The segments of a broker's log by their first offset, without the zero bytes after the last record."""
    folder = member.place.seen(member.store / "commitlog")
    return {int(path.name): path.read_bytes().rstrip(b"\0") for path in sorted(folder.iterdir())}


def acknowledged_are_in_the_log(history: History, log: dict[int, bytes]) -> Iterator[str]:
    """A message that was answered PUT_OK is in the slave's log at the offset in its id, whether or not it is readable there."""
    for put in history.puts:
        if not put.acknowledged:
            continue
        start, within = put.physical_offset - put.physical_offset % SEGMENT_SIZE, put.physical_offset % SEGMENT_SIZE
        content = log.get(start, b"")
        span = span_of(content, within, len(content)) if within < len(content) else None
        number = None if span is None else int(content[span.body_at : span.body_at + NUMBER_DIGITS])
        if number != put.number:
            yield (
                f"acknowledged_are_in_the_log: message {put.number}, acknowledged in life {put.epoch}, is not at "
                f"{put.physical_offset} of the slave's log in life {len(history.ends)}"
            )
