"""`python -m harness.simulate`: run seeds of the simulated world and print the violations of each failing one.

A failure prints its seed, what was drawn from the seed, and the command that replays it. The same seed gives the same trace in
any process; `--trace` prints it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ledgermq.world.events import ROOT_LOGGER

from ..outcome import Outcome
from ..raft.simulate import simulate_raft
from .cluster import simulate_cluster
from .controller import simulate_controller
from .cores import simulate_cores
from .dledger import simulate_dledger
from .elected import simulate_elected
from .store import simulate_store

VIOLATIONS_SHOWN_MAX = 5
FLOORS: dict[str, Callable[[int], Outcome]] = {
    "cores": simulate_cores,
    "controller": simulate_controller,
    "raft": simulate_raft,
    "store": simulate_store,
    "cluster": simulate_cluster,
    "dledger": simulate_dledger,
    "elected": simulate_elected,
}
"""The simulators by name, which are called floors. `cores`, `controller` and `raft` run pure cores; `store` runs
one store through crashes; `cluster` (classic mode), `dledger` and `elected` (controller mode) run name servers, brokers,
clients and their network."""
CLUSTER_EVERY = 5
"""Without `--floor`, every fifth seed also runs on the floor `cluster`, which takes twice as long as `store`."""
ELECTING_EVERY = 10
"""Without `--floor`, every tenth seed also runs on the floors `dledger` and `elected`, two to four seconds on each."""


def report(outcome: Outcome, floor: str, seed: int) -> str:
    """The violations of a failing seed, and the command that replays it."""
    shown = outcome.violations[:VIOLATIONS_SHOWN_MAX]
    more = len(outcome.violations) - len(shown)
    return "\n".join(
        (
            f"{floor} seed {seed} (trace {outcome.digest}): {len(outcome.violations)} violations",
            f"  drawn: {outcome.drawn}",
            *(f"  {violation}" for violation in shown),
            *([f"  and {more} more"] if more else []),
            f"  replay: python -m harness.simulate --floor {floor} --seed {seed} --trace",
        )
    )


def run_seeds(runs: Sequence[tuple[str, int]], *, trace: bool = False) -> int:
    """Run seeds, each on its floor, one after the other; returns how many failed."""
    started = time.monotonic()
    totals: Counter[str] = Counter()
    failed = 0
    for floor, seed in runs:
        outcome = FLOORS[floor](seed)
        totals.update(outcome.counts)
        if trace:
            print("\n".join(outcome.trace))  # noqa: T201
            print(f"trace {outcome.digest}")  # noqa: T201
        if outcome.violations:
            failed += 1
            print(report(outcome, floor, seed), flush=True)  # noqa: T201
    counts = ", ".join(f"{name} {count}" for name, count in sorted(totals.items()))
    elapsed = time.monotonic() - started
    print(f"{len(runs)} runs, {failed} failed, {elapsed:.0f} s: {counts}")  # noqa: T201
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (200)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="run this one seed alone")
    parser.add_argument("--floor", choices=FLOORS, help="run on this floor alone")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    chosen = parser.parse_args(arguments)
    logging.getLogger(ROOT_LOGGER).setLevel(logging.CRITICAL)
    seeds = [chosen.seed] if chosen.seed is not None else range(chosen.first, chosen.first + chosen.seeds)
    if chosen.floor:
        runs = [(chosen.floor, seed) for seed in seeds]
    else:
        runs = [("cores", seed) for seed in seeds]
        runs += [("controller", seed) for seed in seeds]
        runs += [("raft", seed) for seed in seeds]
        runs += [("store", seed) for seed in seeds]
        runs += [("cluster", seed) for seed in seeds if seed % CLUSTER_EVERY == 0]
        runs += [("dledger", seed) for seed in seeds if seed % ELECTING_EVERY == 0]
        runs += [("elected", seed) for seed in seeds if seed % ELECTING_EVERY == 0]
    return 1 if run_seeds(runs, trace=chosen.trace) else 0


if __name__ == "__main__":
    sys.exit(main())
