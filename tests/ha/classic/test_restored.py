# pyright: reportOptionalMemberAccess=false, reportOperatorIssue=false
"""A master whose store was replaced by an older copy of itself."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from ledgermq.store.statuses import PutStatus
from ledgermq.testing.sim.disk import SimDisk

from ..nodes import OpenNode, copy_tree, incoming


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
