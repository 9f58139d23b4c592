"""The terms of a log's entries, stored as the few indexes where the term changes; it does no I/O.

Terms never decrease along a log, so the first index of each term is enough. Index `begin - 1`, the entry before the first one,
also has a term if it is known, because a leader must send it to a follower that continues from there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import attrs

from .layout import NO_TERM


@attrs.define(eq=False)
class Terms:
    """The terms of a log whose first entry has the index `begin`."""

    begin: int = 0
    before: int = NO_TERM
    """The term of the entry `begin - 1`; `NO_TERM` if there never was one or its term is no longer known."""
    _firsts: list[int] = attrs.field(factory=list[int])
    _terms: list[int] = attrs.field(factory=list[int])

    @property
    def last(self) -> int:
        """The term of the last entry."""
        return self._terms[-1] if self._terms else self.before

    def term_of(self, index: int) -> int:
        """The term of the entry `index`, which must be in the log or just before it."""
        at = bisect_right(self._firsts, index)
        return self._terms[at - 1] if at else self.before

    def first_of(self, term: int) -> int | None:
        """The index of the first entry of `term`, or None if the log has none."""
        at = bisect_right(self._terms, term)
        return self._firsts[at - 1] if at and self._terms[at - 1] == term else None

    def add(self, index: int, term: int) -> None:
        """Record that the entries from `index` on have this term; the term of earlier entries must not be higher."""
        if not self._terms or self._terms[-1] != term:
            self._firsts.append(index)
            self._terms.append(term)

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on."""
        while self._firsts and self._firsts[-1] >= index:
            self._firsts.pop()
            self._terms.pop()

    def drop_before(self, begin: int) -> None:
        """Remove the entries before `begin`, but keep the term of the last of them."""
        if begin <= self.begin:
            return
        self.before = self.term_of(begin - 1)
        at = bisect_right(self._firsts, begin)
        del self._firsts[: max(at - 1, 0)], self._terms[: max(at - 1, 0)]
        if self._firsts and self._firsts[0] < begin:
            self._firsts[0] = begin
        self.begin = begin

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the first index of each term among the entries from `first` to `last`, with the term."""
        at = max(bisect_right(self._firsts, first) - 1, 0)
        for start, term in zip(self._firsts[at:], self._terms[at:], strict=True):
            if start > last:
                return
            yield max(start, first), term
