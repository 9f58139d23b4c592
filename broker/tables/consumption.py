"""What consumer groups have not read yet: what retention may delete early on a full disk, and what a deletion took from them.

A message counts as unread until every group that reads its topic has committed an offset behind it. A topic that no group has
ever read is unread as a whole: dead letters wait for a person, and a producer may have begun before its consumers. Delayed
messages are unread until they have been delivered. Members that broadcast commit nothing and do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import attrs

from ...store.config import SCHEDULE_TOPIC
from ...store.keeping.cleaning import Unread
from ...store.message_store import MessageStore
from ...world.events import get_logger
from ...world.slices import in_slices
from ..delay import DelayDelivery
from .clients import Consumers
from .offsets import ConsumerOffsets
from .topics import OFFSET_MOVED_TOPIC, SELF_TEST_TOPIC, TRACE_TOPIC

log = get_logger(__name__)

_READ_BY_NOBODY = frozenset((OFFSET_MOVED_TOPIC, SELF_TEST_TOPIC, TRACE_TOPIC))
"""Topics of the broker whose messages are searched by key, if at all; no group has to read them."""
LOGGED_MAX = 20
"""How many groups one log line names, those with the largest losses first."""

_Committed = tuple[str, str, int, int]
"""Topic, group, queue id and offset."""


@attrs.define(eq=False, repr=False)
class Consumption:
    """Compares the queues of one broker with the offsets of its groups (`store.cleaning.Readers`)."""

    store: MessageStore
    offsets: ConsumerOffsets
    consumers: Consumers
    delay: DelayDelivery

    async def oldest_unread(self) -> Unread:
        """The message with the lowest physical offset that some group has not read."""
        lowest: dict[tuple[str, int], tuple[int, str]] = {}
        readers: Counter[tuple[str, int]] = Counter()
        async for piece in in_slices(self._committed()):
            for topic, group, queue_id, offset in piece:
                key = topic, queue_id
                readers[key] += 1
                lowest[key] = min(lowest.get(key, (offset, group)), (offset, group))
        beginners: dict[str, str] = {}
        async for subscribed in in_slices(self._beginners()):
            beginners.update(subscribed)
        oldest = Unread(self.store.log.max_offset, "")
        async for queues in in_slices(list(self.store.queues.table.items())):
            for (topic, queue_id), queue in queues:
                if topic in _READ_BY_NOBODY:
                    continue
                groups = self.offsets.group_count(topic)
                if topic == SCHEDULE_TOPIC:
                    offset, reader = self.delay.offset_of(queue_id + 1), "the delivery of delayed messages"
                elif topic in beginners:
                    offset, reader = 0, f"the group {beginners[topic]}, which has committed nothing,"
                elif not groups:
                    offset, reader = 0, "no group"
                elif readers[topic, queue_id] < groups:
                    offset, reader = 0, "a group that has committed nothing there"
                else:
                    offset, reader = lowest[topic, queue_id]
                    reader = f"the group {reader}"
                offset = max(offset, queue.min_offset)
                if offset < queue.max_offset and (unit := queue.unit(offset)) is not None and unit[0] < oldest.physical_offset:
                    read = "has read" if reader == "no group" else "has not read"
                    oldest = Unread(unit[0], f"{reader} {read} {topic} queue {queue_id} from offset {offset} on")
        return oldest

    async def note_lost(self, begins: Mapping[tuple[str, int], int], *, forced: bool) -> None:
        """Count and log the unread messages that were deleted.

        Args:
            begins: the min offset of each queue before the deletion.
            forced: the messages had not expired, so those of topics that no group reads are logged too.
        """
        lost: Counter[str] = Counter()
        store, known = self.store, set[str]()
        async for piece in in_slices(self._committed()):
            for topic, group, queue_id, offset in piece:
                known.add(topic)
                low = store.min_offset(topic, queue_id)
                if (count := low - max(offset, begins.get((topic, queue_id), low))) > 0:
                    lost[f"{topic}@{group}"] += count
                    self.offsets.note_lost(group, topic, count)
        async for queues in in_slices(list(begins.items()) if forced else []):
            for (topic, queue_id), begin in queues:
                if topic not in known and topic not in _READ_BY_NOBODY:
                    lost[topic] += store.min_offset(topic, queue_id) - begin
        if total := lost.total():
            named = dict(lost.most_common(LOGGED_MAX))
            log.error("unread_messages_deleted", messages=total, readers=len(lost), most=named, forced=forced)

    def _committed(self) -> Iterator[_Committed]:
        for topic, group, queue_id in self.offsets.entries():
            if (offset := self.offsets.query(group, topic, queue_id)) is not None:
                yield topic, group, queue_id, offset

    def _beginners(self) -> Iterator[tuple[str, str]]:
        """The topics that members of a group subscribe to while the group has no offset there, each with the group."""
        for name, group in list(self.consumers.groups.items()):
            for topic in list(group.subscriptions):
                if not group.is_broadcasting and (topic, name) not in self.offsets.table:
                    yield topic, name
