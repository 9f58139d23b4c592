"""The workload of sends that are repeated again and again, in every mode."""

from __future__ import annotations

import attrs
import pytest

from harness.outcome import Outcome
from harness.simulate.cluster import simulate_cluster
from harness.simulate.cluster_draw import ClusterDraw
from harness.simulate.dledger import DLedgerDraw, simulate_dledger
from harness.simulate.surroundings import NO_TROUBLE
from ledgermq.testing.logs import logs_silenced


def _classic(seed: int, nodes: int) -> Outcome:
    def mend(draw: ClusterDraw) -> ClusterDraw:
        pair = attrs.evolve(draw, nodes=nodes, workloads=("plain", "numbered"), around=NO_TROUBLE, restores=False)
        return attrs.evolve(pair, sync_master=nodes > 1, in_sync_replicas=nodes, promotes=nodes > 1)

    return simulate_cluster(seed, mend)


def _group(seed: int) -> Outcome:
    def mend(draw: DLedgerDraw) -> DLedgerDraw:
        return attrs.evolve(draw, workloads=("plain", "numbered"))

    return simulate_dledger(seed, mend)


@pytest.mark.parametrize(
    "mode", ["one broker", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("a pair", "a group"))]
)
def test_messages_are_stored_once_however_often_they_are_sent(mode: str) -> None:
    with logs_silenced():
        outcome = _group(5) if mode == "a group" else _classic(5, 1 if mode == "one broker" else 2)

    assert outcome.violations == []
    assert outcome.counts["sends_repeated"] > 1
