"""Planted bugs of the controller mode: each is found, by a seed that holds without it or by tests."""

from __future__ import annotations

import pytest

from harness.elected_mutants import ELECTED_BUGS
from harness.mutants import Mutant, seeds_until_found
from ledgermq.testing.logs import logs_silenced

MUTANTS = [Mutant(*planted) for planted in ELECTED_BUGS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_is_there_only_while_it_is_planted(mutant: Mutant) -> None:
    before = mutant.owner.__dict__[mutant.attribute]
    with mutant.planted():
        assert mutant.owner.__dict__[mutant.attribute] is not before

    assert mutant.owner.__dict__[mutant.attribute] is before


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    with logs_silenced():
        assert seeds_until_found(mutant, 50) is not None
