"""What a simulated run sees of a group with a controller: sets, masters of one epoch, and losses that are allowed."""

from __future__ import annotations

from harness.simulate.sets import KnownSet, SetWatch


def test_an_older_set_changes_nothing() -> None:
    """A controller that was cut off still knows it."""
    watch = SetWatch(1024)
    newer = KnownSet(2, 5, "b", frozenset("b"))
    watch.learn(newer)

    watch.learn(KnownSet(1, 4, "a", frozenset("ab")))

    assert watch.known == newer


def test_a_loss_is_allowed_when_one_that_lost_power_is_elected_from_the_set() -> None:
    """It is no violation, unless the node has failed alone."""
    watch = SetWatch(1024)
    lost: list[str] = []
    watch.on_loss.append(lambda: lost.append("all"))
    watch.learn(KnownSet(1, 1, "a", frozenset("ab")))
    watch.lossy.add("b")

    watch.learn(KnownSet(2, 2, "b", frozenset("b")))

    assert lost == ["all"]
    assert watch.violations == []


def test_a_node_that_has_left_the_set_may_lose_nothing_any_more() -> None:
    """When it joins again, it has everything."""
    watch = SetWatch(1024)
    watch.learn(KnownSet(1, 1, "a", frozenset("ab")))
    watch.lossy.add("b")
    watch.learn(KnownSet(1, 2, "a", frozenset("a")))
    watch.learn(KnownSet(1, 3, "a", frozenset("ab")))

    watch.learn(KnownSet(2, 4, "b", frozenset("b")))

    assert watch.losses == 0


def test_the_election_of_one_that_lost_power_alone_is_a_violation() -> None:
    watch = SetWatch(1024, calm=True)
    watch.learn(KnownSet(1, 1, "a", frozenset("ab")))
    watch.lossy.add("b")

    watch.learn(KnownSet(2, 2, "b", frozenset("b")))

    assert watch.violations == ["b has lost bytes and is elected for epoch 2, and other members live"]
