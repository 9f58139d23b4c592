"""The simulator of the controller's decisions: some seeds at every run."""

from __future__ import annotations

from harness.simulate.controller import simulate_controller


def test_no_seed_loses_an_acknowledged_message_or_elects_a_master_outside_the_set() -> None:
    total = 0
    for seed in range(15):
        outcome = simulate_controller(seed)
        assert outcome.violations == [], f"seed {seed}"
        total += outcome.counts["acknowledged"]
    assert total > 1000


def test_one_seed_gives_one_trace() -> None:
    assert simulate_controller(7).digest == simulate_controller(7).digest != simulate_controller(8).digest
