"""Uses the conditions of a query to read less: those on topic, broker, queue, offset, store time and tag. Pure.

Spark applies every condition again to the rows it gets, so a condition that is not used here costs time and never rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from ..message.message import MessageQueue
from .ranges import QueueRange

OffsetAt = Callable[[QueueRange, int], int]
"""Returns the first offset of a range that was stored at a time or later, in ms; the range's end if there is none."""


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
    stored_min: int | None = None
    stored_before: int | None = None

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
        elif each.column == "storeTimestamp" and isinstance(each.value, datetime) and each.value.tzinfo is not None:
            self._bound_time(each.kind, _milliseconds(each.value))

    def _bound_offset(self, kind: str, value: int) -> None:
        if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual", "GreaterThan"):
            least = value + (kind == "GreaterThan")
            self.offset_min = least if self.offset_min is None else max(self.offset_min, least)
        if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual", "LessThan"):
            most = value - (kind == "LessThan")
            self.offset_max = most if self.offset_max is None else min(self.offset_max, most)

    def _bound_time(self, kind: str, milliseconds: int) -> None:
        if kind in ("EqualTo", "EqualNullSafe", "GreaterThanOrEqual", "GreaterThan"):
            self.stored_min = milliseconds if self.stored_min is None else max(self.stored_min, milliseconds)
        if kind in ("EqualTo", "EqualNullSafe", "LessThanOrEqual", "LessThan"):
            before = milliseconds + 1  # the moment may be later than the beginning of its millisecond
            self.stored_before = before if self.stored_before is None else min(self.stored_before, before)

    @property
    def tags(self) -> tuple[str, ...] | None:
        """The tags that messages may have; None if all tags are wanted."""
        return tuple(sorted(self.sets["tags"])) if "tags" in self.sets else None

    def apply(self, ranges: Sequence[QueueRange], offset_at: OffsetAt) -> list[QueueRange]:
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
            if self.stored_min is not None and start < end:
                start = max(start, offset_at(each, self.stored_min))
            if self.stored_before is not None and start < end:
                end = min(end, offset_at(each, self.stored_before))
            if start < end:
                found.append(QueueRange(each.queue, start, end))
        return found

    def _wants(self, queue: MessageQueue) -> bool:
        places = (("topic", queue.topic), ("brokerName", queue.broker_name), ("queueId", queue.queue_id))
        return all(name not in self.sets or value in self.sets[name] for name, value in places)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _milliseconds(moment: datetime) -> int:
    """The milliseconds since 1970, rounded down. Only integers are used, since floats may be rounded to the one before."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)
