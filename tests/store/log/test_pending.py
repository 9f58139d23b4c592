"""Puts that wait for a position end once, in log order, with what is known of them."""

from __future__ import annotations

from functools import partial

import attrs

from ledgermq.store.log.pending import PendingPuts
from ledgermq.store.statuses import PutStatus


@attrs.define
class Puts:
    """Puts that wait for 0 to 4, with deadlines 10.0 to 14.0, and what was answered, in order."""

    pending: PendingPuts[PutStatus] = attrs.field(factory=lambda: PendingPuts(PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT))
    answers: list[tuple[int, PutStatus]] = attrs.field(factory=list[tuple[int, PutStatus]])

    def __attrs_post_init__(self) -> None:
        for number in range(5):
            self.pending.add(number, 10.0 + number, partial(self._answer, number))

    def _answer(self, number: int, outcome: PutStatus) -> None:
        self.answers.append((number, outcome))


def test_a_position_ends_the_waits_up_to_it_and_no_others() -> None:
    """Puts are stored in log order, so one position is enough."""
    puts = Puts()

    puts.pending.reach(2)
    puts.pending.reach(2)

    assert puts.answers == [(number, PutStatus.PUT_OK) for number in range(3)]
    assert len(puts.pending) == 2


def test_a_wait_ends_at_its_deadline_and_is_not_answered_again() -> None:
    """What was put stays in the log and may be stored later."""
    puts = Puts()

    puts.pending.expire(9.9)
    assert puts.answers == []
    puts.pending.expire(11.0)
    puts.pending.reach(4)

    assert [outcome for _, outcome in puts.answers] == [PutStatus.FLUSH_SLAVE_TIMEOUT] * 2 + [PutStatus.PUT_OK] * 3
    assert [number for number, _ in puts.answers] == list(range(5))


def test_a_wait_with_an_earlier_deadline_does_not_wait_for_those_before_it() -> None:
    """Clients of DLedger itself wait for less time than the broker's puts."""
    puts = Puts()
    answers: list[PutStatus] = []
    puts.pending.add(5, 2.5, answers.append)

    puts.pending.expire(2.5)

    assert (answers, puts.answers, len(puts.pending)) == ([PutStatus.FLUSH_SLAVE_TIMEOUT], [], 5)


def test_every_wait_ends_when_all_fail_even_if_an_answer_brings_another_put() -> None:
    """A put that is made in reaction to an answer belongs to what comes next, and is not ended with the others."""
    puts = Puts()
    puts.pending.reach(1)
    late: list[PutStatus] = []
    puts.pending.add(5, 15.0, lambda _: puts.pending.add(6, 16.0, late.append))

    puts.pending.fail(PutStatus.UNKNOWN_ERROR)

    assert puts.answers[2:] == [(number, PutStatus.UNKNOWN_ERROR) for number in range(2, 5)]
    assert late == []
    assert len(puts.pending) == 1
