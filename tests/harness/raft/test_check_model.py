"""The model checker on small bounds: the real core breaks no claim, and every planted bug that fits is found."""

from __future__ import annotations

import pytest

from harness.raft.check_model import BUGS, WORLDS, check_world, find_bug
from harness.raft.explore import Bounds, explore
from harness.raft.mutants import RAFT_BUGS, Planted, planted

STATES = 150
"""States of each world that the tests visit; `make check-model` visits more."""


@pytest.mark.parametrize("world", WORLDS)
def test_the_core_breaks_no_claim(world: str) -> None:
    assert check_world(world, STATES)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for bug in RAFT_BUGS if bug[0].removeprefix("raft: ") in BUGS], ids=lambda bug: bug[0])
def test_a_planted_bug_is_found(bug: Planted) -> None:
    assert find_bug(bug, 20_000)


def test_the_trace_of_a_bug_is_a_shortest_one() -> None:
    """Voting twice takes two campaigns, and for each one request and one vote."""
    bug = next(bug for bug in RAFT_BUGS if bug[0] == "raft: vote twice in a term")

    with planted(bug):
        result = explore(Bounds(terms=1, campaigns=2, entries=0))

    assert [action.partition(" term")[0].split()[-1] for action in result.trace] == [
        "campaigns",
        "VoteRequest",
        "VoteResponse",
        "campaigns",
        "VoteRequest",
        "VoteResponse",
    ]


def test_a_small_world_is_explored_to_its_end() -> None:
    assert explore(Bounds(terms=1, campaigns=1, entries=0)).complete
