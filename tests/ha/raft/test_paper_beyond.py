"""One test for each rule of the Raft paper beyond section 5, and of Ongaro's thesis: members, snapshots, reads, transfers."""

from __future__ import annotations

import pytest

from harness.raft.group import Group, shortest
from harness.raft.node import BARRIER, Node
from harness.raft.storage import MemoryStorage, batch_of
from harness.raft.stories import A, B, C, D, E, a_node, entries
from ledgermq.ha.raft.batch import Snapshot
from ledgermq.ha.raft.errors import ChangeRefused, NotLeader, TransferInProgress
from ledgermq.ha.raft.messages import (
    Append,
    InstallSnapshot,
    PreVoteRequest,
    VoteRequest,
)
from ledgermq.ha.raft.quorum import Configuration
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import PeerId

# ---------------------------------------------------------------- §6 membership


def changed(group: Group, leader: str, voters: str, learners: str = "") -> None:
    raft = group[leader].raft
    group.propose(leader, raft.plan_change(tuple(map(PeerId, voters)), tuple(map(PeerId, learners))))


def with_learners(voters: str, learners: str) -> Group:
    group = Group.of(voters)
    for name in learners:
        group.nodes[PeerId(name)] = Node(PeerId(name), Settings(), shortest, MemoryStorage())
    group.elect(voters[0])
    changed(group, voters[0], voters, learners)
    group.tick(10)
    return group


def test_configuration_is_used_as_soon_as_it_is_in_the_log() -> None:
    """§6: A server always uses the latest configuration in its log, regardless of whether the entry is committed."""
    group = with_learners("abc", "d")
    group.isolate("a")

    changed(group, "a", "abd")

    configuration = group["a"].raft.configuration
    assert configuration.joint
    assert group["a"].raft.commit_index < group["a"].raft.log.configuration_index


def test_truncated_configuration_is_no_longer_in_force() -> None:
    """§6: the latest configuration is the latest one in the log, so removing the entry brings the one before it back."""
    joint = Configuration((A, B, D), (A, B, C))
    node = a_node((1, "x"), (1, joint), term=1)
    assert node.raft.configuration == joint

    node.raft.step(Append(C, A, 2, 0, 1, -1, batch_of(1, ((2, BARRIER),))))

    assert node.raft.configuration == Configuration((A, B, C))


def test_agreement_needs_majorities_of_the_old_and_of_the_new_configuration() -> None:
    """§6: Agreement (for elections and entry commitment) requires separate majorities from both configurations."""
    group = with_learners("abc", "de")
    for silent in "de":
        group.isolate(silent)

    changed(group, "a", "ade")
    group.tick(10, "a", "b", "c")

    assert group["a"].raft.configuration.joint
    assert group["a"].raft.commit_index < group["a"].raft.log.configuration_index
    group.heal()
    group.tick(10)
    assert group["a"].raft.configuration == Configuration((A, D, E))


def test_leader_outside_the_new_configuration_steps_down_when_it_is_committed() -> None:
    """§6: The leader steps down (returns to follower state) once it has committed the C_new log entry."""
    group = with_learners("abc", "d")

    changed(group, "a", "bcd")
    group.tick(10)

    assert group["a"].raft.role is Role.FOLLOWER
    assert group["a"].raft.configuration == Configuration((B, C, D))
    assert [name for name in group.leaders() if name != "a"]


def test_server_outside_its_newest_configuration_campaigns_until_that_is_committed() -> None:
    """Thesis §4.2.2: Its entry may be missing on the others, whose old majority then needs the vote of exactly this server."""
    group = with_learners("ab", "cde")
    leader = group["a"]
    leader.propose(leader.raft.plan_change((C, D, E)))
    while leader.raft.configuration != Configuration((C, D, E)):
        group.collect()
        if group.network:
            group.deliver(group.network.popleft())
        else:
            for node in group.nodes.values():
                node.sync()
    leader.sync()

    group.network.clear()
    for node in group.nodes.values():
        node.start()
    joint = {name for name in "bcde" if group[name].raft.configuration.joint}
    group["a"].raft.timers.election.start(1)
    group.tick(3 * leader.settings.election_ticks_max)

    assert joint == set("bcde")
    [elected] = group.leaders()
    assert group[elected].raft.configuration == Configuration((C, D, E))
    assert elected in "cde"


def test_removed_server_does_not_disrupt_the_cluster() -> None:
    """§6: If a server receives a RequestVote RPC within the minimum election timeout of hearing a leader, it ignores it."""
    group = Group.of("abc")
    group.elect("a")
    group.tick(5)
    removed = VoteRequest(C, B, 99, 100, 100)

    group["b"].raft.step(removed)
    group["a"].raft.step(removed)

    assert group["b"].process() == group["a"].process() == []
    assert (group["a"].raft.role, group["a"].raft.term, group["b"].raft.term) == (Role.LEADER, 1, 1)


def test_new_servers_join_as_learners_that_do_not_count() -> None:
    """§6: New servers join the cluster as non-voting members; they are not considered for majorities."""
    group = with_learners("abc", "de")
    group.isolate("b")
    group.isolate("c")

    group.propose("a", "x")

    assert group.log("d") == group.log("a")
    assert group["a"].raft.commit_index < group["a"].storage.last_index
    assert not group["d"].raft.promotable


def test_stranger_must_catch_up_before_it_votes() -> None:
    """§6: Once the new servers have caught up with the rest of the cluster, the reconfiguration can proceed; not before."""
    group = Group.of("abc")
    group.elect("a")

    with pytest.raises(ChangeRefused, match="d must be added as a learner and catch up first"):
        group["a"].raft.plan_change((A, B, D))


def test_changes_come_one_at_a_time() -> None:
    """Thesis §4.1: no change begins before the one before it is committed, nor before an entry of the leader's term is."""
    group = with_learners("abc", "d")
    group.isolate("a")
    changed(group, "a", "abc")

    with pytest.raises(ChangeRefused, match="not committed yet"):
        group["a"].raft.plan_change((A, B))


def test_new_voters_of_whom_no_majority_answers_are_refused() -> None:
    """Two voters, one of them down, elect nobody and commit nothing: the removal of the living third would end the group."""
    group = Group.of("abc")
    group.elect("a")
    group.isolate("c")
    group.tick(Settings().election_ticks_max + 5)
    leader = group["a"].raft

    with pytest.raises(
        ChangeRefused, match="c did not answer lately, so a, c would have no majority as voters: start it first"
    ):
        leader.plan_change((A, C))
    changed(group, "a", "ab")
    group.tick(10)

    assert leader.configuration == Configuration((A, B))
    with pytest.raises(ChangeRefused, match="c must be added as a learner"):
        leader.plan_change((A, C))


def test_learner_that_lost_acknowledged_entries_is_sent_them_again() -> None:
    """It has no votes to forget and counts for nothing, so nobody has to remove it and to add it again, as with a voter."""
    group = with_learners("abc", "d")
    group.propose("a", "x")
    group["d"].storage.entries.clear()
    group["d"].storage.sync()
    group["d"].start()

    group.tick(40)

    assert group.log("d") == group.log("a")


# ---------------------------------------------------------------- §7 snapshots


def test_snapshot_replaces_the_log_of_a_follower_that_lacks_compacted_entries() -> None:
    """§7: The leader sends snapshots to followers that lag behind; the follower discards its entire log."""
    group = Group.of("abc", logs={"c": entries(1, 1)})
    group.isolate("c")
    leader = group.elect("a")
    group.propose("a", "x", "y", "z")
    leader.compact(2)

    group.heal()
    group.tick(20)

    assert group["c"].storage.boundary == leader.storage.boundary
    assert group.log("c") == group.log("a")


def test_snapshot_of_a_prefix_keeps_the_entries_behind_it() -> None:
    """§7: If the snapshot describes a prefix of its log, entries following the snapshot are still valid and retained."""
    node = a_node(*entries(1, 1, 1), term=1)

    node.raft.step(InstallSnapshot(B, A, 1, Snapshot(1, 1, Configuration((A, B, C)))))
    node.process()

    assert node.storage.entries == list(entries(1, 1, 1))
    assert node.raft.commit_index == 1


# ---------------------------------------------------------------- §8 and thesis §6.4: reads


def test_leader_confirms_itself_by_a_majority_before_it_answers_a_read() -> None:
    """§8: A leader must have exchanged heartbeat messages with a majority of the cluster before responding to a read."""
    group = Group.of("abc")
    leader = group.elect("a")
    group.isolate("a")
    leader.raft.read_index("read")
    group.settle()
    assert "read" not in leader.reads

    group.heal()
    group.tick(5)

    assert leader.reads == {"read": 0}


def test_read_waits_for_an_entry_of_the_leaders_term() -> None:
    """§8: A leader must have the latest information on which entries are committed: it commits an entry of its term first."""
    group = Group.of("abc")
    group.syncing = False
    leader = group.elect("a")
    leader.raft.read_index("read")
    group.settle()
    assert leader.reads == {}

    group.syncing = True
    group.settle()

    assert leader.reads == {"read": 0}


def test_deposed_leader_refuses_the_reads_that_wait() -> None:
    """Thesis §6.4: a leader that cannot confirm itself answers no read."""
    group = Group.of("abc")
    leader = group.elect("a")
    group.isolate("a")
    leader.raft.read_index("read")

    group.tick(2 * leader.settings.election_ticks_max, "a")

    assert leader.reads == {"read": None}
    with pytest.raises(NotLeader):
        leader.raft.read_index("another")


# ---------------------------------------------------------------- thesis: transfer and pre-vote


def test_transfer_lets_the_target_campaign_when_it_has_everything() -> None:
    """Thesis §3.10: The prior leader stops accepting client requests, brings the target up to date, and sends TimeoutNow."""
    group = Group.of("abc")
    leader = group.elect("a")
    leader.propose("x")

    leader.raft.transfer_leadership(C)
    with pytest.raises(TransferInProgress):
        leader.propose("y")
    group.settle()

    assert group.leaders() == ["c"]
    assert group.log("c") == [(1, BARRIER), (1, "x"), (2, BARRIER)]


def test_transfer_to_a_dead_node_is_given_up() -> None:
    """Thesis §3.10: If leadership transfer does not complete after about an election timeout, the prior leader resumes."""
    group = Group.of("abc")
    leader = group.elect("a")
    group.isolate("c")
    leader.raft.transfer_leadership(C)

    group.tick(leader.settings.transfer_ticks, "a", "b")

    group.propose("a", "x")
    assert leader.last_applied == 1


def test_pre_vote_raises_no_term_and_costs_no_vote() -> None:
    """Thesis §9.6: a server only increments its term if it first learns that it could win an election."""
    node = a_node(term=3)
    group = Group.of("abc")
    group.isolate("a")

    node.raft.step(PreVoteRequest(B, A, 4, 9, 9))
    group.tick(300, "a")

    assert (node.raft.term, node.raft.vote) == (3, None)
    assert group["a"].raft.term == 0


def test_leader_that_hears_no_majority_steps_down() -> None:
    """Thesis §6.2: A leader steps down if an election timeout elapses without a round of heartbeats to a majority."""
    group = Group.of("abc")
    leader = group.elect("a")
    group.isolate("a")

    group.tick(2 * leader.settings.election_ticks_max, "a")

    assert leader.raft.role is not Role.LEADER
