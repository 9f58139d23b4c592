"""A real broker that stands still."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import trio

from harness.processes.load import PULL_SETTINGS, Load
from harness.processes.servers import running_broker
from ledgermq.testing.checkers import check_history
from ledgermq.testing.history import End, History


async def test_a_broker_that_stood_still_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """Calls that were out are answered afterwards, on the same connections; nothing is refused, lost or given twice."""
    load = Load(History(sync_flush=True), random.Random(5))
    async with running_broker(tmp_path / "store", {"flushDiskType": "SYNC_FLUSH", **PULL_SETTINGS}) as broker:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run, broker.address)
            for _ in range(3):
                await load.acknowledged(20)
                await broker.pause(0.3)
            await load.acknowledged(20)
            nursery.cancel_scope.cancel()
        load.history.ends.append(End.CLEAN)
        snapshot = await load.look(broker.address)
        missed = await load.read_to_the_end(broker.address, snapshot)

    assert check_history(attrs.evolve(load.history, snapshots=[snapshot])) == []
    assert missed == load.skipped == []
    assert load.remarks == {}
