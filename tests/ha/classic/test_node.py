"""Masters and slaves over real stores on simulated disks, in virtual time."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from ledgermq.ha.classic.commitlog import ClassicCommitLog
from ledgermq.ha.classic.epochs import Epoch, EpochList
from ledgermq.ha.classic.files import EpochFile
from ledgermq.ha.classic.node import StoreFollower
from ledgermq.ha.classic.slave import HAClient
from ledgermq.store.statuses import GetStatus, PutStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.network import Stream

from ..nodes import Joined, Lines, OpenNode, events_of, message

DIALECTS = ["ledgermq", "rocketmq"]


@pytest.mark.parametrize("protocol", DIALECTS)
@pytest.mark.parametrize("piece_max", [1 << 20, 11])
async def test_a_slave_is_its_master_byte_for_byte_and_serves_reads(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined, protocol: str, piece_max: int
) -> None:
    """Puts before and after the slave came, over several segments, all end up equal and readable there."""
    lines.piece_max = piece_max
    async with open_node("m", protocol=protocol, from_first=True) as master:
        master.put(200)
        async with open_node("s", slave=True, protocol=protocol) as slave:
            await slave.caught_up(master)
            for _ in range(20):
                master.put(5)
                await trio.sleep(0.02)
            await slave.caught_up(master)

            assert slave.content() == master.content()
            assert len(slave.content()) > 3 * 16 * 1024
            found = slave.store.get("T", 0, 299, 10)
            assert (found.status, found.max_offset) == (GetStatus.FOUND, 300)


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_a_fresh_slave_gets_the_last_segment_and_its_queues_begin_there(
    autojump_clock: MockClock, open_node: OpenNode, protocol: str
) -> None:
    """RocketMQ's default; older messages are readable from the master only."""
    async with open_node("m", protocol=protocol) as master:
        master.put(300)
        async with open_node("s", slave=True, protocol=protocol) as slave:
            await slave.caught_up(master)

            last_segment = master.store.log.max_offset // 16384 * 16384
            assert slave.store.log.min_offset == last_segment > 0
            first = slave.store.min_offset("T", 0)
            assert first > 0
            assert slave.store.get("T", 0, first, 1).status is GetStatus.FOUND
            assert slave.store.max_offset("T", 0) == 300


@pytest.mark.parametrize("from_first", [False, True])
@pytest.mark.parametrize("protocol", DIALECTS)
async def test_a_slave_knows_where_queues_go_on_of_which_it_is_sent_no_message(
    autojump_clock: MockClock, open_node: OpenNode, protocol: str, *, from_first: bool
) -> None:
    """They are in older segments, or have expired; when the slave is promoted, it gives out none of their offsets again."""
    async with open_node("m", protocol=protocol, from_first=from_first) as master:
        master.put(7, topic="Idle")
        master.put(300)
        if from_first:
            segments = master.local_log.segments
            await master.store.queue_ends.append(segments.files[2].start)
            for segment in segments.files[:2]:
                segments.remove(segment)
        async with open_node("s", slave=True, protocol=protocol) as slave:
            await slave.caught_up(master)
            await trio.sleep(1)
            await slave.caught_up(master)
            assert slave.store.log.min_offset > 0
            disk = slave.disk
    async with open_node("s", disk=disk.kill(), protocol=protocol) as promoted:
        assert promoted.store.put([message()]).queue_offsets == [300]
        assert (promoted.store.min_offset("Idle", 0), promoted.store.max_offset("Idle", 0)) == (7, 7)


async def test_a_slave_learns_where_queues_go_on_although_the_log_took_no_event_when_it_joined(
    autojump_clock: MockClock, open_node: OpenNode
) -> None:
    """The disk of the master may refuse for a while, or too few replicas be in sync before this one is."""
    async with open_node("m") as master:
        master.put(7, topic="Idle")
        master.put(300)
        master_log = master.store.log
        assert isinstance(master_log, ClassicCommitLog)
        master_log.refuse("it takes nothing now")
        async with open_node("s", slave=True) as slave:
            await slave.caught_up(master)
            await trio.sleep(10)
            master_log.refuse(None)
            await trio.sleep(10)
            await slave.caught_up(master)

            assert slave.store.log.min_offset > 0
            assert slave.store.max_offset("Idle", 0) == 7


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_sync_master_waits_for_its_slave(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined, protocol: str
) -> None:
    """PUT_OK once the slave has it; FLUSH_SLAVE_TIMEOUT after 3 s of a stalled one; SLAVE_NOT_AVAILABLE at once without any."""
    async with open_node("m", protocol=protocol, sync_master=True) as master:
        started = trio.current_time()
        assert (await master.store.put_one(message())).status is PutStatus.SLAVE_NOT_AVAILABLE
        assert trio.current_time() - started < 0.1

        async with open_node("s", slave=True, protocol=protocol) as slave:
            await joined(master)
            result = await master.store.put_one(message())
            assert result.status is PutStatus.PUT_OK
            assert slave.store.log.max_offset == master.store.log.max_offset

            lines.lines[-1].stalled = True
            started = trio.current_time()
            assert (await master.store.put_one(message())).status is PutStatus.FLUSH_SLAVE_TIMEOUT
            assert 3.0 <= trio.current_time() - started < 3.3


async def test_many_puts_wait_at_once_and_one_report_answers_them(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """A thousand producers wait without a task or a timer of their own, and all are answered."""
    async with open_node("m", sync_master=True) as master, open_node("s", slave=True):
        await joined(master)
        statuses: list[PutStatus] = []
        for _ in range(1000):
            end = master.put()
            master.store.log.when_stored(end, statuses.append)
        assert statuses == []

        await master.until(lambda: len(statuses) == 1000)
        assert set(statuses) == {PutStatus.PUT_OK}


async def test_a_stalled_slave_costs_an_async_masters_producers_nothing(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """Puts go on while the slave reads nothing; it is given up after 20 s of silence, and catches up when it is back."""
    async with open_node("m") as master, open_node("s", slave=True) as slave:
        await joined(master)
        lines.lines[-1].stalled = True
        started = trio.current_time()
        for _ in range(100):
            assert (await master.store.put_one(message(1000))).status is PutStatus.PUT_OK
        assert trio.current_time() == started

        with capture_logs() as logs:
            await trio.sleep(25)
            assert events_of(logs, "silent_slave_closed")
        lines.lines[0].release()
        await slave.caught_up(master)
        assert slave.content(slave.store.log.min_offset) == master.content(slave.store.log.min_offset)


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_an_idle_pair_stays_connected(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined, protocol: str
) -> None:
    """Heartbeats and reports keep both sides content for as long as nothing happens."""
    async with open_node("m", protocol=protocol) as master, open_node("s", slave=True, protocol=protocol):
        master.put()
        await joined(master)
        await trio.sleep(300)
        assert len(lines.lines) == 1
        assert master.service.slaves()[0].last_ack_seconds < 6


async def test_three_copies_need_two_slaves(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """inSyncReplicas counts the master; the slowest needed slave decides, others may lag as they like."""
    async with (
        open_node("m", sync_master=True, in_sync_replicas=3) as master,
        open_node("one", slave=True, broker_id=1),
        open_node("two", slave=True, broker_id=2),
    ):
        await joined(master, 2)
        assert (await master.store.put_one(message())).status is PutStatus.PUT_OK

        async with open_node("three", slave=True, broker_id=3):
            await joined(master, 3)
            lines.lines[-1].stalled = True
            assert (await master.store.put_one(message())).status is PutStatus.PUT_OK
            lags = sorted(slave.lag_bytes for slave in master.service.slaves())
            assert lags[0] == lags[1] == 0 < lags[2]

            lines.lines[0].stalled = True
            assert (await master.store.put_one(message())).status is PutStatus.FLUSH_SLAVE_TIMEOUT


async def test_with_too_few_copies_within_reach_a_put_is_refused_before_it_is_stored(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """minInSyncReplicas refuses; nothing is in the log."""
    async with open_node("m", sync_master=True, min_in_sync_replicas=2) as master:
        refused = await master.store.put_one(message())
        assert refused.status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        assert "minInSyncReplicas" in refused.remark
        assert master.store.log.max_offset == 0

        async with open_node("s", slave=True):
            await joined(master)
            assert (await master.store.put_one(message())).status is PutStatus.PUT_OK


async def test_a_slave_that_began_in_the_middle_of_an_epoch_is_known_again_after_a_kill(
    autojump_clock: MockClock, open_node: OpenNode
) -> None:
    """It has noted the epochs of what it never got: without them its log would belong to no history."""
    async with open_node("m") as master:
        master.put(300)
        async with open_node("s", slave=True) as slave:
            await slave.caught_up(master)
            assert slave.store.log.min_offset > 0
            disk = slave.disk.kill()
        master.put(10)
        async with open_node("s", slave=True, disk=disk) as slave:
            await slave.caught_up(master)
            assert slave.content() == master.content(slave.store.log.min_offset)


async def test_an_epoch_of_which_no_byte_is_left_counts_for_nothing(autojump_clock: MockClock, open_node: OpenNode) -> None:
    """A power cut took them from the slave: what it goes on with is where its log ends, not where the epoch began."""
    async with open_node("m", from_first=True) as master:
        master.put(10)
        async with open_node("s", slave=True) as slave:
            await slave.caught_up(master)
            end, disk = slave.store.log.max_offset, slave.disk.kill()
        file = EpochFile(disk, "store")
        file.save(EpochList((*file.load().entries, Epoch(9, end + 500, bytes(16), 1))))
        master.put(20)
        async with open_node("s", slave=True, disk=disk) as slave:
            await slave.caught_up(master)
            assert slave.content() == master.content()
            assert slave.client.epochs == master.service.epochs
            assert EpochFile(slave.disk, "store").load() == master.service.epochs, "else it counts once the log is longer"


async def test_a_full_disk_stops_a_slave_and_room_lets_it_go_on(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Its log stays a prefix of the master's meanwhile; the master does not notice but for the lag."""
    async with open_node("m", from_first=True) as master, open_node("s", slave=True) as slave:
        await joined(master)
        slave.disk.faults.capacity = 40_000
        master.put(200, size=500)
        with capture_logs() as logs:
            await trio.sleep(20)
        assert any("cannot be written" in entry["reason"] for entry in events_of(logs, "ha_connection_refused"))
        held = slave.content()
        assert len(held) < len(master.content())
        assert master.content().startswith(held)

        slave.disk.faults.capacity = None
        await slave.caught_up(master)
        assert slave.content() == master.content()


@pytest.mark.parametrize(
    ("master_speaks", "slave_speaks", "set_on_master"),
    [("ledgermq", "rocketmq", "rocketmq"), ("rocketmq", "ledgermq", "ledgermq")],
)
async def test_the_wrong_dialect_is_named_on_both_sides(
    autojump_clock: MockClock, open_node: OpenNode, master_speaks: str, slave_speaks: str, set_on_master: str
) -> None:
    """Each log says which key would make the two understand each other."""
    async with open_node("m", protocol=master_speaks) as master:
        master.put()
        with capture_logs() as logs:
            async with open_node("s", slave=True, protocol=slave_speaks):
                await trio.sleep(1)
        said = {entry.get("set_ha_protocol") for entry in events_of(logs, "ha_peer_speaks_other_protocol")}
        assert said == {"ledgermq", "rocketmq"}
        assert any(
            entry.get("remote") and entry["set_ha_protocol"] == set_on_master
            for entry in events_of(logs, "ha_peer_speaks_other_protocol")
        )


@pytest.mark.parametrize("protocol", DIALECTS)
@pytest.mark.parametrize("segment_size", [8 * 1024, 32 * 1024])
async def test_another_segment_size_is_refused_with_the_key_to_set(
    autojump_clock: MockClock, open_node: OpenNode, protocol: str, segment_size: int
) -> None:
    """Nothing is copied, and the slave's log names mappedFileSizeCommitLog."""
    async with open_node("m", protocol=protocol, batch_size=16 * 1024) as master:
        while master.put(size=1000) < 60 * 1024:
            pass
        with capture_logs() as logs:
            async with open_node("s", slave=True, protocol=protocol, segment_size=segment_size) as slave:
                await trio.sleep(2)
                assert slave.store.log.max_offset == 0
                assert "mappedFileSizeCommitLog" in (slave.client.refusal or "")
        assert events_of(logs, "ha_connection_refused")


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_the_master_goes_and_returns_and_the_slave_is_there(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined, protocol: str
) -> None:
    """While it is away the slave serves reads; afterwards it follows on by itself."""
    async with open_node("s", slave=True, protocol=protocol) as slave:
        async with open_node("m", from_first=True, protocol=protocol) as master:
            master.put(10)
            await slave.caught_up(master)
            disk = master.disk
        await trio.sleep(60)
        assert slave.store.get("T", 0, 0, 10).status is GetStatus.FOUND
        async with open_node("m", disk=disk.kill(), protocol=protocol) as master:
            master.put(10)
            await slave.caught_up(master)
            assert slave.content() == master.content()
            assert slave.client.epochs is not None
            assert len(slave.client.epochs) == (2 if protocol == "ledgermq" else 0)


async def test_a_master_on_a_full_disk_starts_and_serves_slaves_once_there_is_room(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Its epoch cannot be written down yet. Until it can, no slave may follow and nothing is stored: after a kill, that would
    count as part of the epoch before, which a node that was master then may continue in another way."""
    async with open_node("m") as master:
        master.put(10)
        disk = master.disk
    full = disk.kill()
    full.faults.capacity = 0
    async with open_node("m", disk=full) as master, open_node("s", slave=True):
        assert master.store.get("T", 0, 0, 1).status is GetStatus.FOUND
        await trio.sleep(22)
        assert master.service.acks.slave_count == 0

        recovered_end = master.store.log.max_offset
        full.faults.capacity = None
        with pytest.raises(
            AssertionError, match=r"the epoch of this master cannot be written down \(No space left on device\)"
        ):
            master.put()
        await joined(master)
        master.put()
        last = master.service.epochs.last
        assert last is not None
        assert last.start == recovered_end


async def test_a_master_that_cannot_write_its_epoch_outlives_a_disk_that_cannot_be_read_either(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Its epoch is tried again every few seconds, and what fails then must not end the broker that is read meanwhile."""
    async with open_node("m") as master:
        master.put(10)
        disk = master.disk
    full = disk.kill()
    full.faults.capacity = 0
    async with open_node("m", disk=full) as master, open_node("s", slave=True):
        full.faults.read_error = full.faults.open_error = 1.0
        await trio.sleep(22)
        full.faults.calm()

        await joined(master)
        assert master.store.get("T", 0, 0, 1).status is GetStatus.FOUND


async def test_a_master_that_stops_before_it_serves_leaves_no_port_open(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines
) -> None:
    """Its epoch cannot be written down, so that it has not begun to accept slaves. It could not listen there again."""
    disk = SimDisk(random.Random("m"))
    async with open_node("m", disk=disk):
        pass
    disk.faults.capacity = 0
    async with open_node("m", disk=disk):
        assert lines.listening

    assert not lines.listening


async def test_a_slave_shows_nothing_that_its_master_may_still_lose(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Else a power cut of the master gives the offset to another message, and who has read the first never sees that one."""
    async with open_node("s", slave=True) as slave, open_node("m", flush="SYNC_FLUSH") as master:
        await joined(master)
        master.put()
        await slave.until(lambda: slave.store.max_offset("T", 0) == 1)
        master.disk.faults.sync_error = 1.0
        master.put()
        await slave.until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
        await trio.sleep(20)

        assert slave.store.get("T", 0, 1, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
        disk = slave.disk.kill()

    # Nor does it when it starts again while the master is away.
    async with open_node("s", slave=True, disk=disk) as slave:
        await trio.sleep(1)
        assert slave.store.max_offset("T", 0) <= 1


async def test_a_slave_shows_what_its_master_has_flushed_at_once(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """It is notified without waiting for the next heartbeat, remembers it over a clean restart, and a flush alone is enough."""
    async with open_node("m", flush="SYNC_FLUSH") as master, open_node("s", slave=True) as slave:
        await joined(master)
        for count in range(1, 6):
            master.put()
            started = trio.current_time()
            await slave.until(lambda: slave.store.max_offset("T", 0) == count)  # noqa: B023
            assert trio.current_time() - started < 0.1
        disk = slave.disk
    async with open_node("s", slave=True, disk=disk) as slave:
        assert slave.store.max_offset("T", 0) == 5


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_a_report_to_the_master_leaves_before_the_own_store_is_notified(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """A producer waits for the report, and nobody yet for the slave's queues."""
    order: list[str] = []
    drain, grew = HAClient._drain, StoreFollower.log_grew  # pyright: ignore[reportPrivateUsage]

    async def drained(self: HAClient, stream: Stream) -> None:
        order.append("master")
        await drain(self, stream)

    def noticed(self: StoreFollower, *, more: bool) -> None:
        order.append("store")
        grew(self, more=more)

    async with open_node("m", protocol=protocol) as master, open_node("s", slave=True, protocol=protocol) as slave:
        await joined(master)
        monkeypatch.setattr(HAClient, "_drain", drained)
        monkeypatch.setattr(StoreFollower, "log_grew", noticed)
        master.put()
        await slave.caught_up(master)

    assert order[:2] == ["master", "store"]


@pytest.mark.parametrize("protocol", DIALECTS)
async def test_what_came_is_served_though_its_report_does_not_reach_the_master(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """It is in the log, and a master that is gone sends nothing more that would have it looked at."""

    async def broken(self: HAClient, stream: Stream) -> None:
        raise trio.BrokenResourceError

    async with open_node("m", protocol=protocol) as master, open_node("s", slave=True, protocol=protocol) as slave:
        await joined(master)
        monkeypatch.setattr(HAClient, "_drain", broken)
        master.put()
        await slave.until(lambda: slave.store.max_offset("T", 0) == 1)


async def test_a_change_of_role_that_a_stop_overtakes_ends_with_it(autojump_clock: MockClock, open_node: OpenNode) -> None:
    """The node's tasks may have ended already; the stop of a broker then raised an error instead of ending."""
    async with open_node("n") as running:
        pass

    with trio.CancelScope() as stopping:
        stopping.cancel()
        await running.node.follow(1, term=0)

    assert stopping.cancelled_caught
