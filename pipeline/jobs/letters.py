"""`dlq` shows and sends back the messages that a group could not consume; `compact` keeps the newest message of each key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...message.message import DLQ_PREFIX, RETRY_PREFIX
from ...message.properties import DLQ_ORIGIN_TOPIC, RETRY_TOPIC
from ..errors import BadOption
from .places import FORMAT, TASKS, Source, read, sole_user

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


def redrive(letters: DataFrame, target: Mapping[str, str]) -> int:
    """Send dead letters to the topics that they came from, and return their number.

    Letters without an origin are not sent. With `checkpointLocation` in `target`, an interrupted redrive that is started again
    sends only the missing letters, and a finished one sends nothing.

    Raises:
        BadOption: another run uses the checkpoint.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    found = letters.where("originTopic is not null")
    queue = ("topic", "brokerName", "queueId")
    sent = found.repartition(TASKS, *queue).sortWithinPartitions(*queue, "queueOffset").select(
        functions.col("originTopic").alias("topic"), "body", "tags", "keys", "flag", "bornTimestamp",
        functions.map_filter("properties", lambda name, _: ~name.isin(*_OF_DELIVERY)).alias("properties"),
    )  # fmt: skip
    with sole_user(target.get("checkpointLocation")):
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


def compact(spark: SparkSession, source: Source, *, by: str = "keys") -> DataFrame:
    """Return the newest message of every key as a table. A key whose newest message is empty was deleted and is left out.

    There are two passes. The first finds the newest messages without reading bodies. The second reads bodies and keeps only
    those of the newest messages before anything is shuffled.

    Args:
        spark: a session.
        source: options of a batch read. If messages arrive meanwhile, set `endingOffsets`, so that both passes read the same.
        by: the column with the key.
    """
    from pyspark.sql import functions  # noqa: PLC0415

    place = ("topic", "brokerName", "queueId", "queueOffset")
    narrow = read(spark, source, by, "storeTimestamp", "bodySize", *place).where(functions.col(by).isNotNull())
    order = functions.struct("storeTimestamp", "queueOffset", "brokerName", "queueId")
    newest = functions.max_by(functions.struct("bodySize", *place), order)
    winners = narrow.groupBy(by).agg(newest.alias("newest")).where("newest.bodySize > 0").select("newest.*").drop("bodySize")
    return read(spark, source).join(functions.broadcast(winners), list(place), "left_semi")


_COMPACTED = re.compile(r"\.?(_SUCCESS|_temporary|part-.*)(\.crc)?")
"""The names of files that Spark writes into the directory of a compaction."""


def check_replaceable(to: str) -> None:
    """Check that a directory of this machine has only files of an earlier compaction, because Spark deletes all that is in it.

    Raises:
        BadOption: names what would be deleted.
    """
    path = to.removeprefix("file://")
    if "://" in path or not os.path.lexists(path):
        return
    others = (
        sorted(name for name in os.listdir(path) if not _COMPACTED.fullmatch(name))
        if os.path.isdir(path)
        else [os.path.basename(path)]
    )
    if others:
        raise BadOption(
            "to",
            to,
            f"{others[0]!r} and all else there would be deleted, but no compaction has written it; name a new directory",
        )
