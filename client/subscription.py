"""Subscriptions of consumers, and the heartbeats that carry them (RocketMQ `SubscriptionData`, `HeartbeatData`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, cast

import attrs

from ..message.message import RETRY_PREFIX
from ..message.strings import string_hash
from .arguments import check_text, check_topic, shown
from .errors import InvalidArgument

ALL = "*"
TAG_EXPRESSION = "TAG"
SQL_EXPRESSION = "SQL92"


class ConsumeFrom(Enum):
    """Where a group starts in a queue for which it has no offset yet."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ReadFrom(Enum):
    """Which member of a broker's group a consumer reads from; another one is read while that one is gone."""

    SUGGESTED = None
    """The master, or a slave while the master suggests it, because it would have to read from its disk."""
    MASTER = 0
    SLAVE = 1
    """A slave, if there is one; it may lag behind its master."""


class MessageModel(Enum):
    """Whether the members of a group share the messages, or each gets all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@attrs.frozen
class Subscription:
    """One topic and its filter."""

    topic: str
    expression: str = ALL
    expression_type: str = TAG_EXPRESSION
    version: int = 0

    @property
    def tags(self) -> frozenset[str]:
        """The tags to receive; an empty set means all messages."""
        if self.expression_type != TAG_EXPRESSION or self.expression in ("", ALL):
            return frozenset()
        return frozenset(tag for tag in (part.strip() for part in self.expression.split("||")) if tag)

    def wire(self) -> dict[str, Any]:
        """The JSON object of this subscription."""
        tags = sorted(self.tags)
        return {
            "classFilterMode": False,
            "codeSet": [string_hash(tag) for tag in tags],
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": tags,
            "topic": self.topic,
        }


def check_expression(name: str, expression: object) -> str:
    """Refuse what is no tag expression, and a single bar: it would be part of a tag that hardly any message has.

    A `Subscription` is not checked, and so can name a tag that contains a bar.
    """
    text = check_text(name, expression, empty=True)
    if any("|" in tag for tag in text.split("||")):
        raise InvalidArgument(f"{name} has a single bar: tags are separated by || (got {shown(expression)})")
    return text


def subscriptions_of(topics: str | Iterable[str] | Mapping[str, str | Subscription], version: int) -> list[Subscription]:
    """Read the `topics` of `open_consumer`: one topic, several, or topics with their expressions.

    Raises:
        InvalidArgument: there is no topic, or an expression names no tag or has a single bar.
    """
    if isinstance(topics, str):
        topics = [topics]
    wanted: dict[str, str | Subscription] = {}
    if isinstance(topics, Mapping):
        wanted.update(cast("Mapping[str, str | Subscription]", topics))
    elif isinstance(topics, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from the application
        wanted.update({check_topic(topic): ALL for topic in topics})
    else:
        raise InvalidArgument(f"topics must be a topic, several, or a mapping of topics to expressions (got {shown(topics)})")
    if not wanted:
        raise InvalidArgument("a consumer needs at least one topic")
    subscriptions: list[Subscription] = []
    for topic, expression in wanted.items():
        check_topic(topic)
        if isinstance(expression, Subscription):
            subscription = attrs.evolve(expression, topic=topic, version=version)
        else:
            text = check_expression(f"the expression of topic {topic}", expression)
            subscription = Subscription(topic, text.strip() or ALL, version=version)
        if subscription.expression_type == TAG_EXPRESSION and subscription.expression != ALL and not subscription.tags:
            raise InvalidArgument(f"expression {subscription.expression!r} of topic {topic!r} names no tag")
        subscriptions.append(subscription)
    return subscriptions


def subscriptions_of_member(
    group: str, topics: str | Iterable[str] | Mapping[str, str | Subscription], model: MessageModel, version: int
) -> dict[str, Subscription]:
    """The subscriptions of a member of `group` by topic: those of `topics`, and the group's retry topic unless broadcasting.

    Raises:
        InvalidArgument: a topic or expression is invalid.
    """
    subscriptions = {subscription.topic: subscription for subscription in subscriptions_of(topics, version)}
    if model is not MessageModel.BROADCASTING:  # when broadcasting, every member would get the retries of one
        retry_topic = RETRY_PREFIX + group
        subscriptions[retry_topic] = Subscription(retry_topic, version=version)
    return subscriptions


def sql(expression: str) -> Subscription:
    """Make an SQL92 filter to use as the expression of a topic; the broker must allow such filters."""
    return Subscription("", check_text("expression", expression), SQL_EXPRESSION)


@attrs.frozen
class Member:
    """A client as a member of a consumer group, as in its heartbeats."""

    group: str
    subscriptions: tuple[Subscription, ...]
    model: MessageModel
    consume_from: ConsumeFrom
    passive: bool = True
    """Whether it is a push consumer (`CONSUME_PASSIVELY`) or a pull consumer."""

    def wire(self) -> dict[str, Any]:
        """The JSON object of this member."""
        return {
            "groupName": self.group,
            "consumeType": "CONSUME_PASSIVELY" if self.passive else "CONSUME_ACTIVELY",
            "messageModel": self.model.value,
            "consumeFromWhere": self.consume_from.value,
            "subscriptionDataSet": [subscription.wire() for subscription in self.subscriptions],
            "unitMode": False,
        }


def heartbeat(client_id: str, producer_groups: Iterable[str], members: Iterable[Member]) -> dict[str, Any]:
    """The `HeartbeatData` object of a client."""
    return {
        "clientID": client_id,
        "producerDataSet": [{"groupName": group} for group in producer_groups],
        "consumerDataSet": [member.wire() for member in members],
    }
