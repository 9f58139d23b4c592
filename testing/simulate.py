"""`python -m ledgermq.testing.simulate`: run seeds of the simulated world and print what each failing one showed.

A failure prints its seed, what the seed drew, and the line that replays it. The same seed gives the same trace in any process;
`--trace` prints it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Sequence

import structlog

from .simulate_store import Outcome, simulate_store

VIOLATIONS_SHOWN_MAX = 5


def digest(outcome: Outcome) -> str:
    """A short name of a trace: two runs of one seed must agree on it."""
    return hashlib.sha256("\n".join(outcome.trace).encode()).hexdigest()[:16]


def report(outcome: Outcome) -> str:
    """What a failing seed showed, and how to see it again."""
    shown = outcome.violations[:VIOLATIONS_SHOWN_MAX]
    more = len(outcome.violations) - len(shown)
    return "\n".join(
        (
            f"seed {outcome.draw.seed} (trace {digest(outcome)}): {len(outcome.violations)} violations",
            f"  drawn: {outcome.draw}",
            *(f"  {violation}" for violation in shown),
            *([f"  and {more} more"] if more else []),
            f"  replay: python -m ledgermq.testing.simulate --seed {outcome.draw.seed} --trace",
        )
    )


def run_seeds(seeds: Sequence[int], *, trace: bool = False) -> int:
    """Run seeds one after the other; returns how many failed."""
    started = time.monotonic()
    totals: Counter[str] = Counter()
    failed = 0
    for seed in seeds:
        outcome = simulate_store(seed)
        totals.update(outcome.faults)
        totals.update(puts=outcome.puts, acknowledged=outcome.acknowledged, reads=outcome.reads)
        if trace:
            print("\n".join(outcome.trace))  # noqa: T201
            print(f"trace {digest(outcome)}")  # noqa: T201
        if outcome.violations:
            failed += 1
            print(report(outcome), flush=True)  # noqa: T201
    counts = ", ".join(f"{name} {count}" for name, count in sorted(totals.items()))
    elapsed = time.monotonic() - started
    print(f"{len(seeds)} seeds, {failed} failed, {elapsed:.0f} s: {counts}")  # noqa: T201
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ledgermq.testing.simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (200)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="run this one seed alone")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    seeds = [chosen.seed] if chosen.seed is not None else range(chosen.first, chosen.first + chosen.seeds)
    return 1 if run_seeds(seeds, trace=chosen.trace) else 0


if __name__ == "__main__":
    sys.exit(main())
