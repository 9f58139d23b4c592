"""Every option of a read and of a write, through a broker and from files, as a batch and as a stream. Spark is not started."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pyarrow as pa
import pytest

from ledgermq.pipeline.batch_reader import LedgermqReader
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.errors import BadOption, NotWritten
from ledgermq.pipeline.options import ACL_OPTIONS, READ_OPTIONS, TLS_OPTIONS, WRITE_OPTIONS, read_options, write_options
from ledgermq.pipeline.outgoing import Rows
from ledgermq.pipeline.sink import LedgermqStreamWriter, LedgermqWriter
from ledgermq.testing.embedded import Embedded, start_embedded

from .brokers import all_bodies, create_topic, send
from .test_stream import Engine, rows

COUNT = 90
SECURITY = {*TLS_OPTIONS, *ACL_OPTIONS}
"""Options with tests of their own, which need brokers of other kinds."""

Key = tuple[int, int]
"""Queue and queue offset of a message."""


@attrs.frozen
class Topic:
    """A topic that is read, by both ways to it."""

    places: tuple[dict[str, str], ...]
    stored: dict[Key, int]
    """The time at which each message was stored."""
    tags: dict[Key, str]

    @property
    def middle(self) -> int:
        """A time at which some messages had been stored, and at or after which the others were."""
        return sorted(self.stored.values())[COUNT // 2]


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Generator[Topic]:
    root = tmp_path_factory.mktemp("store")
    with start_embedded(store=str(root)) as embedded:
        create_topic(embedded.namesrv, "T", 3)
        for begin in range(0, COUNT, 10):  # the messages of one request are stored in one millisecond
            send(embedded.namesrv, "T", 10, begin)
        places = ({"nameServer": embedded.namesrv}, {"storePath": str(root / "0"), "brokerName": "broker-a"})
        found = read(places[0])[0]
        keys = [(row["queueId"], row["queueOffset"]) for row in found]
        stored = [round(row["storeTimestamp"].timestamp() * 1000) for row in found]
        yield Topic(places, dict(zip(keys, stored, strict=True)), dict(zip(keys, (row["tags"] for row in found), strict=True)))


def read(place: dict[str, str], **options: str) -> tuple[list[dict[str, Any]], list[int]]:
    """Read a batch: its rows, and how many of them each task has."""
    given = place | ({} if options.keys() & {"subscribePattern", "assign"} else {"subscribe": "T"}) | options
    wanted = read_options(given, streaming=False)
    reader = LedgermqReader(wanted, chosen(wanted.content))
    tasks = [[row for batch in reader.read(each) for row in batch.to_pylist()] for each in reader.partitions()]
    return [row for task in tasks for row in task], [len(task) for task in tasks]


Expected = Callable[[Topic, Key], bool]


def everything(_topic: Topic, _key: Key) -> bool:
    return True


def later(topic: Topic, key: Key) -> bool:
    return topic.stored[key] >= topic.middle


def earlier(topic: Topic, key: Key) -> bool:
    return topic.stored[key] < topic.middle


ALL_QUEUES = '{"T":{"broker-a":{"0":%d,"1":%d,"2":%d}}}'
READS: dict[str, tuple[dict[str, str], Expected]] = {
    "nameServer": ({}, everything),
    "storePath": ({}, everything),
    "brokerName": ({}, everything),
    "subscribe": ({"subscribe": "T"}, everything),
    "subscribePattern": ({"subscribePattern": "T|U"}, everything),
    "assign": ({"assign": '{"T":{"broker-a":[1]}}'}, lambda _, key: key[0] == 1),
    "startingOffsets": (
        {"startingOffsets": '{"T":{"broker-a":{"0":5,"1":-2,"2":0}}}'},
        lambda _, key: key[0] > 0 or key[1] >= 5,
    ),
    "endingOffsets": (
        {"endingOffsets": '{"T":{"broker-a":{"0":5,"1":-1}}}'},
        lambda _, key: key[0] > 0 or key[1] < 5,
    ),
    "startingTimestamp": ({"startingTimestamp": "MIDDLE"}, later),
    "endingTimestamp": ({"endingTimestamp": "MIDDLE"}, earlier),
    "startingOffsetsByTimestamp": ({"startingOffsetsByTimestamp": "EACH"}, later),
    "endingOffsetsByTimestamp": ({"endingOffsetsByTimestamp": "EACH"}, earlier),
    "startingOffsetsByTimestampStrategy": (
        {"startingTimestamp": "4000000000000", "startingOffsetsByTimestampStrategy": "latest"},
        lambda _, _key: False,
    ),
    "maxOffsetsPerTrigger": ({"maxOffsetsPerTrigger": "30"}, everything),
    "maxBytesPerTrigger": ({"maxBytesPerTrigger": "9000"}, everything),
    "minOffsetsPerTrigger": ({"minOffsetsPerTrigger": "1000"}, everything),
    "maxTriggerDelay": ({"minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1h"}, everything),
    "minPartitions": ({"minPartitions": "5"}, everything),
    "maxRecordsPerPartition": ({"maxRecordsPerPartition": "20"}, everything),
    "maxBytesPerPartition": ({"maxBytesPerPartition": "3000"}, everything),
    "failOnDataLoss": ({"failOnDataLoss": "false"}, everything),
    "mode": ({"mode": "PERMISSIVE"}, everything),
    "verifyCrc": ({"verifyCrc": "true"}, everything),
    "subExpression": ({"subExpression": "paid || other"}, lambda topic, key: topic.tags[key] == "paid"),
    "includeProperties": ({"includeProperties": "none"}, everything),
    "columns": ({"columns": "queueOffset,queueId"}, everything),
    "schemaStyle": ({"schemaStyle": "kafka"}, everything),
    "pushFilters": ({"pushFilters": "true"}, everything),
    "group": ({"group": "readers"}, everything),
    "pullMaxBytes": ({"pullMaxBytes": "300"}, everything),
    "pullMaxMessages": ({"pullMaxMessages": "7"}, everything),
    "pullTimeoutMs": ({"pullTimeoutMs": "9000"}, everything),
    "failoverTimeoutMs": ({"failoverTimeoutMs": "60000"}, everything),
}
"""For each option a read that has it, and the messages that are read then."""


def test_every_option_has_a_read_or_a_write() -> None:
    """Whoever adds an option adds a case."""
    assert READS.keys() == set(READ_OPTIONS) - SECURITY
    assert {option for case in WRITES for option in case} == set(WRITE_OPTIONS) - SECURITY - {"storePath", "brokerName"}


@pytest.mark.parametrize("option", READS)
def test_an_option_of_a_read_selects_the_same_messages_everywhere(topic: Topic, option: str) -> None:
    """Through the broker and from its files, as a batch and as a stream that reads all there is."""
    given, expected = READS[option]
    each = ALL_QUEUES % ((topic.middle,) * 3)
    given = {name: value.replace("MIDDLE", str(topic.middle)).replace("EACH", each) for name, value in given.items()}
    wanted = sorted(key for key in topic.stored if expected(topic, key))

    for place in topic.places:
        found, _ = read(place, **given)
        names = ("partition", "offset") if option == "schemaStyle" else ("queueId", "queueOffset")
        assert sorted((row[names[0]], row[names[1]]) for row in found) == wanted
        if not option.startswith("ending"):
            begin = {} if any(name.startswith("startingOffsetsBy") for name in given) else {"startingOffsets": "earliest"}
            subscription = {} if given.keys() & {"subscribePattern", "assign"} else {"subscribe": "T"}
            options: dict[str, Any] = {**begin, **place, **given}
            streamed = Engine(subscription=subscription)(**options)
            assert sorted(rows(streamed)) == wanted


@pytest.mark.parametrize("place", [0, 1])
def test_options_bound_tasks_and_batches(topic: Topic, place: int) -> None:
    """The number of tasks and what each one has; the number of messages in a batch."""
    where = topic.places[place]

    assert len(read(where, minPartitions="5")[1]) >= 5
    assert max(read(where, maxRecordsPerPartition="20")[1]) <= 20
    assert len(read(where, maxBytesPerPartition="3000")[1]) > 3
    for limit in ({"maxOffsetsPerTrigger": "30"}, {"maxBytesPerTrigger": "9000"}):
        options: dict[str, Any] = {**where, **limit}
        batches = [len(batch) for _, batch in Engine()(**options)]
        assert max(batches) <= 50
        assert sum(batches) == COUNT


@pytest.mark.parametrize("place", [0, 1])
def test_options_choose_columns(topic: Topic, place: int) -> None:
    """As a batch and a stream take them."""

    def names(**options: str) -> list[str]:
        return list(read(topic.places[place], **options)[0][0])

    assert names(columns="queueOffset,bodySize") == ["queueOffset", "bodySize"]
    assert "properties" not in names(includeProperties="none")
    assert names(mode="PERMISSIVE")[-1] == "_corrupt"
    assert names(schemaStyle="kafka")[:2] == ["key", "value"]
    assert isinstance(read(topic.places[place], includeProperties="string")[0][0]["properties"], str)


WRITES: tuple[dict[str, str], ...] = (
    {"nameServer": "", "topic": "", "deliveryGuarantee": "exactly-once"},
    {"deliveryGuarantee": "at-least-once", "group": "writers", "sendStatus": "stored", "queryName": "copy"},
    {"sendBatchBytes": "200", "sendTimeoutMs": "9000", "failoverTimeoutMs": "60000"},
    {"checkpointLocation": "DIRECTORY", "allowNullBody": "true", "maxMessageBytes": "6"},
)
"""Options of writes; together they have every option."""


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("case", range(len(WRITES)))
def test_an_option_of_a_write_writes_every_row_once(broker: Embedded, tmp_path: Path, case: int, streaming: bool) -> None:
    """A task that is repeated writes nothing more, if rows are written exactly once."""
    name = f"W{case}{streaming}"
    create_topic(broker.namesrv, name, 2)
    given = {key: value.replace("DIRECTORY", str(tmp_path)) for key, value in WRITES[case].items()}
    given = {**given, "nameServer": broker.namesrv, "topic": name}
    if streaming:  # Spark gives the sink of a stream its checkpoint, and has logged the offsets of the batch
        given["checkpointLocation"] = str(tmp_path)
        (tmp_path / "offsets").mkdir()
        (tmp_path / "offsets" / "0").touch()
    options = write_options(given)
    sink = Rows({"body": "body"}, name, options.message_bytes_max, options.allow_null_body)
    bodies = [b"%06d" % number for number in range(30)] + ([None] if options.allow_null_body else [])
    batch = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})
    writer = LedgermqStreamWriter(options, sink) if streaming else LedgermqWriter(options, sink)

    for attempt in range(2 if options.exactly_once else 1):
        context = SimpleNamespace(partitionId=lambda: 0, attemptNumber=lambda attempt=attempt: attempt)
        written = writer.task_writer.write(iter([batch]), "query.0", context)
        assert (written.sent, written.skipped) == ((0, len(bodies)) if attempt else (len(bodies), 0))

    assert all_bodies(broker.namesrv, name) == sorted(body or b"" for body in bodies)


@pytest.mark.parametrize(
    ("topic_name", "body", "given", "said"),
    [
        ("R0", None, {}, "null body"),
        ("R1", b"1234567", {"maxMessageBytes": "6"}, "7 bytes, 6 are allowed"),
        ("R2", b"x" * (4 * 1024 * 1024 + 1), {}, "4194305 bytes, 4194304 are allowed"),
        ("R3", b"x" * (4 * 1024 * 1024 + 1), {"maxMessageBytes": "5000000"}, "the broker refused 1 messages"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(
    broker: Embedded, topic_name: str, body: bytes | None, given: dict[str, str], said: str
) -> None:
    """None of its batch is sent."""
    create_topic(broker.namesrv, topic_name, 1)
    options = write_options({"nameServer": broker.namesrv, "topic": topic_name, **given})
    sink = Rows({"body": "body"}, topic_name, options.message_bytes_max, options.allow_null_body)
    batch = pa.RecordBatch.from_pydict({"body": pa.array([b"first", body], pa.binary())})
    context = SimpleNamespace(partitionId=lambda: 0, attemptNumber=lambda: 0)

    with pytest.raises(NotWritten, match=said):
        LedgermqWriter(options, sink).task_writer.write(iter([batch]), "job", context)

    refused_by_us = "the broker" not in said
    assert all_bodies(broker.namesrv, topic_name) == ([] if refused_by_us else [b"first"])


@pytest.mark.parametrize("option", ["storePath", "brokerName"])
def test_a_store_is_never_written(option: str) -> None:
    """A broker may be running on it."""
    with pytest.raises(BadOption, match="through a broker, never into a store's files"):
        write_options({"nameServer": "h:1", "topic": "T", option: "/data/store"})
