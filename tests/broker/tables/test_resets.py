"""Resets that each client follows separately."""

from __future__ import annotations

import weakref

from ledgermq.broker.tables.resets import FOLLOWED_SECONDS, PendingResets

RESET = ("g", "T", 0)


class Client:
    """A connection."""


PREVIOUS, NEXT, A, B, C = (Client() for _ in range(5))


def test_each_client_follows_a_reset_separately() -> None:
    """Other queues and groups have nothing to follow, and a new reset has to be followed again."""
    resets = PendingResets()
    resets.add(*RESET)

    resets.follow(*RESET, PREVIOUS, 10.0)

    assert not resets.must_follow(*RESET, PREVIOUS)
    assert resets.must_follow(*RESET, NEXT)
    assert not resets.must_follow("g", "T", 1, NEXT)
    assert not resets.must_follow("other", "T", 0, NEXT)
    resets.add(*RESET)
    assert resets.must_follow(*RESET, PREVIOUS)


def test_a_reset_is_forgotten_some_time_after_the_first_client_has_followed_it() -> None:
    """Before that it is kept, because a client that was cut off may return at any time."""
    resets = PendingResets()
    resets.add(*RESET)

    resets.expire(1e9)
    assert resets.must_follow(*RESET, A)

    resets.follow(*RESET, A, 10.0)
    resets.follow(*RESET, B, 50.0)
    resets.expire(10.0 + FOLLOWED_SECONDS - 1)
    assert resets.must_follow(*RESET, C)
    resets.expire(10.0 + FOLLOWED_SECONDS)
    assert not resets.must_follow(*RESET, C)
    assert not resets


def test_what_was_never_reset_is_not_remembered() -> None:
    """Clients ask for offsets all the time, and nothing is kept for them."""
    resets = PendingResets()

    resets.follow(*RESET, A, 0.0)
    resets.forget(topic="T")

    assert not resets


def test_a_reset_keeps_no_connection_that_has_ended() -> None:
    """It is kept for ten minutes, in which any number of connections may come and go."""
    resets = PendingResets()
    resets.add(*RESET)
    client = Client()
    resets.follow(*RESET, client, 0.0)
    gone = weakref.ref(client)

    del client

    assert gone() is None
