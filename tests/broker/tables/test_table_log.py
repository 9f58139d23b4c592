"""Changes of topics, groups and queues that cannot be brought into the log, or not whole, most of them in a DLedger group."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.modes.dledger import DLedgerReplication
from ledgermq.broker.tables import table_log
from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.tables import groups_event
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.client.admin import open_admin
from ledgermq.client.consumer import ConsumeFrom, open_consumer
from ledgermq.client.producer import open_producer
from ledgermq.message.control import Control
from ledgermq.message.json import dumps, loads
from ledgermq.message.message import Message
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RequestRefused
from ledgermq.store.errors import NotWritable, RecordTooLarge
from ledgermq.store.message_store import MessageStore
from ledgermq.testing.history import End
from ledgermq.world.network import Address

from ..desk import open_desk
from ..modes.test_dledger import Group, check_nodes_agree, scenario, take
from ..modes.test_dledger_requests import TOPIC


async def ask(group: Group, node: Node, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
    """Send a request to one node, whatever it is."""
    async with connected(Address(node.machine.host, 10911), network=group.world("10.0.3.2").network) as channel:
        return await channel.call(RemotingCommand(code, ext, body=body), 10.0)


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC, b""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"late"}'),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b""),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"}, b""),
    ],
    ids=["create topic", "create group", "delete topic", "delete group"],
)
def test_a_follower_refuses_changes_that_only_the_log_may_bring(code: RequestCode, ext: dict[str, str], body: bytes) -> None:
    """An administrator with an old route comes to a node that does not lead; nothing is changed there."""

    async def story(group: Group) -> None:
        world = group.world("10.0.3.1")
        async with open_admin(group.namesrv, world=world) as admin, open_producer(group.namesrv, "p", world=world) as producer:
            await admin.create_topic("T", queues=2)
            await admin.create_group("g")
            await group.produce(producer, 10)
            master = await group.master()
            await check_nodes_agree(group)
            follower = next(node for node in group.nodes if node is not master)
            answer = await ask(group, follower, code, ext, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark is not None
            assert "follower" in answer.remark
            assert follower.broker is not None
            assert follower.broker.topics.get("T") is not None
            assert follower.broker.topics.get("Late") is None
            assert follower.broker.groups.get("g") is not None
            await check_nodes_agree(group)

    scenario(story)


def test_a_leader_that_hands_over_does_not_confirm_what_is_not_in_the_log() -> None:
    """The log refuses while leadership is transferred; asked again, it takes the change."""

    async def story(group: Group) -> None:
        master = await group.master()
        assert master.broker is not None
        others = [node for node in group.nodes if node is not master]
        group.fabric.part([master.machine.host], [node.machine.host for node in others])
        assert isinstance(master.broker.replication, DLedgerReplication)
        replica = master.broker.replication.node.replica
        target = next(peer for peer in replica.core.configuration.voters if peer != replica.settings.self_id)
        replica.transfer(target)
        created = await ask(group, master, RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
        grouped = await ask(group, master, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"late"}')
        group.fabric.heal()
        assert (created.code, grouped.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR)

    scenario(story)


def test_what_a_cut_off_leader_has_delivered_is_delivered_again_when_it_leads_again() -> None:
    """Its copies of delayed messages may be truncated, so its positions go back to those that the log has."""

    async def story(group: Group) -> None:
        async with open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer:
            await producer.send(Message("T", b"1", delay_level=1))
            await trio.sleep(0.9)
            old = await group.master()
            assert old.broker is not None
            group.fabric.part([old.machine.host], [node.machine.host for node in group.nodes if node is not old])
            with trio.fail_after(5):
                while not old.broker.delay.offsets()[1]:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.01)
                while old.broker.role.takes_puts:  # noqa: ASYNC110 - virtual time
                    await trio.sleep(0.01)
            await trio.sleep(0.1)
            assert old.broker.delay.offsets()[1] == 0
            group.fabric.heal()

    scenario(story)


def test_tables_are_copied_from_the_leader_only() -> None:
    """A node that has just come back may be asked by others that take it for the leader still; its tables are old."""

    async def story(group: Group) -> None:
        master = await group.master()
        for node in group.nodes:
            for code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET):
                asked_as_leader = await ask(group, node, code, {"ofMaster": "true"})
                assert (asked_as_leader.code == ResponseCode.SUCCESS) is (node is master)
                assert (await ask(group, node, code, {})).code == ResponseCode.SUCCESS

    scenario(story)


def test_a_member_that_was_away_follows_a_reset_at_the_next_leader() -> None:
    """The reset is in the log, so that the member does not continue, and commit, where it was before."""

    async def story(group: Group) -> None:
        async with (
            open_producer(group.namesrv, "p", world=group.world("10.0.3.1")) as producer,
            open_consumer(
                group.namesrv, "g", "T", consume_from=ConsumeFrom.FIRST, ack="explicit", world=group.world("10.0.3.3")
            ) as consumer,
        ):
            await group.produce(producer, 20)
            received = await take(consumer, 20)
            await consumer.commit()
            master = await group.master()
            group.fabric.part(["10.0.3.3"], [node.machine.host for node in group.nodes])
            await trio.sleep(70)  # until the member has given up its connections, over which it would still get the answer
            reset = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
            answer = await ask(group, master, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
            assert answer.code == ResponseCode.SUCCESS
            await master.process.end(End.KILL)
            assert await group.master() is not master
            group.fabric.heal()
            again: list[int] = []
            with trio.fail_after(120):
                while len(again) < 20:
                    async with consumer.take(20, 1.0) as batch:
                        again += [int(message.body) for message in batch]
            assert sorted(again) == sorted(received)

    scenario(story, settings={"useServerSideResetOffset": "true"})


def test_a_change_too_large_for_one_record_is_divided_and_known_to_the_next_leader() -> None:
    """One member locks a thousand queues, and an administrator changes many settings; both exceed an entry of small files."""

    async def story(group: Group) -> None:
        leader = await group.master()
        queues = [{"topic": "BenchmarkTest", "brokerName": "broker-a", "queueId": queue_id} for queue_id in range(1024)]
        locks = dumps({"clientId": "c" * 40, "consumerGroup": "orderly", "mqSet": queues})
        answer = await ask(group, leader, RequestCode.LOCK_BATCH_MQ, {}, locks)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert len(loads(answer.body)["lockOKMQSet"]) == 1024
        names = {f"g{number}" for number in range(200)}
        groups = [{"groupName": name, "attributes": {"why": "x" * 400}} for name in sorted(names)]
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        answer = await ask(group, leader, code, {}, dumps({"groupConfigList": groups}))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await leader.process.end(End.POWER)

        new = await group.master()

        assert new.broker is not None
        assert len(new.broker.locks.rows_of("orderly")) == 1024
        assert names <= new.broker.groups.groups.keys()

    scenario(story)


@pytest.mark.parametrize(("rows_max", "rows_that_fit"), [(2, 2), (1000, 2)])
async def test_a_refusal_in_the_middle_of_a_change_says_how_much_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int, rows_that_fit: int
) -> None:
    """The log takes one of the records and not the next; what it took is known before it is applied."""
    append, configs = MessageStore.append_event, [TopicConfig(f"T{number}", 3, 3) for number in range(5)]

    def append_one(store: MessageStore, control: Control, *, on_full_disk: bool = False) -> int:
        if len(control.content["topics"]) > rows_that_fit:
            raise RecordTooLarge("too large")
        if desk.broker.table_log.topic("T0") is not None:
            raise NotWritable("the disk is full")
        return append(store, control, on_full_disk=on_full_disk)

    async with open_desk(tmp_path) as desk:
        monkeypatch.setattr(table_log, "ROWS_PER_RECORD_MAX", rows_max)
        with monkeypatch.context() as patch:
            patch.setattr(MessageStore, "append_event", append_one)
            with pytest.raises(RequestRefused) as refused:
                desk.broker.table_log.put_topics(*configs)

        known = [desk.broker.table_log.topic(config.topic_name) for config in configs]
        assert refused.value.remark.startswith(f"{known.index(None)} of 5 entries were changed, the others were not: ")
        await desk.settled()
        assert known == [desk.broker.topics.get(config.topic_name) for config in configs]
        assert known[0] == configs[0]
        assert known[-1] is None


def test_an_entry_that_fits_no_record_stops_no_other_change() -> None:
    """It came from files of another version; the leader says so and appends the rest."""

    async def story(group: Group) -> None:
        leader = await group.master()
        assert leader.broker is not None
        large = GroupConfig("large", others={"attributes": {"why": "x" * 70_000}})
        leader.broker.table_log._propose_entries({}, {"large": large, "small": GroupConfig("small")}, groups_event)  # pyright: ignore[reportPrivateUsage]
        answer = await ask(group, leader, RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await leader.process.end(End.POWER)

        new = await group.master()

        assert new.broker is not None
        assert new.broker.topics.get("Late") is not None
        assert new.broker.groups.get("small") is not None
        assert new.broker.groups.get("large") is None

    scenario(story)


def test_a_statement_keeps_what_is_forbidden_to_a_group_without_settings() -> None:
    """What a statement does not name is removed; a group may be there with nothing but topics that it must not read."""

    async def story(group: Group) -> None:
        leader = await group.master()
        assert leader.broker is not None
        tables = leader.broker.table_log
        tables.set_forbidden("barred", "T", forbidden=True)
        await check_nodes_agree(group)
        for node in group.nodes:
            assert node.broker is not None
            node.broker.tables.differ_from_log()  # as after tables were copied
        await tables.state(leader.broker.store.log.max_offset)
        await check_nodes_agree(group)
        for node in group.nodes:
            assert node.broker is not None
            assert node.broker.groups.get("barred") is None
            assert node.broker.groups.is_forbidden("barred", "T"), node.machine.host

    scenario(story)
