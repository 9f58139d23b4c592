"""The committed offsets of each group on each queue (RocketMQ ConsumerOffsetManager).

An offset is the next one to consume. It may move back, because that is how offsets are reset.

Offsets alone may be seen before they are in the log: a commit changes the table at once, and `logged` keeps what the log says
of the same queue until the log has the commit. `drop_unlogged` gives the table back to the log. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from ...message.data_version import DataVersion
from ...message.numbers import int_of, long_of
from ..entries import TABLE_BYTES_MAX, TableFull
from ..json_values import table_of
from .offset_table import OffsetTable
from .resets import PendingResets

_SEPARATOR = "@"
LOST_KEY = "lostMessages"
"""Our own key in the table's file: how many messages were deleted before a group had read them, by `topic@group`."""
OffsetKey = tuple[str, str, int]
"""Topic, group and queue id."""
Logged = dict[tuple[str, str], dict[int, int | None]]
"""Offsets as the log has them, by topic and group, then queue id; None if the log has none."""
ENTRY_BYTES = 16
"""The estimated size of a queue id and its offset in the table's JSON, and of the characters around a topic and a group."""


@attrs.define(eq=False)
class ConsumerOffsets:
    """Committed offsets by topic, group and queue."""

    table: OffsetTable = attrs.field(factory=OffsetTable)
    resets: PendingResets = attrs.field(factory=PendingResets)
    """Resets that clients learn from the answers to their pulls."""
    version: DataVersion = attrs.field(factory=DataVersion)
    size: int = 0
    """The estimated size of the table as JSON in bytes; a slave copies all of it in one frame."""
    _sizes: dict[str, int] = attrs.field(factory=dict[str, int])
    """The part of each topic in `size`."""
    logged: Logged = attrs.field(factory=Logged)
    """What the log says of each queue whose offset in the table is not in the log yet."""
    dirty: dict[OffsetKey, None] = attrs.field(factory=dict[OffsetKey, None])
    """The queues whose offsets are to be appended to the log."""
    on_dirty: Callable[[], None] = lambda: None
    """Called after an entry was added to `dirty`."""
    lost: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]])
    """How many messages were deleted before a group had read them, by topic and group."""
    changes: int = 0
    """Counts changes of offsets; the file is written when the count has grown."""

    def load(self, stored: Any) -> None:
        """Overwrite offsets with those of a file or a master; offsets that these lack are kept.

        Raises:
            TypeError, ValueError: the content is not a table of tables of numbers. Some offsets may have been overwritten.
        """
        for key, queues in table_of(table_of(stored, "the content").get("offsetTable"), "offsetTable").items():
            topic, separator, group = key.partition(_SEPARATOR)
            if separator:
                own = self._queues(topic, group)
                before = len(own)
                own.update((int_of(queue_id), long_of(offset)) for queue_id, offset in table_of(queues, key).items())
                self._grow(topic, (len(own) - before) * ENTRY_BYTES)
        for key, count in table_of(table_of(stored, "the content").get(LOST_KEY), LOST_KEY).items():
            topic, _, group = key.partition(_SEPARATOR)
            self.lost[topic, group] = long_of(count)
        self.changes += 1

    def keep_inside(self, ends: Mapping[tuple[str, int], int]) -> dict[str, int]:
        """Move groups back whose offset is beyond a queue's end, because they would skip the messages that are stored next.

        After a power failure the log may lack messages that were already consumed.

        Args:
            ends: the ends of queues by topic and queue id; offsets on other queues do not change.

        Returns: by how many messages each group was moved back, by `topic@group`.
        """
        moved: dict[str, int] = {}
        for topic in sorted({topic for topic, _ in ends}):
            for group, queues in sorted(self.table.topics.get(topic, {}).items()):
                for queue_id, offset in queues.items():
                    if offset > (end := ends.get((topic, queue_id), offset)):
                        self._note(topic, group, queue_id, offset)
                        queues[queue_id] = end
                        key = f"{topic}{_SEPARATOR}{group}"
                        moved[key] = moved.get(key, 0) + offset - end
        self.changes += bool(moved)
        return moved

    def entries(self) -> Iterator[tuple[str, str, int]]:
        """The topic, group and queue of each offset; offsets may be added and removed before the end is reached."""
        for (topic, group), queues in self.table.walk():
            for queue_id in list(queues):
                yield topic, group, queue_id

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store the next offset to consume; raises TableFull if there is no room for another queue.

        An idle group commits the same offsets again and again: they change nothing, and are neither written nor appended to the
        log a second time.
        """
        groups = self.table.topics.get(topic)
        queues = None if groups is None else groups.get(group)
        before = None if queues is None else queues.get(queue_id)
        if before == offset:
            return
        if before is None and self.size >= TABLE_BYTES_MAX:
            raise TableFull("the table of consumer offsets", self.size, TABLE_BYTES_MAX)
        self._note(topic, group, queue_id, before)
        self._set(topic, group, queue_id, offset)

    def _note(self, topic: str, group: str, queue_id: int, before: int | None) -> None:
        """Keep what the log has of a queue whose offset is about to change, and append the change."""
        self.logged.setdefault((topic, group), {}).setdefault(queue_id, before)
        self.dirty[topic, group, queue_id] = None
        self.on_dirty()

    def _set(self, topic: str, group: str, queue_id: int, offset: int | None) -> None:
        if offset is None:
            self.forget_queue(group, topic, queue_id)
            return
        queues = self._queues(topic, group)
        if queue_id not in queues:
            self._grow(topic, ENTRY_BYTES)
        queues[queue_id] = offset
        self.changes += 1

    # ---------------------------------------------------------------- the log

    def apply(self, topic: str, group: str, queue_id: int, offset: int | None, *, own: bool) -> None:
        """Take an offset that the log has; None removes it.

        Args:
            own: whether this node has appended it, so that a commit that differs is a later one. On other nodes a commit stays
                only if it is ahead: a consumer made it there while the master was away.
        """
        pending = self.logged.get((topic, group))
        if pending is not None and queue_id in pending:
            seen = self.query(group, topic, queue_id)
            is_dirty = (topic, group, queue_id) in self.dirty
            if (is_dirty or seen != offset) if own else (is_dirty and _is_ahead(seen, offset)):
                pending[queue_id] = offset
                return
            self._settle(topic, group, queue_id)
        self._set(topic, group, queue_id, offset)

    def append_again(self, topic: str, group: str, queue_id: int) -> None:
        """Append an offset that the log may lack, although the table has it."""
        self._note(topic, group, queue_id, self.query(group, topic, queue_id))

    def take(self, group: str, topic: str, queue_id: int, offset: int | None) -> None:
        """Take an offset of a master whose tables are copied."""
        self._settle(topic, group, queue_id)
        self._set(topic, group, queue_id, offset)

    def _settle(self, topic: str, group: str, queue_id: int) -> None:
        pending = self.logged.get((topic, group), {})
        pending.pop(queue_id, None)
        if not pending:
            self.logged.pop((topic, group), None)
        self.dirty.pop((topic, group, queue_id), None)

    def drop_unlogged(self) -> None:
        """Give every queue the offset that the log has, because another node may lead now."""
        logged, self.logged = self.logged, Logged()
        self.dirty.clear()
        for (topic, group), queues in logged.items():
            for queue_id, offset in queues.items():
                self._set(topic, group, queue_id, offset)

    def unlogged(self) -> list[tuple[str, str, int, int]]:
        """Topic, group, queue id and offset of commits that are to be appended, and ahead of the log."""
        rows: list[tuple[str, str, int, int]] = []
        for topic, group, queue_id in self.dirty:
            seen, offset = self.query(group, topic, queue_id), self.logged.get((topic, group), {}).get(queue_id)
            if seen is not None and _is_ahead(seen, offset):
                rows.append((topic, group, queue_id, seen))
        return rows

    def drop_handed(self) -> None:
        """Give queues what the log says, unless the master is still to be handed what consumers have committed here.

        It may have taken a smaller offset than the one that it was handed, and one that is behind the log it is never handed.
        """
        for (topic, group), queues in list(self.logged.items()):
            for queue_id, offset in list(queues.items()):
                is_dirty = (topic, group, queue_id) in self.dirty
                if not (is_dirty and _is_ahead(self.query(group, topic, queue_id), offset)):
                    self.take(group, topic, queue_id, offset)

    def handed(self, topic: str, group: str, queue_id: int) -> None:
        """Note that the master appends an offset, or a smaller one; the log decides."""
        self.dirty.pop((topic, group, queue_id), None)

    def note_lost(self, group: str, topic: str, count: int) -> None:
        """Count messages that were deleted before the group had read them."""
        self.lost[topic, group] += count
        self.changes += 1

    def lost_of(self, group: str) -> dict[str, int]:
        """How many messages were deleted before the group had read them, by topic."""
        return {topic: count for topic in sorted(self.topics_of(group)) if (count := self.lost[topic, group])}

    def forget_queue(self, group: str, topic: str, queue_id: int) -> None:
        """Remove a group's offset on one queue."""
        queues = self.table.get((topic, group), {})
        if queues.pop(queue_id, None) is not None:
            self._grow(topic, -ENTRY_BYTES)
            self.changes += 1

    def _queues(self, topic: str, group: str) -> dict[int, int]:
        queues = self.table.get((topic, group))
        if queues is None:
            queues = self.table.put(topic, group)
            self._grow(topic, len(topic) + len(group) + ENTRY_BYTES)
        return queues

    def _grow(self, topic: str, size: int) -> None:
        self.size += size
        self._sizes[topic] = self._sizes.get(topic, 0) + size

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set a group's offset; each client must continue there before its pulls and commits count."""
        self.commit(group, topic, queue_id, offset)
        self.resets.add(group, topic, queue_id)
        self.append_again(topic, group, queue_id)  # also if the offset is the same: the log must have the reset

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The next offset to consume, None if the group never committed one."""
        groups = self.table.topics.get(topic)
        queues = None if groups is None else groups.get(group)
        return None if queues is None else queues.get(queue_id)

    def of(self, group: str, topic: str) -> dict[int, int]:
        """A copy of all offsets of a group on a topic."""
        return dict(self.table.get((topic, group), ()))

    def group_count(self, topic: str) -> int:
        """How many groups have offsets on the topic."""
        return len(self.table.topics.get(topic, ()))

    def topics_of(self, group: str) -> set[str]:
        """The topics on which the group has offsets."""
        return {topic for topic, groups in self.table.topics.items() if group in groups}

    def groups_of(self, topic: str) -> set[str]:
        """A copy of the groups that have offsets on the topic."""
        return set(self.table.topics.get(topic, ()))

    def clone(self, source: str, target: str, topic: str) -> None:
        """Give one group the offsets of another on a topic."""
        queues = self.table.get((topic, source))
        if queues is not None and source != target:
            if self.size + len(queues) * ENTRY_BYTES > TABLE_BYTES_MAX:
                raise TableFull("the table of consumer offsets", self.size, TABLE_BYTES_MAX)
            for queue_id in [*self.table.get((topic, target), ())]:
                if queue_id not in queues:
                    self._note(topic, target, queue_id, self.query(target, topic, queue_id))
                    self.forget_queue(target, topic, queue_id)
            for queue_id, offset in queues.items():
                self.commit(target, topic, queue_id, offset)

    def clear(self) -> None:
        """Remove all offsets."""
        self.table.topics.clear()
        self._sizes.clear()
        self.logged.clear()
        self.dirty.clear()
        self.resets.take_all()
        self.size = 0
        self.changes += 1

    def forget_topic(self, topic: str) -> None:
        self.table.topics.pop(topic, None)
        self.size -= self._sizes.pop(topic, 0)
        self.resets.forget(topic=topic)
        self._forget_unlogged([key for key in self.logged if key[0] == topic])
        self._forget_lost([key for key in self.lost if key[0] == topic])

    def forget_group(self, group: str) -> None:
        topics, sizes = self.table.topics, self._sizes
        for topic in self.topics_of(group):
            groups = topics[topic]
            size = len(topic) + len(group) + (1 + len(groups.pop(group))) * ENTRY_BYTES
            self.size -= size
            if groups:
                sizes[topic] -= size
            else:
                del topics[topic], sizes[topic]
        self.resets.forget(group=group)
        self._forget_unlogged([key for key in self.logged if key[1] == group])
        self._forget_lost([key for key in self.lost if key[1] == group])

    def _forget_unlogged(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:  # what is dirty is appended as it is then
            del self.logged[key]

    def _forget_lost(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self.lost[key]
        self.changes += 1

    def to_json(self) -> dict[str, Any]:
        """The content of `consumerOffset.json`. It refers to the tables themselves, so encode it before they change."""
        return self.content({f"{topic}{_SEPARATOR}{group}": queues for (topic, group), queues in self.table.items()})

    def content(self, table: Any) -> dict[str, Any]:
        """The content of `consumerOffset.json` with the table of offsets, which may be encoded already."""
        lost = {f"{topic}{_SEPARATOR}{group}": count for (topic, group), count in self.lost.items()}
        return {
            "dataVersion": self.version.to_json(),
            "offsetTable": table,
            **({LOST_KEY: lost} if lost else {}),
        }


def _is_ahead(seen: int | None, logged: int | None) -> bool:
    """Whether the table's offset of a queue is beyond the one that the log has."""
    return seen is not None and (logged is None or seen > logged)
