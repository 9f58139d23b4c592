"""The workload of clients that the simulator calls `beginnings`."""

from __future__ import annotations

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from ledgermq.testing.logs import logs_silenced


def mend(draw: ClusterDraw) -> ClusterDraw:
    return attrs.evolve(draw.widened(), workloads=("plain", "beginnings"), promotes=False)


@pytest.mark.slow
def test_it_is_counted_and_holds() -> None:
    """In its seed, groups that come back skip nothing, on a slave that does not know them either."""
    with logs_silenced():
        outcome = simulate_cluster(8, mend)

    assert outcome.violations == []
    assert outcome.counts["returns"] > 0
    assert outcome.counts["late_groups"] > 0
