"""Nodes that replicate over RocketMQ's protocol of controller mode, over real stores on simulated disks, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.ha.classic.epoch_checkpoint import decode_checkpoint
from ledgermq.store.statuses import GetStatus, PutStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.files import read_file

from ..nodes import Joined, Lines, OpenNode, events_of, message

AUTOSWITCH: dict[str, Any] = {"protocol": "rocketmq", "autoswitch": True, "from_first": True}


def kept_epochs(disk: SimDisk) -> list[tuple[int, int]]:
    """The epochs in RocketMQ's file."""
    return [(entry.number, entry.start) for entry in decode_checkpoint(read_file(disk, "store/epochFileCheckpoint"))]


@pytest.mark.parametrize("piece_max", [1 << 20, 11])
async def test_a_slave_is_its_master_byte_for_byte_and_serves_reads(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, piece_max: int
) -> None:
    """From the first segment on, over several segments, with the epochs in RocketMQ's file on both disks."""
    lines.piece_max = piece_max
    async with open_node("m", **AUTOSWITCH) as master:
        master.put(200)
        async with open_node("s", slave=True, **AUTOSWITCH) as slave:
            await slave.caught_up(master)
            master.put(100)
            await slave.caught_up(master)

            assert slave.content() == master.content()
            assert len(slave.content()) > 2 * 16 * 1024
            assert slave.store.get("T", 0, 299, 1).status is GetStatus.FOUND
            assert kept_epochs(slave.disk) == kept_epochs(master.disk) == [(1, 0)]


async def test_a_slave_shows_what_its_master_shows(autojump_clock: MockClock, open_node: OpenNode) -> None:
    """The confirm offset limits the slave's readers, not only the end of its log."""
    async with open_node("m", **AUTOSWITCH) as master, open_node("s", slave=True, **AUTOSWITCH) as slave:
        end = master.put(1)
        await slave.caught_up(master)
        master.local_log.readable_limit = end
        master.put(1)
        await slave.until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
        await trio.sleep(1)
        assert slave.store.log.readable_offset == end

        master.local_log.readable_limit = None
        master.service.log_grew()
        await slave.until(lambda: slave.store.log.readable_offset == master.store.log.max_offset, 1)


async def test_a_deposed_master_drops_what_nobody_confirmed_and_follows_the_new_one(
    autojump_clock: MockClock, open_node: OpenNode
) -> None:
    """Both had written on alone from the same place; the epochs show where the two logs part."""
    async with open_node("a", **AUTOSWITCH) as first:
        first.put(10)
        async with open_node("b", slave=True, **AUTOSWITCH) as second:
            await second.caught_up(first)
            disk_b = second.disk
        common = first.store.log.max_offset
        first.put(3)
        disk_a = first.disk

    async with open_node("b", disk=disk_b.kill(), **AUTOSWITCH) as second:
        second.put(5)
        with capture_logs() as logs:
            async with open_node("a", slave=True, disk=disk_a.kill(), **AUTOSWITCH) as first:
                await first.caught_up(second)

                assert first.content() == second.content()
                assert kept_epochs(first.disk) == kept_epochs(second.disk) == [(1, 0), (2, common)]
    assert [entry["start"] for entry in events_of(logs, "unacknowledged_bytes_dropped")] == [common]


async def test_a_slave_that_connects_again_counts_once(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """By its broker id, although the master does not know yet that the first connection is dead."""
    async with open_node("m", sync_master=True, **AUTOSWITCH) as master, open_node("s", slave=True, **AUTOSWITCH) as slave:
        await joined(master)
        assert (await master.store.put_one(message())).status is PutStatus.PUT_OK

        lines.lines[-1].half_open = True
        await slave.until(lambda: len(lines.lines) == 2)
        await slave.until(lambda: slave.node.is_following)
        assert (await master.store.put_one(message())).status is PutStatus.PUT_OK
        assert [each.broker_id for each in master.service.slaves()] == [1]
        assert master.service.acks.slave_count == 1


@pytest.mark.parametrize("protocol", [AUTOSWITCH, {}], ids=["rocketmq", "ledgermq"])
async def test_a_learner_copies_and_acknowledges_nothing(
    autojump_clock: MockClock, open_node: OpenNode, protocol: dict[str, Any]
) -> None:
    """A put that waits for slaves finds none."""
    async with open_node("m", sync_master=True, **protocol) as master:
        async with open_node("s", slave=True, async_learner=True, **protocol) as slave:
            await slave.until(lambda: slave.node.is_following)
            assert (await master.store.put_one(message())).status is PutStatus.SLAVE_NOT_AVAILABLE
            await slave.caught_up(master)
            assert master.service.acks.slave_count == 0
        await trio.sleep(1)
        assert master.service.slaves() == []


@pytest.mark.parametrize("from_first", [True, False])
async def test_under_a_controller_the_slave_says_where_it_begins(
    autojump_clock: MockClock, open_node: OpenNode, from_first: bool
) -> None:
    """Its own syncFromLastFile counts, whatever the master's is."""
    async with open_node("m", elected=True, **AUTOSWITCH) as master:
        master.put(300)
        last_segment = master.store.log.max_offset // 16384 * 16384
        async with open_node("s", slave=True, **AUTOSWITCH | {"from_first": from_first}) as slave:
            await slave.caught_up(master)
            assert slave.store.log.min_offset == (0 if from_first else last_segment)


@pytest.mark.parametrize(("master", "slave"), [({}, AUTOSWITCH), (AUTOSWITCH, {})])
async def test_the_wrong_dialect_is_named_on_both_sides(
    autojump_clock: MockClock, open_node: OpenNode, master: dict[str, Any], slave: dict[str, Any]
) -> None:
    """A node of controller mode that speaks RocketMQ's protocol, and one that speaks ours."""
    with capture_logs() as logs:
        async with open_node("m", **master), open_node("s", slave=True, **slave):
            await trio.sleep(2)

    named = {entry["set_ha_protocol"] for entry in events_of(logs, "ha_peer_speaks_other_protocol")}
    assert named == {"ledgermq", "rocketmq"}
