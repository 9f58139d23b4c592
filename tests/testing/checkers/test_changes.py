"""What the checkers of changes find in histories made by hand."""

from __future__ import annotations

from math import inf

from ledgermq.testing.checkers.changes import (
    acknowledged_after_a_deletion_is_readable,
    answered_changes_hold,
    deleted_messages_never_return,
    offsets_stay_inside_their_queue,
)
from ledgermq.testing.history import Change, Deletion, End, History, Look, Position, Put, Snapshot, Stored

QUEUE = ("T", 0)


def changed(*answered_at: float) -> History:
    """A setting that got the values 0, 1, …, each asked for a second before it was answered."""
    changes = [Change("k", str(at), seconds - 1, 0, seconds) for at, seconds in enumerate(answered_at)]
    return History(sync_flush=True, changes=changes, change_seconds=5.0)


def look(history: History, value: str | None, seconds: float, epoch: int = 0) -> list[str]:
    history.looks = [Look("k", value, "a", seconds, epoch)]
    return list(answered_changes_hold(history))


def test_a_look_finds_the_last_change_that_was_answered() -> None:
    history = changed(2.0, 4.0)

    assert look(history, "1", 5.0) == []
    assert look(history, "0", 5.0) == ["k is 0 on a at 5.00 s, and may be ['1']"]
    assert look(history, None, 1.5) == look(history, "0", 1.5) == []


def test_a_clean_stop_takes_nothing_unless_the_disk_fails_during_it() -> None:
    history = changed(2.0, 40.0)
    history.ends, history.ended_at = [End.CLEAN], [39.0]
    assert len(look(history, "0", 50.0, 1)) == 1

    history.failed_stops = {0: 41.0}
    assert look(history, "0", 50.0, 1) == []

    history.failed_stops = {0: 39.5}
    assert len(look(history, "0", 50.0, 1)) == 1


def test_a_power_cut_takes_only_what_was_changed_shortly_before_and_a_kill_nothing() -> None:
    history = changed(2.0, 40.0)
    history.ends, history.ended_at = [End.POWER], [41.0]

    assert look(history, "0", 50.0, 1) == []
    assert look(history, None, 50.0, 1) != []
    for end in (End.CLEAN, End.KILL):
        history.ends = [end]
        assert look(history, "0", 50.0, 1) != []


def test_the_next_master_may_lack_a_change() -> None:
    history = changed(2.0, 40.0)
    history.ends, history.ended_at, history.promotions = [End.KILL], [41.0], [0]

    assert look(history, "0", 50.0, 1) == []


def test_a_change_without_an_answer_may_be_carried_out_after_a_later_one_for_a_minute() -> None:
    """It waited at a host that hung, and the later one came over another connection."""
    history = changed(2.0, inf, 5.0)
    history.changes[1].began = 3.0

    assert look(history, "1", 6.0) == []
    assert look(history, "0", 6.0) == ["k is 0 on a at 6.00 s, and may be ['2', '1']"]
    history.changes[2].began = 63.5
    history.changes[2].answered_at = 64.0
    assert look(history, "1", 65.0) == ["k is 1 on a at 65.00 s, and may be ['2']"]


def deleted(*numbers: int) -> History:
    """Message 1 was sent before its topic was deleted, message 2 after; the last snapshot holds `numbers`."""
    before = Put(1, 0, QUEUE, 0, acknowledged=True, queue_offset=0, sent_at=1.0, answered_at=2.0)
    after = Put(2, 0, QUEUE, 0, acknowledged=True, queue_offset=1, sent_at=5.0, answered_at=6.0)
    stored = [Stored(number - 1, 100 * number, number, 0) for number in numbers]
    return History(
        sync_flush=True,
        puts=[before, after],
        deletions=[Deletion("T", 3.0, 0, 4.0)],
        snapshots=[Snapshot(1, {QUEUE: stored}, {QUEUE: (1, 2)}, {}, "a")],
        ends=[End.CLEAN],
    )


def test_what_was_acknowledged_after_a_deletion_must_be_there() -> None:
    assert list(acknowledged_after_a_deletion_is_readable(deleted(2))) == []
    assert len(list(acknowledged_after_a_deletion_is_readable(deleted()))) == 1


def test_what_was_deleted_may_not_be_there() -> None:
    assert list(deleted_messages_never_return(deleted(2))) == []
    assert len(list(deleted_messages_never_return(deleted(1, 2)))) == 1


def test_an_offset_behind_the_end_of_its_queue_is_found() -> None:
    inside, outside = (Position("g", QUEUE, offset, 5, "a", 1.0, 0) for offset in (5, 6))
    history = History(sync_flush=True, positions=[inside, outside])

    assert list(offsets_stay_inside_their_queue(history)) == [
        "g stands at 6 of ('T', 0) on a at 1.00 s, and the queue ends at 5"
    ]
