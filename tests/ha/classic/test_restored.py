# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false
"""A master whose store was replaced by an older copy of itself."""

from __future__ import annotations

import random
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from ledgermq.store.statuses import PutStatus
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.testing.sim.workers import SimWorkers

from ..nodes import Joined, OpenNode, copy_tree, incoming, power_cut_in_the_log


@pytest.mark.parametrize("count", [1, 30])
async def test_a_restored_master_that_writes_on_is_not_taken_for_the_one_that_went_before(
    autojump_clock: MockClock, open_node: OpenNode, count: int
) -> None:
    """The copy was made between two lives, so both masters began an epoch at the same place; their logs part there."""
    async with open_node("s", slave=True) as slave:
        async with open_node("m", sync_master=True) as master:
            await master.until(lambda: master.service.acks.slave_count == 1)
            parted_at = master.put(5)
            await slave.caught_up(master)
            disk = master.disk.kill()
        copy = SimDisk(random.Random(9))
        copy_tree(disk, copy, "store")
        async with open_node("m", sync_master=True, disk=disk) as master:
            await slave.until(lambda: slave.client.joined_at is not None)
            master.put(10)
            await slave.caught_up(master)
            kept = slave.content()
        await slave.until(lambda: slave.client.joined_at is None)
        async with open_node("m", sync_master=True, disk=copy) as master:
            master.put(count, size=120)

            await slave.until(lambda: slave.client.refusal is not None)

            assert f"is another one from {parted_at} on" in (slave.client.refusal or "")
            assert slave.content() == kept


async def test_a_slave_that_was_started_again_keeps_what_its_master_had_shown(
    autojump_clock: MockClock, open_node: OpenNode
) -> None:
    """With SYNC_FLUSH a master that comes back has all that it has shown, unless its store is an older copy."""
    async with open_node("m", sync_master=True, flush="SYNC_FLUSH") as master:
        async with open_node("s", slave=True, sync_flush=True, flush="SYNC_FLUSH") as slave:
            await master.until(lambda: master.service.acks.slave_count == 1)
            assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
            copy = SimDisk(random.Random(9))
            copy_tree(master.disk, copy, "store")
            assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
            await slave.caught_up(master)
            kept = slave.content()
            await trio.sleep(2)
        slave_disk = slave.disk
        master.disk.kill()
    async with (
        open_node("m", sync_master=True, disk=copy, flush="SYNC_FLUSH"),
        open_node("s", slave=True, sync_flush=True, disk=slave_disk, flush="SYNC_FLUSH") as slave,
    ):
        await slave.until(lambda: slave.client.refusal is not None)

        assert slave.content() == kept


@pytest.mark.parametrize("age_seconds", [0.1, 0.3, 3.0])
async def test_a_slave_that_is_killed_and_started_again_refuses_a_copy_of_a_moment_ago(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined, age_seconds: float
) -> None:
    """A killed slave starts with exactly the readable limit that it had in memory, so it keeps what was acknowledged since."""
    old, ends = SimDisk(random.Random(9)), list[int]()
    async with (
        open_node("s", slave=True, sync_flush=True, flush="SYNC_FLUSH") as slave,
        open_node("m", sync_master=True, flush="SYNC_FLUSH") as master,
    ):
        await joined(master)
        killed_at = trio.current_time() + 3.95
        while trio.current_time() < killed_at:
            if trio.current_time() >= killed_at - age_seconds and not ends:
                copy_tree(master.disk, old, "store")
                ends.append(master.store.log.max_offset)
            assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
            await trio.sleep(0.02)
        kept, slave_disk = slave.content(), slave.disk.kill()
        master.disk.kill()

    async with (
        open_node("m", sync_master=True, disk=old, flush="SYNC_FLUSH"),
        open_node("s", slave=True, sync_flush=True, disk=slave_disk, flush="SYNC_FLUSH") as slave,
    ):
        await slave.until(lambda: slave.client.refusal is not None)

        assert f"log goes to {len(kept)}, and its master's is another one from {ends[0]} on" in (slave.client.refusal or "")
        assert slave.content() == kept


@pytest.mark.parametrize("slave_loses", ["nothing", "its process", "its power"])
async def test_a_slave_gives_up_what_a_sync_flush_master_lost_before_it_was_flushed(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined, slave_loses: str
) -> None:
    """Power fails before the master has synced what its slave has: nobody was told of it, and both go on by themselves."""
    async with (
        open_node("s", slave=True, sync_flush=True, flush="SYNC_FLUSH") as slave,
        open_node("m", sync_master=True, flush="SYNC_FLUSH") as master,
    ):
        await joined(master)
        for _ in range(30):
            assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
            await trio.sleep(0.02)
        acknowledged_end = master.store.log.max_offset
        await slave.caught_up(master)
        master.disk.faults.sync_error = 1.0
        master.put(10, size=1000)
        await slave.until(lambda: slave.store.log.flushed_offset > acknowledged_end)
        await trio.sleep(1)
        ahead_end = slave.store.log.max_offset
        master.disk.faults.calm()
        master_disk, slave_disk = power_cut_in_the_log(master.disk, acknowledged_end), slave.disk
        if slave_loses != "nothing":
            slave_disk = slave_disk.kill() if slave_loses == "its process" else slave_disk.power_cut(1)
    async with (
        open_node("m", sync_master=True, disk=master_disk, flush="SYNC_FLUSH") as master,
        open_node("s", slave=True, sync_flush=True, disk=slave_disk, flush="SYNC_FLUSH") as slave,
    ):
        assert acknowledged_end <= master.store.log.max_offset < ahead_end
        assert slave.store.log.max_offset == ahead_end
        await joined(master)
        assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
        await slave.caught_up(master)

        assert slave.content() == master.content()


async def test_a_slave_refuses_a_copy_from_before_an_epoch_of_which_it_has_only_reported_bytes(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """The first put is answered, and the slave does not hear of that: but its master has never had the epoch of these bytes."""
    settings = {"sync_flush": True, "flush": "SYNC_FLUSH"}
    async with open_node("s", slave=True, **settings) as slave, open_node("m", sync_master=True, **settings) as master:
        await joined(master)
        assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
        await slave.caught_up(master)
        copied_end, slave_disk, master_disk = master.store.log.max_offset, slave.disk.kill(), master.disk.kill()
    old = SimDisk(random.Random(9))
    copy_tree(master_disk, old, "store")
    async with (
        open_node("s", slave=True, disk=slave_disk, **settings) as slave,
        open_node("m", sync_master=True, disk=master_disk, **settings) as master,
    ):
        await joined(master)
        cast("SimWorkers", master.world.workers).delay_seconds_max = 1.0
        assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
        assert slave.store.log.readable_offset == copied_end < slave.store.log.max_offset
        kept, slave_disk = slave.content(), slave.disk.kill()
        master.disk.kill()
    async with (
        open_node("m", sync_master=True, disk=old, **settings),
        open_node("s", slave=True, disk=slave_disk, **settings) as slave,
    ):
        await slave.until(lambda: slave.client.refusal is not None)

        assert f"is another one from {copied_end} on" in (slave.client.refusal or "")
        assert slave.content() == kept


async def test_a_slave_gives_up_a_whole_epoch_that_its_master_lost_before_it_was_flushed(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """Power fails during the first flush of a master: it still knows that it began the epoch, so its store is no older copy."""
    settings = {"sync_flush": True, "flush": "SYNC_FLUSH"}
    async with open_node("s", slave=True, **settings) as slave:
        async with open_node("m", sync_master=True, **settings) as master:
            await joined(master)
            assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
            await slave.caught_up(master)
            answered_end, disk = master.store.log.max_offset, master.disk.kill()
        async with open_node("m", sync_master=True, disk=disk, **settings) as master:
            await joined(master)
            cast("SimWorkers", master.world.workers).delay_seconds_max = 100.0
            master.put(10)
            await slave.until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
            assert master.store.log.flushed_offset == answered_end
            disk = power_cut_in_the_log(master.disk, answered_end, 8)
        async with open_node("m", sync_master=True, disk=disk, **settings) as master:
            assert master.store.log.max_offset == answered_end
            await joined(master)
            assert (await master.store.put_one(incoming())).status is PutStatus.PUT_OK
            await slave.caught_up(master)

            assert slave.content() == master.content()
