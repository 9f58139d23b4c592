"""How far each group has consumed each queue (RocketMQ ConsumerOffsetManager).

An offset is the next one to consume. It may legally move back: that is how offsets are reset. Pure.
"""

from __future__ import annotations

from typing import Any

import attrs

from .data_version import DataVersion
from .json_values import object_of

_SEPARATOR = "@"


@attrs.define(eq=False)
class ConsumerOffsets:
    """Committed offsets by topic, group and queue."""

    table: dict[tuple[str, str], dict[int, int]] = attrs.field(factory=dict[tuple[str, str], dict[int, int]])
    """(topic, group) → queue → offset."""
    version: DataVersion = attrs.field(factory=DataVersion)
    changes: int = 0
    """Counts commits; the file is written when it has moved."""

    def load(self, stored: Any) -> None:
        """Put the offsets of a file or a master over our own; what these lack stays."""
        for key, queues in object_of(object_of(stored).get("offsetTable")).items():
            topic, separator, group = key.partition(_SEPARATOR)
            if separator:
                own = self.table.setdefault((topic, group), {})
                own.update((int(queue_id), int(offset)) for queue_id, offset in object_of(queues).items())
        self.changes += 1

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember the next offset to consume."""
        queues = self.table.get((topic, group))
        if queues is None:
            queues = self.table[topic, group] = {}
        queues[queue_id] = offset
        self.changes += 1

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset to consume, None if the group never committed one."""
        queues = self.table.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """All offsets of a group on a topic, a copy."""
        return dict(self.table.get((topic, group), ()))

    def topics_of(self, group: str) -> set[str]:
        """Topics that the group has offsets on."""
        return {topic for topic, of_group in self.table if of_group == group}

    def groups_of(self, topic: str) -> set[str]:
        """Groups that have offsets on the topic."""
        return {group for of_topic, group in self.table if of_topic == topic}

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give one group the offsets of another on a topic."""
        queues = self.table.get((topic, source))
        if queues is not None:
            self.table[topic, target] = dict(queues)
            self.changes += 1

    def forget_topic(self, topic: str) -> None:
        self._forget([key for key in self.table if key[0] == topic])

    def forget_group(self, group: str) -> None:
        self._forget([key for key in self.table if key[1] == group])

    def _forget(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self.table[key]
        self.changes += 1

    def to_json(self) -> dict[str, Any]:
        """What slaves and `consumerOffset.json` get."""
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": {f"{topic}{_SEPARATOR}{group}": dict(queues) for (topic, group), queues in self.table.items()},
        }
