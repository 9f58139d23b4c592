"""Copy paid orders from one topic to another, exactly once: `python docs/examples/copy_paid.py 127.0.0.1:9876 orders paid DIR`.

Run it again, whenever it ended and however: it goes on where it was.
"""

from __future__ import annotations

import sys

from ledgermq.pipeline.session import session

namesrv, source, target, checkpoint = sys.argv[1:5]
with session() as spark:
    orders = (
        spark.readStream.format("ledgermq")
        .options(nameServer=namesrv, subscribe=source, startingOffsets="earliest", subExpression="paid")
        .load()
    )
    query = (
        orders.select("body", "tags", "keys")
        .writeStream.format("ledgermq")
        .options(nameServer=namesrv, topic=target, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
