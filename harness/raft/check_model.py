"""`python -m harness.raft.check_model`: explore small worlds completely, and find planted bugs by their shortest traces.

Each world has its own bounds; a large one is searched only up to a number of states. The exit status is 1 if the real core
violates a claim, or if a planted bug that its world can reveal is not found there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import attrs

from .explore import Bounds, Result, explore
from .mutants import RAFT_BUGS, Planted, planted

WORLDS: dict[str, Bounds] = {
    "one leader": Bounds(terms=1, campaigns=1, entries=1),
    "rivals": Bounds(terms=2, campaigns=2, entries=0),
    "rivals and a crash": Bounds(terms=1, campaigns=2, entries=0, crashes=1),
    "change of leaders": Bounds(terms=2, campaigns=2, entries=1),
    "lost messages": Bounds(terms=2, campaigns=2, entries=0, retries=1),
    "heartbeats": Bounds(terms=2, campaigns=2, entries=0, heartbeats=1),
    "copies": Bounds(terms=2, campaigns=2, entries=0, duplicates=1),
    "crash between leaders": Bounds(terms=2, campaigns=2, entries=0, crashes=1),
}
"""The worlds to explore. A complete search proves that no order of events within the bounds violates a claim."""

BUGS: dict[str, str] = {
    "count entries of earlier terms": "change of leaders",
    "count the leader before its own sync": "rivals and a crash",
    "acknowledge before the follower's sync": "rivals and a crash",
    "do not sync the vote": "rivals and a crash",
    "commit beyond what was verified": "heartbeats",
    "truncate what an old Append repeats": "one leader",
    "count one follower twice": "rivals",
    "apply what is not committed": "rivals",
    "vote for a log that is behind": "rivals",
    "vote twice in a term": "rivals",
}
"""Planted bugs and the world that reveals each. Bugs that need learners, snapshots, reads, time or more nodes are for the
simulator."""


def show(name: str, result: Result, seconds: float) -> None:
    """Print one line about a search, and its trace if there is one."""
    kind = "complete" if result.complete else "violation" if result.violations else "bounded"
    print(  # noqa: T201
        f"{name:50} {result.states:8} states, {result.transitions:8} transitions, "
        f"depth {result.depth:2}, {kind}, {seconds:.1f} s",
        flush=True,
    )
    for violation in result.violations:
        print(f"    {violation}")  # noqa: T201
    for number, action in enumerate(result.trace, 1):
        print(f"    {number:2} {action}")  # noqa: T201


def check_world(name: str, states: int) -> bool:
    """Explore one world with the real core; returns whether every claim holds."""
    started = time.monotonic()
    result = explore(attrs.evolve(WORLDS[name], states=states))
    show(name, result, time.monotonic() - started)
    return not result.violations


def find_bug(bug: Planted, states: int) -> bool:
    """Plant a bug and explore its world; returns whether it was found."""
    name = bug[0].removeprefix("raft: ")
    started = time.monotonic()
    with planted(bug):
        result = explore(attrs.evolve(WORLDS[BUGS[name]], states=states))
    show(f"planted: {name}", result, time.monotonic() - started)
    return bool(result.violations)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m harness.raft.check_model", description=__doc__)
    parser.add_argument("--states", type=int, default=100_000, help="how many states of a world to visit at most (100000)")
    parser.add_argument(
        "worlds", nargs="*", choices=[[], *WORLDS], help="names of worlds to explore (all, and the planted bugs)"
    )
    chosen = parser.parse_args(arguments)
    holds = [check_world(name, chosen.states) for name in chosen.worlds or WORLDS]
    if not chosen.worlds:
        holds += [find_bug(bug, chosen.states) for bug in RAFT_BUGS if bug[0].removeprefix("raft: ") in BUGS]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
