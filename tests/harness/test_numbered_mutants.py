"""Planted bugs of repeated sends."""

from __future__ import annotations

import pytest

from harness.mutants import Mutant, seeds_until_found
from harness.numbered_mutants import NUMBERED_BUGS
from ledgermq.testing.logs import logs_silenced

MUTANTS = [Mutant(*planted) for planted in NUMBERED_BUGS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_can_be_planted_and_is_gone_afterwards(mutant: Mutant) -> None:
    before = mutant.owner.__dict__[mutant.attribute]
    with mutant.planted():
        assert mutant.owner.__dict__[mutant.attribute] is not before
    assert mutant.owner.__dict__[mutant.attribute] is before


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    with logs_silenced():
        assert seeds_until_found(mutant, 60) is not None
