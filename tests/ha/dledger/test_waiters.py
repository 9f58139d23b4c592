"""Puts that wait for a majority end once, in log order, with what is known of their entries."""

from __future__ import annotations

from functools import partial

import attrs

from ledgermq.ha.dledger.waiters import Outcome, Waiters
from ledgermq.ha.raft.units import LogIndex


@attrs.define
class Puts:
    """Waiters for entries 0 to 4, which have deadlines 10.0 to 14.0, and what was answered, in order."""

    waiters: Waiters = attrs.field(factory=Waiters)
    answers: list[tuple[int, Outcome]] = attrs.field(factory=list[tuple[int, Outcome]])

    def __attrs_post_init__(self) -> None:
        for number in range(5):
            self.waiters.add(LogIndex(number), 10.0 + number, partial(self._answer, number))

    def _answer(self, number: int, outcome: Outcome) -> None:
        self.answers.append((number, outcome))


def test_a_commit_ends_the_waits_up_to_its_index_and_no_others() -> None:
    """Entries are committed in log order, so one index is enough."""
    puts = Puts()

    puts.waiters.commit(LogIndex(2))
    puts.waiters.commit(LogIndex(2))

    assert puts.answers == [(number, Outcome.COMMITTED) for number in range(3)]
    assert len(puts.waiters) == 2


def test_a_wait_ends_at_its_deadline_and_is_not_answered_again() -> None:
    """The entry stays in the log and may be committed later."""
    puts = Puts()

    puts.waiters.expire(9.9)
    assert puts.answers == []
    puts.waiters.expire(11.0)
    puts.waiters.commit(LogIndex(4))

    assert [outcome for _, outcome in puts.answers] == [Outcome.TIMED_OUT] * 2 + [Outcome.COMMITTED] * 3
    assert [number for number, _ in puts.answers] == list(range(5))


def test_a_wait_with_an_earlier_deadline_does_not_wait_for_those_before_it() -> None:
    """Clients of DLedger itself wait for less time than the broker's puts."""
    puts = Puts()
    answers: list[Outcome] = []
    puts.waiters.add(LogIndex(5), 2.5, answers.append)

    puts.waiters.expire(2.5)

    assert (answers, puts.answers, len(puts.waiters)) == ([Outcome.TIMED_OUT], [], 5)


def test_every_wait_ends_when_the_term_does_even_if_an_answer_brings_another_put() -> None:
    """A put that is made in reaction to an answer belongs to what comes next, and is not ended with the others."""
    puts = Puts()
    puts.waiters.commit(LogIndex(1))
    late: list[Outcome] = []
    puts.waiters.add(LogIndex(5), 15.0, lambda _: puts.waiters.add(LogIndex(6), 16.0, late.append))

    puts.waiters.change_term()

    assert puts.answers[2:] == [(number, Outcome.TERM_CHANGED) for number in range(2, 5)]
    assert late == []
    assert len(puts.waiters) == 1
