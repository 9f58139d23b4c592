"""Subscriptions and heartbeats."""

from __future__ import annotations

import pytest

from ledgermq.client.errors import InvalidArgument
from ledgermq.client.subscription import (
    ConsumeFrom,
    Member,
    MessageModel,
    Subscription,
    heartbeat,
    sql,
    subscriptions_of,
    subscriptions_of_member,
)


def test_topics_are_taken_in_all_their_forms() -> None:
    """One, several, or with expressions."""
    assert subscriptions_of("t", 5) == [Subscription("t", "*", version=5)]
    assert [each.topic for each in subscriptions_of(["a", "b"], 5)] == ["a", "b"]
    assert subscriptions_of({"t": "a||b"}, 5)[0].tags == {"a", "b"}
    assert subscriptions_of({"t": ""}, 5)[0].expression == "*"
    assert subscriptions_of({"t": sql("x > 1")}, 5) == [Subscription("t", "x > 1", "SQL92", 5)]


def test_nothing_selected_is_refused() -> None:
    """No topic, or an expression without a tag."""
    with pytest.raises(InvalidArgument):
        subscriptions_of([], 0)
    with pytest.raises(InvalidArgument, match="names no tag"):
        subscriptions_of({"t": "||"}, 0)


def test_a_member_reads_what_comes_back_to_its_group_too() -> None:
    """Unless it gets every message anyway; and a topic that no broker takes is refused."""
    assert list(subscriptions_of_member("g", "t", MessageModel.CLUSTERING, 5)) == ["t", "%RETRY%g"]
    assert list(subscriptions_of_member("g", "t", MessageModel.BROADCASTING, 5)) == ["t"]
    with pytest.raises(InvalidArgument, match="topic"):
        subscriptions_of_member("g", "no topic!", MessageModel.CLUSTERING, 5)


def test_a_heartbeat_has_rocketmq_s_shape() -> None:
    """Tags come with their Java hashes."""
    member = Member("g", (Subscription("t", "TagA || TagB", version=7),), MessageModel.CLUSTERING, ConsumeFrom.LAST)

    assert heartbeat("10.0.0.5@1", ["pg"], [member]) == {
        "clientID": "10.0.0.5@1",
        "producerDataSet": [{"groupName": "pg"}],
        "consumerDataSet": [
            {
                "groupName": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "unitMode": False,
                "subscriptionDataSet": [
                    {
                        "classFilterMode": False,
                        "codeSet": [2598919, 2598920],
                        "expressionType": "TAG",
                        "subString": "TagA || TagB",
                        "subVersion": 7,
                        "tagsSet": ["TagA", "TagB"],
                        "topic": "t",
                    }
                ],
            }
        ],
    }
