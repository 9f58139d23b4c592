"""What name servers say about the leader of a group is judged: bugs that are planted in its registration are found."""

from __future__ import annotations

import pytest

from harness.dledger_mutants import DLEDGER_BUGS
from harness.mutants import Mutant
from ledgermq.testing.logs import logs_silenced


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("dledger: register at the next period", "2.0 s after an election"),
        ("dledger: register without the term", "in the place of"),
    ],
)
def test_a_registration_that_is_late_is_found(name: str, found: str) -> None:
    """That of a new leader, or that of one which hung while it was deposed, by one of few seeds."""
    mutant = next(Mutant(*planted) for planted in DLEDGER_BUGS if planted[0] == name)
    with logs_silenced(), mutant.planted():
        assert any(found in violation for seed in range(10, 20) for violation in mutant.simulate(seed).violations)
