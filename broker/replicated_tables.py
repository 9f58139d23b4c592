"""Replication of a DLedger group's tables through its log: topics, groups, offsets, locks and positions of delayed messages.

The leader appends changes as control records, and every other node applies them when it derives the log. So the next leader has
every change of a topic or group that was acknowledged, and lacks at most the commits of the last `GATHER_SECONDS`. Changes that
a leader could not commit are undone when it stops leading. The JSON files are caches: each stores the log offset up to which it
contains the events, and a start applies the later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
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
from ..world.slices import ROWS_PER_SLICE, in_slices
from .delay import DelayDelivery
from .derived_tables import DerivedTables, Forbidden, changed_names
from .groups import GroupConfig, GroupTable
from .locks import LeaseKey, QueueLocks
from .offset_table import Row
from .offsets import ConsumerOffsets
from .persistence import GROUPS_FILE, LOCKS_FILE, OFFSETS_FILE, TOPICS_FILE
from .role import LiveRole
from .topics import TopicTable

log = get_logger(__name__)

GATHER_SECONDS = 0.1
"""Commits are collected for this long and then appended as one record."""
ROWS_PER_RECORD_MAX = 1000
"""The most commits, leases of queues, topics or groups in one record; more are divided among several records. One record is
appended or derived in one turn of the event loop, which takes some 10 ms for so many."""
STATE_SECONDS_MAX = 5.0
"""How long we wait until a record of a statement is committed and derived, before the statement counts as failed."""
CARRIED_NAMES_MAX = 10_000
"""The most names of topics and groups together in a `TABLES_CARRIED` event; if there are more, it names none."""

OffsetKey = tuple[str, str, int]
"""Topic, group and queue id."""
_Removed = tuple[Iterator[Row], set[OffsetKey]]
"""Commits, and the resets that clients had to follow."""
_Entry = TypeVar("_Entry")


_SETTINGS_FILES = {
    **dict.fromkeys((TOPICS_CHANGED, TOPIC_DELETED), TOPICS_FILE),
    **dict.fromkeys((GROUPS_CHANGED, GROUP_DELETED), GROUPS_FILE),
}
"""The file of the table that an event of topics or groups changes."""


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
    stated_from: int = 0
    """A log that begins at this physical offset, or before it, contains all that the tables contain, if they are `in_log`."""
    _leads: bool = False
    """Whether the tables may contain changes that are not derived yet."""
    _leaderships: int = 0
    """How often this node has begun to lead."""
    _stating: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while all tables are appended: who waits for it finds afterwards that the log has them."""
    _logged_groups: dict[str, GroupConfig] = attrs.field(factory=dict[str, GroupConfig])
    """On the leader, the groups as they are at the end of the log; another leader may still truncate some of them."""
    _logged_forbidden: Forbidden = attrs.field(factory=Forbidden)
    """On the leader, the forbidden bits as they are at the end of the log."""
    _unlogged_topics: set[str] = attrs.field(factory=set[str])
    """Topics whose changes on this node are not in the log yet."""
    _changed: bool = False
    """On the leader, whether changes of topics or groups may not be in the log yet."""
    unsure_offsets: dict[tuple[str, str, int], None] = attrs.field(factory=dict[tuple[str, str, int], None])
    """The topic, group and queue of commits that this node has appended and not derived yet, or could not append. A start reads
    them from the file of offsets, which contains these commits too."""
    _resets: set[tuple[str, str, int]] = attrs.field(factory=set[tuple[str, str, int]])
    """The topic, group and queue of resets that clients have to follow once this node leads."""
    _refusal: str = ""
    """Why the log refused a change; empty if it accepted all of them."""
    _on_full_disk: bool = False
    """Whether what is appended now is needed before files can be deleted, so that a full disk does not prevent it."""
    _deliveries: int = 0
    """The value of `DelayDelivery.changes` when the positions were last appended."""
    _delivered: Mapping[str, int] = attrs.field(factory=dict[str, int])
    """The positions of delayed messages in the derived part of the log; later deliveries may be truncated."""
    _deleted: deque[_Removed] = attrs.field(factory=deque[_Removed])
    """On the leader, what each deletion has removed whose event is not derived yet, in the order of the log."""

    _leases: dict[LeaseKey, None] = attrs.field(factory=dict[LeaseKey, None])
    """The leases that this node will append when it begins to lead."""
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

    async def prepare_to_lead(self) -> None:
        """List the leases for `begin_leading` in several turns of the event loop; they do not change before that."""
        self._leases.clear()
        async for leases in in_slices(self.locks.keys(), ROWS_PER_SLICE, next_turn=self.store.world.processor.next_turn):
            self._leases.update(dict.fromkeys(leases))

    def begin_leading(self) -> None:
        """Determine what the tables contain that is not in the log: topics adopted from messages, for example."""
        derived = self.derived
        self._leads = True
        self._leaderships += 1
        self.offsets.dirty, self._deliveries = dict(self.unsure_offsets), self.delay.changes
        self.locks.take_over(self.store.world.clock.monotonic())
        # An earlier leadership of this node may have given leases that the log lacks. Their owners may renew them from now on.
        self.locks.dirty, self._leases = self._leases, {}
        for topic, group, queue_id in sorted(self._resets):
            if self.offsets.query(group, topic, queue_id) is not None:
                self.offsets.resets.add(group, topic, queue_id)
        self._resets.clear()
        self._delivered = {str(level): offset for level, offset in self.delay.offsets().items()}
        self._unlogged_topics = set(changed_names(self.topics.topics, derived.topics))
        self._logged_groups, self._logged_forbidden = dict(derived.groups), dict(derived.forbidden)
        self._changed = True

    def stop_leading(self) -> None:
        """Drop the changes of topics and groups, and the deletions, that are not derived: other nodes may never have them."""
        if not self._leads:
            return
        self._leads = False
        self.unsure_offsets.update(self.offsets.dirty or {})
        self.offsets.dirty = self.locks.dirty = None
        self._resets = self.offsets.resets.take_all()
        while self._deleted:  # the oldest last, which counts
            removed, resets = self._deleted.pop()
            for topic, group, queues in removed:
                for queue_id, offset in queues.items():
                    self.offsets.commit(group, topic, queue_id, offset, bounded=False)
            self._resets |= resets
        self._unlogged_topics.clear()
        self._refusal = ""
        # Deliveries since then may be truncated, and would not be repeated from the newer positions.
        self.delay.load({"offsetTable": self._delivered})
        self.derived.restore()

    def _wake(self) -> None:
        self._gathered.set()

    async def run(self) -> None:
        """Append commits, locks and deliveries at most every `GATHER_SECONDS` while this node leads, until cancelled."""
        await self._append_all()
        while True:
            if not (self._has_gathered or self._changed):  # an idle leader does not poll
                self._gathered = trio.Event()
                await self._gathered.wait()
            await trio.sleep(GATHER_SECONDS)
            if not self._leads:
                return
            await self._append_all()

    async def _append_all(self) -> None:
        """Append all changes that are not in the log yet, a few records in a turn of the event loop, unless the log refuses."""
        self._refusal = ""
        while self._leads and (self._append_changes() or self._append_gathered()):
            await self.store.world.processor.next_turn()

    @property
    def log_begin(self) -> int:
        """The physical offset where the replicated log begins; a classic log may be before it."""
        commit_log = self.store.log
        return commit_log.divided_offset if isinstance(commit_log, DividedCommitLog) else commit_log.min_offset

    async def state(self, offset: int) -> None:
        """Append all tables, unless a log that begins at `offset` contains them; on return they are committed and derived.

        Each record is committed before the next one is appended, so that heartbeats, other requests and the other nodes do not
        wait for all of them. The tables may change meanwhile: each change is an event behind the first record. The last record
        says where the statement begins. Without it the statement counts for nothing, whoever leads next.

        Raises:
            NotWritable: this node does not lead, or the log refuses a record, or it was not committed in time.
        """
        async with self._stating:
            if self.in_log and offset <= self.stated_from:
                return
            if not self.in_log:
                log.info("tables_carried_over", topics=len(self.topics.topics), groups=len(self.groups.groups))
            leadership = self._leaderships
            for append in self._statement():
                if not self._leads or leadership != self._leaderships:
                    # The end of leadership may have undone a deletion, and the statement lacks what that had removed.
                    raise NotWritable(f"this node does not lead any longer: {self.role.refusal}")
                await self._append_and_wait(append)
            log.info("tables_stated", begin=self.stated_from, end=self.changed_end)

    def _statement(self) -> Iterator[Callable[[], bool]]:
        """Functions that append the records of a statement in their order, each with the values that the tables have then."""
        begin = self.store.log.max_offset
        tables: list[tuple[Iterable[Any], Callable[[Sequence[Any]], Control]]] = [
            (list(self.topics.topics), self._topics_event),
            (list(self.groups.groups), self._groups_event),
            (list(self.groups.forbidden), self._forbidden_event),
            (self.offsets.entries(), self._offsets_event),
            (self.locks.keys(), self._leases_event),
        ]
        for keys, event_of in tables:
            left = iter(keys)
            while piece := list(islice(left, ROWS_PER_RECORD_MAX)):
                yield partial(self._append_divided, piece, event_of)
        yield self._append_deliveries
        yield partial(self._append_carried, begin)

    async def _append_and_wait(self, append: Callable[[], bool]) -> None:
        """Append a record of a statement, and wait until it is committed and derived."""
        self._on_full_disk = True
        appended = append()
        self._on_full_disk = False
        if not appended:
            raise NotWritable(self._refusal)
        try:
            with trio.fail_after(STATE_SECONDS_MAX):
                await self.store.event_done(self.changed_end)
        except trio.TooSlowError as error:
            raise NotWritable(f"a record of the tables was not committed within {STATE_SECONDS_MAX} s") from error

    def _append_carried(self, begin: int) -> bool:
        """End a statement that begins at a physical offset. Nodes whose own tables may differ remove what it does not name."""
        topics, groups, content = self.topics.topics, self.groups.groups, {"from": begin}
        if len(topics) + len(groups) <= CARRIED_NAMES_MAX:
            try:
                return self._append(Control(TABLES_CARRIED, {**content, "topics": list(topics), "groups": list(groups)}))
            except RecordTooLarge as error:
                log.info("carried_names_left_out", reason=str(error))
        return self._append(Control(TABLES_CARRIED, content))

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
        leadership = self._leaderships
        await self._append_all()
        if not self._leads or leadership != self._leaderships:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"whether the change was made is unknown: {self.role.refusal}")
        if self._refusal:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the other nodes do not know of the change yet: {self._refusal}")
        end = self.changed_end
        if end > self.store.log.committed_offset:
            try:
                await self.store.event_done(end)
            except NotWritable as error:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error

    def deleting(self, removed: Iterator[Row], resets: set[OffsetKey]) -> None:
        """Keep the commits that a deletion removes until its event is derived, because that may be truncated instead.

        Called once for each event of a deletion that this node has appended, before the commits are removed.

        Args:
            removed: the commits to be removed; they are read if the deletion is undone.
            resets: those of their queues that clients have to follow.
        """
        self._deleted.append((removed, resets))

    def _topics_changed(self, names: list[str]) -> None:
        if self.role.takes_puts:
            self._unlogged_topics.update(names)
            self._groups_changed()

    def _groups_changed(self) -> None:
        if self.role.takes_puts:
            self._changed, self._refusal = True, ""
            if self._append_changes():
                self._wake()

    def _append_changes(self) -> bool:
        """Append at most one record of each kind of change of topics and groups; return whether more changes are left."""
        if not self._changed:
            return False
        groups, forbidden = self.groups.groups, self.groups.forbidden
        self._unlogged_topics &= self.topics.topics.keys()  # deletions are events of their own
        for logged, table in ((self._logged_groups, groups), (self._logged_forbidden, forbidden)):
            for name in sorted(logged.keys() - table.keys()):
                del logged[name]
        changes = (
            (sorted(self._unlogged_topics), self._topics_event, self._unlogged_topics.difference_update),
            (changed_names(groups, self._logged_groups), self._groups_event, partial(_note, groups, self._logged_groups)),
            (
                changed_names(forbidden, self._logged_forbidden),
                self._forbidden_event,
                partial(_note, forbidden, self._logged_forbidden),
            ),
        )
        for names, event_of, note in changes:
            piece = names[:ROWS_PER_RECORD_MAX]
            if piece and not self._append_divided(piece, event_of):
                return False
            note(piece)
        self._changed = any(len(names) > ROWS_PER_RECORD_MAX for names, _, _ in changes)
        return self._changed

    def _append_gathered(self) -> bool:
        """Append at most one record each of commits, locks and positions of delayed messages; return whether more are left."""
        offsets, locks = self.offsets, self.locks
        if self._refusal:
            return False
        if offsets.dirty:
            commits = list(islice(offsets.dirty, ROWS_PER_RECORD_MAX))
            if not self._append_divided(commits, self._offsets_event):
                return False
            self.unsure_offsets.update(dict.fromkeys(commits))
            _remove(offsets.dirty, commits)
        if locks.dirty:
            leases = list(islice(locks.dirty, ROWS_PER_RECORD_MAX))
            if not self._append_divided(leases, self._leases_event):
                return False
            _remove(locks.dirty, leases)
        if self.delay.changes != self._deliveries and not self._append_deliveries():
            return False
        return self._has_gathered

    def _append_deliveries(self) -> bool:
        changes, levels = self.delay.changes, {str(level): offset for level, offset in self.delay.offsets().items()}
        appended = self._append(Control(DELAYS_DELIVERED, {"levels": levels}))
        if appended:
            self._deliveries = changes
        return appended

    def _topics_event(self, names: Sequence[str]) -> Control:
        topics = self.topics.topics
        return Control(TOPICS_CHANGED, {"topics": [topics[name].to_json() for name in names if name in topics]})

    def _groups_event(self, names: Sequence[str]) -> Control:
        groups = self.groups.groups
        return Control(GROUPS_CHANGED, {"groups": [groups[name].to_stored() for name in names if name in groups]})

    def _forbidden_event(self, names: Sequence[str]) -> Control:
        forbidden = self.groups.forbidden
        changed = {name: forbidden[name] for name in names if name in forbidden}
        return Control(GROUPS_CHANGED, {"groups": [], "forbidden": changed})

    def _offsets_event(self, keys: Sequence[tuple[str, str, int]]) -> Control:
        resets = self.offsets.resets
        rows = [[topic, group, queue_id, self._offset_of(topic, group, queue_id)] for topic, group, queue_id in keys]
        pending = [[topic, group, queue_id] for topic, group, queue_id in keys if resets.holds(group, topic, queue_id)]
        return Control(OFFSETS_COMMITTED, {"offsets": rows, "resets": pending})

    def _leases_event(self, keys: Sequence[LeaseKey]) -> Control:
        return Control(LEASES_CHANGED, {"leases": self.locks.rows(keys)})

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
            self.changed_end = self.store.append_event(control, on_full_disk=self._on_full_disk)
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
        if kind in _SETTINGS_FILES and lacks(_SETTINGS_FILES[kind]):
            self.derived.apply(control, follows=follows)
        elif kind == TABLES_CARRIED:
            self._tables_carried(control, lacks)
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
                self.unsure_offsets.pop((topic, group, queue_id), None)
            if not follows:
                continue
            if offset < 0:
                self.offsets.forget_queue(group, topic, queue_id)
            else:
                self.offsets.commit(group, topic, queue_id, offset, bounded=False)
            self._resets.discard((topic, group, queue_id))
        if follows:
            self._resets |= resets

    def _tables_carried(self, control: Control, lacks: Callable[[str], bool]) -> None:
        """Take the log's tables for complete; a node whose own tables differ from the leader's drops the rest of them.

        A table whose file does not lack the event is later than it, and so are topics or groups that it does not name.
        """
        self.stated_from = max(self.stated_from, long_of(control.content.get("from", 0)))
        self.derived.changed()
        self.offsets.changes += 1
        if self.in_log:
            return
        self.in_log = True
        topics, groups = control.content.get("topics"), control.content.get("groups")
        if not self.role.takes_puts and topics and groups:
            if lacks(TOPICS_FILE):
                self.derived.keep_only_topics(frozenset(topics))
            if lacks(GROUPS_FILE):
                self.derived.keep_only_groups(frozenset(groups))
            self.derived.restore()

    def forget(self) -> None:
        """Empty the tables, because the log begins anew: after its first entry, the leader has appended all tables."""
        self.derived.clear()
        self.offsets.clear()
        self.locks.clear()
        self.delay.load({})
        self.unsure_offsets.clear()
        self._resets.clear()
        self.in_log, self.stated_from = True, 0

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


def _note(now: Mapping[str, _Entry], known: dict[str, _Entry], names: Iterable[str]) -> None:
    known.update({name: now[name] for name in names})


def _remove(table: dict[_Entry, None], keys: Iterable[_Entry]) -> None:
    for key in keys:
        del table[key]
