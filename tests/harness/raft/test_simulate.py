"""The Raft core on its floor of the simulator: some dozen seeds at every run, and one seed replays exactly."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.mutants import MUTANTS, Mutant, seeds_until_found
from harness.raft.simulate import simulate_raft

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
)


RARE = (
    "do not sync the vote",
    "vote twice in a term",
    "under a lease without end",
    "without asking a majority",
    "from before a truncation",
)
"""Planted bugs that take too many seeds for every run."""


def test_groups_keep_every_claim_under_every_fault() -> None:
    """Safety while faults happen, liveness after they end; every kind of fault is among them."""
    counts = Counter[str]()
    for seed in range(30):
        outcome = simulate_raft(seed)
        counts += outcome.faults
        assert outcome.violations == [], f"seed {seed}"
    assert [fault for fault in FAULTS if not counts[fault]] == []
    assert counts["acknowledged"] > 500
    assert counts["reads"] > 300


def test_one_seed_gives_one_trace() -> None:
    assert simulate_raft(7).digest == simulate_raft(7).digest != simulate_raft(8).digest


FOUND_SOON = [mutant for mutant in MUTANTS if mutant.name.startswith("raft: ") and not mutant.name.endswith(RARE)]


@pytest.mark.parametrize("mutant", FOUND_SOON, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    assert seeds_until_found(mutant, 100) is not None
