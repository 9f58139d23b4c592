"""The tables of a broker that the other nodes of its group need too, as a state machine over the log.

Invariant: a table changes when an event of the log is derived, and in no other way (`Tables.apply`). So every node that derives
the same log has the same tables, and nothing that the log may lose is in them. There are two exceptions: offsets are seen
before they are in the log (`ConsumerOffsets.logged`), and so are the master's own deliveries of delayed messages
(`DelayDelivery.logged`); both are dropped when a node stops leading. Tables are not `in_log` while they come from files of an
older version or of RocketMQ, or are copied from a master of RocketMQ, which appends no events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import attrs

from ...message.control import (
    ACCESS_CHANGED,
    DELAYS_DELIVERED,
    GROUP_DELETED,
    GROUPS_CHANGED,
    LEASES_CHANGED,
    OFFSETS_COMMITTED,
    TABLES_CARRIED,
    TOPIC_DELETED,
    TOPICS_CHANGED,
    Control,
    deleted_group_of,
    deleted_topic_of,
)
from ...message.errors import CorruptRecord
from ...message.numbers import int_of, long_of
from ...world.events import get_logger
from ..access.policies import Acl
from ..access.users import AccessTable, User, access_content, read_access
from ..delay import DelayDelivery
from ..json_values import table_of
from .groups import GroupConfig, GroupTable
from .locks import QueueLocks
from .offsets import ConsumerOffsets, OffsetKey
from .persistence import ACCESS_FILE, GROUPS_FILE, LOCKS_FILE, OFFSETS_FILE, TOPICS_FILE
from .topics import TopicConfig, TopicTable

log = get_logger(__name__)

Lacks = Callable[[str], bool]
"""Whether the table of the file with this name lacks the event that is applied."""


def _always(_name: str) -> bool:
    return True


def _nothing(_name: str) -> None:
    return None


@attrs.define(eq=False, kw_only=True, repr=False)
class Tables:
    """Topics, groups with their offsets and locks, the positions of delayed messages, and users with their rights."""

    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    locks: QueueLocks
    delay: DelayDelivery
    access: AccessTable = attrs.field(factory=AccessTable)
    in_log: bool = True
    """Whether the log contains all that the tables contain. Tables of an older version, of RocketMQ or copied from another
    master are not in the log before a master of ours has carried them over."""
    stated_from: int = 0
    """A log that begins at this physical offset, or before it, contains all that the tables contain, if they are `in_log`."""
    copied_end: int | None = None
    """Tables that were copied from a master are what the log says once it is derived up to here; None if no log says it."""
    is_copied: bool = False
    """Whether a replica copies from its master all that its own log may not say; in a DLedger group it copies nothing."""
    master_appends: bool = True
    """Whether the master appends its changes of tables to the log, as ours do and Apache's do not."""
    leads: bool = False
    """Whether the events that are derived are this node's own."""
    resets: set[OffsetKey] = attrs.field(factory=set[OffsetKey])
    """The resets in the log, which clients have to follow once this node leads."""
    forget_topic: Callable[[str], None] = _nothing
    """Called with a topic that was deleted."""
    forget_group: Callable[[str], None] = _nothing
    """Called with a group whose settings were deleted."""

    def apply(self, control: Control, now: float, lacks: Lacks = _always) -> None:
        """Apply an event of the derived log; one that cannot be read is logged and skipped as a whole.

        Args:
            now: the monotonic time.
        """
        apply = self._APPLY.get(control.kind)
        if apply is None:
            return
        try:
            apply(self, control, now, lacks)
        except (CorruptRecord, KeyError, TypeError, ValueError) as error:
            log.error("table_change_unreadable", kind=control.kind, reason=str(error))

    def _topics_changed(self, control: Control, _now: float, lacks: Lacks) -> None:
        configs = [TopicConfig.from_json(_object(one)) for one in control.content["topics"]]
        changed = [config for config in configs if self.topics.get(config.topic_name) != config]
        if changed and lacks(TOPICS_FILE):
            self.topics.put(*changed)

    def _groups_changed(self, control: Control, _now: float, lacks: Lacks) -> None:
        configs = [GroupConfig.from_json(_object(one)) for one in control.content["groups"]]
        forbidden = {
            group: {topic: int_of(bits) for topic, bits in table_of(topics, group).items()}
            for group, topics in table_of(control.content.get("forbidden"), "forbidden").items()
        }
        if not lacks(GROUPS_FILE):
            return
        if changed := [config for config in configs if self.groups.get(config.group_name) != config]:
            self.groups.put(*changed)
        for group, bits in forbidden.items():
            self.groups.put_forbidden(group, bits)

    def _topic_deleted(self, control: Control, _now: float, lacks: Lacks) -> None:
        topic, _ = deleted_topic_of(control)
        if lacks(TOPICS_FILE) and not self.topics.is_system(topic):
            self.topics.delete(topic)
            self.forget_topic(topic)
        if lacks(OFFSETS_FILE):
            self.offsets.forget_topic(topic)
            self.resets = {key for key in self.resets if key[0] != topic}
        log.info("topic_deleted", topic=topic)

    def _group_deleted(self, control: Control, _now: float, lacks: Lacks) -> None:
        group, offsets = deleted_group_of(control)
        if lacks(GROUPS_FILE):
            self.groups.delete(group)
            self.forget_group(group)
        if offsets and lacks(OFFSETS_FILE):
            self.offsets.forget_group(group)
            self.resets = {key for key in self.resets if key[1] != group}
        log.info("group_deleted", group=group)

    def _offsets_committed(self, control: Control, _now: float, lacks: Lacks) -> None:
        content = control.content
        rows = [(str(t), str(g), int_of(queue_id), long_of(offset)) for t, g, queue_id, offset in content["offsets"]]
        resets = {(str(t), str(g), int_of(queue_id)) for t, g, queue_id in content.get("resets", ())}
        if not lacks(OFFSETS_FILE):
            return
        for topic, group, queue_id, offset in rows:
            self.offsets.apply(topic, group, queue_id, offset if offset >= 0 else None, own=self.leads)
            self.resets.discard((topic, group, queue_id))
        self.resets |= resets

    def keep_commits(self, control: Control) -> None:
        """Append again what groups have committed in an event that the log is about to lose."""
        if control.kind == OFFSETS_COMMITTED:
            for topic, group, queue_id, _ in control.content.get("offsets", ()):
                self.offsets.append_again(topic, group, queue_id)

    def _leases_changed(self, control: Control, now: float, lacks: Lacks) -> None:
        if lacks(LOCKS_FILE):
            self.locks.apply(control.content["leases"], now)

    def _delays_delivered(self, control: Control, _now: float, _lacks: Lacks) -> None:
        levels = {
            str(int_of(level)): long_of(offset) for level, offset in table_of(control.content["levels"], "levels").items()
        }
        self.delay.apply(levels, own=self.leads)

    def _access_changed(self, control: Control, _now: float, lacks: Lacks) -> None:
        if lacks(ACCESS_FILE):
            self.access.apply(*read_access(control.content))

    def _carried(self, control: Control, _now: float, lacks: Lacks) -> None:
        """Take the log's tables for complete; a node whose own tables may differ from them drops the rest of its own.

        A table whose file does not lack the event is later than it, and so are topics or groups that it does not name. No
        statement names the offsets that are to go, so those of a replica are what the log says only once it has copied them.
        """
        self.stated_from = max(self.stated_from, long_of(control.content.get("from", 0)))
        self.offsets.changes += 1
        if self.in_log:
            return
        self.in_log = self.leads or not self.is_copied
        topics, groups = control.content.get("topics"), control.content.get("groups")
        if not self.leads and topics and groups:
            if lacks(TOPICS_FILE):
                self.topics.keep_only(frozenset(topics))
            if lacks(GROUPS_FILE):
                self.groups.keep_only(frozenset(groups))
        if not self.leads and (access := control.content.get("access")) is not None and lacks(ACCESS_FILE):
            self.access.keep_only(frozenset(access))

    _APPLY: ClassVar[Mapping[str, Callable[..., None]]] = {
        TOPICS_CHANGED: _topics_changed,
        GROUPS_CHANGED: _groups_changed,
        TOPIC_DELETED: _topic_deleted,
        GROUP_DELETED: _group_deleted,
        OFFSETS_COMMITTED: _offsets_committed,
        LEASES_CHANGED: _leases_changed,
        DELAYS_DELIVERED: _delays_delivered,
        ACCESS_CHANGED: _access_changed,
        TABLES_CARRIED: _carried,
    }

    def differ_from_log(self) -> None:
        """Note that the tables have what the log does not say: they were copied, or the log has lost what they had from it."""
        self.in_log, self.copied_end = False, None

    def drop_unlogged(self) -> None:
        """Give the tables back to the log, because this node has stopped leading."""
        self.leads = False
        self.resets |= self.offsets.resets.take_all()
        self.offsets.drop_unlogged()
        self.delay.drop_unlogged()
        self.locks.drop_proposed()

    def lead(self, now: float) -> None:
        """Begin to append what changes the tables.

        Args:
            now: the monotonic time.
        """
        self.leads = True
        self.locks.take_over(now)
        for topic, group, queue_id in sorted(self.resets):
            if self.offsets.query(group, topic, queue_id) is not None:
                self.offsets.resets.add(group, topic, queue_id)

    def clear(self) -> None:
        """Empty the tables, because the log begins anew and will bring all of them."""
        self.topics.clear()
        self.groups.clear()
        self.offsets.clear()
        self.locks.clear()
        self.delay.load({})
        self.access.clear()
        self.resets.clear()
        self.in_log, self.stated_from = True, 0


def topics_event(configs: Iterable[TopicConfig]) -> Control:
    """The event that creates or replaces topics."""
    return Control(TOPICS_CHANGED, {"topics": [config.to_json() for config in configs]})


def groups_event(configs: Iterable[GroupConfig], forbidden: Mapping[str, Mapping[str, int]] | None = None) -> Control:
    """The event that creates or replaces groups, and the forbidden bits of groups by topic."""
    content: dict[str, Any] = {"groups": [config.to_stored() for config in configs]}
    return Control(GROUPS_CHANGED, {**content, "forbidden": forbidden} if forbidden else content)


def access_event(users: Mapping[str, User | None], acls: Mapping[str, Acl | None]) -> Control:
    """The event that creates or replaces users and rights; None deletes."""
    return Control(ACCESS_CHANGED, access_content(users, acls))


def carried_event(begin: int, topics: Sequence[str], groups: Sequence[str], access: Sequence[str] | None) -> Control:
    """The event that ends a statement of all tables that begins at a physical offset.

    Args:
        topics: the names of all topics, or none if there are many; so are the groups.
        access: the names of all users and the subjects of all rights, or None if there are many.
    """
    names: dict[str, Sequence[str]] = {"topics": topics, "groups": groups} if topics or groups else {}
    return Control(TABLES_CARRIED, {"from": begin, **names} | ({"access": access} if access is not None else {}))


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a setting is a JSON object (got {value!r:.100})")
    return cast("dict[str, Any]", value)
