"""The group table."""

from __future__ import annotations

from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.groups import GroupConfig, GroupTable
from ledgermq.message.json import dumps, loads


def test_an_unknown_group_appears_by_being_used() -> None:
    """With auto-creation on, a group has RocketMQ's defaults."""
    groups = GroupTable.of(BrokerConfig(), lambda: 0)

    assert groups.find("g") == GroupConfig("g")
    assert groups.get("g") is not None


def test_without_auto_creation_only_the_systems_groups_appear() -> None:
    """`autoCreateSubscriptionGroup=false` refuses strangers, not the broker's own groups and tools."""
    groups = GroupTable.of(BrokerConfig(auto_create_subscription_group=False), lambda: 0)

    assert groups.find("g") is None
    assert groups.find("TOOLS_CONSUMER") is not None
    assert groups.find("CID_RMQ_SYS_X") is not None


def test_a_bad_name_is_never_created() -> None:
    """A group whose retry topic could not be stored does not come into being."""
    groups = GroupTable.of(BrokerConfig(), lambda: 0)

    assert groups.find("x" * 121) is None
    assert groups.find("a b") is None


def test_settings_of_newer_versions_are_kept() -> None:
    """What we do not act on comes back as it came, and lacking fields get RocketMQ's defaults."""
    config = GroupConfig.from_json({"groupName": "g", "retryMaxTimes": 3, "consumeTimeoutMinute": 7, "newSetting": {"a": 1}})

    assert config.retry_max_times == 3
    assert config.consume_enable
    assert config.to_json()["consumeTimeoutMinute"] == 7
    assert config.to_json()["newSetting"] == {"a": 1}
    assert config.to_json()["groupSysFlag"] == 0


def test_a_stored_table_is_read_back() -> None:
    """Groups, forbidden topics and version survive the file."""
    groups = GroupTable.of(BrokerConfig(), lambda: 0)
    groups.put(GroupConfig("g", retry_max_times=2))
    groups.set_forbidden("g", "T1", forbidden=True)

    again = GroupTable.of(BrokerConfig(), lambda: 1, loads(dumps(groups.to_json())))

    assert again.groups == groups.groups
    assert again.is_forbidden("g", "T1")
    assert not again.is_forbidden("g", "T2")
    assert again.version == groups.version


def test_every_change_notifies_observers() -> None:
    """Put, forbid and delete each take a version."""
    groups = GroupTable.of(BrokerConfig(), lambda: 0)
    notified: list[int] = []
    groups.on_change.append(lambda: notified.append(groups.version.counter))

    groups.put(GroupConfig("g"))
    groups.set_forbidden("g", "T", forbidden=True)
    groups.delete("g")
    groups.delete("g")

    assert notified == [1, 2, 3]
    assert not groups.is_forbidden("g", "T")
