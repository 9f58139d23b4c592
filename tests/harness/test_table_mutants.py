"""Planted bugs of the tables: each is found by a seed that holds without it."""

from __future__ import annotations

import pytest

from harness.mutants import Mutant
from harness.table_mutants import TABLE_BUGS
from ledgermq.testing.logs import logs_silenced

SEEDS = {
    "tables: apply an event twice": 3,
    "tables: apply an event twice, classic": 6,
    "tables: apply an event late": 0,
    "tables: apply an event late, classic": 1,
    "tables: answer before the event is applied": 1,
    "tables: follow no commits, classic": 1,
    "tables: state no offsets": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [Mutant(*planted) for planted in TABLE_BUGS], ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_the_tables_is_found(mutant: Mutant) -> None:
    """In the log of a DLedger group, and in that of a classic master and its slaves."""
    seed = SEEDS[mutant.name]
    with logs_silenced():
        with mutant.planted():
            assert mutant.simulate(seed).violations
        assert mutant.simulate(seed).violations == []
