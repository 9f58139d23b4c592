"""Planted bugs of the controller: each is found by a seed that holds without it."""

from __future__ import annotations

import pytest

from harness.controller_mutants import CONTROLLER_BUGS
from harness.mutants import Mutant, seeds_until_found


@pytest.mark.parametrize("mutant", [Mutant(*planted) for planted in CONTROLLER_BUGS], ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_the_controller_is_found(mutant: Mutant) -> None:
    assert seeds_until_found(mutant, 200) is not None
