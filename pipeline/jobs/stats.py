"""`stats`: throughput, latency from born to stored, and the distribution over queues and keys. Bodies are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..intervals import microseconds
from .places import Source, read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PERCENTILES = (0.5, 0.95, 0.99, 1.0)
COLUMNS = ("topic", "brokerName", "queueId", "keys", "tags", "bornTimestamp", "storeTimestamp", "bodySize", "storeSize")


@attrs.frozen
class Stats:
    """Three tables. Spark computes each of them when its rows are collected."""

    windows: DataFrame
    """For each window: messages, bytes, their rates, and percentiles of the time from born to stored, in ms."""
    queues: DataFrame
    """For each queue: messages, share of all, bytes, sizes of bodies."""
    keys: DataFrame
    """The keys with the most messages."""


def stats(spark: SparkSession, source: Source, *, window: str = "1 minute", keys_max: int = 20) -> Stats:
    """Describe the messages of topics.

    Args:
        spark: a session.
        source: options of a batch read.
        window: the length of a window as Spark writes it, such as `1 minute`.
        keys_max: how many keys are listed.

    Raises:
        BadOption: `window` is no length.
    """
    length = microseconds("window", window)
    from pyspark.sql import Window, functions  # noqa: PLC0415

    rows = read(spark, source, *COLUMNS)
    queues = (
        rows.groupBy("topic", "brokerName", "queueId")
        .agg(
            functions.count("*").alias("messages"),
            functions.sum("storeSize").alias("bytes"),
            functions.percentile_approx("bodySize", 0.5, 1000).alias("bodySizeP50"),
            functions.max("bodySize").alias("bodySizeMax"),
        )
        .withColumn("share", functions.col("messages") / functions.sum("messages").over(Window.partitionBy("topic")))
        .orderBy("topic", "brokerName", "queueId")
    )
    return Stats(windows_of(rows, length, "topic"), queues, keys_of(rows, keys_max))


def windows_of(rows: DataFrame, length: int, *by: str) -> DataFrame:
    """Describe the messages of each window.

    Args:
        rows: messages with `COLUMNS`.
        length: of a window, in microseconds.
        by: columns whose values are described apart from each other.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    latency = functions.unix_millis("storeTimestamp") - functions.unix_millis("bornTimestamp")
    of_window = functions.window("storeTimestamp", f"{length} microseconds")
    seconds = functions.lit(length / 1_000_000)
    percentiles = functions.percentile_approx("latency", list(PERCENTILES), 1000)
    return (
        rows.withColumn("latency", latency)
        .groupBy(*by, of_window.alias("window"))
        .agg(functions.count("*").alias("messages"), functions.sum("storeSize").alias("bytes"), percentiles.alias("latencies"))
        .select(
            *by,
            functions.col("window.start").alias("start"),
            "messages",
            "bytes",
            (functions.col("messages") / seconds).alias("messagesPerSecond"),
            (functions.col("bytes") / seconds).alias("bytesPerSecond"),
            *(
                functions.col("latencies")[at].alias(name)
                for at, name in enumerate(("latencyP50", "latencyP95", "latencyP99", "latencyMax"))
            ),
        )
        .orderBy(*by, "start")
    )


def keys_of(rows: DataFrame, keys_max: int) -> DataFrame:
    """Return the keys with the most messages."""
    from pyspark.sql import functions  # noqa: PLC0415

    return (
        rows.where("keys is not null")
        .groupBy("topic", "keys")
        .agg(functions.count("*").alias("messages"))
        .orderBy(functions.desc("messages"), "topic", "keys")
        .limit(keys_max)
    )
