"""`dlq` shows and sends back the messages that a group could not consume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...message.message import DLQ_PREFIX, RETRY_PREFIX
from ...message.properties import DLQ_ORIGIN_TOPIC, RETRY_TOPIC
from .places import FORMAT, TASKS, Source, read, send_again

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REASONS = ("EXCEPTION", "exception", "error", "CONSUME_EXCEPTION", "reason")
"""Properties in which applications store why a message failed; the first one that a message has is shown."""


def dead_letters(spark: SparkSession, source: Source, group: str) -> DataFrame:
    """Return the dead letters of a consumer group, each with its original topic and the reason, if one is known.

    Args:
        spark: a session.
        source: options of a batch read, without a subscription.
        group: a consumer group.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    rows = read(
        spark, {**source, "subscribe": DLQ_PREFIX + group},
        "topic", "brokerName", "queueId", "queueOffset", "tags", "keys", "body", "properties", "flag", "reconsumeTimes",
        "bornTimestamp", "storeTimestamp", "msgId",
    )  # fmt: skip
    return rows.withColumns({"originTopic": _origin(), "reason": functions.coalesce(*map(_property, REASONS))})


def summary(letters: DataFrame) -> DataFrame:
    """Count dead letters by origin, tag, number of attempts and reason, with the times of the first and the last."""
    from pyspark.sql import functions  # noqa: PLC0415

    return (
        letters.groupBy("originTopic", "tags", "reconsumeTimes", "reason")
        .agg(
            functions.count("*").alias("messages"),
            functions.min("storeTimestamp").alias("first"),
            functions.max("storeTimestamp").alias("last"),
        )
        .orderBy(functions.desc("messages"), "originTopic", "tags", "reconsumeTimes", "reason")
    )


def redrive(letters: DataFrame, target: Mapping[str, str], *, tasks: int = TASKS) -> int:
    """Send dead letters to the topics that they came from, and return their number.

    Letters without an origin are not sent. With `checkpointLocation` in `target`, an interrupted redrive that is started again
    sends only the missing letters, and a finished one sends nothing.

    Raises:
        BadOption: another run uses the checkpoint.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    found = letters.where("originTopic is not null")
    queue = ("topic", "brokerName", "queueId")
    sent = found.repartition(tasks, *queue).sortWithinPartitions(*queue, "queueOffset").select(
        functions.col("originTopic").alias("topic"), "body", "tags", "keys", "flag", "bornTimestamp",
        functions.map_filter("properties", lambda name, _: ~name.isin(*_OF_DELIVERY)).alias("properties"),
    )  # fmt: skip
    with send_again(target):
        sent.write.format(FORMAT).mode("append").options(**target).save()
    return found.count()


_OF_DELIVERY = (
    RETRY_TOPIC, DLQ_ORIGIN_TOPIC, "DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES",
)  # fmt: skip


def _property(name: str) -> Column:
    from pyspark.sql import functions  # noqa: PLC0415

    return functions.col("properties")[name]


def _origin() -> Column:
    from pyspark.sql import functions  # noqa: PLC0415

    named = functions.coalesce(_property(DLQ_ORIGIN_TOPIC), _property(RETRY_TOPIC))
    return functions.when(~named.startswith(RETRY_PREFIX), named)
