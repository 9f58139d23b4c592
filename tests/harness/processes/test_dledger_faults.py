"""A DLedger group on a virtual network; ten minutes of faults are `python -m harness.processes.dledger_faults`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.processes.dledger_faults import differences, run
from harness.processes.network import NetworkUnavailable


def test_a_ledger_that_ends_before_what_all_nodes_reported_differs() -> None:
    """Zero bytes behind the end may be fewer in one ledger than in another, and what follows the agreed end is compared too."""
    assert differences([b"abcd\0\0", b"abcd\0\0\0", b"abcde"], 4) == []
    assert differences([b"abcd\0\0", b"abc\0\0\0", b"abcd"], 3) == []
    assert differences([b"abcd\0\0", b"abc\0\0\0", b"abcd"], 4) == ["the ledgers differ below 4; they end at [4, 3, 4]"]
    assert differences([b"abcd", b"abce"], 3) == ["the ledgers differ below 4; they end at [4, 4]"]


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
