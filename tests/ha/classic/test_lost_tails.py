"""What masters and slaves do whose logs no longer agree, over real stores on simulated disks, in virtual time."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ledgermq.store.keeping.cutting import cut_log
from ledgermq.store.statuses import PutStatus
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk

from ..nodes import Joined, Lines, OpenNode, copy_tree, events_of, message, power_cut_in_the_log


async def test_a_master_that_lost_its_tail_gets_its_slave_back_and_the_loss_is_said(
    autojump_clock: MockClock, open_node: OpenNode
) -> None:
    """Power fails before the flush: bytes that the slave acknowledged and the master lost go, and are counted."""
    disk = None
    async with open_node("s", slave=True, accept_loss=True) as slave:
        async with open_node("m", sync_master=True) as master:
            await slave.caught_up(master)
            await master.local_log.flush()
            await trio.sleep(2)
            flushed = master.store.log.max_offset
            await slave.until(lambda: slave.client.joined_at is not None)
            await master.until(lambda: master.service.acks.slave_count == 1)
            for _ in range(5):
                assert (await master.store.put_one(message())).status is PutStatus.PUT_OK
            disk = power_cut_in_the_log(master.disk, flushed)
        acknowledged = slave.store.log.max_offset
        with capture_logs() as logs:
            async with open_node("m", sync_master=True, disk=disk) as master:
                lost_from = master.store.log.max_offset
                assert flushed <= lost_from < acknowledged
                await slave.until(lambda: slave.client.joined_at is not None)
                assert (await master.store.put_one(message())).status is PutStatus.PUT_OK
                await slave.caught_up(master)
                assert slave.content() == master.content()
                assert slave.store.max_offset("T", 0) == master.store.max_offset("T", 0)
        said = events_of(logs, "acknowledged_bytes_dropped")
        assert [(entry["start"], entry["end"]) for entry in said] == [(lost_from, acknowledged)]
        losses = slave.client.losses
        assert losses.dropped == losses.promised == acknowledged - lost_from
        # Of the last put it has not heard any more that it was answered.
        assert losses.confirmed == said[0]["confirmed_bytes"] == losses.promised - 192


@pytest.mark.parametrize("settled", ["cut", "promoted"])
async def test_a_slave_keeps_what_it_confirmed_until_an_operator_names_it(
    autojump_clock: MockClock, open_node: OpenNode, settled: str
) -> None:
    """A shorter master takes nothing from it. The loss is accepted by a cut, or the slave becomes the master."""
    disk = None
    async with open_node("s", slave=True) as slave:
        async with open_node("m", sync_master=True) as master:
            await slave.caught_up(master)
            await master.local_log.flush()
            await trio.sleep(2)
            flushed = master.store.log.max_offset
            await master.until(lambda: master.service.acks.slave_count == 1)
            for _ in range(5):
                assert (await master.store.put_one(message())).status is PutStatus.PUT_OK
            disk = power_cut_in_the_log(master.disk, flushed)
        kept = slave.content()
        async with open_node("m", sync_master=True, disk=disk) as master:
            lost_from = master.store.log.max_offset
            await slave.until(lambda: slave.client.refusal is not None)
            await trio.sleep(20)
            assert slave.content() == kept
            assert f"from {lost_from} on: {len(kept) - lost_from} bytes" in (slave.client.refusal or "")
            assert f"store cut STORE --at {lost_from}" in (slave.client.refusal or "")
            assert slave.client.losses.dropped == 0
            master_disk = master.disk.kill()
        slave_disk = slave.disk.kill()
    if settled == "cut":
        cut_log(slave_disk, "store", lost_from)
        async with (
            open_node("m", sync_master=True, disk=master_disk) as master,
            open_node("s", slave=True, disk=slave_disk) as slave,
        ):
            await slave.until(lambda: slave.client.joined_at is not None)
            await slave.caught_up(master)
            assert slave.content() == master.content()
    else:
        async with open_node("m", disk=slave_disk) as master, open_node("s", slave=True, disk=master_disk) as slave:
            await slave.until(lambda: slave.client.joined_at is not None)
            await slave.caught_up(master)
            assert slave.content() == master.content() == kept


async def test_a_master_restored_from_an_older_copy_takes_nothing_from_its_slave(
    autojump_clock: MockClock, open_node: OpenNode
) -> None:
    """Nobody was promised a copy, but more is missing than a crash takes."""
    async with open_node("s", slave=True) as slave:
        async with open_node("m") as master:
            master.put(5)
            await slave.caught_up(master)
            disk = master.disk.kill()
        old = SimDisk(random.Random(9))
        copy_tree(disk, old, "store")
        async with open_node("m", disk=disk) as master:
            for _ in range(10):
                master.put(1)
                await trio.sleep(10)
            await slave.caught_up(master)
            kept = slave.content()
        async with open_node("m", disk=old):
            await slave.until(lambda: slave.client.refusal is not None)
            assert "stored within 90 s" in (slave.client.refusal or "")
            assert slave.content() == kept


async def test_a_slave_that_gives_up_its_whole_log_says_what_was_promised_of_it(
    autojump_clock: MockClock, open_node: OpenNode
) -> None:
    """The master lost power, and with it more than the slave ever had: nothing of the slave's log is left."""
    async with open_node("m", sync_master=True) as master:
        master.put(60, size=1000)
        await master.local_log.flush()
        kept = master.store.log.max_offset
        master.put(30, size=1000)
        async with open_node("s", slave=True) as slave:
            await slave.until(lambda: slave.store.log.max_offset == master.store.log.max_offset)
            begin, end = slave.store.log.min_offset, slave.store.log.max_offset
            assert kept < begin
            slave_disk, disk = slave.disk.kill(), master.disk.power_cut(7)
    async with (
        open_node("m", sync_master=True, disk=disk) as master,
        open_node("s", slave=True, disk=slave_disk, accept_loss=True) as slave,
    ):
        assert master.store.log.max_offset <= begin
        with capture_logs() as logs:
            await slave.until(lambda: slave.client.joined_at is not None)
            master.put(5)
            await slave.caught_up(master)
        assert slave.content() == master.content(slave.store.log.min_offset)
        (abandoned,) = events_of(logs, "log_abandoned")
        assert (abandoned["old_min"], abandoned["old_end"]) == (begin, end)
        (said,) = events_of(logs, "acknowledged_bytes_dropped")
        assert (said["start"], said["end"], said["promised_bytes"]) == (begin, end, end - begin)
        assert slave.client.losses.promised == end - begin


async def parted(open_node: OpenNode, **settings: bool) -> tuple[SimDisk, SimDisk]:
    """The disks of a master that has put three messages without its slave, and of that slave, after both have stopped."""
    async with open_node("a", **settings) as old:
        old.put(20)
        async with open_node("b", slave=True) as slave:
            await slave.caught_up(old)
            slave_disk = slave.disk
        old.put(3)
    return old.disk.kill(), slave_disk.kill()


async def test_an_old_master_rejoins_as_slave_of_the_one_that_took_over(
    autojump_clock: MockClock, open_node: OpenNode, joined: Joined
) -> None:
    """What it wrote alone is dropped, what both had stays, and the new master's bytes follow."""
    old_disk, slave_disk = await parted(open_node, from_first=True)
    async with open_node("b", disk=slave_disk) as master:
        master.put(7, topic="U")
        with capture_logs() as logs:
            async with open_node("a", slave=True, disk=old_disk) as slave:
                await slave.caught_up(master)
                assert slave.content() == master.content()
                assert slave.store.max_offset("T", 0) == 20
                assert slave.store.max_offset("U", 0) == 7
        assert events_of(logs, "unacknowledged_bytes_dropped")


@pytest.mark.parametrize(
    ("all_acknowledge", "event"), [(True, "unacknowledged_bytes_dropped"), (False, "acknowledged_bytes_dropped")]
)
async def test_what_a_deposed_master_held_alone_is_no_loss_unless_it_answers_before_all_hold_it(
    autojump_clock: MockClock, open_node: OpenNode, all_acknowledge: bool, event: str
) -> None:
    """As after each suspension of a master under load; the event of a loss calls a person."""
    controlled: dict[str, Any] = {"elected": True, "all_acknowledge": all_acknowledge}
    async with open_node("a", sync_master=True) as old:
        old.put(20)
        async with open_node("b", slave=True) as slave:
            await slave.caught_up(old)
            slave_disk = slave.disk
        old.put(3)  # alone
        old_disk = old.disk.kill()
    async with open_node("b", disk=slave_disk.kill()) as master:
        with capture_logs() as logs:
            async with open_node("a", slave=True, disk=old_disk, **controlled) as slave:
                await slave.caught_up(master)
        dropped = [entry["event"] for entry in logs if entry["event"].endswith("acknowledged_bytes_dropped")]
        assert dropped == [event]
        assert slave.client.losses.dropped > 0
        assert slave.client.losses.promised == (0 if all_acknowledge else slave.client.losses.dropped)


async def test_under_a_controller_a_refused_loss_is_settled_by_the_controller(
    autojump_clock: MockClock, open_node: OpenNode
) -> None:
    """There brokerRole makes no node the master."""
    old_disk, slave_disk = await parted(open_node, sync_master=True)
    async with (
        open_node("b", disk=slave_disk) as master,
        open_node("a", slave=True, elected=True, disk=old_disk) as slave,
    ):
        await slave.until(lambda: slave.client.refusal is not None)
        assert "run `ledgermq controller forget` for it, and start this node first" in (slave.client.refusal or "")
        assert slave.store.log.max_offset > master.store.log.max_offset


async def test_a_slave_left_behind_by_retention_is_filled_anew(autojump_clock: MockClock, open_node: OpenNode) -> None:
    """Its queues are rebuilt from where the master's log begins now."""
    async with open_node("m", from_first=True) as master:
        master.put(20)
        async with open_node("s", slave=True) as slave:
            await slave.caught_up(master)
            disk = slave.disk
        master.put(600)
        segments = master.local_log.segments
        for segment in segments.files[:2]:
            segments.remove(segment)
        with capture_logs() as logs:
            async with open_node("s", slave=True, disk=disk.kill()) as slave:
                await slave.caught_up(master)
                assert slave.content() == master.content()
                assert slave.store.min_offset("T", 0) > 20
                assert slave.store.max_offset("T", 0) == 620
        assert events_of(logs, "log_abandoned")
        assert not events_of(logs, "acknowledged_bytes_dropped")


async def test_a_bare_slave_with_a_lost_tail_is_refused_even_if_the_master_is_longer_by_now(
    autojump_clock: MockClock, open_node: OpenNode, lines: Lines, joined: Joined
) -> None:
    """RocketMQ's master would go on from there and never notice that the two logs differ."""
    async with open_node("s", slave=True, protocol="rocketmq") as slave:
        async with open_node("m", protocol="rocketmq") as master:
            await joined(master)
            await trio.sleep(1)
            begin = master.store.log.max_offset
            master.put(20)
            await slave.caught_up(master)
            disk = power_cut_in_the_log(master.disk, begin)
        held = slave.store.log.max_offset
        async with open_node("m", protocol="rocketmq", disk=disk) as master:
            assert master.store.log.max_offset < held
            master.put(60, size=90)
            assert master.store.log.max_offset > held
            with capture_logs() as logs:
                await trio.sleep(20)
            assert slave.store.log.max_offset == held
            assert any(
                "this master has sent only bytes before" in entry["reason"]
                for entry in events_of(logs, "ha_connection_refused")
            )
