"""What consumers want of a topic."""

from __future__ import annotations

import pytest

from ledgermq.broker.subscription import BadExpression, Subscription


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_is_wanted_without_tags(expression: str | None) -> None:
    """An empty expression and the star take every message."""
    assert Subscription.parse("T1", expression).codes is None


def test_tags_become_javas_hashes() -> None:
    """Tags are split at ||, trimmed, and hashed as Java hashes strings."""
    subscription = Subscription.parse("T1", "TagA || TagB||中文")

    assert subscription.tags == ("TagA", "TagB", "中文")
    assert subscription.codes == frozenset((2598919, 2598920, 646394))


def test_separators_alone_are_refused() -> None:
    """An expression that names no tag is an error, not everything."""
    with pytest.raises(BadExpression):
        Subscription.parse("T1", "|| ")


def test_other_languages_are_kept_for_whoever_refuses_them() -> None:
    """SQL92 is recognised, not parsed."""
    subscription = Subscription.parse("T1", "a > 1", 0, "SQL92")

    assert not subscription.is_tag
    assert subscription.expression == "a > 1"


def test_a_heartbeats_subscription_is_read_and_shown_again() -> None:
    """The client's own hashes count, and tools see what it said."""
    said = {
        "classFilterMode": False,
        "codeSet": [-5, 7],
        "expressionType": "TAG",
        "subString": "x || y",
        "subVersion": 12,
        "tagsSet": ["x", "y"],
        "topic": "T1",
    }

    subscription = Subscription.from_json(said)

    assert subscription.codes == frozenset((-5, 7))
    assert subscription.to_json() == said


def test_a_heartbeat_without_hashes_wants_everything() -> None:
    """An empty set of hashes is the star."""
    assert Subscription.from_json({"topic": "T1", "codeSet": [], "expressionType": None}).codes is None
