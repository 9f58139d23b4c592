"""Every request that changes state, asked of each kind of node of a DLedger group: the leader decides, nobody else does."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio

from harness.simulate.scene import Node
from ledgermq.broker.broker import Broker
from ledgermq.broker.role import Role
from ledgermq.client.admin import open_admin
from ledgermq.client.producer import open_producer
from ledgermq.message.batch import encode_batch
from ledgermq.message.json import dumps, loads
from ledgermq.remoting.channel import connected
from ledgermq.remoting.codes import READ_ONLY, RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.testing.history import End
from ledgermq.world.network import Address

from ...ha.dledger.test_node import hand_over
from .test_dledger import Group, scenario

Request = tuple[dict[str, str], bytes]

SENT = {
    "producerGroup": "p",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "properties": "",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}
BATCH = encode_batch([(0, b"x", b"")])
QUEUES = dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "T", "brokerName": "broker-a", "queueId": 1}]})
TOPIC = {
    "topic": "Late",
    "defaultTopic": "TBW102",
    "readQueueNums": "3",
    "writeQueueNums": "3",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
A_MESSAGE = "the offset of a message"
RIGHTS = dumps({"policies": [{"entries": [{"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}]}]})

PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "8",
    "sysFlag": "5",  # commits, and brings its subscription
    "commitOffset": "2",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "1",
}

DECIDED: dict[RequestCode, Request] = {
    RequestCode.SEND_MESSAGE: (SENT, b"x"),
    RequestCode.SEND_MESSAGE_V2: (dict(zip("abcdefghijkm", SENT.values(), strict=True)), b"x"),
    RequestCode.SEND_BATCH_MESSAGE: (dict(zip("abcdefghijkm", {**SENT, "batch": "true"}.values(), strict=True)), BATCH),
    RequestCode.CONSUMER_SEND_MSG_BACK: ({"group": "g", "offset": A_MESSAGE, "delayLevel": "1", "originTopic": "T"}, b""),
    RequestCode.UPDATE_CONSUMER_OFFSET: ({"consumerGroup": "g", "topic": "T", "queueId": "1", "commitOffset": "1"}, b""),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (TOPIC, b""),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: ({}, dumps({"topicConfigList": [{"topicName": "Later"}]})),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: ({}, b'{"groupName":"late"}'),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: ({}, dumps({"groupConfigList": [{"groupName": "later"}]})),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: ({"group": "g", "topic": "T", "readable": "false"}, b""),
    RequestCode.CLONE_GROUP_OFFSET: ({"srcGroup": "g", "destGroup": "late", "topic": "T"}, b""),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ({"group": "g", "topic": "T", "timestamp": "-1", "isForce": "true"}, b""),
    RequestCode.LOCK_BATCH_MQ: ({}, QUEUES),
    RequestCode.UNLOCK_BATCH_MQ: ({}, QUEUES),
    RequestCode.DELETE_TOPIC_IN_BROKER: ({"topic": "T"}, b""),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: ({"groupName": "g", "cleanOffset": "true"}, b""),
    RequestCode.CLEAN_UNUSED_TOPIC: ({}, b""),
    RequestCode.CHANGE_DLEDGER_GROUP: ({"action": "remove", "peer": "n9"}, b""),
    RequestCode.FENCE_PRODUCER: ({"producer": "p"}, b""),
    RequestCode.AUTH_CREATE_USER: ({"username": "late"}, b'{"password":"x"}'),
    RequestCode.AUTH_UPDATE_USER: ({"username": "alice"}, b'{"password":"x"}'),
    RequestCode.AUTH_CREATE_ACL: ({"subject": "User:alice"}, RIGHTS),
    RequestCode.AUTH_UPDATE_ACL: ({"subject": "User:alice"}, RIGHTS),
    RequestCode.AUTH_DELETE_ACL: ({"subject": "User:alice", "resource": "Topic:T1"}, b""),
    RequestCode.AUTH_DELETE_USER: ({"username": "alice"}, b""),
}
"""What only the leader may decide, with a request that it would carry out."""

OF_THE_NODE = {
    RequestCode.PULL_MESSAGE: "a follower serves reads; the commit in a pull does not count there",
    RequestCode.LITE_PULL_MESSAGE: "as PULL_MESSAGE",
    RequestCode.HEART_BEAT: "who is connected to this node; a follower makes no group of it",
    RequestCode.UNREGISTER_CLIENT: "who is connected to this node",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "a request to a consumer that is connected to this node",
    RequestCode.UPDATE_BROKER_CONFIG: "the settings of this node",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "the files of this node",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "the files of this node",
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: "where this node believes that its master is",
}
"""What concerns one node alone."""

GATHERED = {RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNLOCK_BATCH_MQ}
"""Answered by a leader at once: commits are gathered before they are appended, and giving a lease back may be forgotten."""
IDLE = {RequestCode.CLEAN_UNUSED_TOPIC}
"""Finds nothing to do."""
MAY_BE_REFUSED = {
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResponseCode.CONSUMER_NOT_ONLINE,  # the offsets were reset nevertheless
    RequestCode.CHANGE_DLEDGER_GROUP: ResponseCode.INVALID_PARAMETER,  # there is no such node
}


def tables_of(broker: Broker) -> dict[str, Any]:
    """All that a request may change."""
    return {
        "topics": dict(broker.topics.topics),
        "groups": dict(broker.groups.groups),
        "forbidden": {group: dict(bits) for group, bits in broker.groups.forbidden.items()},
        "offsets": {key: dict(queues) for key, queues in broker.offsets.table.items()},
        "locks": [(group, *row) for group, _ in broker.locks.groups() for row in broker.locks.rows_of(group)],
        "users": dict(broker.tables.access.users),
        "rights": dict(broker.tables.access.acls),
        "fences": list(broker.numbered.table.producers),
        "queues": {key: queue.max_offset for key, queue in broker.store.queues.table.items()},
    }


async def ask(group: Group, node: Node, code: RequestCode, request: Request, seconds: float = 20.0) -> RemotingCommand:
    """Send a request to one node, whatever it is."""
    ext = {name: a_message_of(node) if value == A_MESSAGE else value for name, value in request[0].items()}
    async with connected(Address(node.machine.host, 10911), network=group.world("10.0.3.2").network) as channel:
        return await channel.call(RemotingCommand(code, ext, body=request[1]), seconds)


def a_message_of(node: Node) -> str:
    """The physical offset of a message that a node has."""
    assert node.broker is not None
    store = node.broker.store
    return str(next(unit[0] for queue_id in store.queue_ids("T") for unit in store.units("T", queue_id, 0, 1)))


async def prepare(group: Group) -> Node:
    """Make the topic, the group and messages that the requests are about; returns the leader."""
    world = group.world("10.0.3.1")
    async with open_admin(group.namesrv, world=world) as admin, open_producer(group.namesrv, "p", world=world) as producer:
        await admin.create_topic("T", queues=2)
        await admin.create_group("g")
        await group.produce(producer, 6)
    leader = await group.master()
    answer = await ask(group, leader, RequestCode.UPDATE_CONSUMER_OFFSET, DECIDED[RequestCode.UPDATE_CONSUMER_OFFSET])
    assert answer.code == ResponseCode.SUCCESS
    answer = await ask(group, leader, RequestCode.AUTH_CREATE_USER, ({"username": "alice"}, b'{"password":"hush"}'))
    assert answer.code == ResponseCode.SUCCESS
    answer = await ask(group, leader, RequestCode.AUTH_CREATE_ACL, ({"subject": "User:alice"}, RIGHTS.replace(b":T", b":T1")))
    assert answer.code == ResponseCode.SUCCESS
    await trio.sleep(1)
    return leader


def test_every_request_that_changes_state_is_judged() -> None:
    """A new one must be put into one of the tables above."""

    async def story(group: Group) -> None:
        master = await group.master()
        assert master.broker is not None
        changing = {code for code in master.broker.dispatcher.codes if code not in READ_ONLY}
        assert changing == DECIDED.keys() | OF_THE_NODE.keys()
        assert not DECIDED.keys() & OF_THE_NODE.keys()

    scenario(story)


@pytest.mark.parametrize("in_log", [True, False])
def test_a_follower_decides_nothing_and_says_who_does(in_log: bool) -> None:
    """Nor does one whose tables its log does not contain yet, for instance after a power cut."""

    async def story(group: Group) -> None:
        leader = await prepare(group)
        follower = next(node for node in group.nodes if node is not leader)
        assert follower.broker is not None
        follower.broker.tables.in_log = in_log
        before = tables_of(follower.broker)
        for code, request in DECIDED.items():
            answer = await ask(group, follower, code, request)
            assert answer.code != ResponseCode.SUCCESS, code
            names = ("n0", "n1", "n2") if code is RequestCode.CHANGE_DLEDGER_GROUP else (f"{leader.machine.host}:10911",)
            assert answer.remark is not None
            assert any(name in answer.remark for name in names), (code, answer.remark)
            assert tables_of(follower.broker) == before, code

    scenario(story)


def test_a_follower_keeps_nothing_of_what_concerns_itself_alone() -> None:
    """A consumer that reads from it is served; the group and the offsets stay as the leader has them."""

    async def story(group: Group) -> None:
        leader = await prepare(group)
        follower = next(node for node in group.nodes if node is not leader)
        assert follower.broker is not None
        before = tables_of(follower.broker)
        heartbeat = {
            "clientID": "c",
            "consumerDataSet": [
                {"groupName": "new", "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}]},
            ],
        }
        answer = await ask(group, follower, RequestCode.HEART_BEAT, ({}, dumps(heartbeat)))
        assert answer.code == ResponseCode.SUCCESS
        answer = await ask(group, follower, RequestCode.PULL_MESSAGE, ({**PULL, "consumerGroup": "new"}, b""))
        assert answer.code == ResponseCode.SUCCESS
        assert tables_of(follower.broker) == before

    scenario(story)


def test_a_commit_in_a_pull_at_a_node_that_was_not_elected_after_all_undoes_no_reset() -> None:
    """The node was read-only, because it was becoming master. When it leads later, the group is where the log says."""

    async def story(group: Group) -> None:
        leader = await prepare(group)
        follower = next(node for node in group.nodes if node is not leader)
        assert leader.broker is not None
        assert follower.broker is not None
        role = follower.broker.role
        follows = role.state
        role.state = attrs.evolve(follows, role=Role.READ_ONLY)
        answer = await ask(group, follower, RequestCode.PULL_MESSAGE, ({**PULL, "queueId": "1", "commitOffset": "2"}, b""))
        assert answer.code == ResponseCode.SUCCESS
        role.state = follows

        back = {"consumerGroup": "g", "topic": "T", "queueId": "1", "commitOffset": "0"}
        answer = await ask(group, leader, RequestCode.UPDATE_CONSUMER_OFFSET, (back, b""))
        assert answer.code == ResponseCode.SUCCESS
        await trio.sleep(1)
        await hand_over(group, leader.broker, follower)
        await trio.sleep(1)

        assert follower.broker.offsets.query("g", "T", 1) == 0

    scenario(story)


@pytest.mark.parametrize("code", [code for code in DECIDED if code not in GATHERED | IDLE], ids=lambda code: code.name)
def test_a_leader_that_was_cut_off_confirms_nothing(code: RequestCode) -> None:
    """It may not know yet that it is deposed; what nobody else has is not answered as done."""

    async def story(group: Group) -> None:
        leader = await prepare(group)
        others = [node.machine.host for node in group.nodes if node is not leader]
        group.fabric.part([leader.machine.host], others)
        answer = await ask(group, leader, code, DECIDED[code])
        assert answer.code not in (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE), answer.remark
        group.fabric.heal()

    scenario(story)


@pytest.mark.parametrize("code", [RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP])
def test_a_deletion_that_only_a_deposed_leader_has_takes_no_commits_from_it(code: RequestCode) -> None:
    """Its event is truncated; when the node leads again, the group continues where it was."""

    async def story(group: Group) -> None:
        leader = await prepare(group)
        assert leader.broker is not None
        before = tables_of(leader.broker)
        assert before["offsets"] == {("T", "g"): {1: 1}}
        group.fabric.part([leader.machine.host], [node.machine.host for node in group.nodes if node is not leader])
        answer = await ask(group, leader, code, DECIDED[code])
        assert answer.code == ResponseCode.SYSTEM_ERROR
        group.fabric.heal()
        await trio.sleep(3)
        assert await group.master() is not leader
        assert tables_of(leader.broker) == before

    scenario(story)


def test_a_lock_that_waits_for_the_majority_is_not_confirmed_as_a_renewal() -> None:
    """A member asks twice in a row, and its leader has just been cut off from the others."""

    async def story(group: Group) -> None:
        leader = await prepare(group)
        group.fabric.part([leader.machine.host], [node.machine.host for node in group.nodes if node is not leader])
        codes: list[int] = []

        async def lock() -> None:
            codes.append((await ask(group, leader, RequestCode.LOCK_BATCH_MQ, DECIDED[RequestCode.LOCK_BATCH_MQ])).code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lock)
            await trio.sleep(0.05)
            nursery.start_soon(lock)
        assert codes == [ResponseCode.SYSTEM_ERROR] * 2
        group.fabric.heal()

    scenario(story)


def test_a_lock_that_only_a_deposed_leader_has_given_is_in_the_log_before_it_confirms_it() -> None:
    """It leads again, the member renews the lease, and the machine ends: the next leader must not give it to another member."""

    async def story(group: Group) -> None:
        leader = await prepare(group)
        assert leader.broker is not None
        group.fabric.part([leader.machine.host], [node.machine.host for node in group.nodes if node is not leader])
        assert (await ask(group, leader, RequestCode.LOCK_BATCH_MQ, ({}, QUEUES))).code == ResponseCode.SYSTEM_ERROR
        group.fabric.heal()
        await trio.sleep(2)
        master = await group.master()
        assert master.broker is not None
        await hand_over(group, master.broker, leader)
        answer = await ask(group, leader, RequestCode.LOCK_BATCH_MQ, ({}, QUEUES))
        assert answer.code == ResponseCode.SUCCESS
        await leader.process.end(End.POWER)
        new = await group.master()
        answer = await ask(group, new, RequestCode.LOCK_BATCH_MQ, ({}, QUEUES.replace(b'"c"', b'"another"')))
        assert loads(answer.body) == {"lockOKMQSet": []}

    scenario(story)


def test_what_the_leader_has_answered_is_known_to_the_next_one() -> None:
    """Each request is carried out, and right after the answer the leader's machine loses power."""

    async def story(group: Group) -> None:
        for code, request in DECIDED.items():
            if code in (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.DELETE_SUBSCRIPTIONGROUP):
                continue  # they would take away what the others are about, and have tests of their own
            leader = await prepare(group) if not group.sent else await group.master()
            assert leader.broker is not None
            answer = await ask(group, leader, code, request)
            assert answer.code in (ResponseCode.SUCCESS, MAY_BE_REFUSED.get(code)), (code, answer.remark)
            if code in GATHERED:
                await trio.sleep(0.3)
            known = tables_of(leader.broker)
            await leader.process.end(End.POWER)
            new = await group.master()
            assert new.broker is not None
            for name in ("topics", "groups", "forbidden", "offsets", "locks", "users", "rights"):
                assert tables_of(new.broker)[name] == known[name], (code, name)
            await group.nursery.start(leader.process.run)
            await trio.sleep(1)

    scenario(story)


@pytest.mark.parametrize("cut_off", [True, False], ids=["cut off", "in its group"])
def test_only_a_leader_whom_the_group_confirms_sends_a_client_back_to_its_end(*, cut_off: bool) -> None:
    """One that was deposed while it hung has an older end, from which the client would read everything again."""

    async def story(group: Group) -> None:
        leader = await prepare(group)
        if cut_off:
            group.fabric.part([leader.machine.host], [node.machine.host for node in group.nodes if node is not leader])
        pull = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "99", "maxMsgNums": "8", "commitOffset": "0"}
        pull |= {"sysFlag": "4", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
        answer = await ask(group, leader, RequestCode.PULL_MESSAGE, (pull, b""))

        if cut_off:
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "99")
        else:
            assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, answer.ext["maxOffset"])

    scenario(story)
