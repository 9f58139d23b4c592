"""A stream that copies a topic to another one, a few messages at a time, and a driver of it that tests kill."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ledgermq.pipeline.jobs.copies import stream
from ledgermq.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

GAVE_UP = "Python worker failed to connect back"
ATTEMPTS_MAX = 6


def run_to_end(start: Callable[[], StreamingQuery]) -> None:
    """Start a query that ends by itself, again if Spark gives up, which waits ten seconds for a worker, not longer."""
    from pyspark.errors import PySparkException

    for _ in range(ATTEMPTS_MAX - 1):
        try:
            start().awaitTermination()
        except PySparkException as error:
            if GAVE_UP not in str(error):
                raise
        else:
            return
    start().awaitTermination()


def copying(
    spark: SparkSession, namesrv: str, source: str, target: str, checkpoint: str, *, to_the_end: bool = False
) -> StreamingQuery:
    """Start the stream, which ends once everything is copied, or copies for ever."""
    read = {"nameServer": namesrv, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
    written = {"nameServer": namesrv, "topic": target, "sendBatchBytes": "1000"}
    return stream(spark, read, written, checkpoint=checkpoint, available_now=to_the_end)


def main(namesrv: str, source: str, target: str, checkpoint: str) -> None:
    spark = session("local[2,3]", name="copying", memory="512m", log_path=f"{checkpoint}.log")
    copying(spark, namesrv, source, target, checkpoint).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
