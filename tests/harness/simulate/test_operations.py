"""Operators in simulated runs: backups that are restored, slaves that are promoted, refusals that are settled."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from ledgermq.testing.logs import logs_silenced


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with logs_silenced():
        yield


def test_a_restored_master_gives_way_to_its_slave() -> None:
    """Nothing acknowledged is lost, and what the old master had put meanwhile is cut by name."""

    def mend(draw: ClusterDraw) -> ClusterDraw:
        pair = attrs.evolve(draw, nodes=2, sync_master=True, in_sync_replicas=2)
        return attrs.evolve(pair, restores=True, accepts_loss=False, workloads=("plain", "groups", "ordered"))

    outcome = simulate_cluster(0, mend)

    assert outcome.violations == []
    assert outcome.counts["restored_backup"] > 0
    assert outcome.counts["cut_by_name"] > 0
