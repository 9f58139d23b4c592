"""Groups of three nodes on simulated machines: elections, failures of every kind, and the answers to clients."""

from __future__ import annotations

import errno
import random
from collections import Counter

import pytest
import trio

from ledgermq.ha.dledger.ledger.entry_files import EntryFiles
from ledgermq.ha.dledger.ledger.hard_state import HardStateFile, TermAndVote
from ledgermq.ha.dledger.ledger.layout import INDEX
from ledgermq.ha.dledger.members import change_members
from ledgermq.ha.dledger.native.group_records import PEERS_MAX
from ledgermq.ha.dledger.outcomes import Outcome
from ledgermq.ha.dledger.replica import UNSENT_MAX
from ledgermq.ha.dledger.settings import JAVA, NATIVE
from ledgermq.ha.raft.errors import ChangeRefused, NotLeader
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.units import FORGOTTEN, PeerId
from ledgermq.testing.logs import capture_logs
from ledgermq.testing.sim.disk import SimDisk
from ledgermq.world.network import Address

from .groups import PORT, Group, copy_of_disk, files_of, isolate_leader_during_puts, lose_power_during_puts, scenario
from .ledgers import INDEX_FILE_SIZE, message

SEEDS = range(1, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_elects_one_leader_and_commits(seed: int) -> None:
    """Within a second, and every node knows it."""

    async def story(group: Group) -> None:
        started = trio.current_time()
        leader = await group.leader()
        assert trio.current_time() - started < 1.5
        assert await group.put(leader, 3) is Outcome.COMMITTED
        assert await group.put(leader, 40) is Outcome.COMMITTED
        await group.converged()
        group.check()
        assert {node.up.leading.leader for node in group.running} == {leader.peer}
        address = group.peers[leader.peer]
        assert {node.up.leading.address for node in group.running} == {address}

    scenario(story, seed=seed)


class Steps(trio.abc.Instrument):
    """Counts how often tasks run, by their names."""

    def __init__(self) -> None:
        self.of_task: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.of_task[task.name] += 1


def test_an_idle_group_wakes_tasks_for_heartbeats_alone() -> None:
    """A heartbeat wakes the leader's ticking task and the tasks that receive it and its answer, and no other task."""

    async def story(group: Group) -> None:
        await group.leader()
        await group.put_until_done()
        await trio.sleep(5)
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(10)
        trio.lowlevel.remove_instrument(steps)

        receiving = steps.of_task.pop("trio._highlevel_serve_listeners._run_handler")
        assert receiving >= 400  # two followers receive a heartbeat every 100 ms, and the leader receives two answers
        assert sum(steps.of_task.values()) <= 200, steps.of_task

    scenario(story)


def test_an_acknowledged_entry_is_on_the_medium_of_a_majority() -> None:
    """Not only in their page caches."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        for _ in range(20):
            assert await group.put(leader) is Outcome.COMMITTED
            last = max(group.acknowledged)
            synced = [node.up.ledger.synced_index for node in group.running]
            assert sum(index >= last for index in synced) >= 2

    scenario(story)


def test_a_follower_refuses_proposals_and_names_the_leader() -> None:
    """Nothing is appended there."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        other = next(node for node in group.running if node is not leader)
        await group.until(lambda: other.up.leading.leader == leader.peer)
        before = other.up.ledger.end_index
        with pytest.raises(NotLeader, match=f"the leader is {leader.peer}"):
            other.up.propose([b"x" * 100])
        assert other.up.ledger.end_index == before

    scenario(story)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", ["kill", "power_cut"])
def test_nothing_acknowledged_is_lost_when_the_leader_dies(seed: int, way: str) -> None:
    """Another one leads within a second or so, and the dead one follows when it is back."""

    async def story(group: Group) -> None:
        for _ in range(3):
            leader = await group.leader()
            for _ in range(5):
                assert await group.put(leader, 4) is Outcome.COMMITTED
            await (leader.kill() if way == "kill" else leader.power_cut())
            died = trio.current_time()
            await group.put_until_done(2)
            assert trio.current_time() - died < 2.0
            await leader.start()
            assert leader.failure is None
            await group.converged()
            group.check()

    scenario(story, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_that_lost_power_has_everything_acknowledged(seed: int) -> None:
    """All three machines at once, in the middle of puts."""

    scenario(lose_power_during_puts, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_isolated_leader_acknowledges_nothing_and_steps_down(seed: int) -> None:
    """What it took meanwhile is answered when it steps down, and replaced when it is back."""

    async def story(group: Group) -> None:
        _, new, outcomes = await isolate_leader_during_puts(group)
        assert outcomes == [Outcome.TERM_CHANGED]
        term = new.up.leading.term
        await trio.sleep(5)
        group.fabric.heal()
        await group.converged()
        assert new.up.leading.role is Role.LEADER
        assert new.up.leading.term == term
        group.check()

    scenario(story, seed=seed)


def test_a_minority_never_acknowledges() -> None:
    """Puts wait, then time out; the entries stay and are committed when a majority is back."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        others = [node for node in group.running if node is not leader]
        for node in others:
            await node.kill()
        assert await group.put(leader) in (Outcome.TERM_CHANGED, Outcome.TIMED_OUT)
        assert not group.acknowledged
        await others[0].start()
        await group.put_until_done()
        await group.converged()
        group.check()

    scenario(story)


def test_a_node_that_was_away_catches_up_over_many_files() -> None:
    """It takes part again without disturbing the group."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        away = next(node for node in group.running if node is not leader)
        await away.kill()
        for _ in range(40):
            assert await group.put(leader, 10, body_size=300) is Outcome.COMMITTED
        term = leader.up.leading.term
        await trio.sleep(120)
        await away.start()
        await group.converged()
        assert (leader.up.is_leader, leader.up.leading.term) == (True, term)
        group.check()

    scenario(story)


def test_a_leader_that_is_stopped_hands_over_first() -> None:
    """The next put finds a leader within a few heartbeats, long before an election would be due."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        began = trio.current_time()
        await leader.stop()
        await group.put_until_done()
        assert trio.current_time() - began < 0.25
        await leader.start()
        await group.converged()
        group.check()

    scenario(story)


def test_leadership_goes_where_it_is_sent() -> None:
    """Puts during a transfer are refused or committed, never lost."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        target = next(node for node in group.running if node is not leader)
        await group.put(leader)
        leader.up.transfer(target.peer)
        await group.until(lambda: target.up.is_leader)
        await group.put_until_done(3)
        await group.converged()
        group.check()

    scenario(story)


@pytest.mark.parametrize("what", ["full", "failing"])
def test_a_leader_whose_disk_fails_gives_up_its_leadership(what: str) -> None:
    """It acknowledges nothing meanwhile; when the disk is well again, the node follows."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        disk = leader.machine.disk
        if what == "failing":
            disk.faults.sync_error = 1.0
        else:
            disk.faults.capacity = disk.allocated_bytes()
            disk.faults.sync_error = 1.0
        with trio.move_on_after(3):
            await group.put(leader)
        await group.until(lambda: not leader.up.is_leader)
        await group.put_until_done(3)
        disk.faults.calm()
        await group.converged()
        group.check()

    scenario(story)


@pytest.mark.parametrize("what", ["full", "failing"])
def test_a_leader_whose_ledger_takes_no_entries_gives_up_its_leadership(what: str) -> None:
    """Its heartbeats would keep the others from an election; on a full disk each repair succeeds, and the next append fails."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        faults = leader.machine.disk.faults
        if what == "full":
            faults.capacity = leader.machine.disk.allocated_bytes()
        else:
            faults.write_error = 1.0
        with trio.fail_after(8):
            while leader.up.is_leader:  # a file that was there before the disk was full takes some more
                await group.put_until_done(9)
            await group.put_until_done(9)
        faults.calm()
        await group.converged()
        group.check()

    scenario(story)


def test_leadership_does_not_run_in_a_circle_while_no_ledger_takes_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no leader says at each heartbeat that it cannot write its first entry."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def story(group: Group) -> None:
        before = (await group.leader()).up.leading.term
        with monkeypatch.context() as patch, capture_logs() as events:
            patch.setattr(EntryFiles, "write_entries", refuse)
            with trio.move_on_after(25):
                await group.put_until_done()
        assert 1 <= max(node.up.leading.term for node in group.running) - before <= 4
        assert 1 <= sum(event["event"] == "group_entry_not_written" for event in events) <= 40
        await group.put_until_done(3)
        await group.converged()
        group.check()

    scenario(story)


def test_a_node_whose_disk_refuses_for_long_keeps_a_bounded_number_of_messages() -> None:
    """It answers no heartbeat meanwhile, and has everything when its disk is well again."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        follower = next(node for node in group.running if node is not leader)
        faults = follower.machine.disk.faults
        faults.write_error = faults.create_error = 1.0
        await group.put(leader, 3)
        await trio.sleep(UNSENT_MAX * 0.12)
        assert len(follower.up.core.messages) == UNSENT_MAX
        faults.calm()
        await group.converged()
        assert not follower.up.core.messages

    scenario(story)


@pytest.mark.parametrize("dialect", [NATIVE, JAVA])
def test_a_leader_that_cannot_read_its_log_leaves_the_group_to_the_others(dialect: str) -> None:
    """It says what is damaged, and its process goes on."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        away = next(node for node in group.running if node is not leader)
        await away.kill()
        await group.put(leader, 30)
        leader.machine.disk.rot(f"store/dledger-{leader.peer}/index/{INDEX_FILE_SIZE:020}", INDEX.offsets["index"])
        await away.start()

        await group.until(lambda: leader.up.stopped)
        assert "the index record of entry 16 is not there" in str(leader.up.stopped)
        assert not leader.up.is_leader
        with pytest.raises(NotLeader):
            leader.up.propose([message(1)])
        with pytest.raises(NotLeader), trio.fail_after(1):
            await leader.up.read_index()
        await group.put_until_done()
        assert group.leaders() != [leader]

    scenario(story, dialect=dialect)


def test_reads_wait_until_the_leader_is_confirmed() -> None:
    """On the leader and on a follower; an isolated leader gives no index."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 3)
        last = max(group.acknowledged)
        other = next(node for node in group.running if node is not leader)
        await group.until(lambda: other.up.leading.leader == leader.peer)
        with trio.fail_after(1):
            assert await leader.up.read_index() >= last
            assert await other.up.read_index() >= last
        group.isolate(leader)
        with trio.move_on_after(0.25) as scope:
            await leader.up.read_index()
        assert scope.cancelled_caught

    scenario(story)


def test_members_are_added_and_removed_while_it_runs() -> None:
    """A new node catches up as a learner, becomes a voter, and the removed one stops counting."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 30)
        removed = next(node for node in group.running if node is not leader)
        fresh = group.add("n3", peers={**group.peers, PeerId("n3"): Address("10.0.0.4", PORT)})
        await fresh.start()
        assert fresh.failure is None
        voters = [PeerId("n0"), PeerId("n1"), PeerId("n2"), PeerId("n3")]
        with trio.fail_after(20):
            await change_members(leader.up, {PeerId("n3"): Address("10.0.0.4", PORT)}, {}, ())
        assert await group.put(leader, 3) is Outcome.COMMITTED
        await group.converged()
        kept = [peer for peer in voters if peer != removed.peer]
        with trio.fail_after(20):
            await change_members(leader.up, {}, {}, [removed.peer])
        await removed.kill()
        await group.put_until_done(5)
        await group.converged()
        group.check()
        assert set(leader.up.core.configuration.voters) == set(kept)
        for node in [node for node in group.running if node is not leader]:
            await node.kill()
            await node.start()
            assert set(node.up.core.configuration.voters) == set(kept)
        await group.put_until_done()
        await group.converged()
        group.check()

    scenario(story)


def test_a_node_follows_a_leader_that_was_added_while_it_was_away() -> None:
    """It votes for it and answers it, although its own log does not name it yet."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        await group.put(leader, 5)
        away, other = (node for node in group.running if node is not leader)
        group.isolate(away)
        address = Address("10.0.0.4", PORT)
        fresh = group.add("n3", peers={**group.peers, PeerId("n3"): address})
        # It was a member before: a new one would vote only when all others have answered.
        HardStateFile(fresh.machine.disk, files_of("n3").directory).save(TermAndVote())
        await fresh.start()
        with trio.fail_after(20):
            await change_members(leader.up, {fresh.peer: address}, {}, ())
            await change_members(leader.up, {}, {}, [leader.peer])
        await leader.kill()
        await other.kill()
        assert fresh.peer not in away.up.core.configuration.members
        group.fabric.heal()

        assert (await group.leader()) is fresh
        await group.put_until_done(5)
        await group.converged()
        assert away.up.core.configuration == fresh.up.core.configuration
        group.check()

    scenario(story)


def test_a_group_takes_as_many_members_as_its_records_hold() -> None:
    """One more would make the record of the configuration unreadable for all nodes, for good."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        voters = list(leader.up.core.configuration.voters)
        learners = {
            PeerId(f"l{number:02}"): Address("10.0.9.9", 1000 + number) for number in range(PEERS_MAX - len(voters) + 1)
        }
        with pytest.raises(ChangeRefused, match=f"a group has at most {PEERS_MAX} members"):
            await change_members(leader.up, {}, learners, ())
        end = leader.up.ledger.end_index
        del learners[max(learners)]
        with trio.fail_after(20):
            await change_members(leader.up, {}, learners, ())
        assert leader.up.ledger.end_index == end + 1
        assert len(leader.up.core.configuration.members) == PEERS_MAX
        await group.put_until_done()

    scenario(story)


def test_a_group_of_one_commits_alone() -> None:
    """After its own sync."""

    async def story() -> None:
        from .groups import open_group

        async with open_group(5, ("n0",)) as group:
            leader = await group.leader()
            assert await group.put(leader, 3) is Outcome.COMMITTED
            await leader.power_cut()
            await leader.start()
            await group.put_until_done()
            group.check()

    from ledgermq.testing.sim.scheduler import seeded_run

    seeded_run(story, seed=5)


def test_a_voter_that_has_lost_its_disk_is_filled_and_votes_again() -> None:
    """Started with its old settings beside one that was away, it helps nobody to lead who lacks what was acknowledged."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        wiped, away = (node for node in group.running if node is not leader)
        await group.converged()
        await away.kill()
        await group.put(leader, 5)
        await wiped.kill()
        wiped.machine.disk = SimDisk(random.Random(7))
        await leader.kill()

        await away.start()
        await wiped.start()
        await trio.sleep(10)
        assert group.leaders() == []

        await leader.start()
        await group.converged()
        await group.put_until_done(3)
        await group.converged()
        group.check()
        await trio.sleep(1)
        old = await group.leader()
        await old.kill()
        await group.put_until_done(2)
        group.check()

    scenario(story)


def test_a_voter_without_its_disk_is_filled_by_a_leader_that_its_settings_do_not_name() -> None:
    """The leader has joined since they were written."""

    async def story(group: Group) -> None:
        old = await group.leader()
        peers = {**group.peers, PeerId("n3"): Address("10.0.0.4", PORT)}
        joined = group.add("n3", peers=peers)
        await joined.start()
        with trio.fail_after(20):
            await change_members(old.up, {PeerId("n3"): peers[PeerId("n3")]}, {}, ())
        await group.converged()
        old.up.transfer(PeerId("n3"))
        await group.leader(among=[joined])
        wiped = next(node for node in group.running if node not in (old, joined))
        await wiped.kill()
        wiped.machine.disk = SimDisk(random.Random(7))
        await wiped.start()
        await group.converged()
        await group.until(lambda: wiped.up.core.vote != FORGOTTEN)
        group.check()

    scenario(story)


@pytest.mark.parametrize("dialect", ["native", "java"])
def test_a_node_that_ends_while_it_saves_its_vote_ends_without_a_failure(dialect: str) -> None:
    """The save cannot be cancelled, so the connections have ended already when the requests for votes are due."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        term = leader.up.core.term
        await leader.end()
        followers = group.running
        for node in followers:
            node.machine.slow_down(2.0)
        await group.until(lambda: any(node.up.core.term > term for node in followers))
        candidate = max(followers, key=lambda node: node.up.core.term)
        await candidate.end()
        assert candidate.failure is None

    scenario(story, dialect=dialect)


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_removed_node_learns_that_it_is_no_member_any_more(seed: int) -> None:
    """The leader sends it the last configuration too, before it leaves it; clients would be sent to it otherwise."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        other = next(node for node in group.running if node is not leader)
        with trio.fail_after(20):
            await change_members(leader.up, {}, {}, [other.peer])
        await group.until(lambda: other.up.core.configuration == leader.up.core.configuration)
        await group.until(lambda: other.up.leading.leader is None)
        assert other.peer not in {peer for peer, _ in leader.up.links.outgoing}

    scenario(story, seed=seed)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_node_on_an_older_copy_of_its_disk_does_not_vote_until_it_has_caught_up(seed: int) -> None:
    """It acknowledged what the copy lacks. With the third node it must not elect a leader without that, restarted or not."""

    async def story(group: Group) -> None:
        leader = await group.leader()
        restored, third = (node for node in group.running if node is not leader)
        await group.put(leader, 5)
        await group.converged()
        await trio.sleep(5)
        backup = copy_of_disk(restored)
        await third.kill()
        await group.put(leader, 30)
        await group.converged()
        await restored.kill()
        restored.machine.disk = backup

        await restored.start()
        assert restored.failure is None
        await group.until(lambda: (restored.up.hard_state_file.load() or TermAndVote()).vote == FORGOTTEN)
        await restored.kill()
        await leader.kill()
        await third.start()
        await restored.start()
        await trio.sleep(20)
        assert not group.leaders()
        assert restored.up.status().waits_for == (leader.peer,)

        await leader.start()
        await group.put_until_done()
        await group.converged()
        await group.until(lambda: restored.up.core.vote != FORGOTTEN)
        group.check()

    scenario(story, seed=seed)
