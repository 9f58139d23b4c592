"""Commits of consumer groups, limited to the end of each queue."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...store.message_store import MessageStore
from ...world.events import get_logger
from ...world.slices import in_slices
from ..role import LiveRole
from .offsets import ConsumerOffsets

log = get_logger(__name__)

COMPARE_SECONDS = 7e-7
"""How long it takes to compare an offset with the end of its queue."""


@attrs.define(eq=False, repr=False)
class Commits:
    """Commits offsets of groups on one broker.

    Invariant: on a master no group's offset is beyond the end of a queue. The group would skip the messages stored next.
    """

    offsets: ConsumerOffsets
    store: MessageStore
    role: LiveRole

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit a group's offset as a client gives it, on a master at most the end of the queue.

        A group may have read messages from a slave that the master has lost since. A slave cannot check an offset, because it
        may be behind its master.
        """
        if self.role.takes_puts and offset > (end := self.store.next_offset(topic, queue_id)):
            log.warning("commit_beyond_queue", group=group, topic=topic, queue_id=queue_id, offset=offset, end=end)
            offset = end
        self.offsets.commit(group, topic, queue_id, offset)

    def queues_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Move groups back whose offsets are beyond the new ends of truncated queues."""
        if moved := self.offsets.keep_inside(ends):
            log.warning("consumer_offsets_moved_back", messages=moved)

    async def keep_inside_queues(self) -> None:
        """Move every group back whose offset is beyond the end of a queue, because this broker becomes master."""
        processor = self.store.world.processor
        async for keys in in_slices(self.offsets.entries(), next_turn=processor.next_turn):
            processor.charge(len(keys) * COMPARE_SECONDS)
            ends: dict[tuple[str, int], int] = {}
            for topic, group, queue_id in keys:
                offset, end = self.offsets.query(group, topic, queue_id), self.store.max_offset(topic, queue_id)
                if offset is not None and offset > end:
                    ends[topic, queue_id] = end
            self.queues_cut(ends)
