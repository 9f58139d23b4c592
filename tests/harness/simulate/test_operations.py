"""Operators in simulated runs: backups that are restored, slaves that are promoted, refusals that are settled."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest

from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from harness.simulate.surroundings import NO_TROUBLE
from ledgermq.testing.history import End
from ledgermq.testing.logs import logs_silenced


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with logs_silenced():
        yield


def test_a_restored_master_gives_way_to_its_slave_although_that_was_killed_too() -> None:
    """Nothing acknowledged is lost, and what the old master had put meanwhile is cut by name."""

    def mend(draw: ClusterDraw) -> ClusterDraw:
        pair = attrs.evolve(draw, nodes=2, sync_master=True, in_sync_replicas=2, disk_errors=False, around=NO_TROUBLE)
        short = attrs.evolve(pair, life_seconds=2.0, lives=3, ends=(End.KILL,) * 3, outage_seconds=(0.5,) * 3)
        return attrs.evolve(short, restores=True, accepts_loss=False, workloads=("plain", "groups"))

    outcome = simulate_cluster(13, mend)

    assert outcome.violations == []
    assert outcome.counts["restored_backup"] > 0
    assert outcome.counts["slave_killed_before_restore"] > 0
    assert outcome.counts["cut_by_name"] > 0
