"""`python -m harness.processes.faults`: kill real brokers under load repeatedly, and judge what they have stored.

This module has the run of a single broker and the command for both modes; the pair of master and slave is in `pairs`.
In each life the broker starts on the same store, everything in it is read, producers and readers work, sometimes the process
is paused, and it is killed with SIGKILL at a random moment, sometimes during its start. The last life ends by a clean stop. A
kill does not lose the page cache, so acknowledgements of both flush modes must survive it. The seed fixes the drawn faults, but
not the interleaving of processes: a failed run keeps its store and history, and may take several runs to reproduce.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

import attrs
import trio

from ledgermq.remoting.errors import RemotingError
from ledgermq.testing.checkers import STORE_CHECKERS, check_history, queue_offsets_are_given_once
from ledgermq.testing.history import End, History, Snapshot
from ledgermq.world.network import Address
from ledgermq.world.real import real_world

from ..outcome import Outcome
from ..stored_offsets import queue_offset_faults
from .load import DELETION_CHECKERS, PULL_SETTINGS, Load, create_topic, message_ids_name_their_messages
from .network import NetworkUnavailable
from .pairs import PairFaults
from .report import VIOLATIONS_SHOWN_MAX, Report, close_directory, drawn_seed, print_line
from .servers import broker_arguments, running, running_broker

LIFE_SECONDS = (0.05, 1.0)
START_KILLED_SHARE = 0.15
START_KILLED_SECONDS = (0.0, 0.8)
DELETED_SHARE = 0.1
"""The probability that the topic is deleted in a life of the broker."""
PAUSED_SHARE = 0.1
PAUSE_SECONDS = (0.2, 1.5)


@attrs.define(eq=False)
class Faults:
    """One store, and the lives of the broker on it."""

    store: Path
    sync_flush: bool
    rng: random.Random
    report: Report
    life_seconds: tuple[float, float] = LIFE_SECONDS
    acknowledged_min: int = 0
    """How many puts are acknowledged at least in each life under load."""
    deletes: bool = False
    """Whether the topic is deleted, and created again, while it is used."""
    outcome: Outcome = attrs.field(init=False)
    load: Load = attrs.field(init=False)
    settings: dict[str, object] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.outcome = Outcome(History(self.sync_flush))
        self.load = Load(self.outcome.history, self.rng)
        self.settings = {"flushDiskType": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH", **PULL_SETTINGS}

    async def run(self, kills: int, seconds: float = inf) -> Outcome:
        """Kill the broker `kills` times, or as often as `seconds` allow, then check that everything is there."""
        started = time.monotonic()
        while self.outcome.faults["kills"] < kills and time.monotonic() < started + seconds:
            if self.outcome.faults["kills"] and self.rng.random() < START_KILLED_SHARE:
                await self._kill_while_starting()
            else:
                await self._kill_under_load()
            self.outcome.faults["kills"] += 1
        await self._stop_and_look()
        self.outcome.violations += self.load.skipped
        self.outcome.violations += queue_offset_faults(real_world().disk, str(self.store))
        self.outcome.violations += check_history(self.outcome.history, (queue_offsets_are_given_once,))
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    async def _kill_while_starting(self) -> None:
        async with running(self.store.parent, *broker_arguments(self.store, self.settings)) as broker:
            await trio.sleep(self.rng.uniform(*START_KILLED_SECONDS))
            await broker.kill()
        self.outcome.history.ends.append(End.KILL)
        self.outcome.faults["kills while starting"] += 1

    async def _kill_under_load(self) -> None:
        before = len(self.outcome.history.puts)
        began = time.monotonic()
        async with running_broker(self.store, self.settings) as broker:
            self.outcome.start_seconds_max = max(self.outcome.start_seconds_max, time.monotonic() - began)
            await self._look(broker.address)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.load.run, broker.address)
                await self.load.acknowledged(self.acknowledged_min)
                if self.deletes and self.rng.random() < DELETED_SHARE:
                    nursery.start_soon(self._delete, broker.address)
                if self.rng.random() < PAUSED_SHARE:
                    await trio.sleep(self.rng.uniform(*self.life_seconds))
                    await broker.pause(self.rng.uniform(*PAUSE_SECONDS))
                    self.outcome.faults["pauses"] += 1
                await trio.sleep(self.rng.uniform(*self.life_seconds))
                await broker.kill()
        self.outcome.history.ends.append(End.KILL)
        self.report(
            f"kill {self.outcome.faults['kills'] + 1}: {len(self.outcome.history.puts) - before} messages sent in this life"
        )

    async def _delete(self, address: Address) -> None:
        await trio.sleep(self.rng.uniform(*self.life_seconds))
        with suppress(RemotingError):
            await self.load.delete_topic(address)
        self.outcome.faults["deletions"] += 1

    async def _stop_and_look(self) -> None:
        """End the last life by a clean stop; the start after it must find everything too."""
        async with running_broker(self.store, self.settings) as broker:
            await self._look(broker.address)
            status = await broker.stop()
            if status:
                self.outcome.violations.append(f"a clean stop ended with exit status {status}: {broker.errors}")
        self.outcome.history.ends.append(End.CLEAN)
        async with running_broker(self.store, self.settings) as broker:
            snapshot = await self._look(broker.address)
            self.outcome.violations += await self.load.read_to_the_end(broker.address, snapshot)

    async def _look(self, address: Address) -> Snapshot:
        """Take a snapshot and judge it at once, because all snapshots together would not fit into memory."""
        if self.load.history.deletions:
            await create_topic(self.load.network, address)  # a kill may have come between the deletion and that
        snapshot = await self.load.look(address)
        history = attrs.evolve(self.outcome.history, snapshots=[snapshot])
        checkers = (*STORE_CHECKERS, *DELETION_CHECKERS, message_ids_name_their_messages)
        self.outcome.violations += check_history(history, checkers)
        return snapshot


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.processes.faults", description=__doc__)
    parser.add_argument("--mode", choices=("single", "sync_master"), default="single", help="one broker, or a pair (single)")
    parser.add_argument("--kills", type=int, default=50, help="how often a broker is killed (50)")
    parser.add_argument("--minutes", type=float, default=inf, help="or for how long this is repeated")
    parser.add_argument("--flush", choices=("sync", "async"), default="sync", help="SYNC_FLUSH or ASYNC_FLUSH (sync)")
    parser.add_argument("--seed", type=int, help="what to draw from; a new one by default")
    parser.add_argument("--directory", type=Path, help="where the stores go; a temporary one by default")
    chosen = parser.parse_args(arguments)
    seed = drawn_seed(chosen.seed)
    directory = Path(tempfile.mkdtemp(prefix="ledgermq-faults-", dir=chosen.directory))
    title = f"seed {seed}, {chosen.mode}, {chosen.flush} flush"
    print_line(f"{title}, in {directory}")
    sync_flush, rng = chosen.flush == "sync", random.Random(seed)  # noqa: S311 - draws faults
    try:
        if chosen.mode == "single":
            outcome = trio.run(
                Faults(directory / "store", sync_flush, rng, print_line, deletes=True).run, chosen.kills, 60 * chosen.minutes
            )
        else:
            outcome = trio.run(
                PairFaults(directory, sync_flush, rng, print_line, operated=True).run, chosen.kills, 60 * chosen.minutes
            )
    except NetworkUnavailable as error:
        print_line(str(error))
        return 2
    for violation in outcome.violations[:VIOLATIONS_SHOWN_MAX]:
        print_line(f"  {violation}")
    print_line(f"{title}: {outcome.summary()}")
    return close_directory(directory, outcome.violations)


if __name__ == "__main__":
    sys.exit(main())
