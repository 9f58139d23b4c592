"""Planted bugs: each can be planted, whatever was renamed since, and one of the first seeds or a test finds it."""

from __future__ import annotations

import attrs
import pytest

from harness.mutants import MUTANTS, SECONDS_MAX, BrokenMutant, Mutant, seeds_until_found
from harness.outcome import Outcome
from harness.store_mutants import TESTS
from ledgermq.testing.history import History
from ledgermq.testing.logs import logs_silenced

RARE = ("show what the master may lose", "trust bodies without their CRC")
"""Planted bugs that take too many seeds for every run."""
MUTANTS_OF_EVERY_RUN = [mutant for mutant in MUTANTS if mutant.name not in RARE and not mutant.name.startswith("raft: ")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_can_be_planted_and_is_gone_afterwards(mutant: Mutant) -> None:
    before = mutant.owner.__dict__[mutant.attribute]
    with mutant.planted():
        assert mutant.owner.__dict__[mutant.attribute] is not before
    assert mutant.owner.__dict__[mutant.attribute] is before


@pytest.mark.parametrize("violation", ["raised: TypeError: a coroutine", "task_failed: AttributeError: a coroutine"])
def test_a_bug_that_does_not_fit_what_it_replaces_counts_as_broken(violation: str) -> None:
    def simulate(_seed: int) -> Outcome:
        return Outcome(History(sync_flush=True), [violation])

    with pytest.raises(BrokenMutant, match="a coroutine"):
        seeds_until_found(attrs.evolve(MUTANTS[0], simulate=simulate), 1)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS_OF_EVERY_RUN, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    with logs_silenced():
        assert seeds_until_found(mutant, 500, SECONDS_MAX) is not None


@pytest.mark.slow
def test_a_planted_bug_is_found_by_its_test() -> None:
    """In the same process, although the test module was imported before the bug was planted."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "take numbers of any size")
    with logs_silenced():
        assert seeds_until_found(mutant, 1) is not None
    assert (TESTS / "message" / "test_numbers.py").exists()
