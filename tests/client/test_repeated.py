"""Which failures are logged."""

from __future__ import annotations

from ledgermq.client.repeated import REPEAT_SECONDS, Repeated


def test_the_first_failure_of_a_kind_is_logged_and_the_others_are_counted() -> None:
    """Until the time is over; another kind is logged at once."""
    repeated = Repeated()

    assert [repeated.due("refused", second) for second in range(3)] == [1, 0, 0]
    assert repeated.due("silent", 3) == 1
    assert repeated.due("refused", REPEAT_SECONDS) == 3
    assert repeated.due("refused", REPEAT_SECONDS + 1) == 0


def test_kinds_that_come_no_more_are_forgotten() -> None:
    """The texts of errors hold ports and times, so there may be any number of them."""
    repeated = Repeated()
    for number in range(1000):
        repeated.due(f"lost {number}", number)

    assert len(repeated.logged) <= 2 * REPEAT_SECONDS
