"""Whole nodes of DLedger groups in the simulated world: a few seeds at every run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from harness.simulate.dledger import simulate_dledger
from ledgermq.testing.logs import logs_silenced


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with logs_silenced():
        yield


SEEDS = (1, 2, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_holds(seed: int) -> None:
    """Every checker is content, and something was acknowledged and judged."""
    outcome = simulate_dledger(seed)

    assert outcome.violations == []
    assert outcome.counts["acknowledged"] > 0
    assert outcome.counts["pulls_judged"] > 0
    assert outcome.counts["elections"] > 0


def test_one_seed_gives_one_trace_in_another_process_too() -> None:
    """Whatever order sets of texts have there."""
    here = simulate_dledger(1).digest
    command = [sys.executable, "-m", "harness.simulate", "--floor", "dledger", "--seed", "1", "--trace"]
    env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "99"}

    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env)

    assert f"trace {here}" in out.stdout
