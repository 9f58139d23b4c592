"""Planted bugs of DLedger groups: each has a place to be planted in, and one is found at every run."""

from __future__ import annotations

import pytest

from harness.dledger_mutants import DLEDGER_BUGS
from harness.mutants import Mutant, seeds_until_found
from ledgermq.testing.logs import logs_silenced

MUTANTS = [Mutant(*planted) for planted in DLEDGER_BUGS]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_is_there_only_while_it_is_planted(mutant: Mutant) -> None:
    """What it replaces is there before and afterwards."""
    before = mutant.owner.__dict__[mutant.attribute]
    with mutant.planted():
        assert mutant.owner.__dict__[mutant.attribute] is not before

    assert mutant.owner.__dict__[mutant.attribute] is before


def test_a_follower_that_counts_before_its_sync_is_found() -> None:
    """The simulated media are asked at the moment of each acknowledgement, so it does not take a power cut.

    That this seed holds without the bug is tested in tests/harness/simulate/test_dledger.py.
    """
    mutant = next(one for one in MUTANTS if one.name == "dledger: count followers before their sync")
    with logs_silenced(), mutant.planted():
        violations = mutant.simulate(17).violations

    assert any("copies" in violation for violation in violations)


def test_tables_that_are_appended_in_one_turn_are_found() -> None:
    """The leader sends no heartbeats in that turn, and each leader does it again."""
    mutant = next(one for one in MUTANTS if one.name == "dledger: append large tables in one turn")
    with logs_silenced(), mutant.planted():
        violations = mutant.simulate(0).violations

    assert any("elections before any fault" in violation for violation in violations), violations


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["let tables expire", "fill no node that was away for too long", "pass over leases in the log"]
)
def test_a_bug_of_tables_and_retention_is_found_by_a_seed_that_holds_without_it(name: str) -> None:
    mutant = next(one for one in MUTANTS if one.name == f"dledger: {name}")
    with logs_silenced():
        assert seeds_until_found(mutant, 50) is not None
