"""The journal of a service: what it notes of sends and deliveries."""

from __future__ import annotations

import random

import pytest

from harness.processes.journal import HandlerFailed, Journal
from ledgermq.client.errors import NoAnswer, NoRoute, NoRouteReason


class FailsAlways(random.Random):
    """Draws a failure for every message."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a + 0 * b


def test_a_send_without_an_answer_may_be_stored_and_one_without_a_route_is_not() -> None:
    journal = Journal(random.Random(1))
    unknown, refused = journal.new_put("t"), journal.new_put("t")

    journal.answered(unknown, NoAnswer("b", "silent"), 3.0)
    journal.answered(refused, NoRoute("t", NoRouteReason.NO_MASTER), 3.0)

    assert (unknown.refused, refused.refused) == (False, True)
    assert journal.errors == {"NoAnswer": 1, "NoRoute": 1}
    assert journal.sends_over_time == []


def test_a_send_that_passes_its_total_time_is_noted() -> None:
    journal = Journal(random.Random(1))
    put = journal.new_put("t")
    put.sent_at -= 10.0

    journal.answered(put, NoAnswer("b", "silent"), 3.0)

    assert len(journal.sends_over_time) == 1


def test_a_planned_failure_is_raised_at_the_end_of_a_delivery_and_once() -> None:
    """The delivery counts as sent back, and is not done."""
    journal = Journal(FailsAlways())
    number = journal.new_put("t").number
    message = _Message(number)

    with pytest.raises(HandlerFailed), journal.handling("g", "m", message):  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        pass
    with journal.handling("g", "m", message):  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        pass

    assert [(one.done, one.settled_at is None) for one in journal.history.handlings] == [(False, False), (True, False)]


class _Queue:
    topic, queue_id = "t", 0


class _Message:
    queue, queue_offset = _Queue(), 0

    def __init__(self, number: int) -> None:
        self.body = b"%d;" % number
