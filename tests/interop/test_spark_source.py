"""The data source on brokers of Apache's: reading a topic, and writing to one, as Spark's tasks do it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ledgermq.client.producer import open_producer
from ledgermq.message.message import Message
from ledgermq.pipeline.catalog import batch_ranges
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.options import read_options, write_options
from ledgermq.pipeline.outgoing import Rows
from ledgermq.pipeline.reading import TaskReader, open_catalog
from ledgermq.pipeline.sender import Sender
from ledgermq.pipeline.sink import begin

from .conftest import obtain
from .servers import Cluster, Maker, jars_of, running

pytestmark = pytest.mark.interop
pa: Any = pytest.importorskip("pyarrow")
COUNT = 500
DISPATCH_SECONDS = 60.0


@pytest.fixture(scope="module", params=[Maker.APACHE_55, Maker.APACHE_49], ids=lambda maker: maker.value)
def apache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    maker: Maker = request.param
    obtain(lambda: jars_of(maker))
    folder = tmp_path_factory.mktemp("apache")
    with running(maker, folder) as cluster:
        yield cluster, folder


def read(**options: str) -> list[dict[str, Any]]:
    given = read_options(options, streaming=False)
    catalog = open_catalog(given)
    tasks = catalog.plan(batch_ranges(catalog, given), given)
    reader = TaskReader(given, chosen(given.content))
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["queueId"], row["queueOffset"]))


def read_all(count: int, **options: str) -> list[dict[str, Any]]:
    """Read a topic that has this many messages: an Apache broker puts them into its queues after it has acknowledged them."""
    deadline = time.monotonic() + DISPATCH_SECONDS
    while len(rows := read(**options)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    return rows


def test_a_topic_is_read_and_written(apache: tuple[Cluster, Path]) -> None:
    """Whole, by tag and by time; from the broker's files with the same result; and a repeated task writes nothing twice."""
    cluster, folder = apache

    async def fill() -> None:
        async with open_producer(cluster.namesrv, send_timeout_seconds=20) as producer:
            for number in range(COUNT):
                await producer.send(Message("SparkTopic", b"%06d" % number, tag=f"t{number % 2}", keys=[f"k{number}"]))

    trio.run(fill)
    rows = read_all(COUNT, nameServer=cluster.namesrv, subscribe="SparkTopic")
    half = sorted(row["storeTimestamp"] for row in rows)[COUNT // 2]
    since = str(round(half.timestamp() * 1000))

    assert sorted(row["body"] for row in rows) == [b"%06d" % number for number in range(COUNT)]
    assert len(read(nameServer=cluster.namesrv, subscribe="SparkTopic", subExpression="t1")) == COUNT // 2
    by_time = read(nameServer=cluster.namesrv, subscribe="SparkTopic", startingTimestamp=since)
    assert [row["msgId"] for row in by_time] == [row["msgId"] for row in rows if row["storeTimestamp"] >= half]

    (store,) = (path.parent for path in folder.rglob("commitlog") if path.is_dir())
    broker_name = rows[0]["brokerName"]
    assert read(storePath=str(store), brokerName=broker_name, subscribe="SparkTopic") == rows

    options = write_options({"nameServer": cluster.namesrv, "topic": "SparkTopic", "sendBatchBytes": "3000"})
    began = begin(options)
    batch = pa.RecordBatch.from_pydict({"body": [b"again %06d" % number for number in range(200)]})
    for attempt, kept in ((0, 120), (1, 200)):
        sender = Sender(options, began, "q.0.0")
        if attempt:
            sender.look_before_sending()
        messages = list(Rows({"body": "body"}, "SparkTopic", 1000, allow_null_body=False).messages(batch, "here"))
        sender.add(messages[:kept])
        sender.flush()
        rows = read_all(COUNT + kept, nameServer=cluster.namesrv, subscribe="SparkTopic")
    written = [row["body"] for row in rows if row["body"][:5] == b"again"]
    assert sorted(written) == [b"again %06d" % number for number in range(200)]
