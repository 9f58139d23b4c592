"""Deletion of topics and groups on request: a proposed event, answered when it is applied and as safe as the mode promises.

From then on it applies to every node that derives this log and survives any crash: a start applies the events that its files do
not contain yet. Until the event is applied, messages for a topic that is deleted wait (`TableLog.is_changing`).
"""

from __future__ import annotations

import attrs
import trio

from ...message.control import deletion_of
from ...remoting.codes import ResponseCode
from ...remoting.errors import RequestRefused
from ...store.errors import NotWritable
from ...store.message_store import MessageStore
from ..role import LiveRole
from .table_log import TableLog
from .tables import Tables


@attrs.define(eq=False, kw_only=True, repr=False)
class Deletions:
    """Deletes topics and groups on one broker."""

    store: MessageStore
    role: LiveRole
    tables: Tables
    table_log: TableLog
    _deleting: trio.Lock = attrs.field(factory=trio.Lock)
    """Held by the deletion of a topic that searches the tables in this turn of the event loop. Of many that are requested
    together each has a turn of its own."""

    async def delete_topic(self, topic: str, *, only_unused: bool = False) -> None:
        """Delete a topic with its messages and every group's offsets on it.

        Args:
            only_unused: do nothing if the topic is in the table or is about to be, because someone may have created it while
                others were deleted.

        Raises:
            RequestRefused: the log accepted no event, and nothing was deleted; or the deletion is not as durable as the mode
                promises, as the remark says.
        """
        async with self._deleting:
            if only_unused and (self.table_log.is_changing(topic) or self.table_log.topic(topic) is not None):
                return
            if self._copies:
                self.tables.topics.delete(topic)
                self.tables.offsets.forget_topic(topic)
                self.tables.forget_topic(topic)
                self.store.drop_queues(topic)
                return
            end = self.table_log.delete_topic(deletion_of(topic, self.store.next_offsets_of(topic)), topic)
            await trio.lowlevel.checkpoint()  # with thousands of queues both take long
            self.store.catch_up(rounds_max=1)  # what was stored before may take many; then it is applied later
        await self._finish(end)

    async def delete_group(self, group: str, *, offsets: bool) -> None:
        """Delete a group's settings, and if requested its consumer offsets; raises as `delete_topic`."""
        if self._copies:
            self.tables.groups.delete(group)
            self.tables.forget_group(group)
            if offsets:
                self.tables.offsets.forget_group(group)
            return
        await self._finish(self.table_log.delete_group(group, offsets=offsets))

    async def delete_unused_topics(self) -> None:
        """Delete the messages of topics that are not in the table; raises as `delete_topic`."""
        for topic in sorted(self.store.topics() - self.tables.topics.topics.keys()):
            if not self.tables.topics.is_system(topic):
                await self.delete_topic(topic, only_unused=True)

    @property
    def _copies(self) -> bool:
        """Whether this replica copies its tables from an Apache master, which appends no events: then each copy is changed."""
        return self.role.is_replica and not self.tables.master_appends

    async def _finish(self, end: int) -> None:
        try:
            await self.store.event_done(end)
        except NotWritable as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
