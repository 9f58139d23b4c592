"""Voters that come back with an empty disk: they neither vote nor campaign before they have caught up."""

from __future__ import annotations

import random

import attrs

from harness.raft.group import Group
from harness.raft.storage import MemoryStorage
from harness.raft.stories import A, B, C
from ledgermq.ha.raft.messages import Message, TermAnswer
from ledgermq.ha.raft.ready import HardState
from ledgermq.ha.raft.settings import Settings
from ledgermq.ha.raft.units import FORGOTTEN, NO_INDEX, PeerId


def wipe(group: Group, name: str) -> None:
    """Let a node come back under its name with nothing but the configuration that its settings name."""
    node = group[name]
    configuration = group["a"].storage.configuration
    node.storage = MemoryStorage(configuration, hard_state=HardState(0, FORGOTTEN))
    node.start()


def isolate(group: Group, *names: str) -> None:
    """Cut these nodes off from all others."""
    for name in names:
        for other in group.nodes:
            if other not in names:
                group.cut |= {(PeerId(name), other), (other, PeerId(name))}


def test_a_wiped_voter_elects_nobody_who_lacks_what_it_had_acknowledged() -> None:
    """The leader and the wiped node were the majority that had the entry; with the third one they must not form another."""
    group = Group.of("abc", draw=random.Random(1).randint)
    group.elect("a")
    isolate(group, "c")
    group.propose("a", "x")
    assert group["a"].raft.commit_index == group["a"].storage.last_index
    group.cut.clear()
    isolate(group, "a")

    wipe(group, "b")
    group.tick(300)

    assert [node.id for node in group.nodes.values() if node.raft.leadership is not None and node.id != A] == []
    group.cut.clear()
    group.tick(300)
    assert group.log("b") == group.log("c") == group.log("a")


def test_a_wiped_voter_votes_again_once_it_has_caught_up_and_heard_every_other_voter() -> None:
    group = Group.of("abc", draw=random.Random(1).randint)
    group.elect("a")
    group.propose("a", "x", "y")
    isolate(group, "c")

    wipe(group, "b")
    group.tick(100)
    assert group.log("b") == group.log("a")
    assert group["b"].raft.forgetful

    group.cut.clear()
    group.tick(100)
    assert not group["b"].raft.forgetful
    assert group["b"].raft.vote == A
    isolate(group, "a")
    group.tick(200)
    assert any(group[name].raft.leadership is not None for name in "bc")


@attrs.define(eq=False)
class Watched(Group):
    """A group in which `b` must not vote while it has less than `a` has committed."""

    partly: int = 0
    """How often `b` was seen with a part of it on its disk."""

    def deliver(self, message: Message) -> None:
        super().deliver(message)
        refilled = self["b"].raft
        if NO_INDEX < refilled.log.durable_index < self["a"].raft.commit_index:
            self.partly += 1
            assert refilled.forgetful


def test_a_wiped_voter_that_holds_only_a_part_of_what_was_committed_does_not_vote() -> None:
    """The part begins with an entry of the leader's term, and all other voters have answered."""
    one_by_one = Settings(append_bytes_max=1, probe_bytes_max=1, inflight_batches_max=1)
    group = Watched.of("abc", draw=random.Random(1).randint, settings=one_by_one)
    assert isinstance(group, Watched)
    group.elect("a")
    isolate(group, "c")
    group.propose("a", *(f"x{number}" for number in range(20)))
    group.cut = {(A, C), (C, A)}

    wipe(group, "b")
    group.tick(100)

    assert group.partly > 20
    assert group.log("b") == group.log("a")
    assert not group["b"].raft.forgetful


def test_what_a_wiped_node_holds_again_counts_for_new_entries() -> None:
    group = Group.of("abc", draw=random.Random(1).randint)
    group.elect("a")
    group.propose("a", "x")
    isolate(group, "c")
    wipe(group, "b")
    group.tick(100)

    group.propose("a", "z")

    assert group["a"].raft.commit_index == group["a"].storage.last_index


def test_a_restart_does_not_help_a_wiped_node_to_remember() -> None:
    """It is kept with the term that the node may have voted in without knowing."""
    group = Group.of("abc", draw=random.Random(1).randint)
    group.elect("a")
    isolate(group, "c")
    wipe(group, "b")
    group.tick(50)
    assert group["b"].storage.hard_state == HardState(group["a"].raft.term, FORGOTTEN)

    group["b"].start()

    assert group["b"].raft.forgetful
    assert not group["b"].raft.promotable


def test_a_new_group_begins_when_all_of_its_voters_have_answered() -> None:
    """Before that nobody knows whether the missing one has entries."""
    group = Group.of("abc", draw=random.Random(1).randint)
    for name in "abc":
        wipe(group, name)
    isolate(group, "c")
    group.tick(300)
    assert all(node.raft.term == 0 for node in group.nodes.values())

    group.cut.clear()
    group.tick(100)

    assert any(node.raft.leadership is not None for node in group.nodes.values())


def test_a_node_without_peers_begins_at_once() -> None:
    group = Group.of("a")
    wipe(group, "a")

    group.tick(40)

    assert group["a"].raft.leadership is not None


def test_an_answer_to_an_earlier_start_does_not_count() -> None:
    group = Group.of("abc", draw=random.Random(1).randint)
    wipe(group, "a")
    node = group["a"]

    for peer in (B, C):
        node.raft.step(TermAnswer(peer, A, 0, node.raft.life + 1))

    assert node.raft.forgetful
    assert node.storage.last_index == NO_INDEX
