"""The Raft core on its floor of the simulator: some dozen seeds at every run, and one seed replays exactly."""

from __future__ import annotations

from collections import Counter

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
