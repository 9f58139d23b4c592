"""The core as its owner sees it: elections, replication, and the Ready discipline."""

from __future__ import annotations

import pytest

from harness.raft.group import Group
from harness.raft.node import BARRIER
from ledgermq.ha.raft.errors import NotLeader
from ledgermq.ha.raft.messages import Heartbeat, StaleTerm
from ledgermq.ha.raft.roles import Role
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import PeerId


def test_single_node_elects_itself_and_commits_alone() -> None:
    group = Group.of("a")

    group.elect("a")
    group.propose("a", "x", "y")

    assert group["a"].applied == [(0, (1, BARRIER)), (1, (1, "x")), (2, (1, "y"))]


def test_three_nodes_elect_a_leader_and_replicate_what_it_is_given() -> None:
    group = Group.of("abc")

    group.elect("b")
    group.propose("b", "x")
    group.tick(5)

    assert group.leaders() == ["b"]
    for name in "abc":
        assert group.log(name) == [(1, BARRIER), (1, "x")]
        assert group[name].applied == [(0, (1, BARRIER)), (1, (1, "x"))]


def test_another_leader_follows_when_the_first_is_cut_off() -> None:
    group = Group.of("abc")
    group.elect("a")
    group.propose("a", "x")

    group.isolate("a")
    group.elect("b")
    group.propose("b", "y")
    group.tick(group["a"].settings.election_ticks_max + 10)

    assert group["a"].raft.role is not Role.LEADER
    group.heal()
    group.tick(10)
    assert group.log("a") == [(1, BARRIER), (1, "x"), (2, BARRIER), (2, "y")]


def test_proposal_to_a_follower_names_the_leader() -> None:
    group = Group.of("abc")
    group.elect("a")

    with pytest.raises(NotLeader) as refusal:
        group["b"].propose("x")
    assert refusal.value.leader == "a"


def test_nothing_is_committed_before_a_majority_has_synced() -> None:
    group = Group.of("abc")
    group.elect("a")
    committed = group["a"].raft.commit_index

    group.syncing = False
    group.propose("a", "x")
    assert group["a"].raft.commit_index == committed
    group["b"].sync()
    group.settle()
    assert group["a"].raft.commit_index == committed
    group["c"].sync()
    group.settle()
    assert group["a"].raft.commit_index == committed + 1


def test_heartbeat_of_an_earlier_term_confirms_nothing() -> None:
    """A delayed heartbeat of a node's earlier leadership is not answered as if it belonged to its present one."""
    group = Group.of("abc")
    group.elect("a")
    old = Heartbeat(PeerId("a"), PeerId("b"), 1, -1, 90)
    group.elect("b")
    group.elect("a")
    assert group["a"].raft.term == 3

    group["b"].raft.step(old)
    answers = group["b"].process()

    assert answers == [StaleTerm(PeerId("b"), PeerId("a"), 3)]


def test_follower_whose_sent_entries_were_compacted_gets_a_snapshot() -> None:
    """A full window of lost Appends must not hold a follower back when the leader has compacted them meanwhile."""
    group = Group.of("abc", settings=Settings(inflight_batches_max=1, append_bytes_max=1, probe_bytes_max=1))
    leader = group.elect("a")
    group.isolate("c")
    group.propose("a", "x")
    group.propose("a", "y")
    leader.raft.compact(2)
    leader.storage.compact(2)

    group.heal()
    group.tick(20)

    assert group["c"].raft.commit_index == leader.raft.commit_index == 2
