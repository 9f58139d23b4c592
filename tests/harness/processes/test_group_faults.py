"""Seconds of faults of each kind of group on a virtual network; an hour is `python -m harness.processes.elected_faults`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.processes import dledger_faults, elected_faults
from harness.processes.group_faults import Kind, differences, run
from harness.processes.network import NetworkUnavailable


def test_a_log_that_ends_before_what_all_brokers_reported_differs() -> None:
    """Zero bytes behind the end may be fewer in one log than in another, and what follows the agreed end is compared too."""
    assert differences([b"abcd\0\0", b"abcd\0\0\0", b"abcde"], 4) == []
    assert differences([b"abcd\0\0", b"abc\0\0\0", b"abcd"], 3) == []
    assert differences([b"abcd\0\0", b"abc\0\0\0", b"abcd"], 4) == ["the logs differ below 4; they end at [4, 3, 4]"]
    assert differences([b"abcd", b"abce"], 3) == ["the logs differ below 4; they end at [4, 4]"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [dledger_faults.KIND, elected_faults.KIND], ids=["DLedger", "controllers"])
async def test_every_answer_to_a_client_holds_through_faults_of_nodes_and_network(kind: Kind, tmp_path: Path) -> None:
    """Whatever faults a few seconds bring; how many there are is up to the machine."""
    try:
        faults = await run(kind, tmp_path, 0.05, random.Random(3), lambda _: None)
    except NetworkUnavailable as error:
        pytest.skip(str(error))

    assert faults.answers.violations == []
    assert faults.answers.acknowledged
    assert len(faults.healed_seconds) == sum(map(len, faults.seconds.values())) + faults.doubles > 0
