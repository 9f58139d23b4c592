"""Subscriptions and heartbeats."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import open_consumer
from ledgermq.client.errors import InvalidArgument, SubscriptionRefused
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
from ledgermq.testing.embedded import open_virtual


def test_topics_are_taken_in_all_their_forms() -> None:
    """One, several, or with expressions."""
    assert subscriptions_of("t", 5) == [Subscription("t", "*", version=5)]
    assert [each.topic for each in subscriptions_of(["a", "b"], 5)] == ["a", "b"]
    assert subscriptions_of({"t": "a||b"}, 5)[0].tags == {"a", "b"}
    assert subscriptions_of({"t": ""}, 5)[0].expression == "*"
    assert subscriptions_of({"t": sql("x > 1")}, 5) == [Subscription("t", "x > 1", "SQL92", 5)]


async def test_a_filter_that_the_broker_refuses_is_raised_at_the_start(autojump_clock: MockClock) -> None:
    """The consumer would wait for ever, because every pull would be refused."""
    async with open_virtual() as embedded:
        async with open_admin(embedded.namesrv, world=embedded.world) as admin:
            await admin.create_topic("t", queues=1)

        with pytest.raises(SubscriptionRefused, match="SQL92"):
            async with open_consumer(embedded.namesrv, "g", {"t": sql("price > 10")}, world=embedded.world):
                pass


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
