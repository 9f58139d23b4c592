"""The workload of clients that the simulator calls `closing`."""

from __future__ import annotations

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from ledgermq.testing.logs import logs_silenced


def mend(draw: ClusterDraw) -> ClusterDraw:
    return attrs.evolve(draw.widened(), workloads=("plain", "closing"), promotes=False)


@pytest.mark.slow
def test_it_is_counted_and_holds() -> None:
    """In its seed, whoever waits on a client that is closed gets an error."""
    with logs_silenced():
        outcome = simulate_cluster(12, mend)

    assert outcome.violations == []
    assert outcome.counts["waits"] > 0
