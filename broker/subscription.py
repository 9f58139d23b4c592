"""A consumer's subscription to a topic: `*` or tags joined by `||` (RocketMQ SubscriptionData, FilterAPI).

The broker compares hashes of tags (Java's `String.hashCode`) and the client the tags, so a collision is harmless. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs

from ..message.numbers import int_of, long_of
from ..message.strings import string_hash

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"


class BadExpression(ValueError):
    """A filter expression names no tag."""


@attrs.frozen
class Subscription:
    """One topic of a consumer's subscriptions."""

    topic: str
    expression: str = ALL
    expression_type: str = TAG
    version: int = 0
    tags: tuple[str, ...] = ()
    codes: frozenset[int] | None = None
    """The hashes of the tags; None matches every message."""

    @property
    def size(self) -> int:
        """How much the subscription counts towards `SUBSCRIBED_MAX`: the topic, its tags and their hashes."""
        return 1 + len(self.tags) + len(self.codes or ())

    @property
    def is_tag(self) -> bool:
        return self.expression_type == TAG

    @classmethod
    def parse(cls, topic: str, expression: str | None, version: int = 0, expression_type: str | None = None) -> Self:
        """Read an expression.

        Raises:
            BadExpression: the expression consists of separators only.
        """
        kind = expression_type or TAG
        if kind != TAG:
            return cls(topic, expression or "", kind, version)
        if not expression or expression == ALL:
            return cls(topic, ALL, kind, version)
        tags = tuple(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))
        if not tags:
            raise BadExpression(f"a filter is * or tags joined by || (got {expression!r})")
        return cls(topic, expression, kind, version, tags, frozenset(map(string_hash, tags)))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read a subscription in a client's heartbeat; the client's own hashes are used, as in RocketMQ.

        Raises:
            KeyError, TypeError, ValueError: there is no topic, or a hash is not a number.
        """
        codes = frozenset(int_of(code) for code in value.get("codeSet") or ())
        return cls(
            str(value["topic"]),
            str(value.get("subString") or ALL),
            str(value.get("expressionType") or TAG),
            long_of(value.get("subVersion") or 0),
            tuple(str(tag) for tag in value.get("tagsSet") or ()),
            codes or None,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": False,
            "codeSet": sorted(self.codes or ()),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }
