"""Replication of a DLedger group's tables through its log: topics, groups, offsets, locks and positions of delayed messages.

The leader appends changes as control records, and every other node applies them when it derives the log. So the next leader has
every change of a topic or group that was acknowledged, and lacks at most the commits of the last `GATHER_SECONDS`. Changes that
a leader could not commit are undone when it stops leading. The JSON files are caches: each stores the log offset up to which it
contains the events, and a start applies the later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import trio

from ..message.control import (
    CONTROL_TOPIC,
    DELAYS_DELIVERED,
    GROUP_DELETED,
    GROUPS_CHANGED,
    LEASES_CHANGED,
    OFFSETS_COMMITTED,
    TABLES_CARRIED,
    TOPIC_DELETED,
    TOPICS_CHANGED,
    Control,
    decode_control,
)
from ..message.errors import CorruptRecord
from ..message.numbers import int_of, long_of
from ..remoting.codes import ResponseCode
from ..remoting.errors import RequestRefused
from ..store.divided_log import DividedCommitLog
from ..store.errors import NotWritable, RecordTooLarge
from ..store.message_store import MessageStore
from ..world.events import get_logger
from .delay import DelayDelivery
from .derived_tables import DerivedTables, Forbidden, forbidden_of, groups_of, topics_of
from .groups import GroupConfig, GroupTable
from .locks import QueueLocks
from .offsets import ConsumerOffsets
from .persistence import GROUPS_FILE, LOCKS_FILE, OFFSETS_FILE, TOPICS_FILE
from .role import LiveRole
from .topics import TopicTable

log = get_logger(__name__)

GATHER_SECONDS = 0.1
"""Commits are collected for this long and then appended as one record."""
OFFSETS_PER_RECORD_MAX = 5000
"""The most commits in one record; more are divided among several records."""
SETTINGS_PER_RECORD_MAX = 1000
"""The most topics or groups in one record; more are divided among several records."""
LEASES_PER_RECORD_MAX = 5000
"""The most leases of queues in one record; more are divided among several records."""
CARRIED_NAMES_MAX = 10_000
"""The most names of topics and groups together in a `TABLES_CARRIED` event; if there are more, it names none."""


_Commit = tuple[str, str, int, int, bool]
"""Topic, group, queue id, offset, and whether clients have to follow a reset to it."""
_Entry = TypeVar("_Entry")


def _always(_name: str) -> bool:
    return True


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
    derived: DerivedTables = attrs.field(init=False)
    in_log: bool = True
    """Whether the log contains all that the tables contain. Tables of another mode, of RocketMQ or copied from a leader of
    RocketMQ are not in the log before a leader of ours has carried them over."""
    _leads: bool = False
    """Whether the tables may contain changes that are not derived yet."""
    _logged_groups: dict[str, GroupConfig] = attrs.field(factory=dict[str, GroupConfig])
    """On the leader, the groups as they are at the end of the log; another leader may still truncate some of them."""
    _logged_forbidden: Forbidden = attrs.field(factory=Forbidden)
    """On the leader, the forbidden bits as they are at the end of the log."""
    _unlogged_topics: set[str] = attrs.field(factory=set[str])
    """Topics whose changes on this node are not in the log yet."""
    _unsure_offsets: dict[tuple[str, str, int], None] = attrs.field(factory=dict[tuple[str, str, int], None])
    """The topic, group and queue of commits that this node has appended and not derived yet, or could not append."""
    _resets: set[tuple[str, str, int]] = attrs.field(factory=set[tuple[str, str, int]])
    """The topic, group and queue of resets that clients have to follow once this node leads."""
    _refusal: str = ""
    """Why the log refused a change; empty if it accepted all of them."""
    _restates: bool = False
    """Whether the tables are being appended so that files can be deleted; a full disk does not prevent that."""
    _deliveries: int = 0
    """The value of `DelayDelivery.changes` when the positions were last appended."""
    _delivered: Mapping[str, int] = attrs.field(factory=dict[str, int])
    """The positions of delayed messages in the derived part of the log; later deliveries may be truncated."""
    _deleted: deque[list[_Commit]] = attrs.field(factory=deque[list[_Commit]])
    """On the leader, the commits that each deletion has removed whose event is not derived yet, in the order of the log."""

    _gathered: trio.Event = attrs.field(factory=trio.Event)
    """Set when there is something to append."""

    def __attrs_post_init__(self) -> None:
        self.derived = DerivedTables(self.topics, self.groups)

    def observe(self) -> None:
        """From now on, append changes while this node leads, and apply those of other leaders."""
        self.topics.on_change.append(self._topics_changed)
        self.groups.on_change.append(self._groups_changed)
        self.store.events.on_event.append(self._follow)
        self.offsets.on_dirty = self.locks.on_dirty = self.delay.on_delivered = self._wake

    # ---------------------------------------------------------------- as the leader

    def begin_leading(self) -> None:
        """Determine what the tables contain that is not in the log: topics adopted from messages, for example."""
        derived = self.derived
        self._leads = True
        self.offsets.dirty, self._deliveries = dict(self._unsure_offsets), self.delay.changes
        self.locks.take_over(self.store.world.clock.monotonic())
        # An earlier leadership of this node may have given leases that the log lacks. Their owners may renew them from now on.
        self.locks.dirty = dict.fromkeys(self.locks.keys())
        for topic, group, queue_id in sorted(self._resets):
            if self.offsets.query(group, topic, queue_id) is not None:
                self.offsets.resets.add(group, topic, queue_id)
        self._resets.clear()
        self._delivered = {str(level): offset for level, offset in self.delay.offsets().items()}
        self._unlogged_topics = {name for name, config in self.topics.topics.items() if derived.topics.get(name) != config}
        self._logged_groups, self._logged_forbidden = dict(derived.groups), dict(derived.forbidden)

    def stop_leading(self) -> None:
        """Drop the changes of topics and groups, and the deletions, that are not derived: other nodes may never have them."""
        if not self._leads:
            return
        self._leads = False
        self._unsure_offsets.update(self.offsets.dirty or {})
        self.offsets.dirty = self.locks.dirty = None
        self._resets = self.offsets.resets.take_all()
        while self._deleted:  # the oldest last, which counts
            for topic, group, queue_id, offset, is_reset in self._deleted.pop():
                self.offsets.commit(group, topic, queue_id, offset, bounded=False)
                if is_reset:
                    self._resets.add((topic, group, queue_id))
        self._unlogged_topics.clear()
        self._refusal = ""
        # Deliveries since then may be truncated, and would not be repeated from the newer positions.
        self.delay.load({"offsetTable": self._delivered})
        self.derived.restore()

    def _wake(self) -> None:
        self._gathered.set()

    async def run(self) -> None:
        """Append commits, locks and deliveries at most every `GATHER_SECONDS` while this node leads, until cancelled."""
        carrying = not self.in_log
        if carrying:
            log.info("tables_carried_over", topics=len(self.topics.topics), groups=len(self.groups.groups))
            self._count_all_as_unlogged()
        self._append_changes()
        while True:
            if not (self._has_gathered or self._refusal or carrying):  # an idle leader does not poll
                self._gathered = trio.Event()
                await self._gathered.wait()
            await trio.sleep(GATHER_SECONDS)
            if not self._leads:
                return
            if self._refusal:
                self._append_changes()
            self._append_gathered()
            if carrying and not self._refusal:
                carrying = not self._append_carried()

    def _append_carried(self) -> bool:
        """End the carrying over. Other nodes, whose own tables may differ, remove what the event does not name."""
        topics, groups = self.topics.topics, self.groups.groups
        if len(topics) + len(groups) <= CARRIED_NAMES_MAX:
            try:
                return self._append(Control(TABLES_CARRIED, {"topics": list(topics), "groups": list(groups)}))
            except RecordTooLarge as error:
                log.info("carried_names_left_out", reason=str(error))
        return self._append(Control(TABLES_CARRIED, {}))

    @property
    def log_begin(self) -> int:
        """The physical offset where the replicated log begins; a classic log may be before it."""
        commit_log = self.store.log
        return commit_log.divided_offset if isinstance(commit_log, DividedCommitLog) else commit_log.min_offset

    def _count_all_as_unlogged(self) -> None:
        self._unlogged_topics.update(self.topics.topics)
        self._logged_groups.clear()
        self._logged_forbidden.clear()
        self.offsets.dirty = {
            (topic, group, queue_id): None for (topic, group), queues in self.offsets.table.items() for queue_id in queues
        }
        self.locks.dirty = dict.fromkeys(self.locks.keys())
        self._deliveries = -1

    def restate(self) -> int:
        """Append all tables again, because the records that contain them are about to expire; return the end of the last one.

        Raises:
            NotWritable: the log refuses the tables, or some of them.
        """
        if self.offsets.dirty is None:
            raise NotWritable("this node does not lead yet")
        self._count_all_as_unlogged()
        self._restates = True
        self._append_changes()
        self._append_gathered()
        self._restates = False
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

    @property
    def locks_settled(self) -> bool:
        """Whether all leases are on a majority, so that the next leader knows them."""
        return not self.locks.dirty and self.changed_end <= self.store.log.committed_offset

    async def settled(self) -> None:
        """Wait until the changes of topics, groups, offsets and locks so far are on a majority.

        Raises:
            RequestRefused: the changes are in the tables of this node, but not as durable as the mode promises; or the node has
                stopped leading since it made them, and may not have appended them.
        """
        if not self._leads:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"whether the change was made is unknown: {self.role.refusal}")
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

    def deleting(self, keys: Iterable[tuple[str, str]]) -> None:
        """Keep the commits that a deletion removes until its event is derived, because that may be truncated instead.

        Called once for each event of a deletion that this node has appended, before the commits are removed.

        Args:
            keys: the topic and group of each commit to be removed.
        """
        offsets = self.offsets
        self._deleted.append(
            [
                (topic, group, queue_id, offset, offsets.resets.holds(group, topic, queue_id))
                for topic, group in keys
                for queue_id, offset in offsets.of(group, topic).items()
            ]
        )

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
            if not self._append_divided(
                names, lambda part: Control(TOPICS_CHANGED, {"topics": [topics[n].to_json() for n in part]})
            ):
                return
            self._unlogged_topics.difference_update(names)
        for name in sorted(self._logged_groups.keys() - groups.keys()):
            del self._logged_groups[name]
        for names in _pieces([name for name, config in groups.items() if self._logged_groups.get(name) != config]):
            if not self._append_divided(
                names, lambda part: Control(GROUPS_CHANGED, {"groups": [groups[n].to_json() for n in part]})
            ):
                return
            self._logged_groups.update({name: groups[name] for name in names})
        forbidden = self.groups.forbidden
        for name in sorted(self._logged_forbidden.keys() - forbidden.keys()):
            del self._logged_forbidden[name]
        for names in _pieces([name for name, bits in forbidden.items() if self._logged_forbidden.get(name) != bits]):
            if not self._append_divided(
                names,
                lambda part: Control(GROUPS_CHANGED, {"groups": [], "forbidden": {name: forbidden[name] for name in part}}),
            ):
                return
            self._logged_forbidden.update({name: forbidden[name] for name in names})

    def _append_gathered(self) -> None:
        """Append the commits, locks and positions of delayed messages that have changed since they were last appended."""
        offsets, locks, delay = self.offsets, self.locks, self.delay
        while offsets.dirty:
            taken = [offsets.dirty.popitem()[0] for _ in range(min(len(offsets.dirty), OFFSETS_PER_RECORD_MAX))]
            if not self._append_divided(taken, self._committed):
                offsets.dirty.update(dict.fromkeys(taken))
                return
            self._unsure_offsets.update(dict.fromkeys(taken))
        while locks.dirty:
            leases = [locks.dirty.popitem()[0] for _ in range(min(len(locks.dirty), LEASES_PER_RECORD_MAX))]
            if not self._append_divided(leases, lambda part: Control(LEASES_CHANGED, {"leases": locks.rows(part)})):
                locks.dirty.update(dict.fromkeys(leases))
                return
        if delay.changes != self._deliveries:
            changes, levels = delay.changes, {str(level): offset for level, offset in delay.offsets().items()}
            if self._append(Control(DELAYS_DELIVERED, {"levels": levels})):
                self._deliveries = changes

    def _committed(self, keys: Sequence[tuple[str, str, int]]) -> Control:
        """The event of the current offsets of these topics, groups and queues."""
        resets = self.offsets.resets
        return Control(
            OFFSETS_COMMITTED,
            {
                "offsets": [
                    [topic, group, queue_id, self._offset_of(topic, group, queue_id)] for topic, group, queue_id in keys
                ],
                "resets": [[topic, group, queue_id] for topic, group, queue_id in keys if resets.holds(group, topic, queue_id)],
            },
        )

    def _offset_of(self, topic: str, group: str, queue_id: int) -> int:
        """A group's offset on a queue as the log has it: -1 if there is none."""
        offset = self.offsets.query(group, topic, queue_id)
        return -1 if offset is None else offset

    @property
    def _has_gathered(self) -> bool:
        return bool(self.offsets.dirty or self.locks.dirty) or self.delay.changes != self._deliveries

    def _append_divided(self, entries: Sequence[_Entry], event_of: Callable[[Sequence[_Entry]], Control]) -> bool:
        """Append the event of some entries, as several if it is too large for one record; return whether the log accepted it.

        An entry that is too large by itself stays out of the log, because it must not prevent all other changes. A request can
        make none (`ENTRY_BYTES_MAX`), but files of another version can contain one.
        """
        event = event_of(entries)
        try:
            return self._append(event)
        except RecordTooLarge as error:
            if len(entries) == 1:
                log.error("table_entry_not_in_log", kind=event.kind, entry=str(entries[0])[:200], reason=str(error))
                return True
        half = len(entries) // 2
        return self._append_divided(entries[:half], event_of) and self._append_divided(entries[half:], event_of)

    def _append(self, control: Control) -> bool:
        """Append an event; return whether the log accepted it.

        Raises:
            RecordTooLarge: the log would not accept it later either. Nothing was appended.
        """
        try:
            self.changed_end = self.store.append_event(control, on_full_disk=self._restates)
        except RecordTooLarge:
            raise
        except (NotWritable, OSError) as error:
            self._refusal = str(error)
            self._wake()
            log.warning("table_change_not_in_log", kind=control.kind, reason=str(error))
            return False
        return True

    # ---------------------------------------------------------------- as any other node

    def _follow(self, control: Control) -> None:
        if self.role.takes_puts:
            if control.kind == DELAYS_DELIVERED:
                self._delivered = control.content["levels"]
            elif control.kind in (TOPIC_DELETED, GROUP_DELETED) and self._deleted:
                self._deleted.popleft()
        self.apply(control)

    def apply(self, control: Control, lacks: Callable[[str], bool] = _always) -> None:
        """Apply an event of the derived log; one that cannot be read is logged and skipped as a whole.

        Args:
            lacks: whether the table that is read from a file with this name does not contain the event yet.
        """
        try:
            self._apply(control, lacks)
        except (CorruptRecord, KeyError, TypeError, ValueError) as error:
            log.error("table_change_unreadable", kind=control.kind, reason=str(error))

    def _apply(self, control: Control, lacks: Callable[[str], bool]) -> None:
        content, kind, follows = control.content, control.kind, not self.role.takes_puts
        if kind in (TOPICS_CHANGED, TOPIC_DELETED) and lacks(TOPICS_FILE):
            self.derived.apply(control)
            if kind == TOPICS_CHANGED and follows:
                known = self.topics.topics
                if changed := [config for config in topics_of(control) if known.get(config.topic_name) != config]:
                    self.topics.put(*changed, bounded=False)
        elif kind in (GROUPS_CHANGED, GROUP_DELETED) and lacks(GROUPS_FILE):
            self.derived.apply(control)
            if kind == GROUPS_CHANGED and follows:
                if news := [config for config in groups_of(control) if self.groups.groups.get(config.group_name) != config]:
                    self.groups.put(*news, bounded=False)
                for group, bits in forbidden_of(control).items():
                    self.groups.put_forbidden(group, bits, bounded=False)
        elif kind == TABLES_CARRIED:
            self._tables_carried(control)
        elif kind == OFFSETS_COMMITTED and lacks(OFFSETS_FILE):
            self._offsets_committed(content, follows=follows)
        elif kind == LEASES_CHANGED and follows and lacks(LOCKS_FILE):
            self.locks.apply(content["leases"], self.store.world.clock.monotonic())
        elif kind == DELAYS_DELIVERED and follows:
            self.delay.load({"offsetTable": content["levels"]})

    def _offsets_committed(self, content: Mapping[str, Any], *, follows: bool) -> None:
        rows = [(str(t), str(g), int_of(queue_id), long_of(offset)) for t, g, queue_id, offset in content["offsets"]]
        resets = {(str(t), str(g), int_of(queue_id)) for t, g, queue_id in content.get("resets", ())}
        for topic, group, queue_id, offset in rows:
            if follows or offset == self._offset_of(topic, group, queue_id):  # else a later commit is not derived yet
                self._unsure_offsets.pop((topic, group, queue_id), None)
            if not follows:
                continue
            if offset < 0:
                self.offsets.forget_queue(group, topic, queue_id)
            else:
                self.offsets.commit(group, topic, queue_id, offset, bounded=False)
            self._resets.discard((topic, group, queue_id))
        if follows:
            self._resets |= resets

    def _tables_carried(self, control: Control) -> None:
        """Take the log's tables for complete; a node whose own tables differ from the leader's drops the rest of them."""
        if self.in_log:
            return
        self.in_log = True
        topics, groups = control.content.get("topics"), control.content.get("groups")
        if not self.role.takes_puts and topics and groups:
            self.derived.keep_only(frozenset(topics), frozenset(groups))
            self.derived.restore()
        self.derived.changed()
        self.offsets.changes += 1

    def forget(self) -> None:
        """Empty the tables, because the log begins anew: after its first entry, the leader has appended all tables."""
        self.derived.clear()
        self.offsets.clear()
        self.locks.clear()
        self.delay.load({})
        self._unsure_offsets.clear()
        self._resets.clear()
        self.in_log = True

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


def _pieces(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), SETTINGS_PER_RECORD_MAX):
        yield names[start : start + SETTINGS_PER_RECORD_MAX]
