"""`replay` sends archived messages to a topic again; `stream` copies topics to topics or other sinks, through SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...message.properties import SHARDING_KEY
from ..errors import BadOption
from ..intervals import microseconds
from .places import FORMAT, TASKS, Source, send_again

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INPUT = "input"
"""The name of the view that the SQL of `stream` reads."""
REPLAYED = "REPLAY_SOURCE"
"""The property with the topic, broker, queue and offset that a replayed message came from."""


def replay(
    spark: SparkSession,
    directory: str,
    target: Mapping[str, str],
    *,
    topic: str | None = None,
    keep_queues: bool = True,
    where: str | None = None,
    tasks: int = TASKS,
) -> int:
    """Send archived messages again, in the order of each queue. Born time, tags, keys and properties are kept.

    Args:
        spark: a session.
        directory: what `archive` has written.
        target: options of a batch write; with `checkpointLocation`, a replay that was interrupted sends only what is missing.
        topic: the destination; if None, each message goes to the topic that it came from.
        keep_queues: send each message to the queue of the same number; otherwise each source queue goes to some queue.
        where: a condition in SQL on the columns of the archive, and `dt`.
        tasks: how many tasks send; the same as before if a replay that was interrupted is started again.

    Returns: the number of messages.

    Raises:
        BadOption: the files in the directory lack a column, or another run uses the checkpoint.
        PySparkException: the directory cannot be read, or messages were not written; it names the option and the value.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    rows = _read_archive(spark, directory)
    if where is not None:
        rows = rows.where(where)
    origin = functions.concat_ws("/", *_PLACE)
    others = functions.map_filter("properties", lambda name, _: name != REPLAYED)  # which a replayed message has already
    shaped = (
        rows.repartition(tasks, *_PLACE[:3])
        .sortWithinPartitions(*_PLACE)
        .withColumn("properties", functions.map_concat(others, functions.create_map(functions.lit(REPLAYED), origin)))
    )
    if not keep_queues:
        shaped = shaped.withColumn("shardingKey", functions.concat_ws("/", *_PLACE[:3])).drop("queueId")
    options = {**target, **({"topic": topic} if topic is not None else {})}
    columns = [name for name in (*_KEPT, "shardingKey") if name in shaped.columns]
    with send_again(target):
        shaped.select(*columns).write.format(FORMAT).mode("append").options(**options).save()
    return rows.count()


def _read_archive(spark: SparkSession, directory: str) -> DataFrame:
    """Read the files of an archive as a table.

    Raises:
        BadOption: they lack a column that is needed to send the messages again.
    """
    before = spark.conf.get(_INFERENCE)
    spark.conf.set(_INFERENCE, "false")  # otherwise the topic 007 would be the number 7
    try:
        rows = spark.read.parquet(directory)
    finally:
        spark.conf.set(_INFERENCE, str(before))
    types = dict(rows.dtypes)
    for name, wanted in _NEEDED.items():
        if types.get(name) != wanted:
            found = f"is of type {types[name]}" if name in types else "is missing"
            raise BadOption(
                "directory", directory, f"the column {name!r} {found}, but {wanted} is needed to send messages again"
            )
    return rows


_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"
_PLACE = ("topic", "brokerName", "queueId", "queueOffset")
_NEEDED = {
    "topic": "string", "brokerName": "string", "queueId": "int", "queueOffset": "bigint", "body": "binary",
    "properties": "map<string,string>",
}  # fmt: skip
_KEPT = ("topic", "brokerName", "queueId", "body", "tags", "keys", "properties", "flag", "bornTimestamp")


def stream(
    spark: SparkSession,
    source: Source,
    target: Mapping[str, str],
    *,
    checkpoint: str,
    sql: str | None = None,
    target_format: str = FORMAT,
    watermark: str | None = None,
    trigger: str | None = None,
    available_now: bool = False,
) -> StreamingQuery:
    """Start a query that reads topics, applies SQL, and writes to topics or to any sink of Spark.

    Without SQL the messages of a queue, or with the same sharding key, go to one queue of the target in their order.

    Args:
        spark: a session.
        source: options of a streaming read.
        target: options of the sink.
        checkpoint: a directory that no other query uses.
        sql: reads the view `input`; if None, rows are copied. To be written to a topic, its result needs a column `body`.
        target_format: `ledgermq`, `parquet`, `console`, ...
        watermark: column and delay, such as `storeTimestamp 10 seconds`, for windows.
        trigger: the interval between batches, such as `1 second`; if None, batches follow at once.
        available_now: end when all messages that exist at the start have been read; only without a trigger.

    Raises:
        BadOption: the trigger is no interval or the query is to end by itself, or the watermark is not a column and a delay.
        PySparkException: the SQL is wrong, or source or sink refuse their options.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    pause = None if trigger is None else microseconds("trigger", trigger, least=0)
    if pause is not None and available_now:
        raise BadOption("trigger", trigger, "a query that ends when all has been read takes no interval")
    rows = spark.readStream.format(FORMAT).options(**source).load()
    if watermark is not None:
        column, _, delay = watermark.partition(" ")
        if not delay or column not in rows.columns:
            raise BadOption(
                "watermark", watermark, "a column of time and a delay are expected, such as 'storeTimestamp 10 seconds'"
            )
        rows = rows.withWatermark(column, f"{microseconds('watermark', delay, least=0)} microseconds")
    result = rows
    if sql is not None:
        rows.createOrReplaceTempView(INPUT)
        result = spark.sql(sql)
    elif target_format == FORMAT:
        # The target may have other queues than the source, so all messages of a queue go to one, whichever it is.
        own = functions.concat_ws("/", *_PLACE[:3])
        result = rows.withColumn("shardingKey", functions.coalesce(functions.col("properties")[SHARDING_KEY], own))
        result = result.drop("queueId", "brokerName", *(["topic"] if "topic" in target else []))
    writer = result.writeStream.format(target_format).options(**target).option("checkpointLocation", checkpoint)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif pause is not None:
        writer = writer.trigger(processingTime=f"{pause} microseconds")
    return writer.start()
