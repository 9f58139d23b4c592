"""How far each group has consumed each queue (RocketMQ ConsumerOffsetManager).

An offset is the next one to consume. It may legally move back: that is how offsets are reset. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from ..message.data_version import DataVersion
from ..message.numbers import int_of, long_of
from .entries import TABLE_BYTES_MAX, TableFull
from .json_values import table_of

_SEPARATOR = "@"
ENTRY_BYTES = 16
"""Of one queue's number and offset in the table's JSON, and of what surrounds the key of a topic and a group."""


@attrs.define(eq=False)
class ConsumerOffsets:
    """Committed offsets by topic, group and queue."""

    table: dict[tuple[str, str], dict[int, int]] = attrs.field(factory=dict[tuple[str, str], dict[int, int]])
    """(topic, group) → queue → offset."""
    resets: dict[tuple[str, str], dict[int, int]] = attrs.field(factory=dict[tuple[str, str], dict[int, int]])
    """Offsets that consumers have to be told at their next pull, in the same shape (RocketMQ's resetOffsetTable)."""
    _groups: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]])
    """By topic, the groups in `table`; `_topics` is the same by group."""
    _topics: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]])
    version: DataVersion = attrs.field(factory=DataVersion)
    size: int = 0
    """About how many bytes the table has as JSON: a slave's copy holds all of it in one frame."""
    dirty: dict[tuple[str, str, int], None] | None = None
    """Topic, group and queue of the commits since somebody took them from here; None while nobody does."""
    changes: int = 0
    """Counts commits; the file is written when it has moved."""

    def load(self, stored: Any) -> None:
        """Put the offsets of a file or a master over our own; what these lack stays.

        Raises:
            TypeError, ValueError: no table of tables of numbers. Some of the offsets may have been taken.
        """
        for key, queues in table_of(table_of(stored, "the content").get("offsetTable"), "offsetTable").items():
            topic, separator, group = key.partition(_SEPARATOR)
            if separator:
                own = self._queues(topic, group)
                before = len(own)
                own.update((int_of(queue_id), long_of(offset)) for queue_id, offset in table_of(queues, key).items())
                self.size += (len(own) - before) * ENTRY_BYTES
        self.changes += 1

    def keep_inside(self, ends: Mapping[tuple[str, int], int]) -> dict[str, int]:
        """Move groups back that are ahead of a queue's end, where they would pass over what comes there next.

        A power cut may take messages that were consumed already.

        Args:
            ends: by topic and queue id; groups on other queues stay where they are.

        Returns, by `topic@group`, how many messages that was.
        """
        moved: dict[str, int] = {}
        for (topic, group), queues in self.table.items():
            for queue_id, offset in queues.items():
                if offset > (end := ends.get((topic, queue_id), offset)):
                    queues[queue_id] = end
                    key = f"{topic}{_SEPARATOR}{group}"
                    moved[key] = moved.get(key, 0) + offset - end
        self.changes += bool(moved)
        return moved

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember the next offset to consume; raises TableFull if there is no room for another queue."""
        queues = self.table.get((topic, group))
        if queues is None or queue_id not in queues:
            if self.size >= TABLE_BYTES_MAX:
                raise TableFull("the table of consumer offsets", self.size, TABLE_BYTES_MAX)
            queues = self._queues(topic, group)
            self.size += ENTRY_BYTES
        queues[queue_id] = offset
        self.changes += 1
        if self.dirty is not None:
            self.dirty[topic, group, queue_id] = None

    def forget_queue(self, group: str, topic: str, queue_id: int) -> None:
        """Forget a group's offset on one queue."""
        queues = self.table.get((topic, group), {})
        if queues.pop(queue_id, None) is not None:
            self.size -= ENTRY_BYTES
            self.changes += 1

    def _queues(self, topic: str, group: str) -> dict[int, int]:
        queues = self.table.get((topic, group))
        if queues is None:
            queues = self.table[topic, group] = {}
            self.size += len(topic) + len(group) + ENTRY_BYTES
            self._groups.setdefault(topic, set()).add(group)
            self._topics.setdefault(group, set()).add(topic)
        return queues

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move a group, whatever its members commit before they have heard of it at their next pull."""
        self.resets.setdefault((topic, group), {})[queue_id] = offset
        self.commit(group, topic, queue_id, offset)

    def reset_of(self, group: str, topic: str, queue_id: int, pulled: int) -> int | None:
        """Where a pull at offset `pulled` has to be sent, if there was a reset.

        It stays until a pull asks for what comes there: only then has whoever reads the queue now heard of it. A pull may have
        been sent by a member that has given the queue to another one since, and its answer reaches nobody.
        """
        queues = self.resets.get((topic, group))
        offset = queues.get(queue_id) if queues is not None else None
        if queues is None or offset is None:
            return None
        if offset != pulled:
            return offset
        del queues[queue_id]
        if not queues:
            del self.resets[topic, group]
        self.commit(group, topic, queue_id, offset)  # a member may have committed its own progress meanwhile
        return None

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset to consume, None if the group never committed one."""
        if self.resets and (waiting := self.resets.get((topic, group), {}).get(queue_id)) is not None:
            return waiting
        queues = self.table.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """All offsets of a group on a topic, a copy."""
        return dict(self.table.get((topic, group), ()))

    def topics_of(self, group: str) -> set[str]:
        """Topics that the group has offsets on, a copy."""
        return set(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """Groups that have offsets on the topic, a copy."""
        return set(self._groups.get(topic, ()))

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give one group the offsets of another on a topic."""
        queues = self.table.get((topic, source))
        if queues is not None and source != target:
            if self.size + len(queues) * ENTRY_BYTES > TABLE_BYTES_MAX:
                raise TableFull("the table of consumer offsets", self.size, TABLE_BYTES_MAX)
            own = self._queues(topic, target)
            self.size += (len(queues) - len(own)) * ENTRY_BYTES
            if self.dirty is not None:
                self.dirty.update({(topic, target, queue_id): None for queue_id in (*queues, *own)})
            own.clear()
            own.update(queues)
            self.changes += 1

    def forget_topic(self, topic: str) -> None:
        for group in self.groups_of(topic):
            self._forget(topic, group)
        self.changes += 1

    def forget_group(self, group: str) -> None:
        for topic in self.topics_of(group):
            self._forget(topic, group)
        self.changes += 1

    def _forget(self, topic: str, group: str) -> None:
        queues = self.table.pop((topic, group))
        self.size -= len(topic) + len(group) + (1 + len(queues)) * ENTRY_BYTES
        self.resets.pop((topic, group), None)
        for index, key, member in ((self._groups, topic, group), (self._topics, group, topic)):
            index[key].discard(member)
            if not index[key]:
                del index[key]

    def to_json(self) -> dict[str, Any]:
        """What `consumerOffset.json` gets: the tables themselves, to be encoded before they change."""
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": {f"{topic}{_SEPARATOR}{group}": queues for (topic, group), queues in self.table.items()},
        }
