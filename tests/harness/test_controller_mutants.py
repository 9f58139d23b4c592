"""Planted bugs of the controller: each is found by a seed that holds without it."""

from __future__ import annotations

import pytest

from harness.controller_mutants import CONTROLLER_BUGS
from harness.mutants import Mutant

SEEDS = {
    "controller: elect one outside the set": 0,
    "controller: a fresh leader judges at once": 1,
    "controller: accept a stale set": 36,
    "controller: keep those who crashed": 2,
    "controller: keep the epoch": 0,
}


@pytest.mark.parametrize("mutant", [Mutant(*planted) for planted in CONTROLLER_BUGS], ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_the_controller_is_found(mutant: Mutant) -> None:
    seed = SEEDS[mutant.name]
    with mutant.planted():
        assert mutant.simulate(seed).violations
    assert mutant.simulate(seed).violations == []
