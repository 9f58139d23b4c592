"""The workload of pulls: what it asks is answered, noted and judged."""

from __future__ import annotations

import attrs

from harness.simulate.dledger import Blow, DLedgerDraw, simulate_dledger
from ledgermq.testing.logs import logs_silenced


def _alone(draw: DLedgerDraw) -> DLedgerDraw:
    return attrs.evolve(draw, workloads=("plain", "pulls"), blows=(Blow("isolate leader"),), life_seconds=3.0)


def test_pulls_are_asked_of_every_node_and_judged_at_the_leader() -> None:
    """What followers and a leader that was cut off give is compared with the end of the run."""
    with logs_silenced():
        outcome = simulate_dledger(3, _alone)

    assert outcome.violations == []
    assert len({pull.host for pull in outcome.history.pulls}) > 1
    assert 0 < outcome.counts["pulls_judged"] < len(outcome.history.pulls)
    assert any(read.reader.startswith("pull ") for read in outcome.history.reads)
