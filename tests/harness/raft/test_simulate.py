"""The Raft core on its floor of the simulator: some dozen seeds at every run, and one seed replays exactly."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from harness.mutants import MUTANTS, Mutant, seeds_until_found
from harness.raft.simulate import SETTINGS, simulate_raft
from harness.raft.stories import A, B, C
from harness.raft.world import World
from ledgermq.ha.raft.quorum import Configuration

FAULTS = (
    "crash",
    "failing_sync",
    "isolate",
    "message_duplicated",
    "message_lost",
    "one_way_cut",
    "slow_disk",
    "change",
    "snapshot_installed",
    "transfer",
    "truncation",
    "late_vote_wins",
)


RARE = (
    "do not sync the vote",
    "vote twice in a term",
    "without asking a majority",
    "from before a truncation",
)
"""Planted bugs that take too many seeds for every run."""


FOUND_LATE = {
    "vote after the loss of the disk": 32,
    "remember at the first word of a leader": 128,
}
"""Planted bugs that one in a hundred seeds finds, and such a seed."""

A_LATE_VOTE = 78
"""A seed in which votes win that arrive late, as in one of thirty."""


@pytest.mark.slow
def test_groups_keep_every_claim_under_every_fault() -> None:
    """Safety while faults happen, liveness after they end; every kind of fault is among them."""
    counts = Counter[str]()
    for seed in (*range(30), A_LATE_VOTE):
        outcome = simulate_raft(seed)
        counts += outcome.faults
        assert outcome.violations == [], f"seed {seed}"
    assert [fault for fault in FAULTS if not counts[fault]] == []
    assert counts["acknowledged"] > 500
    assert counts["reads"] > 300


@pytest.mark.parametrize("seed", range(10))
def test_disks_that_need_longer_for_a_vote_than_an_election_may_take_still_elect_a_leader(seed: int) -> None:
    """All of them at once, as on one overloaded array: a vote takes up to five of the shortest time-outs."""
    world, names = World(random.Random(seed), SETTINGS), (A, B, C)
    for name in names:
        world.add_node(name, Configuration(names), rate=1.0).disk_factor = 100.0

    while not world.leaders() and world.now < 60 * SETTINGS.election_ticks_min:
        world.run_until(world.now + SETTINGS.election_ticks_min)

    assert world.leaders()
    assert world.checker.violations == []


def test_one_seed_gives_one_trace() -> None:
    assert simulate_raft(7).digest == simulate_raft(7).digest != simulate_raft(8).digest


FOUND_SOON = [
    mutant for mutant in MUTANTS if mutant.name.startswith("raft: ") and not mutant.name.endswith((*RARE, *FOUND_LATE))
]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", FOUND_SOON, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert seeds_until_found(mutant, 200) is not None


@pytest.mark.parametrize("name", FOUND_LATE)
def test_a_planted_bug_is_found_by_a_seed_that_holds_without_it(name: str) -> None:
    (mutant,) = (each for each in MUTANTS if each.name == f"raft: {name}")

    with mutant.planted():
        outcome = simulate_raft(FOUND_LATE[name])

    assert outcome.violations != []
    assert simulate_raft(FOUND_LATE[name]).violations == []
