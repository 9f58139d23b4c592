"""Sends: what is refused costs nobody else anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledgermq.broker.tables.topics import TopicConfig
from ledgermq.message.batch import encode_batch
from ledgermq.message.control import CONTROL_TOPIC
from ledgermq.message.properties import COPY_BYTES, SENT_PROPERTIES_BYTES_MAX, encode_properties
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, encode_frame
from ledgermq.store.config import SCHEDULE_TOPIC
from ledgermq.store.log.queue_files import NEW_FILES_PER_TURN_MAX

from ..desk import BORN, open_desk

FIELDS = {"a": "pg", "b": "T", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": BORN, "h": 0, "i": "", "j": 0, "k": "false"}


@pytest.mark.parametrize(
    "field",
    [{"h": 1 << 40}, {"h": -(1 << 31) - 1}, {"f": 1 << 33}, {"g": 1 << 63}, {"j": 1 << 31}],
    ids=["flag", "negative flag", "sysFlag", "bornTimestamp", "reconsumeTimes"],
)
async def test_a_number_that_no_record_can_hold_is_refused_alone(tmp_path: Path, field: dict[str, Any]) -> None:
    """Its neighbours in the same receive are stored, and the queue has no gap where it would have been."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        opaques = [peer.post(RequestCode.SEND_MESSAGE_V2, {**FIELDS, **extra}, b"x") for extra in ({}, field, {})]
        answers = [peer.answer(opaque) for opaque in opaques]
        await desk.settled()

        assert [answer and answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
        assert answers[1] is not None
        assert "was not stored" in (answers[1].remark or "")
        assert [message.queue_offset for message in peer.pulled("T")] == [0, 1]


async def test_one_receive_with_a_bad_number_among_good_ones_stores_the_good_ones(tmp_path: Path) -> None:
    """As above, but the three come in one piece and are put together."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        requests = [
            RemotingCommand(
                RequestCode.SEND_MESSAGE_V2, {name: str(value) for name, value in {**FIELDS, **extra}.items()}, b"x", opaque
            )
            for opaque, extra in enumerate([{}, {"h": 1 << 40}, {}])
        ]
        frames = b"".join(map(encode_frame, requests))

        desk.broker.dispatcher.handle(peer.connection, peer.connection.receive(frames))
        answers = [peer.answer(opaque) for opaque in range(3)]
        await desk.settled()

        assert [answer and answer.code for answer in answers] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
        assert [message.queue_offset for message in peer.pulled("T")] == [0, 1]


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
async def test_one_turn_creates_a_bounded_number_of_queues(tmp_path: Path, code: int) -> None:
    """Each needs a file. The other sends of the receive are taken in the next turns, in their order."""
    async with open_desk(tmp_path) as desk:
        peer, count = desk.peer(), 3 * NEW_FILES_PER_TURN_MAX
        desk.broker.topics.put(TopicConfig("T", count, count))
        body, fields = b"x", FIELDS
        if code == RequestCode.SEND_BATCH_MESSAGE:
            body, fields = encode_batch([(0, b"x", b"")]), {**FIELDS, "m": "true"}
        requests = [
            RemotingCommand(code, {name: str(value) for name, value in {**fields, "e": queue}.items()}, body, opaque)
            for opaque, queue in enumerate([0, *range(count), 0])
        ]

        turns: list[int] = []
        while requests:
            before = len(desk.broker.store.next_offsets)
            del requests[: desk.broker.dispatcher.handle(peer.connection, requests)]
            turns.append(len(desk.broker.store.next_offsets) - before)

        assert max(turns) <= NEW_FILES_PER_TURN_MAX
        assert sum(turns) == count
        assert [getattr(peer.answer(opaque), "code", None) for opaque in range(count + 2)] == [0] * (count + 2)
        assert [desk.broker.store.next_offsets["T", queue] for queue in range(count)] == [3] + [1] * (count - 1)


async def test_words_of_delays_inside_other_properties_delay_nothing(tmp_path: Path) -> None:
    """A property may be called like one of RocketMQ's in part, or hold its name."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()

        properties = {"note": "DELAY and TRAN_MSG", "NO_DELAY": "3", "MY_TIMER_DELIVER_MS": "1"}
        answer = peer.ask(RequestCode.SEND_MESSAGE_V2, {**FIELDS, "i": encode_properties(properties)}, b"x")
        await desk.settled()

        assert answer.code == 0
        assert peer.pulled("T")[0].properties.items() >= properties.items()


async def test_statistics_count_whole_records(tmp_path: Path) -> None:
    """As RocketMQ's do: all that is in the log, by topic, also of batches and of delayed messages; nothing that is refused."""
    async with open_desk(tmp_path) as desk:
        peer, stats = desk.peer(), desk.broker.stats

        peer.send("T1", b"x" * 1000, TAGS="a")
        peer.ask(RequestCode.SEND_MESSAGE_V2, {**FIELDS, "b": "T1", "h": 1 << 40}, b"refused")
        items = encode_batch([(0, b"one", b""), (0, b"two", b"")])
        peer.ask(RequestCode.SEND_BATCH_MESSAGE, {**FIELDS, "b": "T2", "m": "true"}, items)
        peer.send("T3", b"later", DELAY="3")
        await desk.settled()

        sizes = {topic: [counter.size for counter in stats.puts_of(topic)] for topic in ("T1", "T2", SCHEDULE_TOPIC)}
        queues = {"T1": 0, "T2": 0, SCHEDULE_TOPIC: 2}
        assert sizes == {topic: [desk.broker.store.get(topic, queue_id, 0, 32).size] for topic, queue_id in queues.items()}
        messages = desk.broker.store.log.records(0, desk.broker.store.log.max_offset)
        assert sum(size for (size,) in sizes.values()) == sum(
            parts[0] for _, parts in messages if parts and parts[6] != CONTROL_TOPIC
        )


async def test_a_broker_that_may_not_be_written_refuses_every_send(tmp_path: Path) -> None:
    """To topics that are known, to new ones, of batches and of messages that a consumer sends back."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        peer.send("T1")
        offset = desk.put("T1")
        peer.heartbeat("g", "T1")
        peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4\n")

        codes = {peer.send(topic).code for topic in ("T1", "T2", "%RETRY%g")}
        back = {"group": "g", "offset": offset, "delayLevel": 0, "originMsgId": "x", "originTopic": "T1"}
        codes.add(peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code)

        assert codes == {ResponseCode.NO_PERMISSION}


async def test_what_nobody_could_read_is_refused(tmp_path: Path) -> None:
    """A topic whose queues may all not be read takes no messages, and none is created like that by sending."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        desk.broker.topics.put(TopicConfig("T1", 0, 4))

        refused = peer.send("T1")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "no queue to read from" in (refused.remark or "")

        ext = {"a": "pg", "b": "T2", "c": "TBW102", "d": -5, "e": 0, "f": 0, "g": 0, "h": 0, "i": ""}
        assert peer.ask(RequestCode.SEND_MESSAGE_V2, ext, b"x").code == ResponseCode.SUCCESS
        assert desk.broker.topics.topics["T2"].read_queue_nums == 1


async def test_a_retry_that_a_consumer_sends_is_not_judged_by_a_lower_limit(tmp_path: Path) -> None:
    """`maxMessageSize` was lowered after its message was accepted; a consumer whose retry is refused would keep it for ever."""
    async with open_desk(tmp_path, max_message_size=100) as desk:
        peer = desk.peer()
        desk.broker.topics.put(TopicConfig("T", 1, 1), TopicConfig("%RETRY%g", 1, 1))

        first = peer.send("T", bytes(101))
        again = peer.send("%RETRY%g", bytes(101))

        assert first.code == ResponseCode.MESSAGE_ILLEGAL
        assert "the body has 101 bytes, maxMessageSize is 100" in (first.remark or "")
        assert again.code == ResponseCode.SUCCESS


LONGEST = "t" * 127
CLUSTER_BYTES = len(encode_properties({"CLUSTER": "c1"}))


@pytest.mark.parametrize(
    ("properties", "body"),
    [
        ({"p": "x" * (SENT_PROPERTIES_BYTES_MAX - CLUSTER_BYTES - 3)}, b"x"),
        ({"p": "\u20ac" * ((SENT_PROPERTIES_BYTES_MAX - CLUSTER_BYTES - 3) // 3)}, b"x"),
        ({"p": "x"}, bytes((1 << 20) - 512 - COPY_BYTES - CLUSTER_BYTES - 4)),
    ],
    ids=["properties", "three bytes each", "body"],
)
async def test_the_largest_message_that_is_taken_can_be_delayed_retried_and_made_a_dead_letter(
    tmp_path: Path, properties: dict[str, str], body: bytes
) -> None:
    """One byte more is refused when it is sent, because nobody could send it back later."""
    group = "g" * 120
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        desk.broker.topics.put(TopicConfig(LONGEST, 1, 1))
        larger = [{**properties, "p": properties["p"] + "\u20ac"}] if body == b"x" else [properties]

        answer = peer.send(LONGEST, body, 0, **properties)
        refused = [peer.send(LONGEST, body if body == b"x" else body + b"x", 0, **each) for each in larger]
        offset = int(answer.ext["msgId"][16:], 16)
        for level in (18, -1):
            ext = {"offset": offset, "group": group, "delayLevel": level, "originTopic": LONGEST}
            back = peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
            assert back.code == ResponseCode.SUCCESS, back.remark
            await desk.settled()
            unit = desk.broker.store.unit(SCHEDULE_TOPIC, 17, 0)
            assert unit is not None
            offset = unit[0]  # the dead letter is a copy of the copy that has waited

        assert [each.code for each in refused] == [ResponseCode.MESSAGE_ILLEGAL]
        assert "a retry adds up to 768" in (refused[0].remark or "")


@pytest.mark.parametrize("field", ["e", "h", "f", "g", "j", "d", "l", "DELAY"])
async def test_what_is_no_number_of_the_protocol_is_refused(tmp_path: Path, field: str) -> None:
    """Python's `int` reads digits of other scripts and U+005F; the record would say what no other broker or client reads."""
    async with open_desk(tmp_path) as desk:
        peer = desk.peer()
        desk.broker.topics.put(TopicConfig("%RETRY%g", 1, 1))
        for text in ("\uff10", "\u0660", "\u00b2", "1_0", " ", "1" * 5000, "0x1", "1e3"):
            fields: dict[str, Any] = {**FIELDS, "b": "%RETRY%g" if field == "l" else "T"}
            fields |= {"i": f"DELAY\x01{text}\x02"} if field == "DELAY" else {field: text}

            answer = peer.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")

            assert answer.code == ResponseCode.SYSTEM_ERROR, text
        assert not desk.broker.store.topics()


async def test_a_broker_that_chooses_the_queue_chooses_one_that_is_read(tmp_path: Path) -> None:
    """A topic whose read queues were reduced first still has more queues to write."""
    async with open_desk(tmp_path) as desk:
        desk.broker.topics.put(TopicConfig("T", 1, 16))

        chosen = {desk.peer().send("T", queue_id=-1).ext["queueId"] for _ in range(16)}

        assert chosen == {"0"}
