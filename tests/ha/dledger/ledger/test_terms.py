"""The terms of a log as runs, against a list with the term of every entry."""

from __future__ import annotations

import random

import attrs
import pytest

from ledgermq.ha.dledger.ledger.layout import NO_TERM
from ledgermq.ha.dledger.ledger.terms import Terms


@attrs.define
class EveryTerm:
    """The plain way: one term for each entry."""

    begin: int = 0
    before: int = NO_TERM
    terms: list[int] = attrs.field(factory=list[int])

    @property
    def end(self) -> int:
        return self.begin + len(self.terms)

    @property
    def last(self) -> int:
        return self.terms[-1] if self.terms else self.before

    def runs(self, first: int, last: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for index in range(first, min(last + 1, self.end)):
            term = self.terms[index - self.begin]
            if not found or found[-1][1] != term:
                found.append((index, term))
        return found


def change(rng: random.Random, terms: Terms, plain: EveryTerm) -> None:
    """Make one drawn change to both."""
    what = rng.choice(("add", "add", "add", "truncate", "drop"))
    if what == "add":
        term = max(plain.last, 0) + rng.choice((0, 0, 1, 3))
        for _ in range(rng.randint(1, 4)):
            terms.add(plain.end, term)
            plain.terms.append(term)
    elif what == "truncate":
        index = rng.randint(plain.begin, plain.end)
        terms.truncate(index)
        del plain.terms[index - plain.begin :]
    elif plain.terms:
        begin = rng.randint(plain.begin, plain.end - 1)  # the last file of a ledger is never removed
        terms.drop_before(begin)
        if begin > plain.begin:
            plain.before = plain.terms[begin - plain.begin - 1]
        del plain.terms[: begin - plain.begin]
        plain.begin = begin


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_terms_are_the_terms_of_all_entries(seed: int) -> None:
    """Through appends, truncations and the removal of old files, and for the entry before the first one."""
    rng = random.Random(seed)
    terms, plain = Terms(), EveryTerm()
    for _ in range(60):
        change(rng, terms, plain)

        assert (terms.begin, terms.last) == (plain.begin, plain.last)
        assert [terms.term_of(at) for at in range(plain.begin - 1, plain.end)] == [plain.before, *plain.terms]
        for term in range(plain.last + 2):
            first = plain.begin + plain.terms.index(term) if term in plain.terms else None
            assert terms.first_of(term) == first
        if plain.terms:
            low, high = sorted(rng.choices(range(plain.begin, plain.end), k=2))
            assert list(terms.runs(low, high)) == plain.runs(low, high)
