"""Changes of a broker's tables: whoever wants one proposes an event, which is appended to the log.

The change happens when the event is derived (`Tables.apply`), and is answered when it is as safe as the mode promises. Commits
and positions of delayed messages are collected for `GATHER_SECONDS` before they are appended. A statement appends all tables,
in pieces, before the part of the log that they came from may be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from typing import Any, TypeVar

import attrs
import trio

from ...message.control import CONTROL_TOPIC, LEASES_CHANGED, OFFSETS_COMMITTED, Control, decode_control, group_deletion_of
from ...message.errors import CorruptRecord
from ...remoting.codes import ResponseCode
from ...remoting.dispatcher import Postponed, Wait
from ...remoting.errors import RequestRefused
from ...store.errors import NotWritable, RecordTooLarge
from ...store.log.divided_log import DividedCommitLog
from ...store.message_store import MessageStore
from ...store.statuses import PutStatus
from ...world.events import get_logger
from ..access.policies import Acl
from ..access.users import User
from ..role import LiveRole
from .groups import GroupConfig
from .locks import LeaseKey, lease_rows
from .offsets import OffsetKey
from .tables import Tables, access_event, carried_event, groups_event, topics_event
from .topics import ADOPTED_QUEUES_MIN, TopicConfig

log = get_logger(__name__)

GATHER_SECONDS = 0.1
"""Commits are collected for this long and then appended as one record."""
ROWS_PER_RECORD_MAX = 1000
"""The most commits, leases of queues, topics or groups in one record; more are divided among several records. One record is
appended or derived in one turn of the event loop, which takes some 10 ms for so many."""
APPLIED_SECONDS_MAX = 5.0
"""How long a request waits until the change that it needs is applied, and a statement for each of its records."""

CARRIED_NAMES_MAX = 10_000
"""The most names of topics and groups together in a `TABLES_CARRIED` event; if there are more, it names none."""

_Entry = TypeVar("_Entry")
_Ahead = dict[str, tuple[int, _Entry | None]]
"""Entries by name that are in the log and not applied yet, with the end of the event; None is a deletion."""


@attrs.define(eq=False, kw_only=True, repr=False)
class TableLog:
    """The way of changes into the log of one node."""

    store: MessageStore
    role: LiveRole
    tables: Tables
    changed_end: int = 0
    """The end of the last event that this node has appended."""
    _topics: _Ahead[TopicConfig] = attrs.field(factory=_Ahead[TopicConfig])
    _groups: _Ahead[GroupConfig] = attrs.field(factory=_Ahead[GroupConfig])
    _forbidden: _Ahead[dict[str, int]] = attrs.field(factory=_Ahead[dict[str, int]])
    _users: _Ahead[User] = attrs.field(factory=_Ahead[User])
    _acls: _Ahead[Acl] = attrs.field(factory=_Ahead[Acl])
    _offsets_end: dict[str, int] = attrs.field(factory=dict[str, int])
    """Groups whose offsets are deleted by an event that may not be applied yet, with the end of that event."""
    _stating: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while all tables are appended: who waits for it finds afterwards that the log has them."""
    _leaderships: int = 0
    """How often this node has begun to lead."""
    _deliveries: int = 0
    """The value of `DelayDelivery.changes` when the positions were last appended."""
    _refused: bool = False
    """Whether the log has refused what was collected; it is tried again when more is collected or after `GATHER_SECONDS`."""
    _gathered: trio.Event = attrs.field(factory=trio.Event)
    """Set when there is something to append."""

    def observe(self) -> None:
        """Apply the events of the log to the tables from now on."""
        self.store.events.on_event.append(self._derived)
        self.tables.groups.create = self._create_used_group
        self.tables.offsets.on_dirty = self.tables.delay.on_delivered = self._wake

    def _wake(self) -> None:
        self._gathered.set()

    def _derived(self, _physical_offset: int, control: Control) -> None:
        self.tables.apply(control, self.store.world.clock.monotonic())

    # ---------------------------------------------------------------- proposals

    def check_decides(self) -> None:
        """Refuse a decision that all nodes must agree on, unless this node is the master.

        Raises:
            RequestRefused: nothing was changed; the remark says why.
        """
        if (refusal := self.role.refusal) is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"nothing was changed: {refusal}")

    def check_changes(self) -> None:
        """Refuse a change of a table unless this node is the master and its log takes events; raises as `check_decides`."""
        self.check_decides()
        if (refusal := self.store.writability.refusal) is not None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"nothing was changed: {refusal}")

    def propose(self, control: Control) -> int:
        """Append an event; returns its end, up to which `applied` waits.

        Raises:
            RecordTooLarge: the log will not take it later either. Nothing was changed.
            RequestRefused: this node is not the master, or its log takes no event. Nothing was changed.
        """
        self.check_changes()
        return self._append(control)

    def _append(self, control: Control, *, on_full_disk: bool = False, so_far: str = "nothing was changed") -> int:
        try:
            self.changed_end = self.store.append_event(control, on_full_disk=on_full_disk)
        except RecordTooLarge:
            raise
        except (NotWritable, OSError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{so_far}: {error}") from error
        return self.changed_end

    def _append_divided(
        self,
        entries: Sequence[_Entry],
        event_of: Callable[[Sequence[_Entry]], Control],
        appended: Callable[[Sequence[_Entry]], None] = lambda _: None,
        *,
        on_full_disk: bool = False,
    ) -> None:
        """Append the event of some entries, as several if they are too many or too large for one record.

        An entry that is too large by itself stays out of the log, because it must not prevent all other changes. A request can
        make none (`ENTRY_BYTES_MAX`), but files of another version can contain one.

        Args:
            appended: called with the entries of each record when it is in the log.

        Raises:
            RequestRefused: the log takes no event. The remark says how many entries are in it.
        """
        left = [entries[at : at + ROWS_PER_RECORD_MAX] for at in range(0, len(entries), ROWS_PER_RECORD_MAX)][::-1]
        done, so_far = 0, "nothing was changed"
        while left:
            part = left.pop()
            event = event_of(part)
            try:
                self._append(event, on_full_disk=on_full_disk, so_far=so_far)
            except RecordTooLarge as error:
                if len(part) > 1:
                    half = len(part) // 2
                    left += part[half:], part[:half]
                    continue
                log.error("table_entry_not_in_log", kind=event.kind, entry=str(part[0])[:200], reason=str(error))
            appended(part)
            done += len(part)
            so_far = f"{done} of {len(entries)} entries were changed, the others were not"

    def _propose_entries(
        self, ahead: _Ahead[_Entry], entries: Mapping[str, _Entry], event_of: Callable[[Sequence[_Entry]], Control]
    ) -> None:
        """Append the new values of entries, and apply them if this node may do so at once."""
        self.check_changes()
        self._forget_applied(ahead)
        self._append_divided(
            list(entries.items()),
            lambda part: event_of([value for _, value in part]),
            lambda part: ahead.update({name: (self.changed_end, value) for name, value in part}),
        )
        self.store.catch_up()

    def _forget_applied(self, ahead: _Ahead[_Entry]) -> None:
        for name in [name for name, (end, _) in ahead.items() if end <= self.store.dispatcher.dispatched_offset]:
            del ahead[name]

    def _latest(self, ahead: _Ahead[_Entry], applied: Mapping[str, _Entry], name: str) -> _Entry | None:
        """An entry as it will be when all that was proposed is applied."""
        end, value = ahead.get(name, (0, None))
        return value if end > self.store.dispatcher.dispatched_offset else applied.get(name)

    # ---------------------------------------------------------------- topics

    def topic(self, name: str) -> TopicConfig | None:
        """A topic as it will be when all that was proposed is applied."""
        return self._latest(self._topics, self.tables.topics.topics, name)

    def is_changing(self, topic: str) -> bool:
        """Whether a change of the topic is on its way, so that messages for it have to wait."""
        return topic in self._topics and self._topics[topic][0] > self.store.dispatcher.dispatched_offset

    def put_topics(self, *configs: TopicConfig) -> None:
        """Propose that topics are created or replaced.

        Raises:
            RequestRefused: there is no room, this node may not decide, or the log takes no event. Nothing was changed, unless
                the remark says how many: more than `ROWS_PER_RECORD_MAX` do not fit one record.
        """
        self.tables.topics.check_room(configs)
        self._propose_entries(self._topics, {config.topic_name: config for config in configs}, topics_event)

    def require_topic(self, config: TopicConfig) -> None:
        """Let a topic exist, which is created with these settings if it does not.

        Raises:
            Postponed: its creation is on its way.
            RequestRefused: as `put_topics`.
        """
        name = config.topic_name
        if self.topic(name) is None:
            if self.is_changing(name):  # its deletion
                raise self.postponed(name)
            self.put_topics(config)
        if self.is_changing(name):
            raise self.postponed(name)

    def adopt_topic(self, topic: str, queue_nums: int) -> None:
        """Let a topic exist that has a message, which was delayed while the topic was deleted, or by an older version."""
        if self.topic(topic) is None and not self.is_changing(topic):
            self.put_topics(TopicConfig(topic, max(queue_nums, ADOPTED_QUEUES_MIN), max(queue_nums, ADOPTED_QUEUES_MIN)))

    def postponed(self, topic: str) -> Postponed:
        """What a handler raises that has to wait for a topic that `is_changing`."""
        return Postponed(partial(self.applied, self._topics[topic][0], f"the change of topic {topic}"))

    async def applied(self, end: int, what: str) -> None:
        """Wait until the events before `end` are applied here.

        Raises:
            RequestRefused: they are not within `APPLIED_SECONDS_MAX`.
        """
        with trio.move_on_after(APPLIED_SECONDS_MAX):
            await self.store.derived(end)
            return
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"{what} was not applied within {APPLIED_SECONDS_MAX} s; the request was not carried out"
        )

    def delete_topic(self, control: Control, topic: str) -> int:
        """Propose a deletion; until it is applied, messages for the topic wait. Returns the end of the event."""
        end = self.propose(control)
        self._topics[topic] = end, None
        return end

    # ---------------------------------------------------------------- groups

    def group(self, name: str) -> GroupConfig | None:
        """A group as it will be when all that was proposed is applied."""
        return self._latest(self._groups, self.tables.groups.groups, name)

    def put_groups(self, *configs: GroupConfig) -> None:
        """Propose that groups are created or replaced; raises as `put_topics`."""
        self.tables.groups.check_room(configs)
        self._propose_entries(self._groups, {config.group_name: config for config in configs}, groups_event)

    def delete_group(self, name: str, *, offsets: bool) -> int:
        """Propose a deletion, also of the group's offsets if requested. Returns the end of the event."""
        end = self.propose(group_deletion_of(name, offsets=offsets))
        self._groups[name] = end, None
        if offsets:
            self._offsets_end = {
                group: at for group, at in self._offsets_end.items() if at > self.store.dispatcher.dispatched_offset
            }
            self._offsets_end[name] = end
        return end

    @property
    def may_create(self) -> bool:
        """Whether what is used and unknown may be created here now."""
        return self.role.takes_puts and self.store.writability.refusal is None

    def _create_used_group(self, config: GroupConfig) -> None:
        """Propose a group that is used; a node that may not decide leaves that to the master, where its members are, too."""
        if not self.may_create or self.group(config.group_name) is not None:
            return
        self.tables.groups.check_room([config])
        with suppress(RequestRefused):  # it is used all the same, with the settings of an unknown group
            self.put_groups(config)

    def set_forbidden(self, group: str, topic: str, *, forbidden: bool) -> None:
        """Propose that the group may not or may read the topic; raises as `put_topics`."""
        bits = self._forbidden_of(group)
        bits = {**bits, topic: bits.get(topic, 0) & ~1 | int(forbidden)}
        self.tables.groups.check_room_for_forbidden(group, bits)
        self._propose_entries(self._forbidden, {group: bits}, lambda _: groups_event((), {group: bits}))

    def _forbidden_of(self, group: str) -> dict[str, int]:
        return self._latest(self._forbidden, self.tables.groups.forbidden, group) or {}

    # ---------------------------------------------------------------- users and rights

    def user(self, name: str) -> User | None:
        """A user as it will be when all that was proposed is applied."""
        return self._latest(self._users, self.tables.access.users, name)

    def acl(self, subject: str) -> Acl | None:
        """The rights of a subject as they will be when all that was proposed is applied."""
        return self._latest(self._acls, self.tables.access.acls, subject)

    def put_access(self, users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> None:
        """Propose that users and rights are created, replaced or, with None, deleted, all together; raises as `put_topics`."""
        self.check_changes()
        self.tables.access.check_room(_found(users.values()), _found(acls.values()))
        self._forget_applied(self._users)
        self._forget_applied(self._acls)
        try:
            end = self._append(access_event(users, acls))
        except RecordTooLarge as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{error}; nothing was changed") from error
        self._users.update({name: (end, user) for name, user in users.items()})
        self._acls.update({subject: (end, acl) for subject, acl in acls.items()})
        self.store.catch_up()

    # ---------------------------------------------------------------- leases

    def put_leases(self, owners: Mapping[LeaseKey, str]) -> int:
        """Propose owners of queues, empty for none, also on a full disk, so that consumers go on; returns the end of the event.

        Raises:
            RequestRefused: as `put_topics`.
        """
        self.check_decides()
        self._append_divided(
            list(owners.items()), _leases_event, lambda part: self.tables.locks.propose(dict(part)), on_full_disk=True
        )
        self.store.catch_up(rounds_max=1)  # there may be thousands, and the answer waits until they are applied
        return self.changed_end

    # ---------------------------------------------------------------- as the master

    def lead(self) -> None:
        """Begin to append; what was collected before is appended first."""
        self._leaderships += 1
        self._deliveries = self.tables.delay.changes
        self.tables.lead(self.store.world.clock.monotonic())

    def stop_leading(self) -> None:
        """Drop what is not in the log, and what is on its way there: other nodes may never have it."""
        if not self.tables.leads:
            return
        self.tables.drop_unlogged()
        self._topics.clear()
        self._groups.clear()
        self._forbidden.clear()
        self._users.clear()
        self._acls.clear()
        self._offsets_end.clear()

    async def run(self) -> None:
        """Append commits and deliveries at most every `GATHER_SECONDS` while this node leads, until cancelled."""
        while True:
            await self.append_gathered()
            if self._refused or not self._has_gathered:  # an idle master does not poll
                self._gathered = trio.Event()
                with trio.move_on_after(GATHER_SECONDS if self._refused else inf):
                    await self._gathered.wait()
            await trio.sleep(GATHER_SECONDS)

    @property
    def _has_gathered(self) -> bool:
        return bool(self.tables.offsets.dirty) or self.tables.delay.changes != self._deliveries

    async def append_gathered(self) -> None:
        """Append what was collected, one record of each kind in a turn of the event loop, unless the log refuses."""
        self._refused = False
        while self.tables.leads and self._has_gathered:
            try:
                self._append_gathered()
            except RequestRefused as refusal:
                self._refused = True
                log.warning("table_change_not_in_log", reason=refusal.remark)
                return
            await self.store.world.processor.next_turn()

    def _append_gathered(self) -> None:
        offsets, delay = self.tables.offsets, self.tables.delay
        if offsets.dirty:
            keys = list(islice(offsets.dirty, ROWS_PER_RECORD_MAX))
            self._append_divided(keys, self._offsets_event, on_full_disk=True)  # retention follows the groups
            for key in keys:
                del offsets.dirty[key]
        if delay.changes != self._deliveries:
            changes = delay.changes
            self._append(delay.event(), on_full_disk=True)
            self._deliveries = changes

    def _is_ending(self, topic: str, group: str) -> bool:
        """Whether a deletion of the group's offsets on the topic is in the log and not applied yet."""
        dispatched = self.store.dispatcher.dispatched_offset
        end, config = self._topics.get(topic, (0, None))
        return (end > dispatched and config is None) or self._offsets_end.get(group, 0) > dispatched

    def _offsets_event(self, keys: Sequence[OffsetKey]) -> Control:
        offsets, resets = self.tables.offsets, self.tables.offsets.resets
        rows: list[list[Any]] = []
        for topic, group, queue_id in keys:
            offset = None if self._is_ending(topic, group) else offsets.query(group, topic, queue_id)
            rows.append([topic, group, queue_id, -1 if offset is None else offset])
        pending = [[topic, group, queue_id] for topic, group, queue_id in keys if resets.holds(group, topic, queue_id)]
        return Control(OFFSETS_COMMITTED, {"offsets": rows, "resets": pending})

    # ---------------------------------------------------------------- a statement of all tables

    @property
    def older_end(self) -> int:
        """Where an older classic log of the store ends, whose events other nodes of the group may not have; -1 without one."""
        return self.store.log.divided_offset if isinstance(self.store.log, DividedCommitLog) else -1

    async def state(self, offset: int) -> None:
        """Append all tables, unless a log that begins at `offset` contains them; on return they are safe and applied.

        Each record is safe before the next one is appended, so that heartbeats, other requests and the other nodes do not wait
        for all of them. The tables may change meanwhile: each change is an event behind the first record. The last record says
        where the statement begins. Without it the statement counts for nothing, whoever leads next.

        Raises:
            NotWritable: this node does not lead, or the log refuses a record, or it was not safe in time.
        """
        async with self._stating:
            tables = self.tables
            if tables.in_log and offset <= tables.stated_from:
                return
            if not tables.in_log:
                log.info("tables_carried_over", topics=len(tables.topics.topics), groups=len(tables.groups.groups))
            leadership = self._leaderships
            for append in self._statement():
                if not tables.leads or leadership != self._leaderships:
                    raise NotWritable(f"this node does not lead any longer: {self.role.refusal}")
                await self._append_and_wait(append)
            log.info("tables_stated", begin=tables.stated_from, end=self.changed_end)

    def _statement(self) -> Iterator[Callable[[], object]]:
        """Functions that append the records of a statement in their order.

        Each has the values that the tables will have when all that is in the log then is applied: a record is behind that.
        """
        begin, tables = self.store.log.max_offset, self.tables
        parts: list[tuple[Iterable[Any], Callable[[Sequence[Any]], Control]]] = [
            (list(tables.topics.topics), lambda names: topics_event(_found(map(self.topic, names)))),
            (list(tables.groups.groups), lambda names: groups_event(_found(map(self.group, names)))),
            (list(tables.groups.forbidden), lambda names: groups_event((), {name: self._forbidden_of(name) for name in names})),
            (list(tables.access.users), lambda names: access_event({name: self.user(name) for name in names}, {})),
            (list(tables.access.acls), lambda names: access_event({}, {name: self.acl(name) for name in names})),
            (tables.offsets.entries(), self._offsets_event),
            (tables.locks.keys(), lambda keys: _leases_event([(key, tables.locks.next_owner(key)) for key in keys])),
        ]
        for keys, event_of in parts:
            left = iter(keys)
            while piece := list(islice(left, ROWS_PER_RECORD_MAX)):
                yield partial(self._append_divided, piece, event_of, on_full_disk=True)
        yield lambda: self._append(tables.delay.event(), on_full_disk=True)
        yield partial(self._append_carried, begin)

    def _append_carried(self, begin: int) -> None:
        topics = [name for name in {**self.tables.topics.topics, **self._topics} if self.topic(name) is not None]
        table = self.tables.groups
        groups = [
            name  # a group may have forbidden bits and no settings
            for name in {**table.groups, **self._groups, **table.forbidden, **self._forbidden}
            if self.group(name) is not None or self._forbidden_of(name)
        ]
        users, acls = self.tables.access.users, self.tables.access.acls
        access = [name for name in {**users, **self._users} if self.user(name) is not None]
        access += [subject for subject in {**acls, **self._acls} if self.acl(subject) is not None]
        if len(topics) + len(groups) > CARRIED_NAMES_MAX:
            topics = groups = []
        try:
            self._append(carried_event(begin, topics, groups, access), on_full_disk=True)
        except RecordTooLarge as error:
            log.info("carried_names_left_out", reason=str(error))
            self._append(carried_event(begin, (), (), None), on_full_disk=True)

    async def _append_and_wait(self, append: Callable[[], object]) -> None:
        """Append a record of a statement, and wait until it is safe and applied."""
        try:
            append()
            with trio.fail_after(APPLIED_SECONDS_MAX):
                await self._safe(self.changed_end)
        except RequestRefused as refusal:
            raise NotWritable(refusal.remark) from refusal
        except trio.TooSlowError as error:
            raise NotWritable(f"a record of the tables was not safe within {APPLIED_SECONDS_MAX} s") from error

    # ---------------------------------------------------------------- answers

    def settling(self, *, gathered: bool = False) -> Wait | None:
        """What to wait for until all that was proposed is applied, and as safe as the mode promises; None if it is.

        Args:
            gathered: whether that is to be true of the commits that are collected, too.
        """
        store, end = self.store, self.changed_end
        if store.waits or store.dispatcher.dispatched_offset < end or (gathered and self._has_gathered):
            return partial(self._settled, self._leaderships, gathered=gathered)
        return None

    async def _settled(self, leadership: int, *, gathered: bool) -> None:
        if gathered:
            await self.append_gathered()
        if not self.tables.leads or leadership != self._leaderships:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"whether the change was made is unknown: {self.role.refusal}")
        if gathered and self._refused:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the change is not in the log yet, which takes no events now")
        try:
            await self._safe(self.changed_end)
        except NotWritable as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error

    async def _safe(self, end: int) -> None:
        """Wait until the events before `end` are applied, and on as many nodes as the mode promises, if so many are there.

        A SYNC_MASTER that has no slave now takes changes: a slave that comes gets them before it counts.

        Raises:
            NotWritable: they are not as safe; see its text.
        """
        status = await self.store.event_status(end)
        if status not in (PutStatus.PUT_OK, PutStatus.SLAVE_NOT_AVAILABLE):
            where = (
                "the change is in the log, but not as safe as the mode promises" if status.stored else "the change may be lost"
            )
            raise NotWritable(f"{where}: {status.name}")

    # ---------------------------------------------------------------- the log

    def events_between(self, start: int, end: int) -> Iterator[tuple[int, Control]]:
        """The events in the log from `start` to `end`, with their physical offsets."""
        commit_log = self.store.log
        for _, parts in commit_log.records(max(start, commit_log.min_offset), end):
            if parts is not None and parts[6] == CONTROL_TOPIC:
                record = commit_log.record(parts[3], parts[0])
                try:
                    yield parts[3], decode_control(record if record is not None else b"")
                except CorruptRecord as error:
                    log.error("control_record_unreadable", physical_offset=parts[3], reason=str(error))

    def apply_again(self, start: int) -> None:
        """Apply the derived events from `start` on again: tables were copied from a master, and the copies may lack them."""
        now = self.store.world.clock.monotonic()
        for _, control in self.events_between(start, self.store.dispatcher.dispatched_offset):
            self.tables.apply(control, now)


def _found(entries: Iterable[_Entry | None]) -> list[_Entry]:
    return [entry for entry in entries if entry is not None]


def _leases_event(owners: Sequence[tuple[LeaseKey, str]]) -> Control:
    return Control(LEASES_CHANGED, {"leases": lease_rows(dict(owners))})
