"""The workload of producers that have one way open."""

from __future__ import annotations

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from harness.simulate.surroundings import Surroundings
from ledgermq.testing.logs import logs_silenced


@pytest.mark.slow
def test_every_send_is_timed_while_one_way_is_open() -> None:
    around = Surroundings(name_servers=3, name_servers_die=True, brokers_hang=True, swallowing=True, spare=True)

    def mend(draw: ClusterDraw) -> ClusterDraw:
        return attrs.evolve(draw, workloads=("plain", "failover"), around=around, promotes=False)

    with logs_silenced():
        outcome = simulate_cluster(3, mend)

    assert outcome.violations == []
    assert outcome.counts["sends_timed"] > 20
