"""Pure cores under the event heap: some hundred seeds at every run take a second or two."""

from __future__ import annotations

from harness.simulate.cores import simulate_cores


def test_seeds_hold() -> None:
    """Books of replication, held pulls and committed offsets agree with the models beside them."""
    for seed in range(100):
        outcome = simulate_cores(seed)
        assert outcome.violations == [], f"seed {seed}"
        assert outcome.counts["restart"] > 0
        assert outcome.counts["released"] > 0


def test_one_seed_gives_one_trace() -> None:
    assert simulate_cores(7).digest == simulate_cores(7).digest != simulate_cores(8).digest
