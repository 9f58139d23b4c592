"""The group table: the settings of consumer groups (RocketMQ SubscriptionGroupManager).

Invariant: every change takes the next version and calls `on_change` at once. Settings of newer versions that have no effect
here are kept and returned unchanged. Pure except for the clock, which is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self

import attrs
import orjson

from ...message.data_version import DataVersion
from ...message.numbers import int_of, long_of
from ...world.slices import in_slices
from ..config import BrokerConfig
from ..entries import EncodedEntries, encoded_entry
from ..json_values import object_of, table_of
from ..names import name_fault

GROUP_CHARACTERS_MAX = 120
"""The longest name of a group: `%RETRY%` and the name together must be the name of a topic."""

SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TOOLS_GROUP = "TOOLS_CONSUMER"
_SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

# The settings of newer versions that are not among our fields, with their defaults.
_LATER_DEFAULTS: Mapping[str, Any] = {
    "consumeMessageOrderly": False,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "consumeTimeoutMinute": 15,
    "attributes": {},
}


def group_name_fault(group: str) -> str | None:
    """Return why the name of a group is refused, or None if it is valid."""
    return name_fault("group", group, GROUP_CHARACTERS_MAX)


def _later_defaults() -> Mapping[str, Any]:
    return _LATER_DEFAULTS  # one object for all groups, of which there may be many


@attrs.frozen
class GroupConfig:
    """One consumer group (RocketMQ SubscriptionGroupConfig)."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    others: Mapping[str, Any] = attrs.field(factory=_later_defaults)
    """The settings that have no effect here, under their JSON names; they are kept and returned."""

    def to_json(self) -> dict[str, Any]:
        return {
            **self.others,
            "groupName": self.group_name,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "retryQueueNums": self.retry_queue_nums,
            "retryMaxTimes": self.retry_max_times,
            "brokerId": self.broker_id,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
        }

    def to_stored(self) -> dict[str, Any]:
        """The name and what differs from RocketMQ's defaults, which every reader takes for settings that are absent."""
        settings = self.to_json()
        return {"groupName": self.group_name} | {
            key: value for key, value in settings.items() if key not in _DEFAULTS or value != _DEFAULTS[key]
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read a group from a file or a peer; absent settings get RocketMQ's defaults.

        Raises:
            KeyError, TypeError, ValueError: there is no name, or a number is not one.
        """
        given = {key: item for key, item in value.items() if item is not None}
        take = given.pop
        return cls(
            str(take("groupName")),
            bool(take("consumeEnable", True)),
            bool(take("consumeFromMinEnable", True)),
            bool(take("consumeBroadcastEnable", True)),
            int_of(take("retryQueueNums", 1)),
            int_of(take("retryMaxTimes", 16)),
            long_of(take("brokerId", 0)),
            long_of(take("whichBrokerWhenConsumeSlowly", 1)),
            bool(take("notifyConsumerIdsChangedEnable", True)),
            {**_LATER_DEFAULTS, **given} if given else _LATER_DEFAULTS,
        )


_DEFAULTS = GroupConfig("").to_json()


@attrs.define(eq=False, repr=False)
class GroupTable:
    """All consumer groups that this broker knows."""

    _now_ms: Callable[[], int]
    auto_create: bool = True
    groups: dict[str, GroupConfig] = attrs.field(factory=dict[str, GroupConfig])
    forbidden: dict[str, dict[str, int]] = attrs.field(factory=dict[str, dict[str, int]])
    """Bits by group and topic; bit 0 forbids the group to read the topic (5.x `forbiddenTable`)."""
    version: DataVersion = attrs.field(factory=DataVersion)
    create: Callable[[GroupConfig], None] = lambda _: None
    """Called with an unknown group that is used and may be created."""
    on_change: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    _entries: EncodedEntries = attrs.field(factory=lambda: EncodedEntries("the table of groups"))
    _forbidden_entries: EncodedEntries = attrs.field(factory=lambda: EncodedEntries("the table of forbidden topics"))

    @classmethod
    def of(cls, config: BrokerConfig, now_ms: Callable[[], int], stored: Any = None) -> Self:
        """Make the table from the content of `subscriptionGroup.json` and the system groups, which always exist."""
        table = cls(now_ms, config.auto_create_subscription_group)
        table.version = DataVersion(0, now_ms())
        if content := table_of(stored, "the content"):
            table.load(content)
        for name in _SYSTEM_GROUPS:
            if name not in table.groups:
                table.groups[name] = GroupConfig(name)
                table._entries.put({name: table.groups[name].to_stored()})
        return table

    def load(self, stored: Mapping[str, Any]) -> None:
        """Replace the whole table with one that a file or a master gives."""
        groups, changed = dict[str, GroupConfig](), dict[str, bytes]()
        for name, value in table_of(stored.get("subscriptionGroupTable"), "subscriptionGroupTable").items():
            self._take(name, value, groups, changed)
        self._replace(groups, changed, stored)

    async def load_in_slices(self, stored: Mapping[str, Any]) -> None:
        """Do the same as `load` in several turns of the event loop; the table changes in the last one."""
        groups, changed = dict[str, GroupConfig](), dict[str, bytes]()
        async for piece in in_slices(table_of(stored.get("subscriptionGroupTable"), "subscriptionGroupTable").items()):
            for name, value in piece:
                self._take(name, value, groups, changed)
        self._replace(groups, changed, stored)

    def _take(self, name: str, value: Any, groups: dict[str, GroupConfig], changed: dict[str, bytes]) -> None:
        """Read one group of another table; what does not differ from this table is neither kept twice nor encoded again."""
        config = GroupConfig.from_json(table_of(value, name))
        known = self.groups.get(config.group_name)
        if known is None or known != config:
            changed[config.group_name] = encoded_entry(config.group_name, config.to_stored())
            known = config
        groups[config.group_name] = known

    def _replace(self, groups: dict[str, GroupConfig], changed: Mapping[str, bytes], stored: Mapping[str, Any]) -> None:
        before, self.groups = self.groups, groups
        for name in before.keys() - groups.keys():
            self._entries.forget(name)
        # A group may have changed here since it was read.
        again = {
            name: encoded_entry(name, config.to_stored())
            for name, config in groups.items()
            if name not in changed and before.get(name) is not config
        }
        self._entries.put_encoded({**changed, **again})
        for name in self.forbidden:
            self._forbidden_entries.forget(name)
        self.forbidden = {
            group: {topic: int_of(bits) for topic, bits in table_of(topics, group).items()}
            for group, topics in table_of(stored.get("forbiddenTable"), "forbiddenTable").items()
        }
        self.version = DataVersion.from_json(object_of(stored.get("dataVersion")))
        self._forbidden_entries.put(self.forbidden)
        self._notify()

    def get(self, group: str) -> GroupConfig | None:
        return self.groups.get(group)

    def find(self, group: str) -> GroupConfig | None:
        """The group; if it is unknown and groups may be created by being used, the settings that it has then."""
        config = self.groups.get(group)
        if config is not None:
            return config
        if not self.may_create(group):
            return None
        config = GroupConfig(group)
        self.create(config)
        return config

    def may_create(self, group: str) -> bool:
        """Whether a group of this name is created by being used, if it is unknown."""
        return (self.auto_create or group.startswith(SYSTEM_GROUP_PREFIX)) and group_name_fault(group) is None

    def is_system(self, group: str) -> bool:
        """Whether the group always exists."""
        return group in _SYSTEM_GROUPS

    def check_room(self, configs: Iterable[GroupConfig]) -> None:
        """Refuse groups for which the table has no room; raises as `EncodedEntries.check_room`."""
        self._entries.check_room({config.group_name: config.to_stored() for config in configs})

    def check_room_for_forbidden(self, group: str, bits: Mapping[str, int]) -> None:
        """Refuse forbidden bits for which there is no room; raises as `EncodedEntries.check_room`."""
        self._forbidden_entries.check_room({group: bits})

    def put(self, *configs: GroupConfig) -> None:
        """Create or replace groups."""
        self._entries.put({config.group_name: config.to_stored() for config in configs})
        for config in configs:
            self.groups[config.group_name] = config
        self._changed()

    def delete(self, group: str) -> bool:
        """Delete a group; return whether it existed."""
        was_forbidden = self.forbidden.pop(group, None) is not None
        self._forbidden_entries.forget(group)
        existed = self.groups.pop(group, None) is not None
        if existed:
            self._entries.forget(group)
        if existed or was_forbidden:
            self._changed()
        return existed

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group was forbidden to read the topic."""
        return bool(self.forbidden) and bool(self.forbidden.get(group, {}).get(topic, 0) & 1)

    def put_forbidden(self, group: str, bits: dict[str, int]) -> None:
        """Replace the forbidden bits of a group, by topic."""
        self._forbidden_entries.put({group: bits})
        self.forbidden[group] = bits
        self._changed()

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all other groups but those of the system, and their forbidden bits."""
        for name in [name for name in {**self.groups, **self.forbidden} if name not in names and not self.is_system(name)]:
            self.delete(name)

    def clear(self) -> None:
        """Remove all groups but those of the system."""
        self.keep_only(())

    def to_json(self) -> dict[str, Any]:
        """The content of `subscriptionGroup.json` and of slaves' copies; its tables are already encoded."""
        return self._content(self.version, self._forbidden_entries.joined(), self._entries.joined())

    async def to_json_in_slices(self) -> dict[str, Any]:
        """The same, as it is in the first of several turns of the event loop."""
        version, forbidden = self.version, self._forbidden_entries.joined()
        return self._content(version, forbidden, await self._entries.joined_in_slices())

    def _content(self, version: DataVersion, forbidden: bytes, groups: bytes) -> dict[str, Any]:
        return {
            "dataVersion": version.to_json(),
            "forbiddenTable": orjson.Fragment(forbidden),
            "subscriptionGroupTable": orjson.Fragment(groups),
        }

    def _changed(self) -> None:
        self.version = self.version.next(self._now_ms())
        self._notify()

    def _notify(self) -> None:
        for notify in self.on_change:
            notify()
