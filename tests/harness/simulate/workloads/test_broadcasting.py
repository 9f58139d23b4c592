"""The workload of clients that the simulator calls `broadcasting`."""

from __future__ import annotations

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from ledgermq.testing.logs import logs_silenced


def mend(draw: ClusterDraw) -> ClusterDraw:
    return attrs.evolve(draw.widened(), workloads=("plain", "broadcasting"), promotes=False)


@pytest.mark.slow
def test_it_is_counted_and_holds() -> None:
    """In its seed, every member handles every message."""
    with logs_silenced():
        outcome = simulate_cluster(11, mend)

    assert outcome.violations == []
    assert outcome.counts["broadcast"] > 0
