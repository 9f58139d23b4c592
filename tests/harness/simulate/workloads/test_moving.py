"""The workloads of clients that the simulator calls `moving`, `moving_threads` and `moving_tasks`."""

from __future__ import annotations

import attrs
import pytest

from harness.client_mutants import WIDE_BUGS
from harness.mutants import MUTANTS, Mutant, seeds_until_found
from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from ledgermq.testing.logs import logs_silenced

BUGS = {name for name, *_, workloads in WIDE_BUGS if workloads[0].startswith("moving")}


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["moving", "moving_threads", "moving_tasks"])
def test_it_is_counted_and_holds(workload: str) -> None:
    """In its seed, members pause queues and seek, and handle everything that they have not passed."""

    def mend(draw: ClusterDraw) -> ClusterDraw:
        return attrs.evolve(draw.widened(), workloads=("plain", workload), promotes=False)

    with logs_silenced():
        outcome = simulate_cluster(8, mend)

    assert outcome.violations == []
    assert min(outcome.counts[name] for name in ("pauses", "seeks", "handled")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.name in BUGS], ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    with logs_silenced():
        assert seeds_until_found(mutant, 20) is not None
