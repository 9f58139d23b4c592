"""Catching up in bulk: long frames are received one by one, reported a few at a time, and deriving waits its turn."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from ledgermq.ha.classic.authenticated import BATCH_MAX, AuthenticatedSlave
from ledgermq.ha.classic.bare import BareSlave
from ledgermq.ha.classic.layout import BARE_HEADER
from ledgermq.ha.classic.protocol import TransferLimits
from ledgermq.ha.classic.slave import LONG_FRAME_BYTES, REPORT_BYTES, HAClient
from ledgermq.store.derived.dispatch import Dispatcher
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDiskFile
from ledgermq.world.clock import SystemClock

from ..nodes import Joined, Lines, OpenNode

DIALECTS = ["ledgermq", "rocketmq"]


def make_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the frames of these small logs count as long ones."""
    monkeypatch.setattr("ledgermq.ha.classic.slave.LONG_FRAME_BYTES", 600)
    monkeypatch.setattr("ledgermq.ha.classic.slave.BULK_BYTES", 600)
    monkeypatch.setattr("ledgermq.ha.classic.slave.FAR_BEHIND_BYTES", 4000)
    monkeypatch.setattr("ledgermq.ha.classic.slave.REPORT_BYTES", 4000)


@pytest.fixture
def long_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    make_long(monkeypatch)


@pytest.fixture(params=["short", "long"])
def frames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "long":
        make_long(monkeypatch)


@pytest.mark.parametrize("protocol", DIALECTS)
@pytest.mark.parametrize("piece_max", [1 << 20, 700, 37])
@pytest.mark.usefixtures("long_frames")
async def test_a_slave_is_its_master_byte_for_byte(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, protocol: str, piece_max: int
) -> None:
    """Whatever the network cuts the bytes into, and with more coming while those before are taken."""
    lines.piece_max = piece_max
    async with open_node("m", protocol=protocol, from_first=True) as master:
        master.put(300)
        async with open_node("s", slave=True, protocol=protocol) as slave:
            for _ in range(20):
                master.put(7)
                await trio.sleep(0.02)
            await slave.caught_up(master)
            assert slave.content() == master.content()
            assert slave.store.max_offset("T", 0) == 440


@pytest.mark.parametrize("protocol", DIALECTS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.usefixtures("frames")
async def test_killed_anywhere_it_goes_on_where_it_stood(
    autojump_clock: MockClock, open_node: OpenNode, protocol: str, seed: int
) -> None:
    """Again and again in mid-transfer, with and without loss of unsynced bytes; what was not in the log was never reported."""
    rng = random.Random(seed)
    disk = None
    async with open_node("m", protocol=protocol, from_first=True) as master:
        for _ in range(8):
            master.put(rng.randint(1, 60), size=rng.randint(10, 900))
            async with open_node("s", slave=True, protocol=protocol, disk=disk) as slave:
                await trio.sleep(2 * rng.random() ** 2)
                assert master.content().startswith(slave.content())
                disk = slave.disk.kill() if rng.random() < 0.5 else slave.disk.power_cut(rng.randrange(1000))
        master.put(10)
        async with open_node("s", slave=True, protocol=protocol, disk=disk) as slave:
            await slave.caught_up(master)
            assert slave.content() == master.content()
            assert slave.store.max_offset("T", 0) == master.store.max_offset("T", 0)


async def test_nothing_is_reported_that_is_not_in_the_log(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Not even by the report that is due every five seconds, while a new epoch takes as long as it likes to be written down."""
    async with open_node("m", from_first=True) as master, open_node("s", slave=True) as slave:
        await joined(master)
        client = slave.client
        held_up = HeldUp(client)
        client.workers = held_up
        master.put(100)
        await trio.sleep(12)
        assert held_up.waiting
        assert [one.appended for one in master.service.slaves()] == [slave.store.log.max_offset] == [0]

        held_up.gate.set()
        await slave.caught_up(master)
        await master.until(lambda: master.service.slaves()[0].appended == slave.store.log.max_offset > 0)


class HeldUp:
    """Workers that begin when they are let."""

    def __init__(self, client: HAClient) -> None:
        self.inner = client.workers
        self.gate = trio.Event()
        self.waiting = False

    async def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.waiting = True
        await self.gate.wait()
        return await self.inner.run(function, *args, **kwargs)


@pytest.mark.parametrize("long", [False, True])
async def test_a_damaged_frame_ends_the_connection_with_nothing_of_it_in_the_log(
    autojump_clock: MockClock, open_node: OpenNode, long: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection brings the bytes again, whole."""
    if long:
        request.getfixturevalue("long_frames")
    async with open_node("m", from_first=True) as master:
        master.put(200)
        damage = [0x5A5A]

        def checksum(body: memoryview) -> int:
            return damage.pop() if damage else zlib.crc32(body)

        monkeypatch.setattr("ledgermq.ha.classic.master.crc32", checksum)
        with capture_logs() as logs:
            async with open_node("s", slave=True) as slave:
                await slave.until(lambda: not damage)
                await trio.sleep(0.1)
                assert slave.content() == b""
                await slave.caught_up(master)
                assert slave.content() == master.content()
        refused = [entry for entry in logs if entry["event"] == "ha_connection_refused"]
        assert len(refused) == 1
        assert "damaged data frame" in refused[0]["reason"]


async def test_in_bulk_one_report_confirms_many_frames(
    autojump_clock: MockClock, open_node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bytes are reported at once, and those before while they come."""
    reported: list[int] = []
    report = AuthenticatedSlave.report

    def noted(self: AuthenticatedSlave, now: float) -> bytes:
        reported.append(self.log.max_offset)
        return report(self, now)

    monkeypatch.setattr(AuthenticatedSlave, "report", noted)
    async with open_node("m", from_first=True, segment_size=32 << 20) as master:
        master.put(200, size=60_000)
        async with open_node("s", slave=True, segment_size=32 << 20) as slave:
            await slave.until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
            assert slave.content() == master.content()
        end = master.store.log.max_offset
    growing = sorted(set(reported))
    assert growing[-1] == end
    assert 3 <= len(growing) < end // BATCH_MAX
    assert max(after - before for before, after in pairwise(growing)) < REPORT_BYTES + 2 * BATCH_MAX


async def test_for_what_is_known_to_come_place_is_reserved_and_for_a_follower_close_behind_none(
    autojump_clock: MockClock, open_node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each segment all that comes of it, before most of it is there; and never more."""
    size = 8 << 20
    reserved: list[tuple[int, int]] = []

    def noted(self: SimDiskFile, position: int, size: int) -> None:
        start = int(self.path.rpartition("/")[2])
        reserved.append((start + position, start + position + size))

    monkeypatch.setattr(SimDiskFile, "reserve", noted)
    async with open_node("m", from_first=True, segment_size=size) as master:
        master.put(200, size=60_000)
        end = master.store.log.max_offset
        async with open_node("s", slave=True, segment_size=size) as slave:
            await slave.caught_up(master)
            (first, first_end), (second, second_end) = reserved
            assert 0 < first <= 2 * BATCH_MAX
            assert first_end == size < second <= size + 2 * BATCH_MAX
            assert second_end == end

            reserved.clear()
            for _ in range(10):
                master.put(20, size=60_000)
                await slave.caught_up(master)
            assert reserved == []


class Empty:
    """A log without a byte."""

    min_offset = max_offset = flushed_offset = readable_offset = 0


@attrs.define
class Arriving:
    """A connection that brings `first` bytes, and then always as many as are asked for; and who receives them."""

    rest: memoryview
    first: int
    clock: SystemClock = attrs.field(factory=SystemClock)
    last_read: float = 0.0
    copied: int = 0

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        size, self.first = min(len(buffer), self.first, len(self.rest)), 1 << 30
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size

    def receive_now(self, _: memoryview) -> int | None:
        return None

    async def _take(self, _: object, core: BareSlave, received: memoryview, *, bulk: bool) -> None:
        core.receive(received, 0.0)
        self.copied += core.held


@given(st.integers(1, BATCH_MAX + 1000), st.integers(LONG_FRAME_BYTES, BATCH_MAX))
@example(450_000, BATCH_MAX)
@settings(max_examples=25, deadline=None)
def test_of_long_frames_hardly_a_byte_is_copied(first: int, size: int) -> None:
    """Wherever the first receive ends: what comes of them then goes from the buffer into the log."""
    frames = b"".join(BARE_HEADER.codec.pack(number * size, size) + bytes(size) for number in range(20))
    arriving = Arriving(memoryview(frames), first)
    core = BareSlave(Empty(), TransferLimits(), 0.0)
    receive: Any = HAClient._receive  # pyright: ignore[reportPrivateUsage]
    trio.run(receive, arriving, arriving, core)
    assert core.held == 0
    assert arriving.copied < 2 * BATCH_MAX


async def test_deriving_waits_for_a_slave_that_catches_up_and_not_for_one_that_follows_a_busy_master(
    autojump_clock: MockClock, open_node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a busy master sends at once is as much as in bulk, without end: its slave's consumers must keep up."""
    notices: list[bool] = []
    wake = Dispatcher.wake

    def noted(self: Dispatcher, *, more_coming: bool = False) -> None:
        notices.append(more_coming)
        wake(self, more_coming=more_coming)

    monkeypatch.setattr(Dispatcher, "wake", noted)
    async with open_node("m", from_first=True, segment_size=32 << 20) as master:
        master.put(100, size=60_000)
        async with open_node("s", slave=True, segment_size=32 << 20) as slave:
            await slave.caught_up(master)
            assert True in notices

            notices.clear()
            for _ in range(10):
                master.put(20, size=60_000)
                await slave.caught_up(master)
            assert notices
            assert True not in notices


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> set[Dispatcher]:
    """Those that do not get on, whatever is there to derive."""
    standing = set[Dispatcher]()
    derive = Dispatcher.round

    def derive_or_stand(self: Dispatcher, *most: int) -> bool:
        return self not in standing and derive(self, *most)

    monkeypatch.setattr(Dispatcher, "round", derive_or_stand)
    return standing


async def test_a_start_in_the_middle_of_catching_up_reads_only_what_is_not_derived_yet(
    autojump_clock: MockClock, open_node: OpenNode, stuck: set[Dispatcher]
) -> None:
    """Deriving far behind the log is written down as such, and is gone on with from there."""
    async with open_node("m", from_first=True) as master:
        master.put(600, size=300)
        async with open_node("s", slave=True) as slave:
            dispatcher = slave.store.dispatcher
            await slave.caught_up(master)
            await trio.sleep(10)
            derived = dispatcher.dispatched_offset
            stuck.add(dispatcher)
            master.put(600, size=300)
            await slave.until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
            await trio.sleep(10)
            assert slave.store.dispatch_behind_bytes > 5 * 16 * 1024
            disk = slave.disk.kill()
        with capture_logs() as logs:
            async with open_node("s", slave=True, disk=disk) as slave:
                opened = next(entry for entry in logs if entry["event"] == "store_opened")
                assert opened["read_from"] == derived
                await slave.until(lambda: slave.store.max_offset("T", 0) == 1200)


async def test_retention_keeps_what_is_not_derived_yet(
    autojump_clock: MockClock, open_node: OpenNode, stuck: set[Dispatcher]
) -> None:
    """However old it is: its messages would be gone before anybody could read them from the slave."""
    async with open_node("m", from_first=True) as master:
        master.put(600, size=300)
        async with open_node("s", slave=True) as slave:
            stuck.add(slave.store.dispatcher)
            await slave.until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
            await slave.store.log.flush()
            slave.clock.jump(1000 * 3_600_000)
            await slave.cleaner.delete_expired()
            assert slave.store.log.min_offset == 0

            stuck.clear()
            slave.store.dispatcher.wake()  # it may be waiting for more bytes, and none come
            await slave.caught_up(master)
            await slave.cleaner.delete_expired()
            assert slave.store.log.min_offset > 0
            assert slave.store.max_offset("T", 0) == 600


@pytest.mark.parametrize("seed", range(4))
async def test_killed_after_a_flush_that_ended_inside_a_record_it_derives_every_message(
    autojump_clock: MockClock, open_node: OpenNode, seed: int
) -> None:
    """What a slave flushes does not keep to records; the next start must not begin to read there."""
    rng = random.Random(seed)
    async with open_node("m", from_first=True) as master:
        async with open_node("s", slave=True) as slave:
            log = slave.local_log
            log.flush_interval_seconds = 0.73  # not just before the mark is written
            for _ in range(rng.randint(300, 600)):
                master.put(1, size=rng.randint(100, 1500))
                await trio.sleep(0.02)
                # As if only the beginning of the last record had come when the flush began.
                log.flushed_offset = min(log.flushed_offset, log.max_offset - 50)
            disk = slave.disk.kill()
        master.put(10)
        async with open_node("s", slave=True, disk=disk) as slave:
            count = master.store.max_offset("T", 0)
            await slave.until(lambda: slave.store.max_offset("T", 0) == count)
            lost = [n for n in range(count) if slave.store.unit("T", 0, n) != master.store.unit("T", 0, n)]
            assert lost == []
