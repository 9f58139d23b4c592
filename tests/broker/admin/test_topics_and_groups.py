"""Topics, groups and files as administrators change them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ledgermq.broker.admin.topics_and_groups import altered_attributes, parse_attributes
from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand
from ledgermq.remoting.errors import RequestRefused
from ledgermq.store.keeping.cleaning import Cleaner
from ledgermq.testing.logs import capture_logs

from ...turns import counted
from .desk import Desk, next_sent, open_desk

TOPIC = {"topic": "T2", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 4, "perm": 6, "order": "true"}


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(str(tmp_path)) as desk:
        yield desk


async def test_topic_is_created_and_shown(desk: Desk) -> None:
    """What UPDATE_AND_CREATE_TOPIC asks for is what GET_TOPIC_CONFIG shows."""
    answer = desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"attributes": "+message.type=FIFO"})

    assert answer.code == ResponseCode.SUCCESS
    assert desk.read(RequestCode.GET_TOPIC_CONFIG, {"topic": "T2", "lo": "true"}) == {
        "attributes": {"message.type": "FIFO"},
        "order": True,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T2",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }


async def test_topic_keeps_attributes_that_a_change_leaves_alone(desk: Desk) -> None:
    """A change without attributes does not drop them; `-key` does."""
    desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"attributes": "+message.type=FIFO,+reserve.time=5"})

    desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"attributes": "-message.type"})

    assert desk.read(RequestCode.GET_TOPIC_CONFIG, {"topic": "T2"})["attributes"] == {"reserve.time": "5"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": "bad@name"}, "consists of"),
        ({"topic": ""}, "has a name"),
        ({"topic": "x" * 128}, "at most 127"),
        ({"topic": "TBW102"}, "topic of the system"),
        ({"topic": "b1"}, "topic of the system"),
        ({"topic": "rmq_sys_x"}, "topic of the system"),
        ({"readQueueNums": -1}, "0 to 16384 queues"),
        ({"perm": 66}, "perm is made of"),
        ({"topicFilterType": "OTHER"}, "topicFilterType is one of"),
        ({"attributes": "+no.such=1"}, "topics have the attributes"),
        ({"attributes": "+message.type=OTHER"}, "message.type is one of"),
        ({"attributes": "+cleanup.policy=COMPACTION"}, "cleanup.policy is one of"),
        ({"attributes": "+reserve.time=long"}, "reserve.time is a number"),
        ({"attributes": "message.type=FIFO"}, "changed by"),
        ({"attributes": "-message.type"}, "no attribute"),
    ],
)
async def test_illegal_topic_is_refused(desk: Desk, change: dict[str, str | int], reason: str) -> None:
    """A topic that breaks a rule is answered INVALID_PARAMETER with the rule, and nothing appears."""
    before = dict(desk.broker.topics.topics)

    answer = desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | change)

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert reason in (answer.remark or "")
    assert desk.broker.topics.topics == before


async def test_list_of_topics_is_taken_whole_or_not_at_all(desk: Desk) -> None:
    """One bad topic in a list keeps the good ones out as well."""
    good, bad = TopicConfig("T5").to_json(), TopicConfig("T@6").to_json()

    refused = desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body={"topicConfigList": [good, bad]})
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.topics.get("T5") is None

    taken = desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body={"topicConfigList": [good]})
    assert taken.code == ResponseCode.SUCCESS
    assert desk.broker.topics.get("T5") == TopicConfig("T5")


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"topicConfigList":{}}', b'{"topicConfigList":[1]}', b"{"])
async def test_body_that_is_no_list_of_topics_is_refused(desk: Desk, body: bytes) -> None:
    """A body of another shape is the peer's mistake, and the answer says so."""
    answer = desk.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)

    assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    assert answer.remark


async def test_deleted_topic_is_gone_everywhere(desk: Desk) -> None:
    """Deleting a topic drops its settings, its queues, its offsets and its statistics."""
    broker = desk.broker
    desk.put("T1")
    await desk.settled()
    broker.offsets.commit("g1", "T1", 0, 1)
    broker.stats.topic_put("T1", 1, 5)

    answer = await desk.ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T1"})

    assert answer.code == ResponseCode.SUCCESS
    assert broker.topics.get("T1") is None
    assert broker.store.topics() == set()
    assert broker.offsets.query("g1", "T1", 0) is None
    assert broker.stats.view("TOPIC_PUT_NUMS", "T1") is None
    assert desk.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T1"}).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("topic", ["TBW102", "c1", "", "../config"])
async def test_topic_that_must_stay_is_not_deleted(desk: Desk, topic: str) -> None:
    """Topics of the system, and names that are no topics, are refused."""
    answer = await desk.ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})

    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_deleting_an_unknown_topic_succeeds(desk: Desk) -> None:
    """As in RocketMQ: what should be gone is gone."""
    assert (await desk.ask_waiting(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "nosuch"})).code == ResponseCode.SUCCESS


async def test_group_is_created_and_shown_with_settings_of_later_versions(desk: Desk) -> None:
    """Settings that only later versions know are kept and shown."""
    given = GroupConfig("g2", consume_enable=False).to_json() | {"consumeTimeoutMinute": 30, "attributes": {"+priority": "1"}}

    answer = desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=given)

    assert answer.code == ResponseCode.SUCCESS
    shown = desk.read(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g2"})
    assert shown == given | {"attributes": {"priority": "1"}}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"groupName": "g@"},
        {"groupName": "g2", "retryQueueNums": -1},
        {"groupName": "g2", "retryMaxTimes": "x"},
        {"groupName": "g2", "retryMaxTimes": 1 << 31},
        {"groupName": "g2", "attributes": {"+$ref": "x"}},
        {"groupName": "g2", "groupRetryPolicy": {"$ref": "x", "type": 1}},
    ],
)
async def test_illegal_group_is_refused(desk: Desk, body: dict[str, Any]) -> None:
    """A group that breaks a rule is refused, alone and in a list; no node could read the event with a key `$ref`."""
    single = desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    listed = desk.ask(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body={"groupConfigList": [{"groupName": "g3"}, body]}
    )

    assert single.code == listed.code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.groups.get("g2") is None
    assert desk.broker.groups.get("g3") is None


async def test_list_of_groups_is_taken(desk: Desk) -> None:
    """Every group of a list appears."""
    desk.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body={"groupConfigList": [{"groupName": "g3"}]})

    assert desk.broker.groups.get("g3") == GroupConfig("g3")


@pytest.mark.parametrize("spelling", ["cleanOffset", "removeOffset"])
async def test_deleted_group_loses_its_offsets_only_if_asked(desk: Desk, spelling: str) -> None:
    """Both spellings of the wish to drop offsets are understood."""
    offsets = desk.broker.offsets
    offsets.commit("g1", "T1", 0, 5)

    await desk.ask_waiting(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g1"})
    assert desk.broker.groups.get("g1") is None
    assert offsets.query("g1", "T1", 0) == 5

    await desk.ask_waiting(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g1", spelling: "true"})
    assert offsets.query("g1", "T1", 0) is None


async def test_unknown_group_is_shown_as_it_would_appear(desk: Desk) -> None:
    """Looking at a group does not create it; without automatic creation it does not exist."""
    shown = desk.read(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g9"})
    assert shown == GroupConfig("g9").to_json()
    assert desk.broker.groups.get("g9") is None

    desk.broker.groups.auto_create = False
    refused = desk.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g9"})
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_group_is_forbidden_to_read_a_topic_and_allowed_again(desk: Desk) -> None:
    """UPDATE_AND_GET_GROUP_FORBIDDEN without `readable` only asks."""
    names = {"group": "g1", "topic": "T1"}

    states = [
        desk.read(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, names | change)["readable"]
        for change in ({}, {"readable": "false"}, {}, {"readable": "true"}, {})
    ]

    assert states == [True, False, False, True, True]


async def test_offsets_are_cloned_to_another_group(desk: Desk) -> None:
    """CLONE_GROUP_OFFSET copies one topic's offsets, or those of every topic that still exists."""
    offsets = desk.broker.offsets
    offsets.commit("g1", "T1", 1, 7)
    offsets.commit("g1", "gone", 0, 3)

    await desk.ask_waiting(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g1", "destGroup": "g2", "topic": "T1"})
    await desk.ask_waiting(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g1", "destGroup": "g3"})

    assert offsets.of("g2", "T1") == offsets.of("g3", "T1") == {1: 7}
    assert offsets.of("g3", "gone") == {}


async def test_offsets_of_a_topic_no_longer_consumed_are_cloned_only_offline(desk: Desk) -> None:
    """While the group is online, topics that it has left are passed over, unless the request says offline."""
    desk.broker.offsets.commit("g1", "T1", 0, 7)
    desk.consumer("g1", "T2")

    await desk.ask_waiting(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g1", "destGroup": "g2", "topic": "T1"})
    assert desk.broker.offsets.of("g2", "T1") == {}

    await desk.ask_waiting(
        RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g1", "destGroup": "g2", "topic": "T1", "offline": "true"}
    )
    assert desk.broker.offsets.of("g2", "T1") == {0: 7}


async def test_the_offsets_of_a_group_on_many_topics_are_cloned_in_several_turns(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the group commits meanwhile is cloned or not, topic by topic; topics that are deleted meanwhile are left out."""
    monkeypatch.setattr("ledgermq.broker.admin.topics_and_groups.ROWS_PER_SLICE", 30)
    offsets, topics = desk.broker.offsets, desk.broker.topics
    topics.put(*(TopicConfig(f"C{n:03d}", 2, 2) for n in range(100)))
    for n in range(100):
        for queue_id in range(2):
            offsets.commit("g1", f"C{n:03d}", queue_id, 5)

    with counted(lambda: len(offsets.topics_of("g2"))) as turns:
        request = RemotingCommand(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g1", "destGroup": "g2"}, opaque=7)
        desk.broker.dispatcher.handle(desk.connection, [request])
        while len(offsets.topics_of("g2")) < 10:
            await trio.lowlevel.checkpoint()
        topics.delete("C099")
        offsets.forget_topic("C099")
        offsets.commit("g1", "C050", 1, 6)
        answer = await next_sent(desk.connection)

    assert answer.code == ResponseCode.SUCCESS
    assert turns.most == 10
    assert offsets.topics_of("g2") == {f"C{n:03d}" for n in range(99)}
    assert offsets.of("g2", "C050") == {0: 5, 1: 6}


async def test_unused_topics_lose_their_queues(desk: Desk) -> None:
    """CLEAN_UNUSED_TOPIC deletes queues of topics without settings and keeps the others."""
    desk.put("T1")
    desk.put("orphan")
    await desk.settled()

    answer = await desk.ask_waiting(RequestCode.CLEAN_UNUSED_TOPIC)

    assert answer.code == ResponseCode.SUCCESS
    assert desk.broker.store.topics() == {"T1"}


async def test_many_who_have_queues_cleaned_are_served_one_after_the_other(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds a list of all queues meanwhile, 5 MB of 80,000: a thousand at once would fill the memory."""
    running, most, done = 0, 0, 0

    async def clean(_cleaner: Cleaner) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await trio.lowlevel.checkpoint()
        running, done = running - 1, done + 1

    monkeypatch.setattr(Cleaner, "follow_log", clean)
    asked = [RemotingCommand(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, opaque=opaque) for opaque in range(50)]

    with trio.fail_after(60):
        handled = 0
        while done < len(asked):
            if handled < len(asked):  # a turn ends early on a busy machine
                handled += desk.broker.dispatcher.handle(desk.connection, asked[handled:])
            await trio.lowlevel.checkpoint()

    assert most == 1


@pytest.mark.parametrize("code", [RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG])
async def test_cleaning_leaves_what_has_not_expired(desk: Desk, code: RequestCode) -> None:
    """Cleaning by hand keeps messages that are still inside `fileReservedTime`."""
    offset = desk.put("T1")
    await desk.settled()

    answer = await desk.ask_waiting(code)

    assert answer.code == ResponseCode.SUCCESS
    assert desk.broker.store.message_at(offset) is not None
    assert desk.broker.store.max_offset("T1", 0) == 1


def test_attribute_text_is_read_with_signs() -> None:
    """`+key=value,-key` becomes signed keys; spaces and empty items do not matter."""
    assert parse_attributes("+a=1, -b,,+c=") == {"+a": "1", "-b": "", "+c": ""}


@pytest.mark.parametrize("text", ["a=1", "+a", "+", "-", "+=1"])
def test_attribute_text_without_sign_or_value_is_refused(text: str) -> None:
    """What neither sets nor deletes anything is an error, not ignored."""
    with pytest.raises(RequestRefused, match="attributes are changed by"):
        parse_attributes(text)


def test_attributes_are_set_and_deleted() -> None:
    """Signed and bare keys set, `-` deletes; what they started from stays as it was."""
    before = {"a": "1", "b": "2"}

    assert altered_attributes(before, {"+a": "3", "-b": "", "c": "4"}) == {"a": "3", "c": "4"}
    assert before == {"a": "1", "b": "2"}


@pytest.mark.parametrize("attributes", [[], 5, "x", True])
async def test_attributes_of_another_type_are_refused(desk: Desk, attributes: object) -> None:
    """As any other mistake of the sender; nothing is created."""
    bodies = {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "T9", "attributes": attributes}]},
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "g9", "attributes": attributes},
    }
    with capture_logs() as logs:
        answers = [desk.ask(code, None, body) for code, body in bodies.items()]

    assert [answer.code for answer in answers] == [ResponseCode.INVALID_PARAMETER] * 2
    assert logs == []
    assert desk.broker.topics.get("T9") is None
    assert desk.broker.groups.get("g9") is None


async def test_a_group_that_no_group_can_be_called_is_not_deleted(desk: Desk) -> None:
    """Each deletion is an event in the log: strangers must not fill it with names."""
    before = desk.broker.store.log.max_offset

    answer = await desk.ask_waiting(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g" * 100_000})

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert desk.broker.store.log.max_offset == before
