"""Spark Connect, whose packages are not installed with us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgermq import Message, blocking
from ledgermq.pipeline.java import find_java, java_home_for_spark
from ledgermq.testing.embedded import start_embedded

from . import peers
from .conftest import obtain

pytestmark = pytest.mark.interop
COMMAND_SECONDS = 400

CONNECT = """
import json
import sys

from pyspark.sql import SparkSession

from ledgermq.pipeline import register, register_views

namesrv, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
rows = spark.read.format("ledgermq").options(nameServer=namesrv, subscribe="T").load().select("body")
rows.write.format("ledgermq").mode("append").options(nameServer=namesrv, topic="batch").save()
stream = spark.readStream.format("ledgermq").options(nameServer=namesrv, subscribe="T", startingOffsets="earliest").load()
writer = stream.select("body").writeStream.format("ledgermq").trigger(availableNow=True)
writer.options(nameServer=namesrv, topic="stream", checkpointLocation=checkpoint).start().awaitTermination()
register_views(spark, {"nameServer": namesrv}, "batch|stream")
counts = {topic: [list(row) for row in spark.sql(f"select count(*), count(distinct body) from {topic}").collect()]
          for topic in ("batch", "stream")}
print(json.dumps([type(spark).__module__, counts]))
spark.stop()
"""


def ran(tmp_path: Path, script: str, *arguments: str, packages: str = "") -> str:
    """The last line that a script has printed."""
    path = tmp_path / "script.py"
    path.write_text(script)
    environment = {
        **os.environ, "JAVA_HOME": java_home_for_spark(find_java()), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": packages,
    }  # fmt: skip
    command = [sys.executable, str(path), *arguments]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def create(namesrv: str, *topics: str) -> None:
    with blocking.open_admin(namesrv) as admin:
        for topic in topics:
            admin.call(lambda each, topic=topic: each.create_topic(topic, queues=2))


def test_a_session_of_spark_connect_reads_and_writes(tmp_path: Path) -> None:
    """Batches, streams and views, through a server of Spark Connect on this machine."""
    packages = obtain(peers.spark_connect)
    with start_embedded() as embedded, blocking.open_producer(embedded.namesrv, "tests") as producer:
        create(embedded.namesrv, "T", "batch", "stream")
        producer.send_many(Message("T", b"%d" % number) for number in range(100))

        printed = ran(tmp_path, CONNECT, embedded.namesrv, str(tmp_path / "checkpoint"), packages=str(packages))

    assert json.loads(printed) == ["pyspark.sql.connect.session", {"batch": [[100, 100]], "stream": [[100, 100]]}]
