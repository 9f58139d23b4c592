"""A DLedger group of real processes; a hundred kills are `python -m harness.processes.dledger --kills 100`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.processes.dledger import run


@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_when_leaders_are_killed(tmp_path: Path) -> None:
    """Sends go on under the next leader, and everything that was acknowledged is there in the end."""
    result = await run(tmp_path, 2, random.Random(3))

    assert result.missing == set()
    assert len(result.acknowledged) > 100
    assert len(result.seconds) == 2
