"""The same jobs on a Spark cluster: a standalone master and two workers, and a script under `spark-submit`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ledgermq import Message, blocking
from ledgermq.pipeline.java import find_java, java_home_for_spark
from ledgermq.testing.embedded import start_embedded

pytestmark = pytest.mark.interop
READY_SECONDS = 120
COMMAND_SECONDS = 300


def spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def environment(tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAVA_HOME": java_home_for_spark(find_java()),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }


def started(tmp_path: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    program = [str(spark_home() / "bin" / "spark-class"), *arguments]
    with (tmp_path / f"{name}.log").open("ab") as log:
        return subprocess.Popen(program, env=environment(tmp_path), stdout=log, stderr=log, start_new_session=True)


def wait_for(path: Path, pattern: str, count: int = 1) -> str:
    """Wait until a log says something."""
    deadline = time.monotonic() + READY_SECONDS
    while len(found := re.findall(pattern, path.read_text(errors="replace"))) < count:
        assert time.monotonic() < deadline, f"{path} does not say {pattern!r}"
        time.sleep(0.1)
    return str(found[0])


@pytest.fixture
def master(tmp_path: Path) -> Generator[str]:
    """A master and two workers of one core each, on hosts of their own."""
    servers = [
        started(
            tmp_path,
            "master",
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
        )
    ]
    try:
        url = wait_for(tmp_path / "master.log", r"Starting Spark master at (spark://\S+)")
        for number in (1, 2):
            # Spark starts a second attempt beside the first one only on another host.
            worker = ("--host", f"127.0.0.{number}", "--webui-port", "0", "--cores", "1", "--memory", "600m", url)
            servers.append(started(tmp_path, f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *worker))
        wait_for(tmp_path / "master.log", r"Registering worker", 2)
        yield url
    finally:
        for server in servers:
            os.killpg(server.pid, 9)
            server.wait()


def test_a_command_runs_on_a_cluster_and_under_spark_submit(master: str, tmp_path: Path) -> None:
    """Executors are other processes; they find the source by themselves."""
    with (
        start_embedded(store=str(tmp_path / "stores")) as embedded,
        blocking.open_producer(embedded.namesrv, "tests") as producer,
    ):
        producer.send_many(Message("T", b"%d" % number) for number in range(300))
    store = str(tmp_path / "stores" / "0")
    settings = ("--conf", "spark.executor.memory=512m", "--conf", "spark.cores.max=2")
    flags = ("--store", store, "--to", str(tmp_path / "archive"), "--option", "minPartitions=4", "--json")
    command = [sys.executable, "-m", "ledgermq.cli.main", "pipeline", "archive", "T", *flags, "--master", master, *settings]

    ran = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["rows"] == 300
    script = tmp_path / "count.py"
    script.write_text(
        "from ledgermq.pipeline.session import session\n"
        "with session() as spark:\n"
        f"    rows = spark.read.format('ledgermq').options(storePath={store!r}, subscribe='T').load()\n"
        "    print('rows:', rows.count())\n"
    )
    submit = [str(spark_home() / "bin" / "spark-submit"), "--master", master, *settings, str(script)]
    submitted = subprocess.run(
        submit, env=environment(tmp_path), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert "rows: 300" in submitted.stdout, submitted.stderr


SPECULATING = """
import sys
import time

from pyspark import TaskContext

from ledgermq.pipeline.session import session

master, namesrv = sys.argv[1:]


def rows(partition, _):
    for number in range(400):
        time.sleep(0.04 if partition == 5 else 0)
        yield (f"{partition * 400 + number:08d}".encode() + bytes(65_000),)


conf = {"spark.speculation": "true", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.1",
        "spark.executor.memory": "512m", "spark.cores.max": "2", "spark.sql.execution.arrow.maxRecordsPerBatch": "16"}
with session(master, conf=conf) as spark:
    found = spark.createDataFrame(spark.sparkContext.parallelize(range(6), 6).mapPartitionsWithIndex(rows), "body binary")
    found.write.format("ledgermq").mode("append").options(nameServer=namesrv, topic="T").save()
    stored = spark.read.format("ledgermq").options(nameServer=namesrv, subscribe="T", columns="body").load()
    print(sorted(int(bytes(row.body[:8])) for row in stored.collect()))
"""


def test_two_attempts_of_a_task_at_once_write_its_rows_once(master: str, tmp_path: Path) -> None:
    """Spark speculates: the second attempt takes the place of the first, which waits until Spark ends it."""
    script = tmp_path / "speculating.py"
    script.write_text(SPECULATING)
    with start_embedded(store=str(tmp_path / "stores")) as embedded:
        with blocking.open_admin(embedded.namesrv) as admin:
            admin.call(lambda each: each.create_topic("T", queues=2))

        ran = subprocess.run(
            [sys.executable, str(script), master, embedded.namesrv],
            env=environment(tmp_path), capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == list(range(2400))
    logs = "".join(path.read_text(errors="replace") for path in (tmp_path / "work").glob("app-*/*/stderr"))
    assert re.search(r"Running task 5\.1 in stage", logs), "Spark has not speculated"
    assert "another attempt of this task has begun" not in logs, "the first attempt must not count as a failure"
