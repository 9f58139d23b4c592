"""Planted bugs of the controller mode: each is found, by a seed that holds without it or by tests."""

from __future__ import annotations

import pytest

from harness.elected_mutants import ELECTED_BUGS
from harness.mutants import Mutant
from ledgermq.testing.logs import logs_silenced

MUTANTS = [Mutant(*planted) for planted in ELECTED_BUGS]
SEEDS = {
    "elected: count whoever is connected": 0,
    "elected: leave out a member at once": 0,
    "elected: wait only for confirmed members": 2,
    "elected: a fresh leader judges at once": 2,
    "elected: keep those who crashed": 4,
    "elected: keep a master whose disk is an older copy": 4,
    "elected: acknowledge what is not synced": 3,
}
"""Seeds that find a bug; the others are found by seed 1, or by tests."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_is_there_only_while_it_is_planted(mutant: Mutant) -> None:
    before = mutant.owner.__dict__[mutant.attribute]
    with mutant.planted():
        assert mutant.owner.__dict__[mutant.attribute] is not before

    assert mutant.owner.__dict__[mutant.attribute] is before


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    seed = SEEDS.get(mutant.name, 1)
    with logs_silenced():
        with mutant.planted():
            violations = mutant.simulate(seed).violations

        assert violations != []
        assert mutant.simulate(seed).violations == []
