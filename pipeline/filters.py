"""Uses the conditions of a query to read less: those on topic, broker, queue, offset and tag. Pure.

Spark applies every condition again to the rows it gets, so a condition that is not used here costs time and never rows. One
that is used must never hide a row. So conditions on times are not used: a clock may have gone back, and then the first message
that is new enough has others behind it that are not. The options `startingTimestamp` and `endingTimestamp` mean offsets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from ..message.message import MessageQueue
from .ranges import QueueRange


@attrs.frozen
class Condition:
    """`column kind value`; the kind is Spark's name of the filter."""

    column: str
    kind: str
    value: Any


@attrs.define(eq=False)
class Pruning:
    """What has to be read for a list of conditions that all hold."""

    sets: dict[str, set[Any]] = attrs.field(factory=dict[str, set[Any]])
    offset_min: int | None = None
    offset_max: int | None = None

    @classmethod
    def of(cls, conditions: Iterable[Condition]) -> Pruning:
        """Collect the conditions that can be used to read less."""
        found = cls()
        for each in conditions:
            found._take(each)
        return found

    def _take(self, each: Condition) -> None:
        if each.kind in ("EqualTo", "EqualNullSafe", "In") and each.column in ("topic", "brokerName", "queueId", "tags"):
            values = set(each.value) if each.kind == "In" else {each.value}
            if None not in values:
                self.sets[each.column] = self.sets[each.column] & values if each.column in self.sets else values
        elif each.column == "queueOffset" and isinstance(each.value, int):
            self._bound_offset(each.kind, each.value)

    def _bound_offset(self, kind: str, value: int) -> None:
        if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual", "GreaterThan"):
            least = value + (kind == "GreaterThan")
            self.offset_min = least if self.offset_min is None else max(self.offset_min, least)
        if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual", "LessThan"):
            most = value - (kind == "LessThan")
            self.offset_max = most if self.offset_max is None else min(self.offset_max, most)

    @property
    def tags(self) -> tuple[str, ...] | None:
        """The tags that messages may have; None if any may, or if a broker could not be told which."""
        tags = self.sets.get("tags")
        return tuple(sorted(tags)) if tags is not None and all(map(_PLAIN_TAG.fullmatch, tags)) else None

    def apply(self, ranges: Sequence[QueueRange]) -> list[QueueRange]:
        """Return the parts of ranges that may have wanted messages."""
        found: list[QueueRange] = []
        for each in ranges:
            if not self._wants(each.queue):
                continue
            start, end = each.start, each.end
            if self.offset_min is not None:
                start = max(start, self.offset_min)
            if self.offset_max is not None:
                end = min(end, self.offset_max + 1)
            if start < end:
                found.append(QueueRange(each.queue, start, end))
        return found

    def _wants(self, queue: MessageQueue) -> bool:
        places = (("topic", queue.topic), ("brokerName", queue.broker_name), ("queueId", queue.queue_id))
        return all(name not in self.sets or value in self.sets[name] for name, value in places)


_PLAIN_TAG = re.compile(r"(?!\*$)[^\s|]+")
"""A tag that a broker finds in an expression such as `paid || new`. Tags with blanks or `|` cannot be written there."""
