"""A driver that tests kill: copies a topic to another one, a few messages at a time, until all are copied or for ever."""

from __future__ import annotations

import sys

from ledgermq.pipeline.jobs.copies import stream
from ledgermq.pipeline.session import session


def main(namesrv: str, source: str, target: str, checkpoint: str, *, to_the_end: bool) -> None:
    spark = session("local[2,3]", name="copying", memory="512m", log_path=f"{checkpoint}.log")
    read = {"nameServer": namesrv, "subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
    written = {"nameServer": namesrv, "topic": target, "sendBatchBytes": "1000"}
    stream(spark, read, written, checkpoint=checkpoint, available_now=to_the_end).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:5], to_the_end=sys.argv[5] == "to the end")
