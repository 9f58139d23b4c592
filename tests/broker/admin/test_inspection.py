"""What administrators see of topics, groups and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from ledgermq.broker.admin import inspection
from ledgermq.broker.tables.clients import Member
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.json import loads
from ledgermq.message.layout import decode_record
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.world.slices import SLICE_ITEMS

from ...turns import counted
from .desk import Desk, connection_from, open_desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_desk(str(tmp_path)) as desk:
        yield desk


def queue(queue_id: int, topic: str = "T1") -> str:
    """A queue as a key of a table."""
    return f'{{"brokerName":"b1","queueId":{queue_id},"topic":"{topic}"}}'


def stored_ms(desk: Desk, physical_offset: int) -> int:
    record = desk.broker.store.message_at(physical_offset)
    assert record is not None
    return decode_record(record).store_timestamp


async def test_topic_stats_tell_first_and_next_offset_of_each_queue(desk: Desk) -> None:
    """Queues of a topic are listed with their bounds and the time of their newest message, empty ones too."""
    desk.put("T1")
    newest = desk.put("T1")
    await desk.settled()

    answer = await desk.ask_waiting(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T1"})

    assert loads(answer.body)["offsetTable"] == {
        queue(0): {"lastUpdateTimestamp": stored_ms(desk, newest), "maxOffset": 2, "minOffset": 0},
        queue(1): {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
    }
    assert b'{{"brokerName":"b1","queueId":0,"topic":"T1"}:' in answer.body  # keys are bare, as tools of old versions need


async def test_unknown_topic_has_no_stats(desk: Desk) -> None:
    """Requests about a topic that is not here are answered TOPIC_NOT_EXIST."""
    for code in (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.QUERY_CONSUME_TIME_SPAN):
        answer = await desk.ask_waiting(code, {"topic": "nosuch", "group": "g1"})

        assert answer.code == ResponseCode.TOPIC_NOT_EXIST


async def test_consume_stats_tell_where_a_group_stands(desk: Desk) -> None:
    """Without a topic: all that the group has offsets on. A queue without an offset counts as 0."""
    first = desk.put("T1")
    desk.put("T1")
    await desk.settled()
    desk.broker.offsets.commit("g1", "T1", 0, 1)

    stats = await desk.read_waiting(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g1"})
    table = stats["offsetTable"]

    assert table == {
        queue(0): {"brokerOffset": 2, "consumerOffset": 1, "lastTimestamp": stored_ms(desk, first), "pullOffset": 1},
        queue(1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
    }


async def test_what_is_pulled_but_not_committed_is_in_flight(desk: Desk) -> None:
    """The pull offset runs ahead of the committed one, and is never behind it."""
    for _ in range(3):
        desk.put("T1")
    await desk.settled()
    desk.broker.offsets.commit("g1", "T1", 0, 1)

    desk.broker.stats.group_get("g1", "T1", 0, 2, 200, 3)
    ahead = (await desk.read_waiting(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g1"}))["offsetTable"][queue(0)]
    total = await desk.read_waiting(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    desk.broker.offsets.commit("g1", "T1", 0, 3)
    desk.broker.stats.group_get("g1", "T1", 0, 1, 100, 1)
    done = (await desk.read_waiting(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g1"}))["offsetTable"][queue(0)]

    assert (ahead["consumerOffset"], ahead["pullOffset"]) == (1, 3)
    assert total["totalInflightDiff"] == 2
    assert (done["consumerOffset"], done["pullOffset"]) == (3, 3)


async def test_consume_stats_leave_out_topics_that_are_no_longer_subscribed(desk: Desk) -> None:
    """While the group is online only what it subscribes to counts."""
    desk.broker.topics.put(TopicConfig("T2", 1, 1))
    for topic in ("T1", "T2"):
        desk.broker.offsets.commit("g1", topic, 0, 0)
    desk.consumer("g1", "T2")

    stats = await desk.read_waiting(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g1"})
    table = stats["offsetTable"]

    assert list(table) == [queue(0, "T2")]


async def test_consume_stats_take_a_list_of_topics(desk: Desk) -> None:
    """`topicList` names topics with `;` between them; unknown ones are left out."""
    desk.broker.topics.put(TopicConfig("T2", 1, 1))

    table = (await desk.read_waiting(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g1", "topicList": "T1;T2;nosuch"}))[
        "offsetTable"
    ]

    assert set(table) == {queue(0), queue(1), queue(0, "T2")}


async def test_consume_stats_of_an_unknown_group_are_empty(desk: Desk) -> None:
    """As in RocketMQ, that is a success."""
    assert (await desk.read_waiting(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "nosuch"})) == {
        "consumeTps": 0.0,
        "offsetTable": {},
    }


async def test_broker_consume_stats_add_up_what_is_behind(desk: Desk) -> None:
    """Groups are listed with their topics, ordered or not as asked, and the sum of what they have not consumed."""
    for _ in range(3):
        desk.put("T1")
    await desk.settled()
    desk.broker.offsets.commit("g1", "T1", 0, 1)

    stats = await desk.read_waiting(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    ordered = await desk.read_waiting(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})

    assert stats["totalDiff"] == 2
    assert stats["brokerAddr"] == desk.broker.address
    (of_group,) = (entry["g1"] for entry in stats["consumeStatsList"] if "g1" in entry)
    assert [list(topic["offsetTable"]) for topic in of_group] == [[queue(0), queue(1)]]
    assert ordered["totalDiff"] == 0
    assert {"g1": []} in ordered["consumeStatsList"]


async def test_totals_of_a_broker_stay_within_64_bits(desk: Desk) -> None:
    """Anybody may commit any offset to a slave, and a larger number would leave the request without an answer."""
    for queue_id in (0, 1):
        desk.broker.offsets.commit("g1", "T1", queue_id, (1 << 63) - 1)

    stats = await desk.read_waiting(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})

    assert stats["totalDiff"] == 1 - (1 << 63)


async def test_time_spans_show_oldest_consumed_and_newest(desk: Desk) -> None:
    """A group that has consumed all lags by nothing; a queue without messages has no times."""
    desk.put("T1")
    newest = desk.put("T1")
    await desk.settled()
    desk.broker.offsets.commit("g1", "T1", 0, 2)

    stats = await desk.read_waiting(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T1", "group": "g1"})
    spans = stats["consumeTimeSpanSet"]

    full, empty = spans
    assert full["maxTimeStamp"] == full["consumeTimeStamp"] == stored_ms(desk, newest)
    assert full["delayTime"] == 0
    assert full["messageQueue"] == {"brokerName": "b1", "queueId": 0, "topic": "T1"}
    assert (empty["minTimeStamp"], empty["minTimeStampStr"]) == (-1, "1969-12-31#23:59:59:999")


async def test_time_span_of_a_group_that_is_behind_shows_a_lag(desk: Desk) -> None:
    """The lag is the age of the next message."""
    first = desk.put("T1")
    await desk.settled()
    now_ms = desk.broker.world.clock.wall_ms()

    (span, _) = (await desk.read_waiting(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T1", "group": "g1"}))[
        "consumeTimeSpanSet"
    ]

    assert span["delayTime"] >= now_ms - stored_ms(desk, first)


async def test_correction_offsets_are_the_lowest_of_the_other_groups(desk: Desk) -> None:
    """Filtered groups do not count; where the compared group is lower still, nothing is to be corrected."""
    offsets = desk.broker.offsets
    for group, offset in (("g1", 5), ("g2", 3), ("g3", 1)):
        offsets.commit(group, "T1", 0, offset)

    asked = {"topic": "T1", "compareGroup": "g1"}
    everyone = await desk.read_waiting(RequestCode.QUERY_CORRECTION_OFFSET, asked)
    without = await desk.read_waiting(RequestCode.QUERY_CORRECTION_OFFSET, asked | {"filterGroups": "g3"})
    lower = await desk.read_waiting(RequestCode.QUERY_CORRECTION_OFFSET, asked | {"compareGroup": "g3", "filterGroups": "g3"})

    assert everyone == {"correctionOffsets": {"0": 1}}
    assert without == {"correctionOffsets": {"0": 3}}
    assert lower == {"correctionOffsets": {"0": 2**63 - 1}}


async def test_correction_offsets_of_many_groups_and_queues_take_several_turns(desk: Desk) -> None:
    """The offsets of forty groups on a wide topic are not all compared in one turn of the event loop."""
    store, looked_up = desk.broker.store, 0

    def min_offset(_self: object, _topic: str, _queue_id: int) -> int:
        nonlocal looked_up
        looked_up += 1
        return 0

    for group in range(40):
        for queue_id in range(200):
            desk.broker.offsets.commit(f"g{group}", "T1", queue_id, 100 + group)

    with pytest.MonkeyPatch.context() as patch, counted(lambda: looked_up) as turns:
        patch.setattr(type(store), "min_offset", min_offset)
        found = await desk.read_waiting(RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T1", "compareGroup": "none"})

    assert found == {"correctionOffsets": {str(queue_id): 100 for queue_id in range(200)}}
    assert (looked_up, turns.most) == (8000, SLICE_ITEMS)


async def test_living_consumers_are_listed(desk: Desk) -> None:
    """Connection list: who, from where, and what the group subscribes to."""
    desk.consumer("g1", "T1", client_id="c-1", port=50001)

    shown = desk.read(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g1"})

    assert shown["connectionSet"] == [{"clientAddr": "127.0.0.1:50001", "clientId": "c-1", "language": "JAVA", "version": 409}]
    assert shown["consumeType"] == "CONSUME_PASSIVELY"
    assert shown["messageModel"] == "CLUSTERING"
    assert shown["subscriptionTable"]["T1"]["tagsSet"] == ["TagA"]


async def test_offline_group_is_answered_as_not_online(desk: Desk) -> None:
    """A group without a living member is answered CONSUMER_NOT_ONLINE."""
    answer = desk.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g1"})

    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_producers_are_listed_by_group_and_together(desk: Desk) -> None:
    """One group's connections, and all groups with the time of the last heartbeat."""
    member = Member(connection_from(50002), "p-1", "GO", 317, 0.0, 1_700_000_000_000)
    desk.broker.producers.register("pg", member)

    of_group = desk.read(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"})
    everyone = desk.read(RequestCode.GET_ALL_PRODUCER_INFO)
    nobody = desk.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nosuch"})

    shown = {"clientId": "p-1", "language": "GO", "version": 317}
    assert of_group == {"connectionSet": [shown | {"clientAddr": "127.0.0.1:50002"}]}
    assert everyone == {"data": {"pg": [shown | {"lastUpdateTimestamp": 1_700_000_000_000, "remoteIP": "127.0.0.1:50002"}]}}
    assert nobody.code == ResponseCode.SYSTEM_ERROR


async def test_topic_knows_its_groups_and_group_its_topics(desk: Desk) -> None:
    """Living subscribers and groups with offsets both consume a topic."""
    desk.consumer("g1", "T1")
    desk.broker.offsets.commit("g2", "T1", 0, 0)

    groups = desk.read(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T1"})
    topics = desk.read(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g2"})

    assert groups == {"groupList": ["g1", "g2"]}
    assert topics == {"brokerAddr": desk.broker.address, "topicList": ["T1"]}


async def test_subscription_of_a_living_group_is_shown(desk: Desk) -> None:
    """Of a group that is offline, or that does not want the topic, the subscription is left out, never null."""
    desk.consumer("g1", "T1")

    wanted = desk.read(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g1", "topic": "T1"})
    unwanted = desk.read(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g1", "topic": "T2"})

    assert wanted["subscriptionData"]["subString"] == "TagA"
    assert unwanted == {"group": "g1", "topic": "T2"}


async def test_system_topics_are_listed(desk: Desk) -> None:
    """Tools leave these out: the fixed names, the broker's and the cluster's, and no topic of a user."""
    names = set(desk.read(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["topicList"])

    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "b1", "c1", "c1_REPLY_TOPIC"} <= names
    assert "T1" not in names


async def test_statistics_are_shown_by_set_and_key(desk: Desk) -> None:
    """A set and key that counted something has three windows; others are an error."""
    desk.broker.stats.topic_put("T1", 4, 400)

    shown = desk.read(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_SIZE", "statsKey": "T1"})
    unknown = desk.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_SIZE", "statsKey": "T2"})

    assert {window: rate["sum"] for window, rate in shown.items()} == {"statsDay": 400, "statsHour": 400, "statsMinute": 400}
    assert shown["statsMinute"]["avgpt"] == 400.0
    assert unknown.code == ResponseCode.SYSTEM_ERROR


async def test_no_group_pops(desk: Desk) -> None:
    """The request modes are an empty table, which reads as pulling."""
    assert desk.read(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE) == {"messageRequestModeMap": {}}


async def test_missing_field_is_named(desk: Desk) -> None:
    """A request without a required field is answered with the field's name; the connection lives on."""
    answer = await desk.ask_waiting(RequestCode.GET_CONSUME_STATS)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "consumerGroup" in (answer.remark or "")


async def test_positions_of_many_queues_come_in_slices(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may have tens of thousands: others get their turns meanwhile, and what no frame can hold is refused."""
    desk.broker.topics.put(TopicConfig("Wide", 5000, 5000))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    codes = (
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
    )
    asked = {"topic": "Wide", "group": "g1", "consumerGroup": "g1"}
    desk.broker.offsets.commit("g1", "Wide", 0, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for code in codes:
            before = turns
            answer = await desk.ask_waiting(code, asked)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert turns - before >= 5000 // inspection.QUEUES_PER_TURN
        nursery.cancel_scope.cancel()

    monkeypatch.setattr(inspection, "ANSWER_BYTES_MAX", 1000)
    refused = [await desk.ask_waiting(code, asked) for code in codes[3:]]
    assert all("would have more than" in (answer.remark or "") for answer in refused)
