"""A topic as a table, messages counted by tag: `python docs/examples/read_topic.py 127.0.0.1:9876 orders`."""

from __future__ import annotations

import sys

from ledgermq.pipeline.session import session

namesrv, topic = sys.argv[1:3]
with session() as spark:
    rows = spark.read.format("ledgermq").options(nameServer=namesrv, subscribe=topic, columns="tags").load()
    rows.groupBy("tags").count().orderBy("tags").show()
