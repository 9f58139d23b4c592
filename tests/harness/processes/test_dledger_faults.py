"""A DLedger group on a virtual network; ten minutes of faults are `python -m harness.processes.dledger_faults`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.processes.dledger_faults import run
from harness.processes.network import NetworkUnavailable


@pytest.mark.slow
async def test_every_answer_to_a_client_holds_through_faults_of_nodes_and_network(tmp_path: Path) -> None:
    """Whatever faults a few seconds bring; how many there are is up to the machine."""
    try:
        faults = await run(tmp_path, 0.05, random.Random(3), lambda _: None)
    except NetworkUnavailable as error:
        pytest.skip(str(error))

    assert faults.answers.violations == []
    assert faults.answers.acknowledged
    assert len(faults.healed_seconds) == sum(map(len, faults.seconds.values())) + faults.doubles > 0
