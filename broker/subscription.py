"""A consumer's subscription to a topic: `*` or tags joined by `||` (RocketMQ SubscriptionData, FilterAPI).

The broker compares hashes of tags (Java's `String.hashCode`) and the client the tags, so a collision is harmless. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import getsizeof
from typing import Any, Self

import attrs

from ..message.numbers import int_of, long_of
from ..message.strings import string_hash
from ..remoting.bounds import checked_name

ALL = "*"
TAG = "TAG"
SQL92 = "SQL92"

EXPRESSION_CHARACTERS_MAX = 32 * 1024
"""The longest filter expression; a longer one is refused. It is as long as the properties of a message may be."""
SUBSCRIPTION_BYTES = 400
"""How much memory a subscription takes besides its texts and hashes, estimated."""
CODE_BYTES = 32
"""The size of the number that is the hash of a tag."""


class BadExpression(ValueError):
    """A filter expression names no tag, or is too long."""


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
        """How much memory the subscription takes, as it counts towards `SUBSCRIBED_BYTES_MAX`."""
        codes = self.codes or frozenset()
        texts = (self.topic, self.expression, self.expression_type, *self.tags)
        return SUBSCRIPTION_BYTES + sum(map(getsizeof, (self.tags, codes, *texts))) + CODE_BYTES * len(codes)

    @property
    def matched(self) -> tuple[str, str | frozenset[int] | None]:
        """What decides which messages the subscription matches; equal for `a || b` and `b||a`."""
        return self.expression_type, self.codes if self.is_tag else self.expression

    @property
    def is_tag(self) -> bool:
        return self.expression_type == TAG

    @classmethod
    def parse(cls, topic: str, expression: str | None, version: int = 0, expression_type: str | None = None) -> Self:
        """Read an expression.

        Raises:
            BadExpression: the expression consists of separators only, or is too long.
        """
        kind = expression_type or TAG
        _check_length(expression or "")
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
            KeyError, TypeError, ValueError: there is no topic, a hash is not a number, or the expression is too long.
            RequestRefused: the name of the topic or of the type of expression is too long or unprintable.
        """
        _check_length(expression := str(value.get("subString") or ALL))
        codes = frozenset(int_of(code) for code in value.get("codeSet") or ())
        return cls(
            checked_name("topic", str(value["topic"])),
            expression,
            checked_name("type of expression", str(value.get("expressionType") or TAG)),
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


def _check_length(expression: str) -> None:
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise BadExpression(f"a filter has at most {EXPRESSION_CHARACTERS_MAX} characters (got {len(expression)})")
