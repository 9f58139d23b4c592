"""What the checkers of consumers find in histories made by hand."""

from __future__ import annotations

from ledgermq.testing.checkers.consumers import (
    PASSED_ON_SECONDS,
    everything_is_handled_at_least_once,
    nothing_committed_is_handed_out_again,
    nothing_is_acknowledged_before_it_was_handled,
    ordered_queues_are_handled_in_order,
    ordered_queues_have_one_owner,
    paused_queues_hand_out_nothing,
    seeks_continue_at_their_offset,
)
from ledgermq.testing.history import Commit, Handling, History, Pause, Put, Seek

QUEUE = ("T", 0)


def handling(number: int, began: float, ended: float, *, member: str = "a", done: bool = True) -> Handling:
    settled = ended if done else None
    return Handling("g", member, QUEUE, number, number, began, ordered=True, ended=ended, done=done, settled_at=settled)


def history(*handlings: Handling) -> History:
    puts = [Put(number, 0, QUEUE, 0, acknowledged=True, queue_offset=number) for number in range(2)]
    return History(sync_flush=True, puts=puts, handlings=list(handlings), subscriptions={("g", "T")})


def test_a_message_that_nobody_handled_is_found() -> None:
    both = history(handling(0, 1, 2), handling(1, 2, 3))
    one = history(handling(0, 1, 2), handling(1, 2, 3, done=False))

    assert list(everything_is_handled_at_least_once(both)) == []
    assert list(everything_is_handled_at_least_once(one)) == ["message 1 at ('T', 0)@1 was never handled by g"]


def test_an_offset_that_passes_an_unhandled_message_is_found() -> None:
    run = history(handling(0, 1, 2), handling(1, 2, 3))
    run.member_commits = [Commit(2.5, "g", QUEUE, 1, 0), Commit(3.5, "g", QUEUE, 2, 0)]
    assert list(nothing_is_acknowledged_before_it_was_handled(run)) == []

    run.member_commits = [Commit(2.5, "g", QUEUE, 2, 0)]
    assert len(list(nothing_is_acknowledged_before_it_was_handled(run))) == 1


def test_a_message_that_comes_again_long_after_its_commit_is_found() -> None:
    """A crash of the broker may have taken a commit, and a member may hold messages of a queue that has just been passed on."""
    late = 3.5 + PASSED_ON_SECONDS + 1
    run = history(handling(0, 1, 2), handling(0, late, late + 1))
    assert list(nothing_committed_is_handed_out_again(run)) == []

    run.common_commits = [Commit(3.5, "g", QUEUE, 1, 0)]
    assert len(list(nothing_committed_is_handed_out_again(run))) == 1

    run.ended_at, run.commit_seconds = [4.0], 10.0
    assert list(nothing_committed_is_handed_out_again(run)) == []


def test_after_a_seek_a_message_comes_again_until_the_group_has_passed_it_once_more() -> None:
    """What was committed before the broker had the new offset does not count; a seek behind the message changes nothing."""
    late = 3.5 + 2 * PASSED_ON_SECONDS
    run = history(handling(0, 1, 2), handling(0, late, late + 1))
    run.member_commits = run.common_commits = [Commit(3.5, "g", QUEUE, 1, 0), Commit(5, "g", QUEUE, 1, 0)]
    run.seeks = [Seek("g", "a", QUEUE, 1, 4, 1)]
    assert len(list(nothing_committed_is_handed_out_again(run))) == 1

    run.seeks = [Seek("g", "a", QUEUE, 0, 4, 1)]
    assert list(nothing_committed_is_handed_out_again(run)) == []

    run.member_commits = run.common_commits = [*run.common_commits, Commit(6, "g", QUEUE, 0, 0), Commit(7, "g", QUEUE, 1, 0)]
    assert len(list(nothing_committed_is_handed_out_again(run))) == 1


def test_a_message_that_a_paused_queue_hands_out_is_found() -> None:
    """Of the member that has paused it, between the pause and its end."""
    run = history(handling(0, 1, 2), handling(1, 3, 4))
    run.pauses = [Pause("a", QUEUE, 0, 0), Pause("b", QUEUE, 0), Pause("a", ("T", 1), 0), Pause("a", QUEUE, 2)]
    assert list(paused_queues_hand_out_nothing(run)) == []

    run.pauses = [Pause("a", QUEUE, 1)]
    assert list(paused_queues_hand_out_nothing(run)) == ["a was given ('T', 0)@1 at 3.00 s, in a pause of the queue"]


def test_a_seek_that_continues_elsewhere_is_found() -> None:
    """By the first message that its member is given of the queue, before that is given up or moved again."""
    run = history(handling(0, 1, 2), handling(1, 3, 4), handling(0, 5, 6))
    run.seeks = [
        Seek("g", "a", QUEUE, 0, 4, 2, exact=True),
        Seek("g", "a", QUEUE, 1, 4, 2, until=2, exact=True),
        Seek("g", "b", QUEUE, 1, 4, 2, exact=True),
        Seek("g", "a", QUEUE, 1, 4, 2),
    ]
    assert list(seeks_continue_at_their_offset(run)) == []

    run.seeks = [Seek("g", "a", QUEUE, 1, 4, 2, exact=True)]
    assert len(list(seeks_continue_at_their_offset(run))) == 1

    run = history(handling(0, 1, 2), handling(1, 3, 4), handling(0, 5, 6))
    run.seeks = [Seek("g", "a", QUEUE, 1, 2, 1, exact=True)]
    assert len(list(seeks_continue_at_their_offset(run))) == 1, "before the offset"

    run = history(handling(0, 1, 2), handling(2, 3, 4))
    run.seeks = [Seek("g", "a", QUEUE, 0, 0, 0, exact=True)]
    assert len(list(seeks_continue_at_their_offset(run))) == 1, "left out"


def test_what_a_seek_has_passed_need_not_be_handled() -> None:
    """From the moment of the seek on, and nothing else."""
    run = history(handling(1, 5, 6))
    run.member_commits = [Commit(6.5, "g", QUEUE, 2, 0)]
    assert len(list(nothing_is_acknowledged_before_it_was_handled(run))) == 1

    run.seeks = [Seek("g", "a", QUEUE, 1, 4, 0, passed=(0, 1))]
    assert list(nothing_is_acknowledged_before_it_was_handled(run)) == []
    for passed, seconds in (((0, 1), 7), ((1, 2), 4)):
        run.seeks = [Seek("g", "a", QUEUE, 1, seconds, 0, passed=passed)]
        assert len(list(nothing_is_acknowledged_before_it_was_handled(run))) == 1

    run = history(handling(0, 1, 2), handling(2, 5, 6))
    assert len(list(ordered_queues_are_handled_in_order(run))) == 1
    run.seeks = [Seek("g", "a", QUEUE, 2, 4, 1, passed=(1, 2))]
    assert list(ordered_queues_are_handled_in_order(run)) == []


def test_a_message_that_is_handled_before_its_predecessor_is_found() -> None:
    again = history(handling(0, 1, 2, done=False), handling(0, 3, 4), handling(1, 5, 6))
    skipped = history(handling(0, 1, 2, done=False), handling(1, 3, 4))

    assert list(ordered_queues_are_handled_in_order(again)) == []
    assert len(list(ordered_queues_are_handled_in_order(skipped))) == 1


def test_two_owners_at_one_time_are_found() -> None:
    one_after_the_other = history(handling(0, 1, 2), handling(1, 2, 3, member="b"))
    at_once = history(handling(0, 1, 5), handling(1, 2, 3, member="b"))

    assert list(ordered_queues_have_one_owner(one_after_the_other)) == []
    assert len(list(ordered_queues_have_one_owner(at_once))) == 1


def test_a_lease_from_before_a_restore_is_believed_until_its_owner_asks_again() -> None:
    """The restored master ends at 20 s; an owner asks for a renewal after half a minute at the latest."""
    ends = [5.0, 20.0]
    excused = history(handling(0, 1, 12), handling(1, 6, 7, member="b"), handling(0, 48, 51), handling(1, 49, 50, member="b"))
    before = history(handling(0, 1, 12), handling(1, 4, 7, member="b"))
    long_after = history(handling(0, 48, 60), handling(1, 51, 52, member="b"))
    for run in (excused, before, long_after):
        run.ended_at[:], run.restored[:] = ends, [0]

    assert list(ordered_queues_have_one_owner(excused)) == []
    assert len(list(ordered_queues_have_one_owner(before))) == 1
    assert len(list(ordered_queues_have_one_owner(long_after))) == 1
