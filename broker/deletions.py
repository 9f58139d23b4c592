"""Deletion of topics and groups: first an event is appended to the log, then the tables of this broker and its slaves change.

Invariant: a deletion is answered when its event is as durable as a message would be and the tables' files are written. From
then on it applies to every node that derives this log and survives any crash: a slave applies the event when it derives it,
and a start applies the events that its files do not contain yet. Each table's file contains the events before the log offset
that is stored in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import inf

import attrs
import trio

from ..message.control import (
    GROUP_DELETED,
    TOPIC_DELETED,
    Control,
    deleted_group_of,
    deleted_topic_of,
    deletion_of,
    group_deletion_of,
)
from ..message.errors import CorruptRecord
from ..remoting.codes import ResponseCode
from ..remoting.errors import RequestRefused
from ..store.errors import NotWritable
from ..store.message_store import MessageStore
from ..world.events import get_logger
from .groups import GroupTable
from .offsets import ConsumerOffsets
from .persistence import GROUPS_FILE, LOG_DERIVED, OFFSETS_FILE, TOPICS_FILE, Persistence
from .replicated_tables import ReplicatedTables
from .role import LiveRole
from .stats import Stats
from .topics import TopicTable

log = get_logger(__name__)


@attrs.define(eq=False, kw_only=True, repr=False)
class Deletions:
    """Deletes topics and groups on one broker."""

    store: MessageStore
    role: LiveRole
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    stats: Stats
    persistence: Persistence
    replicated: ReplicatedTables | None
    """The tables that are replicated through the log; None in classic mode."""
    _deleting: trio.Lock = attrs.field(factory=trio.Lock)
    """Held by the deletion of a topic that searches the tables in this turn of the event loop. Of many that are requested
    together each has a turn of its own."""

    # ---------------------------------------------------------------- on request

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and every group's offsets on it.

        Raises:
            RequestRefused: the log accepted no event, and nothing was deleted; or the deletion is not as durable as the mode
                promises, as the remark says.
        """
        async with self._deleting:
            end = self._delete_topic(topic)
        if end:
            await self._finish(end, (TOPICS_FILE, OFFSETS_FILE))

    def _delete_topic(self, topic: str) -> int:
        """Delete a topic here; returns the end of its event, 0 on a node that appends none."""
        store = self.store
        if self.replicated is not None:
            self.replicated.check_leads()
        if not self.role.takes_puts:
            # An Apache master appends no event for a deletion, so an administrator may repeat it on the slave.
            self._forget_topic(topic)
            store.drop_queues(topic)
            return 0
        end = self._append(deletion_of(topic, store.next_offsets_of(topic)))
        if self.replicated is not None:
            self.replicated.deleting(self.offsets.on_topic(topic), self.offsets.resets.of(topic=topic))
        self._forget_topic(topic)
        return end

    async def delete_group(self, group: str, *, offsets: bool) -> None:
        """Delete a group's settings, and if requested its consumer offsets; raises as `delete_topic`."""
        if self.replicated is not None:
            self.replicated.check_leads()
        if not self.role.takes_puts:
            self._forget_group(group, offsets=offsets)
            return
        end = self._append(group_deletion_of(group, offsets=offsets))
        if self.replicated is not None:
            self.replicated.deleting(
                self.offsets.of_group(group) if offsets else iter(()), self.offsets.resets.of(group=group) if offsets else set()
            )
        self._forget_group(group, offsets=offsets)
        await self._finish(end, (GROUPS_FILE, OFFSETS_FILE))

    async def delete_unused_topics(self) -> None:
        """Delete the messages of topics that are not in the table; raises as `delete_topic`."""
        for topic in sorted(self.store.topics() - self.topics.topics.keys()):
            if not self.topics.is_system(topic):
                await self.delete_topic(topic)

    def _append(self, control: Control) -> int:
        try:
            return self.store.append_event(control)
        except (NotWritable, OSError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"nothing was deleted: {error}") from error

    async def _finish(self, end: int, files: Iterable[str]) -> None:
        try:
            await self.store.event_done(end)
        except NotWritable as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        for name in files:
            if not await self.persistence.write(name):
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR, f"deleted, but {name} could not be written: repeat it before the next start"
                )

    # ---------------------------------------------------------------- from the log

    @property
    def log_offset(self) -> int:
        """The physical offset before which the current tables contain all deletions."""
        store = self.store
        # In a DLedger group an appended event may still be truncated; a derived one may not.
        own = self.role.takes_puts and store.log.readable_limit is None
        return store.log.max_offset if own else store.dispatcher.dispatched_offset

    def follow_log(self) -> None:
        """Apply the events that recovery found and the tables' files do not contain; a replica also applies later ones."""
        events = self.store.events
        for physical_offset, control in self._missed():
            self._apply(control, physical_offset)
            if self.replicated is not None:
                self.replicated.apply(control, partial(self._may_lack, physical_offset=physical_offset))
        events.recovered.clear()
        events.on_event.append(self._follow)

    def apply_again(self, start: int) -> None:
        """Apply the derived events from `start` on again: the tables have been replaced by a leader's, which may lack them."""
        assert self.replicated is not None
        for _, control in self.replicated.events_between(start, self.store.dispatcher.dispatched_offset):
            self._apply(control)
            self.replicated.apply(control)

    def _missed(self) -> list[tuple[int, Control]]:
        """The events that the tables' files do not contain, in the order of the log."""
        replicated, persistence = self.replicated, self.persistence
        if replicated is None:
            return self.store.events.recovered
        persistence.log_offsets.update(dict.fromkeys(persistence.missing & LOG_DERIVED, replicated.log_begin))
        if not persistence.log_offsets:
            return self.store.events.recovered
        return list(replicated.events_between(min(persistence.log_offsets.values()), self.store.dispatcher.dispatched_offset))

    def _may_lack(self, name: str, physical_offset: int) -> bool:
        """Whether the table of a file does not certainly contain an event of `ReplicatedTables`."""
        return self.persistence.log_offsets.get(name, 0) <= physical_offset

    def _lacks(self, name: str, physical_offset: int | None) -> bool:
        """Whether the table of a file does not contain an event; None is the position of an event that is derived now."""
        # A file without an offset was written by RocketMQ or an older version, which append no events for deletions.
        return physical_offset is None or self.persistence.log_offsets.get(name, inf) <= physical_offset

    def _follow(self, control: Control, physical_offset: int | None = None) -> None:
        # A master has already applied its own events, and may have created the topic again since.
        if not self.role.takes_puts:
            self._apply(control, physical_offset)

    def _apply(self, control: Control, physical_offset: int | None = None) -> None:
        def lacks(name: str) -> bool:
            return self._lacks(name, physical_offset)

        try:
            if control.kind == TOPIC_DELETED:
                topic, _ = deleted_topic_of(control)
                self._forget_topic(topic, topics=lacks(TOPICS_FILE), offsets=lacks(OFFSETS_FILE))
            elif control.kind == GROUP_DELETED:
                group, offsets = deleted_group_of(control)
                self._forget_group(group, groups=lacks(GROUPS_FILE), offsets=offsets and lacks(OFFSETS_FILE))
        except CorruptRecord as error:
            log.error("control_record_unreadable", physical_offset=physical_offset, reason=str(error))

    def _forget_topic(self, topic: str, *, topics: bool = True, offsets: bool = True) -> None:
        if topics and not self.topics.is_system(topic):
            self.topics.delete(topic)
            self.stats.forget_topic(topic)
            self.store.forget_topic(topic)
        if offsets:
            self.offsets.forget_topic(topic)
        log.info("topic_deleted", topic=topic)

    def _forget_group(self, group: str, *, groups: bool = True, offsets: bool) -> None:
        if groups:
            self.groups.delete(group)
            self.stats.forget_group(group)
        if offsets:
            self.offsets.forget_group(group)
        log.info("group_deleted", group=group)
