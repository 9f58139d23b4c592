"""Resets that each client follows separately."""

from __future__ import annotations

from ledgermq.broker.resets import FOLLOWED_SECONDS, PendingResets

RESET = ("g", "T", 0)


def test_each_client_follows_a_reset_separately() -> None:
    """Other queues and groups have nothing to follow, and a new reset has to be followed again."""
    resets = PendingResets()
    resets.add(*RESET)

    resets.follow(*RESET, "previous", 10.0)

    assert not resets.must_follow(*RESET, "previous")
    assert resets.must_follow(*RESET, "next")
    assert not resets.must_follow("g", "T", 1, "next")
    assert not resets.must_follow("other", "T", 0, "next")
    resets.add(*RESET)
    assert resets.must_follow(*RESET, "previous")


def test_a_reset_is_forgotten_some_time_after_the_first_client_has_followed_it() -> None:
    """Before that it is kept, because a client that was cut off may return at any time."""
    resets = PendingResets()
    resets.add(*RESET)

    resets.expire(1e9)
    assert resets.must_follow(*RESET, "a")

    resets.follow(*RESET, "a", 10.0)
    resets.follow(*RESET, "b", 50.0)
    resets.expire(10.0 + FOLLOWED_SECONDS - 1)
    assert resets.must_follow(*RESET, "c")
    resets.expire(10.0 + FOLLOWED_SECONDS)
    assert not resets.must_follow(*RESET, "c")
    assert not resets


def test_what_was_never_reset_is_not_remembered() -> None:
    """Clients ask for offsets all the time, and nothing is kept for them."""
    resets = PendingResets()

    resets.follow(*RESET, "a", 0.0)
    resets.forget("g", "T")

    assert not resets
