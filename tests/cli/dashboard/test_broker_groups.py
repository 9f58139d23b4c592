"""What the picture of a group of brokers shows."""

from __future__ import annotations

from typing import Any

import trio

from ledgermq.cli.cluster import state_of
from ledgermq.cli.dashboard.broker_groups import broker_groups, nodes_of_group
from ledgermq.client.admin import open_admin
from ledgermq.testing.embedded import open_embedded


def row(number: int, **values: Any) -> dict[str, Any]:
    role = "slave" if number else "master"
    common = {"broker": "a", "id": number, "role": role, "address": f"10.0.0.{number}:10911", "error": None}
    return {**common, "log_end": 4711, "ha": {}, "waits_in_vain": None, **values}


def node(number: int, role: str, **values: Any) -> dict[str, Any]:
    common = {"broker": "a", "address": f"10.0.0.{number}:10911", "group": "a", "selfId": f"n{number}", "role": role, "term": 3}
    return {**common, "voters": ["n0", "n1", "n2"], "learners": [], "failure": None, "peers": [], "committedIndex": 9, **values}


def peer(number: int, *, connected: bool = True, lag: int | None = 0) -> dict[str, Any]:
    return {"id": f"n{number}", "connected": connected, "lagEntries": lag}


def test_a_master_knows_how_far_its_slaves_are_behind() -> None:
    feeds = [{"broker_id": 1, "diff": 0, "in_sync": True}, {"broker_id": 2, "diff": 5000, "in_sync": False}]
    rows = [row(0, ha={"ha_connection_info": feeds}), row(1), row(2), row(3), row(4, error="10.0.0.4:10911 did not answer")]

    (group,) = broker_groups(rows, [])

    assert group.kind == "master and slaves"
    assert group.leader is not None
    assert (group.leader.role, group.leader.state, group.leader.lag) == ("master", "good", "log end 4,711")
    assert [(each.name, each.state, each.lag) for each in group.followers] == [
        ("1", "good", "in sync"),
        ("2", "behind", "5,000 bytes behind"),
        ("3", "bad", "not fed"),
        ("4", "bad", "no answer"),
    ]
    assert group.in_sync == 2
    assert group.text.startswith("a: master 0: log end 4,711; slave 1: in sync; slave 2: 5,000 bytes behind")


def test_a_controller_says_who_is_in_sync() -> None:
    """A slave may have everything and not be in the set yet, and so count for no acknowledgement."""
    feeds = [{"broker_id": number, "diff": 0, "in_sync": True} for number in (2, 3)]
    ha = {"ha_connection_info": feeds, "controller": {"master_epoch": 7, "sync_state_set": [1, 2]}}

    (group,) = broker_groups([row(0, ha=ha), row(2), row(3)], [])

    assert (group.kind, group.term) == ("controller mode", 7)
    assert [(each.name, each.state, each.lag) for each in group.followers] == [
        ("2", "good", "in sync"),
        ("3", "behind", "0 bytes behind"),
    ]


def test_a_group_of_slaves_has_no_leader() -> None:
    (group,) = broker_groups([row(1)], [])

    assert group.leader is None
    assert group.text == "a: nobody leads; slave 1: not fed"


def test_a_master_that_waits_for_a_slave_in_vain_is_marked() -> None:
    (group,) = broker_groups([row(0, waits_in_vain=True)], [])

    assert group.leader is not None
    assert (group.kind, group.leader.state, group.leader.lag) == ("one master", "bad", "no slave")


def test_the_leader_of_an_elected_group_speaks_for_its_peers() -> None:
    """A member that does not answer is drawn too; an older leader that does not know of the new one follows nobody."""
    leader = node(0, "leader", peers=[peer(1), peer(2, connected=False)])

    (group,) = broker_groups([row(0), row(1)], [leader, node(1, "follower")])

    assert (group.kind, group.term) == ("DLedger group", 3)
    assert group.leader is not None
    assert (group.leader.name, group.leader.lag) == ("n0", "committed 9")
    assert [(each.name, each.role, each.state, each.lag) for each in group.followers] == [
        ("n1", "follower", "good", "in sync"),
        ("n2", "member", "bad", "not connected"),
    ]
    assert group.followers[1].row is None


def test_entries_that_a_follower_lacks_are_counted() -> None:
    leader = node(0, "leader", peers=[peer(1, lag=1234), peer(2, lag=None)])

    (group,) = broker_groups([row(0)], [leader, node(1, "follower"), node(2, "follower", failure="the disk is full")])

    assert [(each.state, each.lag) for each in group.followers] == [
        ("behind", "1,234 entries behind"),
        ("bad", "takes no part"),
    ]


def test_without_a_leader_nobody_is_in_sync() -> None:
    (group,) = broker_groups([row(1)], [node(1, "candidate")])

    assert group.leader is None
    assert [(each.name, each.lag) for each in group.followers] == [
        ("n0", "no answer"),
        ("n1", "no leader"),
        ("n2", "no answer"),
    ]
    assert group.in_sync == 0


def test_leadership_can_be_handed_to_followers_that_are_connected() -> None:
    """Neither to the leader itself, nor to a learner or to somebody who is away."""
    peers = [peer(1), peer(2, connected=False), peer(3)]
    nodes = [node(0, "leader", peers=peers, learners=["n3"]), *(node(each, "follower", learners=["n3"]) for each in (1, 2, 3))]
    (group,) = broker_groups([row(each) for each in range(4)], nodes)
    rows = [{"broker": broker, "node": f"n{number}"} for broker in ("a", "b") for number in range(4)]

    assert [(each["broker"], each["node"], able) for each, able in nodes_of_group(rows, group)] == [
        ("a", "n0", False),
        ("a", "n1", True),
        ("a", "n2", False),
        ("a", "n3", False),
    ]


async def test_a_cluster_under_a_controller_shows_its_in_sync_set() -> None:
    """What real brokers report is what the picture reads."""
    async with open_embedded(mode="controller", nodes=2) as cluster, open_admin(cluster.namesrv) as admin:
        with trio.fail_after(60):
            while (found := broker_groups(*await state_of(admin)))[0].in_sync < 2:  # noqa: ASYNC110 - only asking tells
                await trio.sleep(0.1)

    assert [(group.kind, group.term, [copy.lag for copy in group.followers]) for group in found] == [
        ("controller mode", 1, ["in sync"])
    ]
