"""What a follower does to its ledger because its leader says so."""

from __future__ import annotations

import pytest
import trio

from ledgermq.ha.raft.core import Raft
from ledgermq.testing.sim.disk import SimDisk

from .groups import Group, check_begun_anew, files_of, miss_files_that_expire, scenario


def test_a_node_begins_anew_where_old_files_have_expired() -> None:
    """The leader tells it where its log begins now."""

    async def story(group: Group) -> None:
        leader, away = await miss_files_that_expire(group)
        cleared: list[bool] = []
        await away.start()
        away.up.on_cleared.append(lambda: cleared.append(True))
        await check_begun_anew(group, leader, away)
        assert cleared == [True]

    scenario(story)


def test_the_core_forgets_no_less_than_expires_though_a_sync_ends_meanwhile() -> None:
    """Else the node would look for entries that are gone when it leads and a follower lacks them, and leave its group."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        node = next(node for node in group.running if node is not leader).up
        ledger = node.ledger
        for _ in range(10):
            await group.put(leader, 5, body_size=300)
        await group.converged()
        async with trio.open_nursery() as nursery, node.disk.lock:
            durable = ledger.synced_position
            for _ in range(10):
                await group.put(leader, 5, body_size=300)
            await group.until(lambda: ledger.committed_index == leader.up.ledger.end_index)
            nursery.start_soon(node.expire, ledger.end_position)
            await trio.sleep(0.1)
            ledger.force(durable, ledger.end_position)
            ledger.reached(ledger.end)
        assert isinstance(node.core, Raft)
        assert node.core.log.boundary_index == ledger.begin_index - 1
        assert ledger.begin_position > durable

    scenario(story)


def test_files_whose_deletion_failed_are_deleted_before_others_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(group: Group) -> None:
        leader = await group.leader()
        for _ in range(10):
            await group.put(leader, 10, body_size=300)
        await group.converged()
        replica, disk = leader.up, leader.machine.disk

        def refuse(_disk: SimDisk, _path: str) -> None:
            raise OSError(5, "the disk refuses")

        with monkeypatch.context() as refusing:
            refusing.setattr(SimDisk, "remove", refuse)
            with pytest.raises(OSError, match="the disk refuses"):
                await replica.expire_oldest()
            begin = replica.ledger.begin_index
            with pytest.raises(OSError, match="the disk refuses"):
                await replica.expire_oldest()
            assert replica.ledger.begin_index == begin > 0

        assert await replica.expire(0) == 0
        directory = files_of(leader.peer).data
        assert sorted(disk.list_directory(directory)) == [f"{file.start:020d}" for file in replica.ledger.data.files]

    scenario(story)


def test_a_follower_whose_disk_refuses_for_a_while_has_everything_in_the_end() -> None:
    """Writing is tried again; the leader commits with the other follower meanwhile."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        slow = next(node for node in group.running if node is not leader)
        slow.machine.disk.faults.write_error = 1.0
        for _ in range(5):
            await group.put(leader, 3)
        assert slow.up.ledger.end_index < leader.up.ledger.end_index
        await trio.sleep(2)
        slow.machine.disk.faults.calm()
        await group.converged()
        group.check()

    scenario(story)


def test_entries_that_were_never_committed_are_cut_though_the_disk_refuses_at_first() -> None:
    async def story(group: Group) -> None:
        old = await group.leader()
        others = [node for node in group.running if node is not old]
        group.isolate(old)
        await group.put(old, 4)
        new = await group.leader(among=others)
        await group.put(new, 2)
        old.machine.disk.faults.sync_error = 1.0
        group.fabric.heal()
        await trio.sleep(3)
        old.machine.disk.faults.calm()
        await group.converged()
        group.check()

    scenario(story)


def test_only_a_node_that_was_away_gives_notice_of_bulk_data() -> None:
    """Whoever derives from the log then lets receiving go first."""
    notices: list[str] = []

    async def story(group: Group) -> None:
        leader = await group.leader()
        away = next(node for node in group.running if node is not leader)
        await away.kill()
        for node in group.running:
            node.up.on_bulk.append(lambda: notices.append("a node that was there"))
        for _ in range(20):
            await group.put(leader, 50, body_size=200)
        await group.converged()

        await away.start()
        away.up.on_bulk.append(lambda: notices.append("the node that was away"))
        await group.converged()

    scenario(story, files=files_of("n", file_size=1 << 20))

    assert set(notices) == {"the node that was away"}
