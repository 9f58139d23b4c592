"""What the checkers of clients find in histories made by hand."""

from __future__ import annotations

import attrs

from ledgermq.testing.checkers.clients import (
    CLOSED_SECONDS,
    sends_fail_over_in_time,
    waiters_on_closed_clients_are_notified,
    what_was_refused_is_nowhere,
)
from ledgermq.testing.history import End, History, Put, Snapshot, Stored, TimedSend, Wait

QUEUE = ("T", 0)


def test_a_send_that_fails_or_is_late_is_found() -> None:
    in_time = TimedSend(1, 10.0, 3.0, ended=12.9, stored=True)
    late = attrs.evolve(in_time, ended=13.5)
    failed = attrs.evolve(in_time, stored=False, error="NoAnswer")
    never = attrs.evolve(in_time, stored=False, ended=float("inf"))

    found = [list(sends_fail_over_in_time(History(True, timed_sends=[send]))) for send in (in_time, late, failed, never)]

    assert [len(some) for some in found] == [0, 1, 1, 1]


def test_a_refused_message_that_is_stored_is_found() -> None:
    """Unless its bytes were taken back, and a power cut brought them up again."""
    put = Put(1, 0, QUEUE, 0, refused=True)
    snapshot = Snapshot(1, {QUEUE: [Stored(0, 0, 1, 1)]}, {QUEUE: (0, 1)}, {})
    history = History(True, puts=[put], snapshots=[snapshot], ends=[End.POWER])
    assert len(list(what_was_refused_is_nowhere(history))) == 1

    put.withdrawn = True
    assert list(what_was_refused_is_nowhere(history)) == []


def test_a_wait_that_does_not_end_with_its_client_is_found() -> None:
    prompt = Wait("a receiver", closed_at=5.0, ended_at=5.1, error="Closed")
    waits_on = attrs.evolve(prompt, ended_at=float("inf"))
    misled = attrs.evolve(prompt, error="NoAnswer")
    late = attrs.evolve(prompt, ended_at=5.1 + CLOSED_SECONDS)
    open_still = Wait("a receiver")
    busy = attrs.evolve(late, began=late.ended_at)

    found = [
        list(waiters_on_closed_clients_are_notified(History(True, waits=[wait])))
        for wait in (prompt, waits_on, misled, late, open_still, busy)
    ]

    assert [len(some) for some in found] == [0, 1, 1, 1, 0, 0]
