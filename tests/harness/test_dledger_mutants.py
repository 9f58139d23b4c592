"""Two planted bugs of DLedger groups that are found at every run."""

from __future__ import annotations

from harness.dledger_mutants import DLEDGER_BUGS
from harness.mutants import Mutant
from ledgermq.testing.logs import logs_silenced

MUTANTS = [Mutant(*planted) for planted in DLEDGER_BUGS]


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
