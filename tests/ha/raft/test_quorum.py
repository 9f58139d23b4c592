"""Majorities, joint configurations and ballots against a naive count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq.ha.raft.quorum import Ballot, Configuration, committed_index, majority
from ledgermq.ha.raft.units import PeerId

PEERS = [PeerId(name) for name in "abcdefg"]
SOME = st.sets(st.sampled_from(PEERS), min_size=1, max_size=5)


def a_configuration(voters: set[PeerId], outgoing: set[PeerId], learners: set[PeerId]) -> Configuration:
    return Configuration(tuple(voters), tuple(outgoing), tuple(learners - voters))


CONFIGURATIONS = st.builds(a_configuration, SOME, st.one_of(st.just(set[PeerId]()), SOME), st.sets(st.sampled_from(PEERS)))
MATCHES = st.dictionaries(st.sampled_from(PEERS), st.integers(-1, 9))


def naive_committed(match: dict[PeerId, int], configuration: Configuration) -> int:
    """The largest index of which one can count a majority in each set of voters."""
    sets = [configuration.voters, configuration.outgoing] if configuration.outgoing else [configuration.voters]
    for index in range(9, -1, -1):
        if all(2 * sum(match.get(voter, -1) >= index for voter in voters) > len(voters) for voters in sets):
            return index
    return -1


@given(MATCHES, CONFIGURATIONS)
def test_committed_index_is_what_one_would_count(match: dict[PeerId, int], configuration: Configuration) -> None:
    assert committed_index(match, configuration) == naive_committed(match, configuration)


@given(CONFIGURATIONS, st.lists(st.tuples(st.sampled_from(PEERS), st.booleans())))
def test_ballot_is_won_by_what_one_would_count(configuration: Configuration, answers: list[tuple[PeerId, bool]]) -> None:
    ballot, first = Ballot(configuration), dict[PeerId, int]()
    for peer, granted in answers:
        ballot.record(peer, granted)
        first.setdefault(peer, 0 if granted else -1)

    assert ballot.won == (naive_committed(first, configuration) == 0)
    if ballot.won:
        assert not ballot.lost


@given(CONFIGURATIONS, st.sets(st.sampled_from(PEERS)))
def test_ballot_is_lost_when_the_silent_ones_cannot_change_it(configuration: Configuration, refusing: set[PeerId]) -> None:
    ballot = Ballot(configuration)
    for peer in refusing:
        ballot.record(peer, granted=False)

    everybody_else = {peer: 0 for peer in PEERS if peer not in refusing}

    assert ballot.lost == (naive_committed(everybody_else, configuration) < 0)


@given(SOME, SOME, SOME)
def test_two_quorums_of_a_joint_configuration_and_a_neighbour_meet(
    old: set[PeerId], new: set[PeerId], granted: set[PeerId]
) -> None:
    """Raft §6: the old, or the new configuration, can decide nothing without somebody who decides in the joint one."""
    joint = Ballot(Configuration(tuple(new), tuple(old)))
    for peer in granted:
        joint.record(peer, granted=True)
    for neighbour in (old, new):
        others = Ballot(Configuration(tuple(neighbour)))
        for peer in set(PEERS) - granted:
            others.record(peer, granted=True)

        assert not (joint.won and others.won)


@pytest.mark.parametrize(("count", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_majority(count: int, needed: int) -> None:
    assert majority(count) == needed


def test_learner_cannot_be_a_voter_too() -> None:
    with pytest.raises(ValueError, match="voter and learner of one configuration: a"):
        Configuration((PEERS[0],), (), (PEERS[0],))
