"""Services under faults for a few seconds; half an hour of each is `python -m harness.processes.soak`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from harness.processes.journal import Journal
from harness.processes.services import SUBSCRIPTIONS, ThreadService, TrioService
from harness.processes.soak import Soak, namesrv_of, servers_of
from ledgermq.testing.logs import logs_silenced


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TrioService, ThreadService])
async def test_a_service_loses_nothing_when_its_master_is_killed(
    tmp_path: Path, kind: type[TrioService | ThreadService]
) -> None:
    """Every acknowledged message is handled by every group, in order where that is promised."""
    rng = random.Random(1)
    journal = Journal(rng)
    journal.history.subscriptions.update(SUBSCRIPTIONS)
    with servers_of(tmp_path) as servers, logs_silenced():
        soak = Soak(tmp_path, rng, kind(namesrv_of(servers), journal, rng, tmp_path, 2.0), 0.0, lambda _: None, servers)

        async def strike(nursery: trio.Nursery) -> None:
            while sum(put.acknowledged for put in journal.history.puts) < 20:  # noqa: ASYNC110 - other threads write it
                await trio.sleep(0.1)
            await soak.kill(nursery, "master", 1.0)

        outcome = await soak.run(strike)

    assert outcome.violations == []
    assert outcome.faults["kill master"] == 1
    assert sum(put.acknowledged for put in outcome.history.puts) >= 20
