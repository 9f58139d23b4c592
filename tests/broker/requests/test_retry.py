"""Messages that consumers send back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgermq.broker.tables.groups import GroupConfig
from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.layout import decode_record, encode_host
from ledgermq.message.message import IncomingMessage, StoredMessage
from ledgermq.message.properties import encode_properties
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.store.config import SCHEDULE_TOPIC

from ..desk import Desk, Peer, open_desk, until

Code = ResponseCode


def put(desk: Desk, reconsume_times: int = 0, **properties: str) -> int:
    """Store a message of topic T1 that failed so often; return where it lies."""
    message = IncomingMessage(
        "T1",
        0,
        b"hello",
        encode_properties(properties),
        7,
        0,
        1_700_000_000_000,
        encode_host("10.0.0.9", 1234),
        reconsume_times,
    )
    return desk.broker.store.put([message]).physical_offsets[0]


def send_back(peer: Peer, offset: int, version: int = 409, **fields: Any) -> int:
    ext = {"offset": offset, "group": "g", "delayLevel": 0, "originTopic": "T1", **fields}
    return peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, version=version).code


def stored_in(desk: Desk, topic: str, queue_id: int = 0) -> StoredMessage:
    """The one message of a queue."""
    unit = desk.broker.store.unit(topic, queue_id, 0)
    assert unit is not None
    record = desk.broker.store.message_at(unit[0])
    assert record is not None
    return decode_record(record)


@pytest.mark.parametrize(("failures", "asked", "level"), [(0, 0, 3), (4, 0, 7), (0, 9, 9)])
async def test_a_failed_message_comes_back_later(tmp_path: Path, failures: int, asked: int, level: int) -> None:
    """A copy waits for the retry topic, longer with each failure, unless the client says how long."""
    async with open_desk(tmp_path) as desk:
        offset = put(desk, failures, TAGS="TagA", KEYS="k")

        assert send_back(desk.peer(), offset, delayLevel=asked) == Code.SUCCESS
        await desk.settled()

        copy = stored_in(desk, "SCHEDULE_TOPIC_XXXX", level - 1)
        assert copy.reconsume_times == failures + 1
        assert copy.properties["REAL_TOPIC"] == "%RETRY%g"
        assert copy.properties["RETRY_TOPIC"] == "T1"
        assert copy.properties["ORIGIN_MESSAGE_ID"] == desk_id(desk, offset)
        assert (copy.body, copy.flag, copy.tag, copy.keys) == (b"hello", 7, "TagA", ["k"])
        assert copy.born_host == ("10.0.0.9", 1234)
        assert desk.broker.topics.topics["%RETRY%g"].perm == 6


def desk_id(desk: Desk, offset: int) -> str:
    record = desk.broker.store.message_at(offset)
    assert record is not None
    return decode_record(record).message_id


@pytest.mark.parametrize("known", [True, False], ids=["known", "not known yet"])
async def test_a_message_that_is_damaged_on_the_disk_is_not_copied(tmp_path: Path, *, known: bool) -> None:
    """The copy would have a valid CRC over the wrong bytes. Consumers then send their own copy."""
    async with open_desk(tmp_path) as desk:
        offset = put(desk)
        await desk.settled()
        if known:
            desk.broker.store.damaged.add(offset)
        else:
            (segment,) = (tmp_path / "commitlog").iterdir()
            with segment.open("r+b") as file:
                file.seek(segment.read_bytes().index(b"hello", offset))
                file.write(b"j")

        ext = {"offset": offset, "group": "g", "delayLevel": 0, "originTopic": "T1"}
        answer = desk.peer().ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        await desk.settled()

        assert answer.code == Code.SYSTEM_ERROR
        assert answer.remark is not None
        assert "is damaged on the disk of this broker; nothing was stored" in answer.remark
        assert not desk.broker.store.queue_ids(SCHEDULE_TOPIC)


async def test_the_first_origin_is_remembered(tmp_path: Path) -> None:
    """A copy of a copy still names the topic and the message it all began with."""
    async with open_desk(tmp_path) as desk:
        offset = put(desk, 1, RETRY_TOPIC="T0", ORIGIN_MESSAGE_ID="ABCD", DELAY="3", REAL_TOPIC="old", REAL_QID="5")

        send_back(desk.peer(), offset)
        await desk.settled()

        copy = stored_in(desk, "SCHEDULE_TOPIC_XXXX", 3)
        assert copy.properties["RETRY_TOPIC"] == "T0"
        assert desk.broker.stats.view("SNDBCK_PUT_NUMS", "T0@g") is None, "anybody may make up topics in this property"
        assert desk.broker.stats.view("SNDBCK_PUT_NUMS", "T1@g") is not None
        assert copy.properties["ORIGIN_MESSAGE_ID"] == "ABCD"
        assert copy.properties["REAL_TOPIC"] == "%RETRY%g"


@pytest.mark.parametrize(
    ("failures", "fields", "version", "dead"),
    [
        (15, {}, 409, False),
        (16, {}, 409, True),
        (0, {"delayLevel": -1}, 409, True),
        (2, {"maxReconsumeTimes": 2}, 409, True),
        (2, {"maxReconsumeTimes": 2}, 120, False),
        (16, {"maxReconsumeTimes": 99}, 409, False),
    ],
)
async def test_a_hopeless_message_goes_to_the_dead_letters(
    tmp_path: Path, failures: int, fields: dict[str, Any], version: int, dead: bool
) -> None:
    """After the last retry, or when the consumer gives up, it lies in the dead letter topic, undelayed."""
    async with open_desk(tmp_path) as desk:
        offset = put(desk, failures, DELAY="4")

        assert send_back(desk.peer(), offset, version, **fields) == Code.SUCCESS
        await desk.settled()

        assert (desk.broker.store.max_offset("%DLQ%g", 0) == 1) is dead
        if dead:
            letter = stored_in(desk, "%DLQ%g")
            assert "DELAY" not in letter.properties
            assert letter.properties["DLQ_ORIGIN_TOPIC"] == "T1"
            assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == desk_id(desk, offset)
            assert desk.broker.topics.topics["%DLQ%g"] == TopicConfig("%DLQ%g", 1, 1, 6)


@pytest.mark.parametrize(
    ("failures", "orderly", "dead"), [(2, False, False), (3, False, True), (1, True, False), (2, True, True)]
)
async def test_what_a_client_sends_to_the_retry_topic_itself_is_kept_to_the_same_number(
    tmp_path: Path, failures: int, orderly: bool, dead: bool
) -> None:
    """It counts the retry it asks for; orderly consumers, who hold queues, send only when there is none left."""
    async with open_desk(tmp_path) as desk:
        desk.peer().heartbeat("g", "T1")
        if orderly:
            desk.broker.locks.apply([["g", "T1", "a", 0, "c1"]], desk.broker.world.clock.monotonic())
        properties = encode_properties({"RETRY_TOPIC": "T1", "DELAY": "4"})
        ext = {"a": "g", "b": "%RETRY%g", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": properties, "k": "false"}

        answer = desk.peer().ask(RequestCode.SEND_MESSAGE_V2, {**ext, "j": failures, "l": 2, "m": "false"}, b"hello")
        await desk.settled()

        assert answer.code == Code.SUCCESS
        assert (desk.broker.store.max_offset("%DLQ%g", 0) == 1) is dead


async def test_what_is_sent_back_is_counted_where_rocketmq_counts_it(tmp_path: Path) -> None:
    """Among the store's puts and what the group gave back, dead or not; a copy that waits also for the topic it waits in."""
    async with open_desk(tmp_path) as desk:
        stats, peer = desk.broker.stats, desk.peer()

        for fields in ({}, {"delayLevel": -1}):
            assert send_back(peer, put(desk), **fields) == Code.SUCCESS
        await desk.settled()

        def counted(name: str, key: str) -> int | None:
            view = stats.view(name, key)
            return None if view is None else view.minute.sum

        copies = [desk.broker.store.unit("SCHEDULE_TOPIC_XXXX", 2, 0), desk.broker.store.unit("%DLQ%g", 0, 0)]
        sizes = [copy[1] for copy in copies if copy is not None]
        assert (stats.totals().put, stats.totals().put_size) == (2, sum(sizes))
        assert counted("TOPIC_PUT_NUMS", "SCHEDULE_TOPIC_XXXX") == 1
        assert counted("TOPIC_PUT_SIZE", "SCHEDULE_TOPIC_XXXX") == sizes[0]
        assert counted("TOPIC_PUT_NUMS", "%DLQ%g") is None
        assert (counted("SNDBCK_PUT_NUMS", "T1@g"), counted("DLQ_PUT_NUMS", "T1@g")) == (2, 1)
        assert counted("BROKER_PUT_NUMS", desk.broker.config.broker_cluster_name) == 0


async def test_a_group_without_retries_drops_what_failed(tmp_path: Path) -> None:
    """`retryQueueNums` of 0 means SUCCESS and nothing."""
    async with open_desk(tmp_path) as desk:
        desk.broker.groups.put(GroupConfig("g", retry_queue_nums=0))
        end = desk.broker.store.log.max_offset

        assert send_back(desk.peer(), put(desk)) == Code.SUCCESS
        assert desk.broker.topics.get("%RETRY%g") is None
        assert desk.broker.store.log.max_offset > end


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": 5}, Code.SYSTEM_ERROR),
        ({"offset": 1 << 40}, Code.SYSTEM_ERROR),
        ({"offset": -1}, Code.SYSTEM_ERROR),
        ({"group": "a b"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
async def test_what_cannot_be_sent_back_is_refused(tmp_path: Path, fields: dict[str, Any], code: int) -> None:
    """No such message, or no such group."""
    async with open_desk(tmp_path) as desk:
        offset = put(desk)

        assert send_back(desk.peer(), **{"offset": offset, **fields}) == code


@pytest.mark.parametrize(
    ("named", "code"),
    [
        ("0A000009" * 4, Code.SUCCESS),
        ("0a000009" * 4, Code.SUCCESS),
        ("0A000008" * 4, Code.SYSTEM_ERROR),
        ("0A00000900002A9F", Code.SUCCESS),
        ("0A00000900002A9F{offset:016X}", Code.SUCCESS),
        ("0A00000900002A9F{other:016X}", Code.SYSTEM_ERROR),
    ],
    ids=["its key", "lower case", "another key", "no message id", "its place", "another place"],
)
async def test_a_consumer_that_means_another_message_is_refused(tmp_path: Path, named: str, code: int) -> None:
    """After a promotion another message may be stored where the consumer read the one that has failed."""
    async with open_desk(tmp_path) as desk:
        put(desk)
        offset = put(desk, UNIQ_KEY="0A000009" * 4)

        assert send_back(desk.peer(), offset, originMsgId=named.format(offset=offset, other=offset + 1)) == code


async def test_a_closed_retry_topic_takes_nothing(tmp_path: Path) -> None:
    """An administrator may shut it."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("%RETRY%g", 1, 1, perm=4))

        assert send_back(desk.peer(), put(desk)) == Code.NO_PERMISSION


async def test_the_answer_waits_for_the_medium(tmp_path: Path) -> None:
    """Under SYNC_FLUSH a consumer may commit past the original only when its copy is safe."""
    async with open_desk(tmp_path, flush_disk_type="SYNC_FLUSH") as desk:
        peer = desk.peer()
        offset = put(desk)
        store_log = desk.broker.store.log
        await until(lambda: store_log.flushed_offset == store_log.max_offset)

        opaque = peer.post(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": "g", "delayLevel": 0})

        assert peer.answer(opaque) is None
        await until(lambda: peer.answer(opaque) is not None)
        answer = peer.answer(opaque)
        assert answer is not None
        assert answer.code == Code.SUCCESS
        assert store_log.flushed_offset == store_log.max_offset
