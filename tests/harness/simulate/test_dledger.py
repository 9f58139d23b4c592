"""Whole nodes of DLedger groups in the simulated world: what `make sim` does not ask of its seeds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest

from harness.simulate.dledger import simulate_dledger
from ledgermq.ha.dledger.settings import JAVA
from ledgermq.testing.logs import logs_silenced


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with logs_silenced():
        yield


ONCE_FAILED_WITH_JAVA = {
    11: "a leader that was elected again in its term waited for an entry of this leadership that nobody appended",
    17: "the same, with a leader that was isolated",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", ONCE_FAILED_WITH_JAVA)
def test_a_seed_that_failed_with_the_dialect_of_dledger_holds(seed: int) -> None:
    """With the workloads that it failed with."""
    outcome = simulate_dledger(seed, lambda draw: attrs.evolve(draw, workloads=("plain", "pulls"), dialect=JAVA))

    assert outcome.violations == []


def test_a_group_is_changed_while_it_is_used() -> None:
    """The workload that changes it belongs to this mode alone."""
    outcome = simulate_dledger(4, lambda draw: attrs.evolve(draw, workloads=("plain", "membership")))

    assert outcome.violations == []
    assert outcome.requests["CHANGE_DLEDGER_GROUP"] > 0


def test_a_group_with_large_tables_elects_a_leader_for_good() -> None:
    """Though all of them have to be appended to its log, on processors that take seconds for it."""
    outcome = simulate_dledger(7, lambda draw: attrs.evolve(draw, workloads=("plain", "pulls"), older_offsets=20_000))

    assert outcome.violations == []


@pytest.mark.slow
def test_one_seed_gives_one_trace_in_another_process_too() -> None:
    """Whatever order sets of texts have there."""
    here = simulate_dledger(17)
    command = [sys.executable, "-m", "harness.simulate", "--floor", "dledger", "--seed", "17", "--trace"]
    env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "99"}

    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env)

    assert f"trace {here.digest}" in out.stdout
    assert here.violations == []
    assert here.counts["acknowledged"] > 0
    assert here.counts["pulls_judged"] > 0
    assert here.counts["elections"] > 0
