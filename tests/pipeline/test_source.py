"""The data source in a real Spark session, reading a store's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ledgermq.pipeline.batches import Batches
from ledgermq.pipeline.columns import COLUMNS, KAFKA_COLUMNS, Column, ddl

from .stores import StoreFiles, interleaved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 400


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of three queues in several files of the log."""
    root = tmp_path_factory.mktemp("data") / "broker-a"
    StoreFiles(root).append(interleaved(COUNT))
    return root


def read(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format("ledgermq").options(storePath=str(store), **{"subscribe": "T", **options}).load()


def test_a_topic_is_a_table(spark: SparkSession, store: Path) -> None:
    """Every message once, in order within its queue."""
    rows = read(spark, store).collect()

    assert sorted(bytes(row.body) for row in rows) == sorted(message.body for message in interleaved(COUNT))
    for queue_id in range(3):
        offsets = [row.queueOffset for row in rows if row.queueId == queue_id]
        assert offsets == list(range(len(offsets)))
    assert {row.brokerName for row in rows} == {"broker-a"}
    assert {row.properties["TAGS"] for row in rows} == {"paid", "new"} == {row.tags for row in rows}


def test_many_tasks_read_every_message_once(spark: SparkSession, store: Path) -> None:
    """Ranges of bytes are cut between messages."""
    frame = read(spark, store, minPartitions="7", columns="queueId,queueOffset")

    rows = [(row.queueId, row.queueOffset) for row in frame.collect()]

    assert frame.rdd.getNumPartitions() == 7
    assert len(rows) == len(set(rows)) == COUNT


def test_a_schema_is_a_projection(spark: SparkSession, store: Path) -> None:
    """Nothing else is read."""
    reader = spark.read.format("ledgermq").options(storePath=str(store), subscribe="T")

    assert reader.schema("queueOffset bigint, storeSize int").load().columns == ["queueOffset", "storeSize"]
    assert reader.schema("queueOffset bigint").load().count() == COUNT


def test_offsets_and_times_bound_what_is_read(spark: SparkSession, store: Path) -> None:
    """Each queue by its own offset, or all by one time."""
    by_offset = read(
        spark, store, startingOffsets='{"T":{"broker-a":{"0":10,"1":-2}}}', endingOffsets='{"T":{"broker-a":{"1":5,"2":-1}}}'
    )
    by_time = read(spark, store, startingTimestamp="1700000000100", endingTimestamp="1700000000200")

    counts = {row.queueId: row["count"] for row in by_offset.groupBy("queueId").count().collect()}
    assert counts == {0: 124, 1: 5, 2: 133}
    assert by_time.count() == 100


def test_tags_select_messages(spark: SparkSession, store: Path) -> None:
    """In the consume queue already."""
    assert read(spark, store, subExpression="paid || other").count() == COUNT // 2


def test_a_pattern_matches_whole_names_of_topics(spark: SparkSession, tmp_path: Path) -> None:
    """Topics of the system never match."""
    files = StoreFiles(tmp_path)
    for topic in ("orders", "orders-old", "%RETRY%orders", "RMQ_SYS_orders"):
        files.append(interleaved(3, topic=topic))

    frame = spark.read.format("ledgermq").options(storePath=str(tmp_path), subscribePattern="orders|.*RETRY.*|.*SYS.*").load()

    assert {row.topic for row in frame.collect()} == {"orders"}


def test_a_topic_without_messages_is_an_empty_table(spark: SparkSession, store: Path) -> None:
    """Spark runs a task even for an empty plan."""
    assert read(spark, store, startingTimestamp="1800000000000", startingOffsetsByTimestampStrategy="latest").count() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "TT"}, "the topic 'TT' does not exist"),
        ({"subscribe": "T", "startingOffsets": '{"T":{"broker-a":{"9":0}}}'}, "T@broker-a:9"),
        ({"subscribe": "T", "startingOffsets": '{"T":{"broker-a":{"0":999}}}'}, "ends at 134"),
        ({"subscribe": "T", "startingTimestamp": "1800000000000"}, "startingOffsetsByTimestampStrategy"),
        ({"subscribe": "T", "columns": "topc"}, "did you mean 'topic'"),
        ({"subscribe": "T", "storePath": "/nowhere"}, "no such directory"),
        ({"subscribe": "T", "storePath": "/"}, "'commitlog' directory"),
        ({"assign": '{"T":{"broker-a":[7]}}'}, "no such queue"),
        ({"subscribe": "T", "strtingOffsets": "x"}, "did you mean 'startingOffsets'"),
    ],
)
def test_mistakes_are_named_before_anything_runs(spark: SparkSession, store: Path, options: dict[str, str], said: str) -> None:
    """With the option, its value and what would be right."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as refused:
        spark.read.format("ledgermq").options(**{"storePath": str(store), **options}).load().collect()

    assert said in str(refused.value)


@pytest.mark.parametrize("columns", [COLUMNS, KAFKA_COLUMNS])
def test_batches_have_the_schema_that_spark_expects(spark: SparkSession, columns: tuple[Column, ...]) -> None:
    """To the bit; else Spark refuses the first batch."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema: Any = spark.createDataFrame([], ddl(columns)).schema

    assert Batches(columns).schema.equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)


def test_columns_of_the_kafka_source(spark: SparkSession, store: Path) -> None:
    """For queries that were written for it."""
    frame = read(spark, store, schemaStyle="kafka", columns="key,value,partition,offset,headers")

    row = frame.where("partition = 0 and offset = 0").first()

    assert row is not None
    assert (bytes(row.key), bytes(row.value)) == (b"k0", b"000000")
    assert bytes({each.key: each.value for each in row.headers}["TAGS"]) == b"new"
