"""Replication of a DLedger group's tables through its log: topics, groups, offsets, locks and positions of delayed messages.

The leader appends changes as control records, and every other node applies them when it derives the log. So the next leader has
every change of a topic or group that was acknowledged, and lacks at most the commits of the last `GATHER_SECONDS`. The JSON
files are caches: each stores the log offset up to which it contains the events, and a start applies the later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import attrs
import trio

from ..message.control import (
    CONTROL_TOPIC,
    DELAYS_DELIVERED,
    GROUPS_CHANGED,
    LOCKS_CHANGED,
    OFFSETS_COMMITTED,
    TABLES_CARRIED,
    TOPICS_CHANGED,
    Control,
    decode_control,
)
from ..message.errors import CorruptRecord
from ..message.numbers import int_of
from ..remoting.codes import ResponseCode
from ..remoting.errors import RequestRefused
from ..store.divided_log import DividedCommitLog
from ..store.errors import NotWritable
from ..store.message_store import MessageStore
from ..store.older_log import OlderLog
from ..world.events import get_logger
from .delay import DelayDelivery
from .groups import GroupConfig, GroupTable
from .json_values import table_of
from .locks import QueueLocks
from .offsets import ConsumerOffsets
from .role import LiveRole
from .topics import TopicConfig, TopicTable

log = get_logger(__name__)

GATHER_SECONDS = 0.1
"""Commits are collected for this long and then appended as one record."""
OFFSETS_PER_RECORD_MAX = 5000
"""The most commits in one record; more are divided among several records."""
SETTINGS_PER_RECORD_MAX = 1000
"""The most topics or groups in one record; more are divided among several records, because each record must fit an entry of
the log."""


@attrs.define(eq=False, kw_only=True, repr=False)
class ReplicatedTables:
    """The replicated tables of one node."""

    store: MessageStore
    role: LiveRole
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    delay: DelayDelivery
    locks: QueueLocks
    changed_end: int = 0
    """The end of the last change that this node has appended; answers wait until it is committed."""
    _derived_groups: dict[str, GroupConfig] = attrs.field(factory=dict[str, GroupConfig])
    """The groups as they are in the derived part of the log."""
    _appended_groups: dict[str, GroupConfig] = attrs.field(factory=dict[str, GroupConfig])
    """The groups that this node has appended since it leads; another leader may still truncate them."""
    _forbidden: dict[str, dict[str, int]] = attrs.field(factory=dict[str, dict[str, int]])
    """The forbidden bits of groups that are in the log or that this node has appended since it leads."""
    _unlogged_topics: set[str] = attrs.field(factory=set[str])
    """Topics whose changes on this node are not in the log yet."""
    _refusal: str = ""
    """Why the log refused a change; empty if it accepted all of them."""
    _deliveries: int = 0
    """The value of `DelayDelivery.changes` when the positions were last appended."""
    _delivered: Mapping[str, int] = attrs.field(factory=dict[str, int])
    """The positions of delayed messages in the derived part of the log; later deliveries may be truncated."""

    def observe(self) -> None:
        """From now on, append changes while this node leads, and apply those of other leaders."""
        self._derived_groups, self._forbidden = dict(self.groups.groups), dict(self.groups.forbidden)
        self.topics.on_change.append(self._topics_changed)
        self.groups.on_change.append(self._groups_changed)
        self.store.events.on_event.append(self._follow)

    # ---------------------------------------------------------------- as the leader

    async def run(self) -> None:
        """Append commits, locks and deliveries every `GATHER_SECONDS`, until cancelled."""
        self.offsets.dirty, self.locks.dirty, self._deliveries = {}, {}, self.delay.changes
        self.locks.take_over(self.store.world.clock.monotonic())
        self._delivered = {str(level): offset for level, offset in self.delay.offsets().items()}
        carrying = self._carry_over()
        try:
            while True:
                await trio.sleep(GATHER_SECONDS)
                if self._refusal:
                    self._append_changes()
                self._append_gathered()
                if carrying and not self._refusal:
                    carrying = not self._append(Control(TABLES_CARRIED, {}))
        finally:
            self.offsets.dirty = self.locks.dirty = None
            self._unlogged_topics.clear()
            self._appended_groups.clear()
            self._refusal = ""
            # Deliveries since then may be truncated, and would not be repeated from the newer positions.
            self.delay.load({"offsetTable": self._delivered})

    @property
    def _older_log(self) -> OlderLog | None:
        """The classic log that this log continues, or None if it has no files any more."""
        commit_log = self.store.log
        return commit_log.older if isinstance(commit_log, DividedCommitLog) and not commit_log.older.expired else None

    def _carry_over(self) -> bool:
        """Append all tables if the log continues an older one and does not contain its tables; return whether that is so."""
        older = self._older_log
        if older is None or older.tables_carried:
            return False
        log.info("tables_carried_over", topics=len(self.topics.topics), groups=len(self.groups.groups))
        self._count_all_as_unlogged()
        self._append_changes()
        return True

    def _count_all_as_unlogged(self) -> None:
        self._unlogged_topics.update(self.topics.topics)
        for known in (self._derived_groups, self._appended_groups, self._forbidden):
            known.clear()
        self.offsets.dirty = {
            (topic, group, queue_id): None for (topic, group), queues in self.offsets.table.items() for queue_id in queues
        }
        self.locks.dirty = dict.fromkeys(self.locks.groups)
        self._deliveries = -1

    def restate(self) -> int:
        """Append all tables again, because the records that contain them are about to expire; return the end of the last one.

        Raises:
            NotWritable: the log refuses the tables, or some of them.
        """
        if self.offsets.dirty is None:
            raise NotWritable("this node does not lead yet")
        self._count_all_as_unlogged()
        self._append_changes()
        self._append_gathered()
        if self._refusal:
            raise NotWritable(self._refusal)
        return self.changed_end

    def check_decides(self) -> None:
        """Refuse a decision that all nodes must agree on, unless this node leads.

        Raises:
            RequestRefused: this node does not lead. Nothing was changed.
        """
        if not self.role.takes_puts:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"nothing was changed: {self.role.refusal}")

    def check_leads(self) -> None:
        """Refuse a change of a table, unless its record can be appended to the log.

        Raises:
            RequestRefused: this node does not lead, or its log is not writable. Nothing was changed.
        """
        refusal = self.store.writability.refusal
        if refusal is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"nothing was changed: {refusal}")

    def check_current(self) -> None:
        """Refuse to give out tables that may be older than the leader's.

        Raises:
            RequestRefused: this node does not lead.
        """
        if not self.role.takes_puts:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the tables of this node may be old: {self.role.refusal}")

    async def settled(self) -> None:
        """Wait until the changes of topics, groups, offsets and locks so far are on a majority.

        Raises:
            RequestRefused: the changes are in the tables of this node, but not as durable as the mode promises.
        """
        if self._refusal:
            self._append_changes()
        self._append_gathered()
        if self._refusal:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the other nodes do not know of the change yet: {self._refusal}")
        end = self.changed_end
        if end > self.store.log.committed_offset:
            try:
                await self.store.event_done(end)
            except NotWritable as error:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error

    def _topics_changed(self, names: list[str]) -> None:
        if self.role.takes_puts:
            self._unlogged_topics.update(names)
            self._append_changes()

    def _groups_changed(self) -> None:
        if self.role.takes_puts:
            self._append_changes()

    def _append_changes(self) -> None:
        """Append the changes of topics and groups that are not in the log yet."""
        self._refusal = ""
        topics, groups = self.topics.topics, self.groups.groups
        self._unlogged_topics &= topics.keys()  # deletions are events of their own
        for names in _pieces(sorted(self._unlogged_topics)):
            if not self._append(Control(TOPICS_CHANGED, {"topics": [topics[name].to_json() for name in names]})):
                return
            self._unlogged_topics.difference_update(names)
        for known in (self._derived_groups, self._appended_groups, self._forbidden):
            for name in known.keys() - groups.keys():
                del known[name]
        logged = {**self._derived_groups, **self._appended_groups}
        for names in _pieces([name for name, config in groups.items() if logged.get(name) != config]):
            if not self._append(Control(GROUPS_CHANGED, {"groups": [groups[name].to_json() for name in names]})):
                return
            self._appended_groups.update({name: groups[name] for name in names})
        forbidden = self.groups.forbidden
        for names in _pieces([name for name, bits in forbidden.items() if self._forbidden.get(name) != bits]):
            changed = {name: forbidden[name] for name in names}
            if not self._append(Control(GROUPS_CHANGED, {"groups": [], "forbidden": changed})):
                return
            self._forbidden.update(changed)

    def _append_gathered(self) -> None:
        """Append the commits, locks and positions of delayed messages that have changed since they were last appended."""
        offsets, locks, delay = self.offsets, self.locks, self.delay
        while offsets.dirty:
            taken = [offsets.dirty.popitem()[0] for _ in range(min(len(offsets.dirty), OFFSETS_PER_RECORD_MAX))]
            rows = [
                [topic, group, queue_id, -1 if (offset := offsets.query(group, topic, queue_id)) is None else offset]
                for topic, group, queue_id in taken
            ]
            if not self._append(Control(OFFSETS_COMMITTED, {"offsets": rows})):
                offsets.dirty.update(dict.fromkeys(taken))
                return
        while locks.dirty:
            group = next(iter(locks.dirty))
            if not self._append(Control(LOCKS_CHANGED, {"locks": {group: locks.rows_of(group)}})):
                return
            del locks.dirty[group]
        if delay.changes != self._deliveries:
            changes, levels = delay.changes, {str(level): offset for level, offset in delay.offsets().items()}
            if self._append(Control(DELAYS_DELIVERED, {"levels": levels})):
                self._deliveries = changes

    def _append(self, control: Control) -> bool:
        """Append an event; return whether the log accepted it."""
        try:
            self.changed_end = self.store.append_event(control)
        except (NotWritable, OSError) as error:
            self._refusal = str(error)
            log.warning("table_change_not_in_log", kind=control.kind, reason=str(error))
            return False
        return True

    # ---------------------------------------------------------------- as any other node

    def _follow(self, control: Control) -> None:
        if control.kind == TABLES_CARRIED and (older := self._older_log) is not None:
            older.tables_carried = True
        if not self.role.takes_puts:
            self.apply(control)
        elif control.kind == DELAYS_DELIVERED:
            self._delivered = control.content["levels"]
        elif control.kind == GROUPS_CHANGED:
            self._note_groups(control)

    def apply(self, control: Control) -> None:
        """Apply an event to the tables; one that cannot be read is logged and skipped."""
        try:
            self._apply(control)
        except (CorruptRecord, KeyError, TypeError, ValueError) as error:
            log.error("table_change_unreadable", kind=control.kind, reason=str(error))

    def _apply(self, control: Control) -> None:
        content = control.content
        if control.kind == TOPICS_CHANGED:
            topics = (TopicConfig.from_json(_object(one)) for one in content["topics"])
            if changed := [config for config in topics if self.topics.topics.get(config.topic_name) != config]:
                self.topics.put(*changed)
        elif control.kind == GROUPS_CHANGED:
            groups = self._note_groups(control)
            if news := [config for config in groups if self.groups.groups.get(config.group_name) != config]:
                self.groups.put(*news)
            for group, bits in _forbidden_of(control).items():
                self.groups.put_forbidden(group, bits)
        elif control.kind == OFFSETS_COMMITTED:
            for topic, group, queue_id, offset in content["offsets"]:
                if offset < 0:
                    self.offsets.forget_queue(group, topic, queue_id)
                else:
                    self.offsets.commit(group, topic, queue_id, offset)
        elif control.kind == LOCKS_CHANGED:
            for group, rows in table_of(content["locks"], "locks").items():
                self.locks.replace(group, rows, self.store.world.clock.monotonic())
        elif control.kind == DELAYS_DELIVERED:
            self.delay.load({"offsetTable": content["levels"]})

    def _note_groups(self, control: Control) -> list[GroupConfig]:
        configs = [GroupConfig.from_json(_object(one)) for one in control.content["groups"]]
        self._derived_groups.update({config.group_name: config for config in configs})
        self._forbidden.update(_forbidden_of(control))
        return configs

    def events_between(self, start: int, end: int) -> Iterator[tuple[int, Control]]:
        """The events in the log from `start` to `end`, with their physical offsets."""
        commit_log = self.store.log
        for _, parts in commit_log.records(start, end):
            if parts is not None and parts[6] == CONTROL_TOPIC:
                record = commit_log.record(parts[3], parts[0])
                try:
                    yield parts[3], decode_control(record if record is not None else b"")
                except CorruptRecord as error:
                    log.error("control_record_unreadable", physical_offset=parts[3], reason=str(error))


def _forbidden_of(control: Control) -> dict[str, dict[str, int]]:
    table = table_of(control.content.get("forbidden"), "forbidden")
    return {group: {topic: int_of(bits) for topic, bits in table_of(topics, group).items()} for group, topics in table.items()}


def _pieces(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), SETTINGS_PER_RECORD_MAX):
        yield names[start : start + SETTINGS_PER_RECORD_MAX]


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a setting is a JSON object (got {value!r:.100})")
    return cast("dict[str, Any]", value)
