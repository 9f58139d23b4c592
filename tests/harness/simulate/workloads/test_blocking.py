"""The workload of clients that the simulator calls `blocking`."""

from __future__ import annotations

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from ledgermq.testing.logs import logs_silenced


def mend(draw: ClusterDraw) -> ClusterDraw:
    return attrs.evolve(draw.widened(), workloads=("plain", "blocking"), promotes=False)


@pytest.mark.slow
def test_it_is_counted_and_holds() -> None:
    """In its seed, threads take from one consumer and are interrupted."""
    with logs_silenced():
        outcome = simulate_cluster(2, mend)

    assert outcome.violations == []
    assert outcome.counts["threads_interrupted"] > 0


def test_one_seed_gives_one_trace() -> None:
    """Although its threads are real ones."""
    with logs_silenced():
        first, again = (simulate_cluster(16, mend) for _ in range(2))

    assert first.digest == again.digest
