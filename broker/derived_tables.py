"""The topics and groups of a DLedger node as the derived part of its log defines them.

A leader changes its own tables before the changes are in the log, and another leader may truncate their records. So a node that
stops leading restores its tables from here, and its files are written from here. Invariant: what is here is committed, and the
tables of a node that does not lead hold the same. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

import attrs
import orjson

from ..message.control import (
    GROUP_DELETED,
    GROUPS_CHANGED,
    TOPIC_DELETED,
    TOPICS_CHANGED,
    Control,
    deleted_group_of,
    deleted_topic_of,
)
from ..message.numbers import int_of
from .groups import GroupConfig, GroupTable
from .json_values import table_of
from .topics import TopicConfig, TopicTable

Forbidden = dict[str, dict[str, int]]
"""The forbidden bits by group and topic."""
_Value = TypeVar("_Value")


@attrs.define(eq=False, repr=False)
class DerivedTables:
    """The derived topics and groups of one node."""

    topic_table: TopicTable
    """The tables that clients use."""
    group_table: GroupTable
    topics: dict[str, TopicConfig] = attrs.field(factory=dict[str, TopicConfig])
    groups: dict[str, GroupConfig] = attrs.field(factory=dict[str, GroupConfig])
    forbidden: Forbidden = attrs.field(factory=Forbidden)
    topics_changes: int = 0
    """Counts changes of topics; their file is written when it has grown."""
    groups_changes: int = 0
    """Counts changes of groups and forbidden bits, for their file."""
    on_topics: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    on_groups: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])

    def adopt(self) -> None:
        """Count what the tables contain now as derived: they were read from files, or copied from a leader."""
        self.topics, self.groups = dict(self.topic_table.topics), dict(self.group_table.groups)
        self.forbidden = dict(self.group_table.forbidden)
        self.changed()

    def apply(self, control: Control, *, follows: bool) -> None:
        """Apply an event of the log, and its changes to the tables of a node that `follows` the leader.

        Raises:
            CorruptRecord, KeyError, TypeError, ValueError: the event cannot be read. Nothing was changed.
        """
        if control.kind == TOPICS_CHANGED:
            topics = {config.topic_name: config for config in topics_of(control)}
            if follows and (names := changed_names(topics, self.topic_table.topics)):
                self.topic_table.put(*[topics[name] for name in names], bounded=False)
            self.topics.update(_same_objects(topics, self.topic_table.topics))
            self._topics_changed()
        elif control.kind == GROUPS_CHANGED:
            groups, forbidden = {config.group_name: config for config in groups_of(control)}, forbidden_of(control)
            if follows:
                if names := changed_names(groups, self.group_table.groups):
                    self.group_table.put(*[groups[name] for name in names], bounded=False)
                for group, bits in forbidden.items():
                    self.group_table.put_forbidden(group, bits, bounded=False)
            self.groups.update(_same_objects(groups, self.group_table.groups))
            self.forbidden.update(forbidden)
            self._groups_changed()
        elif control.kind == TOPIC_DELETED:
            topic, _ = deleted_topic_of(control)
            if not self.topic_table.is_system(topic):
                self.topics.pop(topic, None)
                self._topics_changed()
        elif control.kind == GROUP_DELETED:
            group, _ = deleted_group_of(control)
            self.groups.pop(group, None)
            self.forbidden.pop(group, None)
            self._groups_changed()

    def changed(self) -> None:
        """Cause both files to be written."""
        self._topics_changed()
        self._groups_changed()

    def _topics_changed(self) -> None:
        self.topics_changes += 1
        for notify in self.on_topics:
            notify()

    def _groups_changed(self) -> None:
        self.groups_changes += 1
        for notify in self.on_groups:
            notify()

    def keep_only_topics(self, topics: Collection[str]) -> None:
        """Remove all other topics here; `restore` removes them from the tables of a node that does not lead."""
        table = self.topic_table
        self.topics = {name: config for name, config in self.topics.items() if name in topics or table.is_system(name)}

    def keep_only_groups(self, groups: Collection[str]) -> None:
        """Remove all other groups here; `restore` removes them from the tables of a node that does not lead."""
        self.groups = {name: config for name, config in self.groups.items() if name in groups}
        self.forbidden = {name: bits for name, bits in self.forbidden.items() if name in groups}

    def restore(self) -> None:
        """Replace the content of the tables by the derived one, because this node has stopped leading."""
        topics, groups = self.topic_table, self.group_table
        for name in sorted(topics.topics.keys() - self.topics.keys()):
            topics.delete(name)
        if names := changed_names(self.topics, topics.topics):
            topics.put(*[self.topics[name] for name in names], bounded=False)
        for group in sorted(groups.groups.keys() - self.groups.keys()):
            groups.delete(group)
        if names := changed_names(self.groups, groups.groups):
            groups.put(*[self.groups[name] for name in names], bounded=False)
        for group in sorted(groups.forbidden.keys() | self.forbidden.keys()):
            if groups.forbidden.get(group) != (bits := self.forbidden.get(group, {})):
                groups.put_forbidden(group, bits, bounded=False)

    def clear(self) -> None:
        """Remove everything but the topics and groups that always exist, here and from the tables."""
        topics, groups = self.topic_table, self.group_table
        self.topics = {name: config for name, config in topics.topics.items() if topics.is_system(name)}
        self.groups = {name: config for name, config in groups.groups.items() if groups.is_system(name)}
        self.forbidden = {}
        self.restore()
        self.changed()

    def topics_json(self) -> dict[str, Any]:
        """The content of `topics.json`; its table is already encoded."""
        table = self.topic_table
        if table.topics == self.topics:
            return table.to_json()
        entries = {name: config.to_json() for name, config in self.topics.items()}
        return {"dataVersion": table.version.to_json(), "topicConfigTable": orjson.Fragment(orjson.dumps(entries))}

    def groups_json(self) -> dict[str, Any]:
        """The content of `subscriptionGroup.json`; its tables are already encoded."""
        table = self.group_table
        if table.groups == self.groups and table.forbidden == self.forbidden:
            return table.to_json()
        entries = {name: config.to_stored() for name, config in self.groups.items()}
        return {
            "dataVersion": table.version.to_json(),
            "forbiddenTable": orjson.Fragment(orjson.dumps(self.forbidden)),
            "subscriptionGroupTable": orjson.Fragment(orjson.dumps(entries)),
        }


def changed_names(now: Mapping[str, _Value], known: Mapping[str, _Value]) -> list[str]:
    """The names whose values differ. Most values are the same objects in both tables, and need no comparison."""
    return [name for name, value in now.items() if (old := known.get(name)) is not value and old != value]


def _same_objects(values: Mapping[str, _Value], table: Mapping[str, _Value]) -> dict[str, _Value]:
    """The values, or those of the table that are equal to them, for `changed_names`."""
    return {name: table[name] if table.get(name) == value else value for name, value in values.items()}


def topics_of(control: Control) -> list[TopicConfig]:
    """The topics that an event creates or replaces; raises KeyError, TypeError or ValueError if one cannot be read."""
    return [TopicConfig.from_json(_object(one)) for one in control.content["topics"]]


def groups_of(control: Control) -> list[GroupConfig]:
    """The groups that an event creates or replaces; raises KeyError, TypeError or ValueError if one cannot be read."""
    return [GroupConfig.from_json(_object(one)) for one in control.content["groups"]]


def forbidden_of(control: Control) -> Forbidden:
    """The forbidden bits that an event replaces; raises TypeError or ValueError if they cannot be read."""
    table = table_of(control.content.get("forbidden"), "forbidden")
    return {group: {topic: int_of(bits) for topic, bits in table_of(topics, group).items()} for group, topics in table.items()}


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"a setting is a JSON object (got {value!r:.100})")
    return cast("dict[str, Any]", value)
