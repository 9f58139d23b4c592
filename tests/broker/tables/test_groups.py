"""The group table."""

from __future__ import annotations

import trio

from ledgermq.broker.config import BrokerConfig
from ledgermq.broker.tables.groups import GroupConfig, GroupTable
from ledgermq.message.json import dumps, loads
from ledgermq.world.slices import SLICE_ITEMS


def test_an_unknown_group_appears_by_being_used() -> None:
    """With auto-creation on, a group has RocketMQ's defaults."""
    groups = GroupTable.of(BrokerConfig(), lambda: 0)
    groups.create = groups.put

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
    groups.put_forbidden("g", {"T1": 1})

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
    groups.put_forbidden("g", {"T": 1})
    groups.delete("g")
    groups.delete("g")

    assert notified == [1, 2, 3]
    assert not groups.is_forbidden("g", "T")


def test_a_stored_group_has_only_what_differs_from_the_defaults_of_rocketmq() -> None:
    """Every reader, Apache's brokers too, gives absent settings these defaults; unknown settings are kept."""
    assert GroupConfig("g").to_stored() == {"groupName": "g"}
    assert GroupConfig("g", retry_max_times=3).to_stored() == {"groupName": "g", "retryMaxTimes": 3}
    for others in ({"newSetting": {"a": 1}}, {"consumeTimeoutMinute": 7}, {"groupRetryPolicy": {"type": "EXPONENTIAL"}}):
        config = GroupConfig.from_json({"groupName": "g", "consumeEnable": False, **others})
        assert config.to_stored() == {"groupName": "g", "consumeEnable": False, **others}
        assert GroupConfig.from_json(config.to_stored()) == config


async def test_a_hundred_thousand_groups_fit_and_a_slave_takes_them_in_turns() -> None:
    """In the file, in the copy of a slave and in memory; no turn of the event loop reads more than some hundred of them."""
    groups = GroupTable.of(BrokerConfig(), lambda: 0)
    groups.put(*(GroupConfig(f"consumers-of-billing-{number:06}") for number in range(100_000)))
    copy, slave = loads(dumps(groups.to_json())), GroupTable.of(BrokerConfig(), lambda: 1)
    turns = 0

    class Turns(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            nonlocal turns
            turns += 1

    counter = Turns()
    trio.lowlevel.add_instrument(counter)
    await slave.load_in_slices(copy)
    trio.lowlevel.remove_instrument(counter)

    assert turns >= 100_000 // SLICE_ITEMS
    assert slave.groups == groups.groups
    assert loads(dumps(slave.to_json())) == copy
    assert len({id(config.others) for config in slave.groups.values()}) == 1


async def test_a_group_that_is_made_while_a_table_is_taken_is_replaced_like_the_others() -> None:
    """The table that was taken counts as a whole, and what is encoded agrees with it."""
    master, slave = GroupTable.of(BrokerConfig(), lambda: 0), GroupTable.of(BrokerConfig(), lambda: 0)
    master.put(*(GroupConfig(f"g{number}") for number in range(2 * SLICE_ITEMS)))
    slave.put(GroupConfig("g7"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(slave.load_in_slices, loads(dumps(master.to_json())))
        await trio.lowlevel.checkpoint()
        slave.put(GroupConfig("g7", retry_max_times=1), GroupConfig("mine"))

    assert slave.groups == master.groups
    assert loads(dumps(slave.to_json())) == loads(dumps(master.to_json()))
