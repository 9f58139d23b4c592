"""Writing a task's rows: in order, once, whatever is lost on the way."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgermq import blocking
from ledgermq.client.route import BrokerRoute, QueueRoute, TopicRoute
from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.broker_client import BrokerCatalog, BrokerClient
from ledgermq.pipeline.catalog import Bounds
from ledgermq.pipeline.errors import NotWritten, Replaced, Unavailable
from ledgermq.pipeline.link import Link, LinkLost
from ledgermq.pipeline.options import WriteOptions, write_options
from ledgermq.pipeline.outgoing import Outgoing, Rows, fingerprint, written_properties
from ledgermq.pipeline.sender import Began, Sender
from ledgermq.pipeline.sink import REPLACED_SECONDS, TaskWriter, begin
from ledgermq.remoting.codes import RequestCode, ResponseCode
from ledgermq.remoting.command import RemotingCommand, decode_command, encode_frame
from ledgermq.remoting.frame import FrameReader
from ledgermq.testing.embedded import Embedded, start_embedded
from ledgermq.world.address import Address

from .brokers import READ_SECONDS, all_bodies, bodies, create_topic, numbered
from .test_broker_reader import rows as read_rows


def rows_of(**changes: Any) -> Rows:
    columns = {name: name for name in ("body", "topic", "queueId", "tags", "keys", "properties", "delayLevel", "flag")}
    return attrs.evolve(Rows(columns, None, 1000, allow_null_body=False), **changes)


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    types = {
        "body": pa.binary(), "topic": pa.string(), "queueId": pa.int32(), "tags": pa.string(), "keys": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()), "delayLevel": pa.int32(), "flag": pa.int32(),
    }  # fmt: skip
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()], list(types)
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"body": None, "topic": "T"}, "row 1 of a batch of here has a null body"),
        ({"body": b"x"}, "has no topic"),
        ({"body": b"x" * 1001, "topic": "T"}, "has a body of 1001 bytes, 1000 are allowed"),
        ({"body": b"x", "topic": "T", "delayLevel": 19}, "delay level 19"),
        ({"body": b"x", "topic": "T", "tags": "a\x01b"}, "U+0001"),
        ({"body": b"x", "topic": "T", "properties": {"p": "x" * 40_000}}, "has properties of"),
    ],
)
def test_rows_that_cannot_be_sent_are_named(row: dict[str, Any], reason: str) -> None:
    """Before anything of their batch is sent."""
    with pytest.raises(NotWritten) as refused:
        list(rows_of().messages(batch_of({"body": b"good", "topic": "T"}, row), "here"))

    assert reason in str(refused.value)


def test_headers_of_kafka_rows_become_properties() -> None:
    """A query that was written for Spark's Kafka source keeps its columns; a header or a key that is not text is named."""
    rows = Rows({"value": "body", "headers": "properties", "key": "keys"}, "T", 1000, allow_null_body=False)
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

    def batch(value: bytes, key: bytes = b"k") -> Any:
        headers = pa.array([[{"key": "trace", "value": value}]], kind)
        return pa.RecordBatch.from_arrays([pa.array([b"x"]), headers, pa.array([key])], ["value", "headers", "key"])

    (message,) = rows.messages(batch(b"7"), "here")

    assert message.properties == "KEYS\x01k\x02trace\x017\x02"
    assert message.sharding_key == "k", "rows with one key go to one queue, as they do in Kafka"
    with pytest.raises(NotWritten, match="a header 'trace' that is not UTF-8"):
        list(rows.messages(batch(b"\xff"), "here"))
    with pytest.raises(NotWritten, match="row 0 of a batch of here has a key that is not UTF-8"):
        list(rows.messages(batch(b"7", b"\xff"), "here"))


def test_a_null_body_may_be_sent_empty() -> None:
    """If the user says so."""
    (message,) = rows_of(allow_null_body=True, topic="T").messages(batch_of({"body": None}), "here")

    assert (message.topic, message.body) == ("T", b"")


@given(
    st.dictionaries(st.sampled_from(["a", "b", "UNIQ_KEY", "SPARK_TXN", "CLUSTER"]), st.text("xyz", min_size=1, max_size=3)),
    st.one_of(st.none(), st.just("tag")),
    st.randoms(),
)
def test_a_fingerprint_is_that_of_the_stored_message(own: dict[str, str], tag: str | None, shuffled: random.Random) -> None:
    """Whatever brokers and clients add, in whatever order properties come back."""
    said = written_properties(own, tag, None, None)
    stored = {
        **{name: value for name, value in own.items() if name in ("a", "b")},
        "UNIQ_KEY": "1",
        "MSG_REGION": "r",
        "WAIT": "true",
    }
    if tag:
        stored["TAGS"] = tag
    items = list(stored.items())
    shuffled.shuffle(items)

    assert fingerprint("T", b"body", 1, said) == fingerprint("T", b"body", 1, written_properties(dict(items), None, None, None))


@pytest.fixture
def topic(broker: Embedded, request: pytest.FixtureRequest) -> str:
    name = "sender-" + "".join(each if each.isalnum() else "-" for each in request.node.name)
    create_topic(broker.namesrv, name, 3)
    return name


def messages(topic: str, count: int, **changes: Any) -> list[Outgoing]:
    return list(
        rows_of(topic=topic).messages(batch_of(*({"body": b"%06d" % number, **changes} for number in range(count))), "here")
    )


def options_of(broker: Embedded, topic: str, **changes: str) -> WriteOptions:
    return write_options(
        {"nameServer": broker.namesrv, "topic": topic, "sendBatchBytes": "2000", "failoverTimeoutMs": "5000", **changes}
    )


def test_every_row_is_stored_once_and_in_the_order_of_its_queue(broker: Embedded, topic: str) -> None:
    """Rows that name a queue go there, one request after the other."""
    sender = Sender(options_of(broker, topic), begin(options_of(broker, topic)), "q.0.0")

    sender.add([attrs.evolve(message, queue_id=at % 3) for at, message in enumerate(messages(topic, 600))])
    sender.flush()

    assert sender.sent == 600
    assert {queue.queue_id: found for queue, found in bodies(broker.namesrv, topic).items()} == {
        queue_id: [b"%06d" % number for number in range(queue_id, 600, 3)] for queue_id in range(3)
    }


def test_a_repeated_task_sends_only_what_is_missing(broker: Embedded, topic: str) -> None:
    """Rows that say the same are counted, and those of other tasks are not taken for ours."""
    options, twice = options_of(broker, topic), messages(topic, 50) + messages(topic, 10)
    began = begin(options)
    for transaction, rows in (("q.0.0", twice[:37]), ("q.0.1", messages(topic, 50))):
        first = Sender(options, began, transaction)
        first.add(rows)
        first.flush()

    again = Sender(options, began, "q.0.0")
    again.look_before_sending()
    again.add(reversed(twice))
    again.flush()

    assert (again.sent, again.skipped) == (60 - 37, 37)
    assert Counter(all_bodies(broker.namesrv, topic)) == Counter(numbered([*range(50), *range(50), *range(10)]))


def test_where_the_topic_is_a_column_the_look_back_goes_by_time(broker: Embedded, topic: str) -> None:
    """The driver cannot know the destination."""
    options = attrs.evolve(options_of(broker, topic), topic=None)
    began = begin(options)
    first = Sender(options, began, "q.0.0")
    first.add(messages(topic, 20))
    first.flush()

    again = Sender(options, began, "q.0.0")
    again.look_before_sending()
    again.add(messages(topic, 30))
    again.flush()

    assert (began.ends, again.skipped) == ({}, 20)
    assert all_bodies(broker.namesrv, topic) == numbered(range(30))


@pytest.mark.parametrize("is_in_route", [False, True])
def test_where_the_topic_is_a_column_a_broker_that_is_away_is_waited_for(
    broker: Embedded, topic: str, monkeypatch: pytest.MonkeyPatch, is_in_route: bool
) -> None:
    """It may have rows of an earlier attempt. With its slave up it is in the route, but not among the queues to write to."""
    options = attrs.evolve(options_of(broker, topic, failoverTimeoutMs="300"), topic=None)
    began = begin(options)
    sender = Sender(options, attrs.evolve(began, brokers=(*began.brokers, "broker-b"), note="here/0.json"), "away.0.0")
    ask = BrokerClient.route

    def route(self: BrokerClient, wanted: str) -> TopicRoute | None:
        found = ask(self, wanted)
        if found is None or not is_in_route:
            return found
        slave = BrokerRoute("broker-b", "c", {1: Address("127.0.0.1", 1)})
        found = TopicRoute(wanted, (*found.brokers, slave), (*found.queues, QueueRoute("broker-b", 1, 1, 6)))
        self.routes.update(found)
        return found

    monkeypatch.setattr(BrokerClient, "route", route)

    with pytest.raises((NotWritten, Unavailable)) as refused:
        sender.add(messages(topic, 3))

    said = "broker-b:0: no answer within 0.3 s" if is_in_route else "no name server knows broker-b any more"
    assert said in str(refused.value)
    assert is_in_route or "Deleting the note here/0.json" in str(refused.value)
    assert began.brokers == ("broker-a",)
    assert all_bodies(broker.namesrv, topic) == []


@pytest.mark.parametrize("is_column", [True, False])
def test_rows_that_may_have_expired_are_not_sent_again(
    broker: Embedded, topic: str, monkeypatch: pytest.MonkeyPatch, is_column: bool
) -> None:
    """The error names what a sink can do; a read's options are none of its own."""
    options = options_of(broker, topic)
    began = begin(options)
    first = Sender(options, began, "expired.0.0")
    first.add(messages(topic, 30))
    first.flush()
    if is_column:
        began = Began({}, began.timestamp_ms - 3_600_000)
        monkeypatch.setattr(BrokerCatalog, "bounds", lambda _, queues: {queue: Bounds(5, 30) for queue in queues})
        monkeypatch.setattr(Sender, "_runtime", with_oldest(began.timestamp_ms + 1))
        said = "messages that were stored after the batch began have expired, so it cannot be known"
    else:
        monkeypatch.setattr(Link, "answer", without_oldest(5))
        said = "offsets 0 to 4 are gone, the oldest message has offset 5, so it cannot be known"

    again = Sender(options, began, "expired.0.0")
    with pytest.raises(NotWritten) as refused:
        again.add(messages(topic, 30))

    assert said in str(refused.value)
    assert "failOnDataLoss" not in str(refused.value)
    monkeypatch.undo()
    assert all_bodies(broker.namesrv, topic) == numbered(range(30))


def with_oldest(time_ms: int) -> Any:
    """What a broker says of itself, with another time of its oldest message."""
    runtime = Sender._runtime  # pyright: ignore[reportPrivateUsage]
    return lambda sender, queue: {**(runtime(sender, queue) or {}), "earliestMessageTimeStamp": str(time_ms)}


def without_oldest(offset: int) -> Any:
    """Answers of a broker, of which those to pulls from before an offset say that the messages have expired."""
    answer = Link.answer

    def expired(self: Link, opaque: int, timeout_seconds: float) -> RemotingCommand:
        found = answer(self, opaque, timeout_seconds)
        if found.code == ResponseCode.SUCCESS and found.ext.get("minOffset") and found.body:
            moved = {"nextBeginOffset": str(offset), "minOffset": str(offset), "maxOffset": "30"}
            return RemotingCommand(ResponseCode.PULL_OFFSET_MOVED, moved)
        return found

    return expired


@pytest.mark.parametrize("seed", range(6))
def test_answers_that_are_lost_neither_lose_nor_repeat(
    broker: Embedded, topic: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Requests that never arrive, answers that never come, refusals of a busy broker, all at once, with rows that repeat.

    Some rows are delayed. Until it delivers them, the broker keeps them in a topic of its own.
    """
    rng = random.Random(seed)
    submit, answer = Link.submit, Link.answer
    fates: dict[int, str] = {}

    def unsure_submit(self: Link, command: RemotingCommand, timeout_seconds: float) -> int:
        is_send = command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
        fate = rng.choice(["ok", "ok", "ok", "lost request", "lost answer", "busy"]) if is_send else "ok"
        if fate == "lost request":
            self.close()
            raise LinkLost(self.address, "test")
        opaque = submit(self, command if fate != "busy" else RemotingCommand(RequestCode.GET_BROKER_CONFIG), timeout_seconds)
        fates[opaque] = fate
        return opaque

    def unsure_answer(self: Link, opaque: int, timeout_seconds: float) -> RemotingCommand:
        found = answer(self, opaque, timeout_seconds)
        fate = fates.pop(opaque, "ok")
        if fate == "lost answer":
            self.close()
            raise LinkLost(self.address, "test")
        return RemotingCommand(ResponseCode.SYSTEM_BUSY, remark="test") if fate == "busy" else found

    monkeypatch.setattr(Link, "submit", unsure_submit)
    monkeypatch.setattr(Link, "answer", unsure_answer)
    monkeypatch.setattr("ledgermq.pipeline.sender.SETTLE_SECONDS", 0.0)
    monkeypatch.setattr("ledgermq.pipeline.sender.PAUSE_SECONDS", 0.0)
    options = options_of(broker, topic, failoverTimeoutMs="60000")
    sender = Sender(options, begin(options), "q.0.0")

    for rows in (messages(topic, 150), messages(topic, 8, delayLevel=18)):
        sender.add(rows + rows)
        sender.flush()
        sender.add(rows[:8])
        sender.flush()
    monkeypatch.undo()

    assert sender.sent == 2 * (150 + 8) + 2 * 8
    assert Counter(all_bodies(broker.namesrv, topic)) == Counter(numbered([*range(150), *range(150), *range(8)]))
    assert delayed(broker, topic) == numbered([*range(8), *range(8), *range(8)])


def delayed(broker: Embedded, topic: str) -> list[bytes]:
    """The bodies of delayed messages, including delivered ones, in the order of their content."""
    found = read_rows(nameServer=broker.namesrv, subscribe="SCHEDULE_TOPIC_XXXX")
    return sorted(row["body"] for row in found if dict(row["properties"])["REAL_TOPIC"] == topic)


def test_a_repeated_task_finds_delayed_rows_before_and_after_their_delivery(broker: Embedded, topic: str) -> None:
    """A delivered message is in two topics, but counts once: the second of two equal rows is still missing."""
    options = options_of(broker, topic)
    began = begin(options)
    first = Sender(options, began, "q.0.0")
    first.add(messages(topic, 3, delayLevel=1) + messages(topic, 3, delayLevel=18))
    first.flush()
    deadline = time.monotonic() + READ_SECONDS
    while len(all_bodies(broker.namesrv, topic)) < 3:
        assert time.monotonic() < deadline, "the messages with the shortest delay were not delivered in time"

    again = Sender(options, began, "q.0.0")
    again.look_before_sending()
    for level in (1, 18):
        again.add([message for message in messages(topic, 3, delayLevel=level) for _ in range(2)])
    again.flush()

    assert (again.sent, again.skipped) == (6, 6)
    assert delayed(broker, topic) == numbered([*range(3)] * 4)


def test_a_topic_that_does_not_exist_is_not_created(broker: Embedded) -> None:
    """A misspelt name would take the rows for ever."""
    options = options_of(broker, "misspelt")
    sender = Sender(options, begin(options), "q.0.0")

    with pytest.raises(NotWritten, match="the topic 'misspelt' does not exist"):
        sender.add(messages("misspelt", 1))


def test_a_queue_that_does_not_exist_is_named(broker: Embedded, topic: str) -> None:
    """With those that there are."""
    sender = Sender(options_of(broker, topic), begin(options_of(broker, topic)), "q.0.0")

    with pytest.raises(NotWritten, match="has no queue 7 that can be written; it has broker-a:0, broker-a:1, broker-a:2"):
        sender.add([attrs.evolve(message, queue_id=7) for message in messages(topic, 1)])


def test_delayed_and_sharded_rows_are_sent_as_such(broker: Embedded, topic: str) -> None:
    """One key, one queue."""
    sender = Sender(options_of(broker, topic), begin(options_of(broker, topic)), "q.0.0")

    sender.add([attrs.evolve(message, sharding_key="customer-7") for message in messages(topic, 40)])
    sender.add(messages(topic, 1, delayLevel=18))
    sender.flush()

    assert sorted(len(found) for found in bodies(broker.namesrv, topic).values()) == [0, 0, 40]


def test_messages_stored_less_safely_than_promised_are_not_counted_as_written() -> None:
    """A master that waits for a slave that is not there says so."""
    with start_embedded(settings={"brokerRole": "SYNC_MASTER"}) as lonely:
        create_topic(lonely.namesrv, "T", 1)
        strict = options_of(lonely, "T")
        sender = Sender(strict, begin(strict), "q.0.0")

        sender.add(messages("T", 5))
        with pytest.raises(NotWritten, match=r"not as safely as the broker promises: SLAVE_NOT_AVAILABLE.*sendStatus"):
            sender.flush()
        lenient = options_of(lonely, "T", sendStatus="stored")
        again = Sender(lenient, begin(strict), "q.0.0")
        again.add(messages("T", 5))
        again.flush()

    assert again.sent == 5


def test_a_cluster_without_a_broker_is_waited_for_and_then_named(
    broker: Embedded, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as a failover may take."""
    options = options_of(broker, topic, failoverTimeoutMs="300")
    sender = Sender(options, begin(options), "q.0.0")
    elsewhere = MessageQueue(topic, "elsewhere", 0)
    monkeypatch.setattr("ledgermq.pipeline.sender.choose_queue", lambda *_: elsewhere)
    sender.add(messages(topic, 3))

    with pytest.raises(NotWritten, match=r"3 messages for .*@elsewhere:0 were not acknowledged within 0.3 s.*has no master"):
        sender.flush()


def test_an_attempt_that_does_not_know_of_an_earlier_one_learns_it_from_the_broker(broker: Embedded, topic: str) -> None:
    """A stage that runs again counts its attempts from 0, and gets rows in another order if they come from a shuffle."""
    options = options_of(broker, topic)
    began = begin(options)
    rows = messages(topic, 60)
    outcomes: list[tuple[int, int]] = []
    for number, sent in enumerate((rows[:25], rows[20:50], rows)):
        attempt = Sender(options, began, "rerun.0.0")
        attempt.add(random.Random(number).sample(sent, len(sent)))
        attempt.flush()
        outcomes.append((attempt.sent, attempt.skipped))

    assert outcomes == [(25, 0), (25, 5), (10, 50)]
    assert all_bodies(broker.namesrv, topic) == numbered(range(60))


def test_a_first_attempt_does_not_read_the_destination(broker: Embedded, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of tasks would read what all tasks before them have written."""
    searched: list[list[MessageQueue]] = []
    stored = Sender._stored  # pyright: ignore[reportPrivateUsage]

    def note(self: Sender, queues: list[MessageQueue], *begins: Any) -> Counter[bytes]:
        searched.append(queues)
        return stored(self, queues, *begins)

    monkeypatch.setattr(Sender, "_stored", note)
    options = options_of(broker, topic)
    began = begin(options)
    for partition in range(2):
        sender = Sender(options, attrs.evolve(began, timestamp_ms=began.timestamp_ms + 3_600_000), f"first.0.{partition}")
        sender.add(messages(topic, 10))
        sender.flush()
    assert searched == [[], []]

    broker_forgets = attrs.evolve(began, timestamp_ms=0)
    Sender(options, broker_forgets, "first.0.2").add(messages(topic, 1))

    assert len(searched[-1]) == 3


def test_a_late_request_of_an_earlier_attempt_is_not_carried_out(broker: Embedded, topic: str) -> None:
    """A broker that was stopped goes on after the next attempt has looked, and finds the request in its socket."""
    options = options_of(broker, topic)
    began = begin(options)
    stalled = Sender(options, began, "late.0.0")
    stalled.add(messages(topic, 30))
    chunks = [stalled._next_chunk(queue) for queue in sorted(stalled.pending)]  # pyright: ignore[reportPrivateUsage]
    late = [(chunk, stalled._command(chunk, 0)) for chunk in chunks]  # pyright: ignore[reportPrivateUsage]

    again = Sender(options, began, "late.0.0")
    again.add(reversed(messages(topic, 30)))
    again.flush()
    for chunk, command in late:
        master = stalled.client.routes.master(chunk.queue.broker_name)
        assert master is not None
        answer = stalled.client.link(master).call(command, 5)
        assert answer.code == ResponseCode.PRODUCER_FENCED
        with pytest.raises(NotWritten, match="another attempt of this task has begun"):
            stalled._judge(answer, chunk)  # pyright: ignore[reportPrivateUsage]

    assert all_bodies(broker.namesrv, topic) == numbered(range(30))


@pytest.mark.parametrize("transaction", ["held.0.0", None])
def test_a_request_that_is_carried_out_after_its_repetition_stores_nothing(
    broker: Embedded, topic: str, monkeypatch: pytest.MonkeyPatch, transaction: str | None
) -> None:
    """Within one attempt the repeated request has the same numbers; this holds for rows that are sent at least once too."""
    submit = Link.submit
    held: list[bytes] = []

    def hold_first(self: Link, command: RemotingCommand, timeout_seconds: float) -> int:
        if command.code == RequestCode.SEND_BATCH_MESSAGE and not held:
            held.append(encode_frame(command))
            raise LinkLost(self.address, "test")
        return submit(self, command, timeout_seconds)

    monkeypatch.setattr(Link, "submit", hold_first)
    options = options_of(broker, topic)
    sender = Sender(options, begin(options), transaction)
    sender.add(messages(topic, 30))
    sender.flush()
    master = sender.client.routes.master("broker-a")
    assert master is not None
    (frame,) = FrameReader().feed(held[0])
    answer = sender.client.link(master).call(decode_command(*frame), 5)

    # Requests that were sent later have said that this one is done; the broker may have derived them already.
    assert answer.code == ResponseCode.SEND_FORGOTTEN or answer.ext["repeated"] == "true"
    assert all_bodies(broker.namesrv, topic) == numbered(range(30))


def test_queues_that_were_written_and_are_not_written_any_more_are_searched_too(broker: Embedded, topic: str) -> None:
    """An operator may take queues away between two attempts."""
    options = options_of(broker, topic)
    began = begin(options)
    first = Sender(options, began, "fewer.0.0")
    first.add(messages(topic, 30))
    first.flush()
    with blocking.open_admin(broker.namesrv) as admin:
        admin.call(lambda each: each.update_topic(topic, write_queues=1, read_queues=3))

    again = Sender(options, began, "fewer.0.0")
    again.add(messages(topic, 30))
    again.flush()

    assert (again.sent, again.skipped) == (0, 30)


def test_an_attempt_that_was_replaced_waits_to_be_ended(broker: Embedded, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under speculation: a failure would count, and Spark would begin a third attempt beside the second."""
    options = options_of(broker, topic)
    pauses: list[float] = []
    # Not the function in `time`, which other threads of this process call too.
    monkeypatch.setattr("ledgermq.pipeline.sink.time", SimpleNamespace(sleep=pauses.append, time_ns=time.time_ns))
    writer = TaskWriter(
        options, Rows({"body": "body"}, topic, 1000, allow_null_body=False), begin(options), may_be_repeated=False
    )
    first, second = (SimpleNamespace(partitionId=lambda: 0, attemptNumber=lambda each=attempt: each) for attempt in (0, 1))
    rows = [pa.RecordBatch.from_pydict({"body": [b"%06d" % number]}) for number in range(3)]

    def replaced() -> Iterator[pa.RecordBatch]:
        yield rows[0]
        yield rows[1]
        assert writer.write(iter(rows), "replaced", second).sent == 3
        yield rows[2]

    with pytest.raises(Replaced, match="another attempt of this task has begun"):
        writer.write(replaced(), "replaced", first)

    assert pauses == [REPLACED_SECONDS]
    assert all_bodies(broker.namesrv, topic) == numbered(range(3))
