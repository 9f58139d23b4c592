"""Checkers of messages: each finds the history that it is there for, and lets its neighbour pass."""

from __future__ import annotations

from ledgermq.testing.checkers import acknowledged_puts_follow_real_time, leaders_show_all_that_is_acknowledged
from ledgermq.testing.history import History, Pull, Put

QUEUE = ("T", 0)


def put(number: int, sent_at: float, answered_at: float, queue_offset: int, physical_offset: int) -> Put:
    return Put(
        number,
        0,
        QUEUE,
        0,
        acknowledged=True,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sent_at=sent_at,
        answered_at=answered_at,
    )


def test_what_is_sent_after_an_acknowledgement_lies_behind_it() -> None:
    """Messages that were under way at the same time may lie in either order."""
    history = History(sync_flush=True, puts=[put(1, 0.0, 2.0, 1, 100), put(2, 1.0, 1.5, 0, 0), put(3, 3.0, 4.0, 2, 200)])
    assert list(acknowledged_puts_follow_real_time(history)) == []

    history.puts.append(put(4, 5.0, 6.0, 2, 200))

    assert len(list(acknowledged_puts_follow_real_time(history))) == 2


def test_a_leader_that_does_not_show_what_was_acknowledged_is_found() -> None:
    """Another node may be behind, and so may a pull that began before the acknowledgement."""
    history = History(sync_flush=True, puts=[put(1, 0.0, 1.0, 4, 100)])
    history.pulls = [
        Pull(QUEUE, 4, empty=True, began=0.5, host="h", led=True),
        Pull(QUEUE, 4, empty=True, began=2.0, host="h", led=False),
        Pull(QUEUE, 4, empty=False, began=2.0, host="h", led=True),
        Pull(QUEUE, 5, empty=True, began=2.0, host="h", led=True),
    ]
    assert list(leaders_show_all_that_is_acknowledged(history)) == []

    history.pulls.append(Pull(QUEUE, 4, empty=True, began=2.0, host="h", led=True))

    assert len(list(leaders_show_all_that_is_acknowledged(history))) == 1
