"""The workload of a pull consumer that the simulator calls `polling`."""

from __future__ import annotations

import attrs
import pytest

from harness.client_mutants import WIDE_BUGS
from harness.mutants import MUTANTS, Mutant, seeds_until_found
from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from ledgermq.testing.logs import logs_silenced

BUGS = {name for name, *_, workloads in WIDE_BUGS if workloads == ("polling",)}


def mend(draw: ClusterDraw) -> ClusterDraw:
    return attrs.evolve(draw.widened(), workloads=("plain", "polling"), promotes=False)


@pytest.mark.slow
def test_it_is_counted_and_holds() -> None:
    """In its seed, a pull consumer of each kind polls, and is paused, moved and committed."""
    with logs_silenced():
        outcome = simulate_cluster(1, mend)

    assert outcome.violations == []
    counted = ("polled_trio", "polled_threads", "polled_asyncio", "pull_pauses", "pull_seeks", "pull_commits")
    assert min(outcome.counts[name] for name in counted) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [mutant for mutant in MUTANTS if mutant.name in BUGS], ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    with logs_silenced():
        assert seeds_until_found(mutant, 20) is not None


def test_one_seed_gives_one_trace() -> None:
    """Although asyncio runs in threads of its own."""
    with logs_silenced():
        first, again = (simulate_cluster(0, mend) for _ in range(2))

    assert first.digest == again.digest
