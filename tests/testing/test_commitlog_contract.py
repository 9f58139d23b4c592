from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import attrs
import pytest
import trio

from ledgermq.ha.classic.commitlog import classic_log
from ledgermq.ha.classic.settings import HaSettings
from ledgermq.ha.dledger.ledger.recovery import LedgerFiles
from ledgermq.ha.dledger.node import DLedgerNode
from ledgermq.ha.dledger.settings import ReplicaSettings, parse_peers
from ledgermq.ha.raft.units import PeerId
from ledgermq.message.layout import encode_host, encode_record
from ledgermq.message.message import IncomingMessage
from ledgermq.store.config import StoreConfig
from ledgermq.store.log.commitlog import CommitLog
from ledgermq.store.log.divided_log import DividedCommitLog
from ledgermq.store.log.local_commitlog import open_local_commit_log
from ledgermq.store.log.wrapping_log import WrappingCommitLog
from ledgermq.store.opening import open_message_store
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.commitlog_contract import (
    FAULT_CHECKS,
    LOG_CHECKS,
    FaultyLogUnderTest,
    LogUnderTest,
    absent_records_are_none,
    check_commit_log,
    records_never_cross_a_segment,
    what_is_done_is_readable,
)
from ledgermq.testing.sim.clock import SimClock
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.network import SimFabric
from ledgermq.testing.sim.scheduler import seeded_run
from ledgermq.world.real import World, real_world

from .framed_log import FramedLog, Medium

P = ParamSpec("P")
T = TypeVar("T")
_HOST = encode_host("10.0.0.1", 10911)
MODES = ("ASYNC_FLUSH", "SYNC_FLUSH")
CONFIG = StoreConfig(
    store_path_root_dir="store",
    mapped_file_size_commit_log=8192,
    max_hash_slot_num=10,
    max_index_num=40,
    flush_interval_commit_log=20,
)

Open = Callable[[World, StoreConfig], CommitLog]


def asynchronous_master(world: World, config: StoreConfig) -> CommitLog:
    return classic_log(open_local_commit_log(world, config), HaSettings(), world.clock)


def master_of_a_prompt_slave(world: World, config: StoreConfig) -> CommitLog:
    """A SYNC_MASTER whose slave confirms at once what is appended."""
    log = classic_log(open_local_commit_log(world, config), HaSettings(sync_master=True), world.clock)
    log.on_appended = lambda: log.acks.hold("slave", log.max_offset)
    log.acks.hold("slave", 0)
    return log


@attrs.define
class GatedWorkers:
    """Runs work in line, while the gate is open."""

    _open: trio.Event | None = None

    def stall(self, *, stalled: bool) -> None:
        if stalled:
            self._open = trio.Event()
        elif self._open is not None:
            self._open.set()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await trio.lowlevel.checkpoint()
        with trio.CancelScope(shield=True):
            if self._open is not None:
                await self._open.wait()
        return function(*args, **kwargs)


@attrs.define
class LogOfAStore:
    """The log as a message store opens it on a simulated disk."""

    mode: str
    open_commit_log: Open = open_local_commit_log
    disk: SimDisk = attrs.field(factory=SimDisk)
    workers: GatedWorkers = attrs.field(factory=GatedWorkers)
    placed_alike = False

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[CommitLog]:
        rng = random.Random(1)
        world = World(self.disk, SimFabric(rng).machine("10.0.0.1"), SimClock(), rng, self.workers)
        config = attrs.evolve(CONFIG, flush_disk_type=self.mode)
        async with open_message_store(world, config, open_commit_log=self.open_commit_log) as store:
            yield store.log

    def stall(self, *, stalled: bool) -> None:
        self.workers.stall(stalled=stalled)

    def cut_power(self) -> None:
        self.disk = self.disk.power_cut(1)


@attrs.define
class LogInMemory:
    """A framed log, alone."""

    medium: Medium = attrs.field(factory=Medium)
    placed_alike = False

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[CommitLog]:
        log = FramedLog(self.medium)
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            yield log
            nursery.cancel_scope.cancel()

    def stall(self, *, stalled: bool) -> None:
        self.medium.stalled = stalled

    def cut_power(self) -> None:
        self.medium.cut_power()


@attrs.define
class LogOnARealDisk:
    """The log of a store in a directory."""

    directory: str
    mode: str
    placed_alike = False

    def open(self) -> AbstractAsyncContextManager[CommitLog]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[CommitLog]:
        config = attrs.evolve(CONFIG, store_path_root_dir=self.directory, flush_disk_type=self.mode)
        async with open_message_store(real_world(), config) as store:
            yield store.log


@attrs.define
class LogOfAGroup(LogOfAStore):
    """The log of the only node of a DLedger group, as a message store opens it."""

    placed_alike = True

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[CommitLog]:
        rng = random.Random(1)
        world = World(self.disk, SimFabric(rng).machine("10.0.0.1"), SimClock(), rng, self.workers)
        peers = parse_peers("n0-10.0.0.1:40911")
        files = LedgerFiles("store/dledger-n0", CONFIG.mapped_file_size_commit_log, 32 * 64)
        node = DLedgerNode(ReplicaSettings(group="g", self_id=PeerId("n0"), peers=peers, files=files))
        async with open_message_store(world, CONFIG, open_commit_log=node.open_commit_log) as store:
            while not node.is_leader or node.replica.ledger.committed_index < node.replica.ledger.end_index:  # noqa: ASYNC110
                await trio.sleep(0.01)
            yield store.log


@attrs.define
class LogOfAGroupBehindAClassicLog(LogOfAGroup):
    """The same, where the store had a classic commit log of some files before."""

    older: list[bytes] = attrs.field(factory=list[bytes])

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[CommitLog]:
        if not self.older:
            async with LogOfAStore.open(self) as log:
                for number in range(100):
                    record = encode_record(b"Older", 0, number, b"o" * 300, b"", 0, 0, 0, _HOST, 1, _HOST)
                    self.older.append(record)
                    log.append([record])
        async with LogOfAGroup.open(self) as log:
            assert isinstance(log, DividedCommitLog)
            if log.older.local.min_offset == 0:
                found = [parts[2] for _, parts in log.records(0, log.max_offset) if parts is not None and parts[6] == "Older"]
                assert found == list(range(100))
            yield log


SIMULATED: dict[str, Callable[[], FaultyLogUnderTest]] = {
    "local ASYNC_FLUSH": lambda: LogOfAStore("ASYNC_FLUSH"),
    "local SYNC_FLUSH": lambda: LogOfAStore("SYNC_FLUSH"),
    "ASYNC_MASTER": lambda: LogOfAStore("SYNC_FLUSH", asynchronous_master),
    "SYNC_MASTER": lambda: LogOfAStore("ASYNC_FLUSH", master_of_a_prompt_slave),
    "SYNC_MASTER with SYNC_FLUSH": lambda: LogOfAStore("SYNC_FLUSH", master_of_a_prompt_slave),
    "framed": LogInMemory,
    "DLedger": lambda: LogOfAGroup("ASYNC_FLUSH"),
    "DLedger behind a classic log": lambda: LogOfAGroupBehindAClassicLog("ASYNC_FLUSH"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("check", LOG_CHECKS, ids=lambda check: check.__name__)
async def test_the_local_log_keeps_the_contract_on_a_real_disk(
    check: Callable[[LogUnderTest], object], mode: str, tmp_path: Path
) -> None:
    await check(LogOnARealDisk(str(tmp_path), mode))  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]


@pytest.mark.parametrize("kind", SIMULATED)
def test_every_log_keeps_the_contract_in_the_simulated_world(kind: str) -> None:
    seeded_run(check_commit_log, SIMULATED[kind], seed=1)


@pytest.mark.parametrize(
    "kind",
    ["local SYNC_FLUSH", "ASYNC_MASTER", "SYNC_MASTER with SYNC_FLUSH", "framed", "DLedger", "DLedger behind a classic log"],
)
@pytest.mark.parametrize("check", FAULT_CHECKS, ids=lambda check: check.__name__)
def test_every_log_keeps_the_contract_under_faults(check: Callable[[FaultyLogUnderTest], object], kind: str) -> None:
    seeded_run(check, SIMULATED[kind](), seed=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class _HidesItsLastByte(WrappingCommitLog[CommitLog]):
    @property
    def readable_offset(self) -> int:
        return max(self.inner.readable_offset - 1, 0)


class _ShowsMoreThanItHas(WrappingCommitLog[CommitLog]):
    @property
    def readable_offset(self) -> int:
        return self.inner.readable_offset + 1000


class _FlushesMoreThanItHas(WrappingCommitLog[CommitLog]):
    @property
    def flushed_offset(self) -> int:
        return self.inner.max_offset + 1


class _FindsWhatWasNeverAppended(WrappingCommitLog[CommitLog]):
    def record(self, offset: int, size: int) -> memoryview | None:
        return self.inner.record(offset, size) if offset < self.max_offset else memoryview(bytes(size))


class _ReadsAcrossTheEnd(WrappingCommitLog[CommitLog]):
    def record(self, offset: int, size: int) -> memoryview | None:
        return self.inner.record(offset, min(size, max(self.max_offset - offset, 0)))


class _SlicesBehindTheEnd(WrappingCommitLog[CommitLog]):
    def slice_from(self, offset: int, size_max: int) -> memoryview:
        return self.inner.slice_from(offset, size_max) if offset < self.max_offset else memoryview(bytes(size_max))


class _PutsSegmentsElsewhere(WrappingCommitLog[CommitLog]):
    def segment_end(self, offset: int) -> int:
        return offset - offset % 4096 + 4096


@attrs.define
class FaultyLog:
    """A framed log behind one that does something wrong."""

    fault: type[WrappingCommitLog[CommitLog]]
    placed_alike = False

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[CommitLog]:
        async with LogInMemory().open() as log:
            yield self.fault(log)


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (records_never_cross_a_segment, _PutsSegmentsElsewhere),
        (what_is_done_is_readable, _HidesItsLastByte),
        (what_is_done_is_readable, _ShowsMoreThanItHas),
        (what_is_done_is_readable, _FlushesMoreThanItHas),
        (absent_records_are_none, _FindsWhatWasNeverAppended),
        (absent_records_are_none, _ReadsAcrossTheEnd),
        (absent_records_are_none, _SlicesBehindTheEnd),
    ],
)
def test_a_faulty_log_breaks_the_contract(
    check: Callable[[LogUnderTest], Awaitable[None]], fault: type[WrappingCommitLog[CommitLog]]
) -> None:
    """The check itself finds the fault; the same log without it passes."""
    seeded_run(check, LogInMemory(), seed=1)

    broken = False
    try:
        seeded_run(check, FaultyLog(fault), seed=1)
    except* AssertionError:
        broken = True
    assert broken


def test_a_store_needs_nothing_of_a_log_beyond_the_interface() -> None:
    """Put, derive, get, restart: on a framed log as on any other, and consumers see nothing uncommitted."""
    medium = Medium()
    seen: list[bytes] = []

    async def live(disk: SimDisk, life: int) -> None:
        rng = random.Random(1)
        world = World(disk, SimFabric(rng).machine("10.0.0.1"), SimClock(), rng, GatedWorkers())
        async with open_message_store(world, CONFIG, open_commit_log=lambda _, __: FramedLog(medium)) as store:
            for number in range(40):
                message = IncomingMessage("T", 0, b"%d" % (40 * life + number), "", 0, 0, 0, bytes(8))
                assert (await store.put_one(message)).status is PutStatus.PUT_OK
            medium.stalled = True
            store.put([IncomingMessage("T", 0, b"uncommitted", "", 0, 0, 0, bytes(8))])
            await trio.sleep(1)
            assert store.max_offset("T", 0) == 40 * (life + 1)
            medium.cut_power()
            medium.stalled = False
            found = store.get("T", 0, 0, 100)
            seen[:] = [bytes(one) for one in found.slices]

    async def lives() -> None:
        disk = SimDisk()
        for life in range(3):
            await live(disk, life)

    seeded_run(lives, seed=1)

    assert [b"%d" % number in record for number, record in enumerate(seen)] == [True] * len(seen)
    assert len(seen) > 30
