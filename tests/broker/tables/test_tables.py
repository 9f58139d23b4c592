"""After any sequence of elections, crashes and absences, all nodes of a DLedger group have the same topics and groups."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.broker.modes.replication import CopiedTables
from ledgermq.broker.tables.persistence import GROUPS_FILE, OFFSETS_FILE
from ledgermq.broker.tables.table_log import GATHER_SECONDS
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.client.admin import open_admin
from ledgermq.client.producer import open_producer
from ledgermq.message.control import Control
from ledgermq.message.json import dumps, loads
from ledgermq.message.message import Message
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.history import End
from ledgermq.world.network import Address

from ...ha.dledger.test_node import hand_over
from ..modes.test_dledger import Group, scenario
from ..modes.test_dledger_requests import SENT


def up(node: Node) -> Broker:
    assert node.broker is not None
    return node.broker


def tables_of(broker: Broker) -> dict[str, Any]:
    """The tables that must be equal on every node."""
    return {
        "topics": dict(broker.topics.topics),
        "groups": dict(broker.groups.groups),
        "forbidden": {group: bits for group, bits in broker.groups.forbidden.items() if any(bits.values())},
        "users": dict(broker.tables.access.users),
        "rights": dict(broker.tables.access.acls),
    }


async def use_group(group: Group, node: Node, name: str) -> None:
    """Send the heartbeat of a consumer, which creates its group on a leader."""
    heartbeat = {
        "clientID": f"c-{name}",
        "consumerDataSet": [{"groupName": name, "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}]}],
    }
    await ask(group, node, RequestCode.HEART_BEAT, {}, dumps(heartbeat))


async def ask(group: Group, node: Node, code: RequestCode, ext: dict[str, str], body: bytes) -> None:
    """Send a request from the host of the node itself, so that a partition does not prevent it."""
    async with connected(Address(node.machine.host, 10911), network=node.machine.world().network) as channel:
        with trio.move_on_after(0.2):
            await channel.call(RemotingCommand(code, ext, body=body), 10.0)


async def check_tables_agree(group: Group, seconds: float = 10.0) -> None:
    """Without faults every node soon has what the leader has."""
    leader = await group.master()
    with trio.move_on_after(seconds):
        while any(tables_of(up(node)) != tables_of(up(leader)) for node in group.nodes):  # noqa: ASYNC110 - virtual time
            await trio.sleep(0.1)
    expected = tables_of(up(leader))
    for node in group.nodes:
        for name, table in tables_of(up(node)).items():
            assert table.keys() == expected[name].keys(), (node.host, name)
            assert table == expected[name], (node.host, name)


def test_groups_that_are_created_while_followers_find_their_leader_are_on_every_node() -> None:
    """Answers with whole tables would be older than what a follower has derived when they arrive."""

    async def story(group: Group) -> None:
        group.fabric.delay_seconds = (0.001, 0.1)
        leader = await group.master()
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(use_group, group, leader, f"g{number}")
                await trio.sleep(0.02)
        await trio.sleep(0.5)
        assert {f"g{number}" for number in range(50)} <= up(leader).groups.groups.keys()
        await check_tables_agree(group, 0.5)

    scenario(story)


def test_a_copy_of_tables_takes_nothing_away_that_was_derived_since_it_was_requested() -> None:
    """Beside nodes of RocketMQ tables are copied; a topic, a group and a deletion are derived before the answer arrives."""

    async def story(group: Group) -> None:
        leader = await group.master()
        follower = next(node for node in group.nodes if node is not leader)
        own = up(follower)
        tables = CopiedTables(store=own.store, tables=own.tables, table_log=own.table_log, takes_commits=False)
        async with open_admin(group.namesrv, world=group.world("10.0.3.1")) as admin:
            await admin.create_topic("Gone", queues=2)
            await check_tables_agree(group)
            old_topics, old_groups = loads(up(leader).topics.wrapper()), loads(orjson.dumps(up(leader).groups.to_json()))
            tables.asking()
            await admin.create_topic("New", queues=2)
            await admin.create_group("new")
            await admin.delete_topic("Gone")
            await check_tables_agree(group)
        await tables.take_topics(old_topics)
        await tables.take_groups(old_groups)
        assert tables_of(up(follower)) == tables_of(up(leader))
        assert not own.tables.in_log

    scenario(story)


def test_a_topic_that_was_deleted_does_not_return_when_all_nodes_start_again() -> None:
    """The file of topics contains its deletion, although other files are older than its creation."""

    async def story(group: Group) -> None:
        async with open_admin(group.namesrv, world=group.world("10.0.3.1")) as admin:
            await admin.create_group("early")
            await trio.sleep(3)
            await admin.create_topic("Gone", queues=2)
            await admin.delete_topic("Gone")
            await trio.sleep(1)
        for node in group.nodes:
            await node.process.end(End.KILL)
        for node in group.nodes:
            await group.nursery.start(node.process.run)
        await group.master()
        for node in group.nodes:
            assert up(node).topics.get("Gone") is None
        await check_tables_agree(group)

    scenario(story)


def test_a_topic_that_was_deleted_while_a_message_of_it_was_delayed_is_on_no_node() -> None:
    """The deletion ends the message too, so neither a node that starts again nor the next leader adopts the topic from it."""

    async def story(group: Group) -> None:
        leader = await group.master()
        async with (
            open_admin(group.namesrv, world=group.world("10.0.3.1")) as admin,
            open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer,
        ):
            await admin.create_topic("Gone", queues=2)
            await producer.send(Message("Gone", b"x", delay_level=1))
            await admin.delete_topic("Gone")
        await trio.sleep(3)
        assert "Gone" not in up(leader).store.topics()
        follower = next(node for node in group.nodes if node is not leader)
        await follower.process.end(End.CLEAN)
        await group.nursery.start(follower.process.run)
        await check_tables_agree(group)
        assert up(follower).topics.get("Gone") is None
        await hand_over(group, up(leader), follower)
        await check_tables_agree(group)
        assert up(leader).topics.get("Gone") is None

    scenario(story)


@pytest.mark.parametrize(
    ("how", "seconds"), [(None, 3.0), (End.KILL, 3.0), (End.POWER, 0.05)], ids=["goes on", "kill", "power"]
)
def test_what_a_cut_off_leader_has_created_exists_on_no_node_afterwards(how: End | None, seconds: float) -> None:
    """Its records are truncated, and neither its memory nor its files ever contain what they would create."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
        old = await group.master()
        others = [node.machine.host for node in group.nodes if node is not old]
        group.fabric.part([old.machine.host], [*others, "10.0.2.1"])
        before, end = up(old), up(old).store.log.max_offset
        await use_group(group, old, "phantom")
        before.table_log.put_topics(TopicConfig("Phantom"))
        assert before.store.log.max_offset > end
        assert "phantom" not in before.groups.groups
        assert "Phantom" not in before.topics.topics
        await trio.sleep(seconds)
        if how is not None:
            await old.process.end(how)
        with trio.fail_after(30):
            while not any(node is not old and node in group.masters() for node in group.nodes):  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
        new = next(node for node in group.masters() if node is not old)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 5)
        if how is not None:
            await group.nursery.start(old.process.run)
            await trio.sleep(0.1)
        group.fabric.heal()
        assert await group.master() is new
        assert "phantom" not in up(new).groups.groups
        await check_tables_agree(group)

    scenario(story)


def test_what_a_leader_has_created_and_lost_by_a_power_cut_of_all_exists_on_no_node_afterwards() -> None:
    """The files of its tables were synced, its log was not."""

    async def story(group: Group) -> None:
        leader = await group.master()
        for node in group.nodes:
            node.machine.slow_down(2.0)
        end = up(leader).store.log.max_offset
        await use_group(group, leader, "phantom")
        assert up(leader).store.log.max_offset > end
        await trio.sleep(1.0)
        for node in group.nodes:
            node.machine.slow_down(0.0)
            await node.process.end(End.POWER)
        for node in group.nodes:
            await group.nursery.start(node.process.run)
        await group.master()
        await check_tables_agree(group)

    scenario(story)


def test_a_change_that_the_log_refused_exists_on_no_node_when_the_leader_is_elected_again() -> None:
    """While leadership is transferred the log refuses; the transfer fails, and the same node leads on."""

    async def story(group: Group) -> None:
        leader = await group.master()
        hosts = [node.machine.host for node in group.nodes if node is not leader]
        replication: Any = up(leader).replication
        replica = replication.node.replica
        group.fabric.part([leader.machine.host], hosts)
        target = next(peer for peer in replica.core.configuration.voters if peer != replica.settings.self_id)
        replica.transfer(target)
        await ask(group, leader, RequestCode.SEND_MESSAGE, {**SENT, "topic": "Phantom"}, b"x")
        await use_group(group, leader, "phantom")
        for node in group.nodes:
            if node is not leader:
                await node.process.end(End.KILL)
        await trio.sleep(1)
        group.fabric.heal()
        for node in group.nodes:
            if node is not leader:
                await group.nursery.start(node.process.run)
        await check_tables_agree(group)
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await producer.send(Message("Phantom", b"x"))
        await check_tables_agree(group)

    scenario(story)


def test_a_node_that_begins_anew_forgets_what_was_deleted_while_it_was_away() -> None:
    """The records of the deletions have expired; a group that is created again begins without the old offsets."""

    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        async with open_admin(group.namesrv, world=world) as admin, open_producer(group.namesrv, "p", world=world) as producer:
            await admin.create_topic("Gone", queues=2)
            await admin.create_group("gone")
            await group.produce(producer, 5)
            leader = await group.master()
            await ask(
                group,
                leader,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {"consumerGroup": "gone", "topic": "T", "queueId": "0", "commitOffset": "1"},
                b"",
            )
            await trio.sleep(6)
            away = next(node for node in group.nodes if node is not leader)
            assert up(away).offsets.of("gone", "T") == {0: 1}
            await away.process.end(End.CLEAN)
            await admin.delete_topic("Gone")
            delete = {"groupName": "gone", "cleanOffset": "true"}
            await ask(group, leader, RequestCode.DELETE_SUBSCRIPTIONGROUP, delete, b"")
            for _ in range(60):
                await producer.send(Message("U", group.rng.randbytes(5000)))
            for node in group.nodes:
                if node is not away:
                    await expire(node)
            begin = up(leader).store.log.min_offset
            await group.nursery.start(away.process.run)
            with trio.fail_after(30):
                while up(away).store.log.min_offset < begin:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.01)
            await producer.send(Message("U", b"x"))
        await check_tables_agree(group)
        assert up(away).offsets.of("gone", "T") == {}

    scenario(story)


def test_a_group_that_was_never_used_is_forbidden_again_after_its_deletion() -> None:
    """Only the forbidden topics of such a group are in the tables; the deletion takes them away, on every node."""

    async def story(group: Group) -> None:
        leader = await group.master()
        forbid = {"group": "unused", "topic": "T", "readable": "false"}
        await ask(group, leader, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbid, b"")
        await ask(group, leader, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "unused"}, b"")
        await check_tables_agree(group)
        assert not up(leader).groups.is_forbidden("unused", "T")
        await ask(group, leader, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, forbid, b"")
        await check_tables_agree(group)
        assert all(up(node).groups.is_forbidden("unused", "T") for node in group.nodes)

    scenario(story)


def test_the_files_of_a_full_disk_can_be_deleted() -> None:
    """The tables that expire with them are appended first, although messages and changes of tables are refused."""

    async def story(group: Group) -> None:
        store = up(await group.master()).store
        async with open_admin(group.namesrv, world=group.world("10.0.3.1")) as admin:
            await admin.create_topic("T", queues=2)
        store.writability.disk_full = True
        assert await store.queue_ends.append(store.log.max_offset)

    scenario(story)


def test_a_commit_that_only_a_deposed_leader_has_is_dropped_with_its_leadership() -> None:
    """It may have been read there before the log had it; afterwards all nodes have what the log says, whoever leads."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await group.produce(producer, 6)
        old = await group.master()
        commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
        await ask(group, old, RequestCode.UPDATE_CONSUMER_OFFSET, commit, b"")
        await trio.sleep(1)
        await check_tables_agree(group)
        others = [node for node in group.nodes if node is not old]
        group.fabric.part([old.machine.host], [*(node.machine.host for node in others), "10.0.2.1"])
        await ask(group, old, RequestCode.UPDATE_CONSUMER_OFFSET, {**commit, "commitOffset": "2"}, b"")
        assert up(old).offsets.of("g", "T") == {0: 2}
        await trio.sleep(GATHER_SECONDS)
        with trio.fail_after(30):
            while up(old).role.takes_puts or not any(node in others for node in group.masters()):  # noqa: ASYNC110 - virtual time
                await trio.sleep(0.01)
        await trio.sleep(0.1)
        assert up(old).offsets.of("g", "T") == {0: 1}
        group.fabric.heal()
        new = await group.master()
        await check_tables_agree(group)

        await hand_over(group, up(new), old)
        await trio.sleep(1)
        assert [up(node).offsets.of("g", "T") for node in group.nodes] == [{0: 1}] * 3

    scenario(story)


def test_an_event_of_which_one_row_cannot_be_read_changes_nothing() -> None:
    """Otherwise nodes of different versions could apply different parts of it."""

    async def story(group: Group) -> None:
        leader = await group.master()
        follower = up(next(node for node in group.nodes if node is not leader))
        before = tables_of(follower)
        for control in (
            Control("offsets_committed", {"offsets": [["T", "g", 0, 5], ["T", "g", "x", 1]]}),
            Control("topics_changed", {"topics": [{"topicName": "Half"}, {"perm": 6}]}),
            Control("groups_changed", {"groups": [{"groupName": "half"}], "forbidden": {"half": {"T": "x"}}}),
        ):
            follower.tables.apply(control, 0.0)
        assert tables_of(follower) == before
        assert follower.offsets.of("g", "T") == {}

    scenario(story)


def test_a_statement_removes_nothing_from_a_table_whose_file_is_newer() -> None:
    """After a power cut one file may be older than the statement and another one newer: each is judged by itself."""

    async def story(group: Group) -> None:
        leader = await group.master()
        follower = up(next(node for node in group.nodes if node is not leader))
        tables = follower.tables
        tables.apply(Control("topics_changed", {"topics": [{"topicName": "Later"}]}), 0.0)
        tables.apply(Control("groups_changed", {"groups": [{"groupName": "later"}]}), 0.0)
        statement = Control("tables_carried", {"from": 0, "topics": ["Other"], "groups": ["other"]})

        tables.in_log = False
        tables.apply(statement, 0.0, lambda name: name == OFFSETS_FILE)
        assert follower.topics.get("Later") is not None
        assert follower.groups.get("later") is not None

        tables.in_log = False
        tables.apply(statement, 0.0, lambda name: name == GROUPS_FILE)
        assert follower.topics.get("Later") is not None
        assert follower.groups.get("later") is None
        assert tables.in_log

    scenario(story)


async def expire(node: Node) -> None:
    """Delete all files of the ledger but the last two, as retention does."""
    store = up(node).store
    assert store.cleaner is not None
    if up(node).role.takes_puts:
        assert await store.queue_ends.append(store.log.files()[-2].start)
    while len(files := store.log.files()) > 2:
        await store.cleaner.before_removal(files[0].end)
        await store.log.remove_oldest()
    await store.cleaner.follow_log()
