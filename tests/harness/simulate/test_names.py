"""What name servers say about the leader of a group is judged: bugs that are planted in its registration are found."""

from __future__ import annotations

import pytest

from harness.dledger_mutants import DLEDGER_BUGS
from harness.mutants import Mutant
from ledgermq.testing.logs import logs_silenced


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "found", "seed"),
    [
        ("dledger: register at the next period", "2.0 s after an election", 1),
        ("dledger: register without the term", "in the place of", 7),
    ],
)
def test_a_registration_that_is_late_is_found(name: str, found: str, seed: int) -> None:
    """That of a new leader, or that of one which hung while it was deposed, by a seed that holds without the bug."""
    mutant = next(Mutant(*planted) for planted in DLEDGER_BUGS if planted[0] == name)
    with logs_silenced():
        with mutant.planted():
            assert any(found in violation for violation in mutant.simulate(seed).violations)
        assert mutant.simulate(seed).violations == []
