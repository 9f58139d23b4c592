"""How much of its log a slave shows that is started again while its master is away."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from ledgermq.ha.classic.node import StoreFollower
from ledgermq.store.checkpoint import Checkpoint
from ledgermq.testing.sim.disk import SimDisk

from ..nodes import Joined, OpenNode

FLUSH_INTERVAL_SECONDS = 0.5


def kept_bound(disk: SimDisk) -> int:
    """What the checkpoint file says now."""
    checkpoint = Checkpoint(disk, "store/checkpoint")
    checkpoint.load()
    return checkpoint.confirm_offset


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_killed_slave_shows_alone_all_that_it_had_shown(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined, seed: int, flush: str
) -> None:
    """Master and slave are killed in the midst of puts: the slave alone shows what it had shown, to the last message."""
    rng = random.Random(seed)
    async with open_node("s", slave=True) as slave, open_node("m", flush=flush) as master:
        await joined(master)
        until = trio.current_time() + 2 + 8 * rng.random()
        while trio.current_time() < until:
            master.put()
            await trio.sleep(0.05)
        shown, disk = slave.store.max_offset("T", 0), slave.disk.kill()
        assert shown > 20

    async with open_node("s", slave=True, disk=disk) as slave:
        assert slave.store.max_offset("T", 0) == shown


@pytest.mark.parametrize("seed", range(4))
async def test_a_slave_that_lost_power_shows_alone_what_could_be_read_a_flush_interval_before(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined, seed: int
) -> None:
    """What was shown half a second before is on the medium: the messages, and that they may be shown."""
    rng, shown = random.Random(seed), list[tuple[float, int]]()
    async with (
        open_node("s", slave=True, flush="SYNC_FLUSH") as slave,
        open_node("m", flush="SYNC_FLUSH") as master,
    ):
        await joined(master)
        until = trio.current_time() + 2 + 8 * rng.random()
        while trio.current_time() < until:
            master.put()
            await trio.sleep(0.05)
            shown.append((trio.current_time(), slave.store.max_offset("T", 0)))
        disk = slave.disk.power_cut(seed)

    async with open_node("s", slave=True, disk=disk) as slave:
        promised = max(count for at, count in shown if at <= until - FLUSH_INTERVAL_SECONDS)
        assert promised > 20
        assert promised <= slave.store.max_offset("T", 0) <= shown[-1][1]


async def test_a_slave_killed_while_nothing_comes_shows_everything_alone(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Kill the master, and half a second later the slave: every message is read from the slave alone."""
    async with open_node("s", slave=True) as slave:
        async with open_node("m") as master:
            await joined(master)
            master.put(30)
            await slave.caught_up(master)
        await trio.sleep(FLUSH_INTERVAL_SECONDS)
        disk = slave.disk.kill()

    async with open_node("s", slave=True, disk=disk) as slave:
        assert slave.store.max_offset("T", 0) == 30


@pytest.mark.parametrize("cut_power", [False, True])
async def test_a_slave_stopped_cleanly_shows_alone_what_it_showed_last(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined, cut_power: bool
) -> None:
    """Not a message is hidden, though it came in the last moment; a power cut after the stop changes nothing."""
    async with open_node("m", flush="SYNC_FLUSH") as master:
        async with open_node("s", slave=True) as slave:
            await joined(master)
            for count in range(1, 40):
                master.put()
                await slave.until(lambda: slave.store.max_offset("T", 0) == count)  # noqa: B023
            disk = slave.disk
        end = master.store.log.max_offset
    disk = disk.power_cut(1) if cut_power else disk.kill()

    async with open_node("s", slave=True, disk=disk) as slave:
        assert slave.store.max_offset("T", 0) == 39
        assert kept_bound(disk) == slave.store.log.readable_limit == end


async def test_what_takes_the_place_of_cut_messages_is_not_shown_on_their_account(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """The master lost messages that consumers had seen, and may lose those that came instead: a killed slave shows neither."""
    async with open_node("s", slave=True) as slave:
        async with open_node("m") as master:
            await joined(master)
            master.put(20)
            await trio.sleep(2)
            master.put(20)
            await slave.caught_up(master)
            disk = master.disk.power_cut(4)
        await trio.sleep(2)
        seen_end = slave.store.log.max_offset
        assert kept_bound(slave.disk) == seen_end
        async with open_node("m", flush="SYNC_FLUSH", disk=disk) as master:
            kept_end, kept_count = master.store.log.max_offset, master.store.max_offset("T", 0)
            assert 0 < kept_end < seen_end
            await joined(master)
            master.disk.faults.sync_error = 1.0
            master.put(60, topic="U")
            await slave.until(lambda: slave.store.log.max_offset > seen_end)
            killed = slave.disk.kill()

    async with open_node("s", slave=True, disk=killed) as slave:
        assert slave.store.log.max_offset > seen_end
        assert slave.store.log.readable_offset == kept_end
        assert (slave.store.max_offset("T", 0), slave.store.max_offset("U", 0)) == (kept_count, 0)


async def test_what_a_slave_holds_and_may_not_show_counts_as_behind(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Whoever waits until `dispatchBehindBytes` is 0 then finds everything there."""
    async with open_node("s", slave=True) as slave:
        async with open_node("m", flush="SYNC_FLUSH") as master:
            await joined(master)
            master.put()
            await slave.caught_up(master)
            shown_end = slave.store.log.max_offset
            master.disk.faults.sync_error = 1.0
            master.put(20)
            end = master.store.log.max_offset
            await slave.until(lambda: slave.store.log.max_offset == end)
        disk = slave.disk

    async with open_node("s", slave=True, disk=disk) as slave:
        assert slave.store.max_offset("T", 0) == 1
        assert slave.store.dispatch_behind_bytes == end - shown_end


async def test_a_slave_keeps_no_word_about_bytes_that_it_lost(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Others may come in their place: a start without them brings the bound down, on the medium, before it follows anybody."""
    async with open_node("m") as master, open_node("s", slave=True) as slave:
        await joined(master)
        master.put(20)
        await slave.caught_up(master)
        await trio.sleep(FLUSH_INTERVAL_SECONDS)
        end = slave.store.log.max_offset
        disk = slave.disk.kill()
    assert kept_bound(disk) == end
    disk.open(f"store/commitlog/{0:020d}").clear(end - 100)

    async with open_node("s", slave=True, disk=disk) as slave:
        left = slave.store.log.max_offset
        assert slave.store.log.readable_limit == left < end
        disk = slave.disk.power_cut(1)

    assert kept_bound(disk) == left


async def test_a_masters_word_covers_only_what_has_come(autojump_clock: MockClock, open_node: OpenNode) -> None:
    """Before more comes, the master may have lost power: behind the slave's end it then has other bytes than it spoke of."""
    async with open_node("m") as master, open_node("s", slave=True, protocol="ledgermq") as slave:
        master.put(3)
        log = slave.local_log
        follower = StoreFollower(slave.store, log, slave.node.before_cut)
        follower.limit_readable(1 << 20)
        log.append_raw(0, master.content())

        assert log.readable_offset == 0
        follower.limit_readable(1 << 20)
        assert log.readable_offset == log.max_offset > 0


@pytest.mark.parametrize("how", ["stopped", "killed", "power cut"])
async def test_a_master_that_comes_back_as_slave_shows_alone_what_it_had_written_down_as_safe(
    autojump_clock: MockClock, open_node: OpenNode, how: str
) -> None:
    """All of it after a clean stop; else up to its last checkpoint, for the new master may have other bytes behind it."""
    async with open_node("a", from_first=True) as old:
        old.put(20)
        async with open_node("b", slave=True) as slave:
            await slave.caught_up(old)
            slave_disk = slave.disk.kill()
        await trio.sleep(10)
        marked = old.store.max_offset("T", 0)
        old.put(5)
        await old.until(lambda: old.store.max_offset("T", 0) == marked + 5)
        old_disk = old.disk
        if how != "stopped":
            old_disk = old_disk.kill() if how == "killed" else old_disk.power_cut(3)

    async with open_node("a", slave=True, disk=old_disk) as alone:
        await trio.sleep(60)
        assert alone.store.max_offset("T", 0) == (marked + 5 if how == "stopped" else marked)
        disk = alone.disk

    async with open_node("b", disk=slave_disk) as new, open_node("a", slave=True, disk=disk.kill()) as follower:
        new.put(7, topic="U")
        await follower.caught_up(new)
        assert (follower.store.max_offset("T", 0), follower.store.max_offset("U", 0)) == (20, 7)
