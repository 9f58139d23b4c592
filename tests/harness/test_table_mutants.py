"""Planted bugs of the tables: each is found by a seed that holds without it."""

from __future__ import annotations

import pytest

from harness.mutants import Mutant, seeds_until_found
from harness.table_mutants import TABLE_BUGS
from ledgermq.testing.logs import logs_silenced


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [Mutant(*planted) for planted in TABLE_BUGS], ids=lambda mutant: mutant.name)
def test_a_planted_bug_of_the_tables_is_found(mutant: Mutant) -> None:
    """In the log of a DLedger group, and in that of a classic master and its slaves."""
    with logs_silenced():
        assert seeds_until_found(mutant, 50) is not None
