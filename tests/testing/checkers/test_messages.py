"""Checkers of messages: each finds the history that it is there for, and lets its neighbour pass."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from ledgermq.testing.checkers import (
    acknowledged_puts_follow_real_time,
    batches_are_whole,
    leaders_show_all_that_is_acknowledged,
    nothing_acknowledged_is_lost,
    nothing_is_stored_twice_or_invented,
    nothing_read_is_lost,
    readers_see_all_in_order,
    slaves_keep_what_they_confirmed,
)
from ledgermq.testing.history import Deletion, End, Held, History, NamedLoss, Pull, Put, Read, Snapshot, Stored

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


def _history(*, cut: bool) -> History:
    history = History(sync_flush=False, copies=2, puts=[put(1, 0.0, 1.0, 0, 100)])
    history.held = [Held("slave", 2.0, 200), Held("slave", 3.0, 90)]
    if cut:
        history.named_losses = [NamedLoss("slave", 2.5)]
    return history


def test_a_slave_that_drops_an_acknowledged_message_unasked_is_found() -> None:
    """Its log is shorter than the message, and nobody said that it may be."""
    assert list(slaves_keep_what_they_confirmed(_history(cut=True))) == []

    (violation,) = slaves_keep_what_they_confirmed(_history(cut=False))

    assert violation.startswith("slave held message 1")


@pytest.mark.parametrize(("acknowledged", "promotions", "lost"), [(True, [0], 1), (False, [0], 0), (False, [], 1)])
def test_a_promotion_takes_only_what_was_not_answered_as_replicated(
    acknowledged: bool, promotions: list[int], lost: int
) -> None:
    """A message that was read, and is another one afterwards."""
    history = History(sync_flush=True, ends=[End.KILL], promotions=promotions)
    history.puts = [Put(1, 0, QUEUE, 0, acknowledged=acknowledged)]
    history.reads = [Read(QUEUE, 0, 1, 0)]
    history.snapshots = [Snapshot(1, {QUEUE: [Stored(0, 0, 2, 0)]}, {QUEUE: (0, 1)}, {})]

    assert len(list(nothing_read_is_lost(history))) == lost


@pytest.mark.parametrize(("expired", "skipped"), [(0, 1), (2, 1), (3, 0)])
def test_a_reader_skips_only_what_has_expired(expired: int, skipped: int) -> None:
    history = History(sync_flush=True, ends=[], expired={QUEUE: expired})
    history.reads = [Read(QUEUE, 0, 1, 0), Read(QUEUE, 3, 4, 0)]

    assert len(list(readers_see_all_in_order(history))) == skipped


@pytest.mark.parametrize(
    ("changes", "lost"),
    [({}, 1), ({"expired": {QUEUE: 1}}, 0), ({"deletions": [Deletion("T", 1.0, 0)]}, 0), ({"reserved_ms": 1.0}, 0)],
)
def test_a_queue_that_begins_later_has_lost_messages_unless_some_may_go(changes: dict[str, Any], lost: int) -> None:
    history = attrs.evolve(History(sync_flush=True, ends=[End.KILL]), **changes)
    history.puts, history.reads = [put(1, 0.0, 1.0, 0, 100)], [Read(QUEUE, 0, 1, 0)]
    history.snapshots = [Snapshot(1, {QUEUE: []}, {QUEUE: (1, 1)}, {})]

    assert len(list(nothing_acknowledged_is_lost(history))) == lost
    assert len(list(nothing_read_is_lost(history))) == lost


@pytest.mark.parametrize(
    ("end", "acknowledged", "promotions", "torn"),
    [
        (End.KILL, False, [], 1),
        (End.POWER, False, [], 0),
        (End.POWER, True, [], 1),
        (End.KILL, False, [0], 0),
        (End.KILL, True, [0], 1),
    ],
)
def test_only_a_batch_without_an_answer_may_be_torn(end: End, acknowledged: bool, promotions: list[int], torn: int) -> None:
    """By a power cut or a promotion."""
    history = History(sync_flush=True, ends=[end], promotions=promotions)
    offsets = (0, 1) if acknowledged else (-1, -1)
    history.puts = [
        Put(at + 1, 0, QUEUE, 0, batch=1, acknowledged=acknowledged, queue_offset=offset) for at, offset in enumerate(offsets)
    ]
    history.snapshots = [Snapshot(1, {QUEUE: [Stored(0, 0, 1, 0), Stored(1, 1, 2, 0)]}, {QUEUE: (0, 2)}, {})]
    assert list(batches_are_whole(history)) == []

    history.snapshots = [Snapshot(1, {QUEUE: [Stored(0, 0, 1, 0)]}, {QUEUE: (0, 1)}, {})]

    assert len(list(batches_are_whole(history))) == torn


@pytest.mark.parametrize(("chosen", "acknowledged", "found"), [(True, False, 0), (True, True, 1), (False, False, 1)])
def test_a_message_lies_where_its_producer_knows_that_it_is(chosen: bool, acknowledged: bool, found: int) -> None:
    history = History(sync_flush=True, ends=[End.KILL], clients_choose_queues=chosen)
    history.puts = [Put(1, 0, QUEUE, 0, acknowledged=acknowledged)]
    history.snapshots = [Snapshot(1, {("T", 1): [Stored(0, 0, 1, 0)]}, {("T", 1): (0, 1)}, {})]

    assert len(list(nothing_is_stored_twice_or_invented(history))) == found


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, 0),
        ({"flushed": {0: 100}}, 0),
        ({"flushed": {0: 101}}, 1),
        ({"flush_seconds": 2.0}, 0),
        ({"flush_seconds": 1.5}, 1),
        ({"ends": [End.KILL]}, 1),
    ],
)
def test_a_power_cut_excuses_only_what_was_not_on_the_medium(changes: dict[str, Any], lost: int) -> None:
    """The node's own word counts against it, and so does the time since the answer."""
    history = attrs.evolve(History(sync_flush=False, ends=[End.POWER], ended_at=[3.0]), **changes)
    history.puts, history.reads = [put(1, 0.0, 1.0, 0, 100)], [Read(QUEUE, 0, 1, 0)]
    history.snapshots = [Snapshot(1, {QUEUE: []}, {QUEUE: (0, 0)}, {})]

    assert len(list(nothing_acknowledged_is_lost(history))) == lost
    assert len(list(nothing_read_is_lost(history))) == lost
