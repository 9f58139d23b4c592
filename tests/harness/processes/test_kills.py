"""A real broker, killed under load; fifty kills of each mode are `python -m harness.processes.faults`."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import attrs
import pytest
import trio

from harness.processes.faults import Faults
from harness.processes.load import PULL_SETTINGS, Load
from harness.processes.servers import running_broker
from ledgermq.testing.checkers import check_history
from ledgermq.testing.history import End, History
from ledgermq.world.network import Address

pytestmark = pytest.mark.slow
LIFE_SECONDS = (0.05, 0.4)


@pytest.mark.parametrize("sync_flush", [True, False], ids=["sync", "async"])
async def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path, sync_flush: bool) -> None:
    """Of either flush mode: a kill leaves the page cache. Offsets stay dense and are given once, readers see everything."""
    store, rng = tmp_path / "store", random.Random(3)
    faults = Faults(store, sync_flush, rng, lambda _: None, life_seconds=LIFE_SECONDS, acknowledged_min=20)

    outcome = await faults.run(3)

    assert outcome.violations == []
    assert outcome.faults["kills"] == 3
    assert sum(put.acknowledged for put in outcome.history.puts) >= 20, outcome.summary()


async def test_the_harness_notices_what_a_broker_has_lost(tmp_path: Path) -> None:
    """A store that is swapped for an older copy of itself lacks acknowledged messages, and the checkers say so."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    load = Load(History(sync_flush=True), random.Random(1))
    async with running_broker(store, PULL_SETTINGS) as broker:
        await produce_for(load, 0.3, broker.address)
        assert await broker.stop() == 0
    load.history.ends.append(End.CLEAN)
    shutil.copytree(store, copy)
    async with running_broker(store, PULL_SETTINGS) as broker:
        await produce_for(load, 0.3, broker.address)
        await broker.kill()
    load.history.ends.append(End.KILL)
    shutil.rmtree(store)
    shutil.copytree(copy, store)

    async with running_broker(store, PULL_SETTINGS) as broker:
        snapshot = await load.look(broker.address)

    violations = check_history(attrs.evolve(load.history, snapshots=[snapshot]))
    assert any(violation.startswith("nothing_acknowledged_is_lost") for violation in violations)


async def produce_for(load: Load, seconds: float, address: Address) -> None:
    """Let the load work until enough was acknowledged."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run, address)
        await load.acknowledged(20)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
