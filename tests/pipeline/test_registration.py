"""Sessions that somebody else has started, and environments without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs
import pytest
from click.testing import CliRunner

from ledgermq import Message, blocking
from ledgermq.cli.main import main
from ledgermq.pipeline import register, register_views
from ledgermq.pipeline.errors import BadOption, NoSpark
from ledgermq.pipeline.options import write_options
from ledgermq.pipeline.session import session
from ledgermq.testing.embedded import Embedded, start_embedded

from .brokers import create_topic
from .stores import Stored, StoreFiles, interleaved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SESSION: Any = None
JOB = """
import sys
from pyspark.sql import SparkSession
from ledgermq.pipeline import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
print(spark.read.format("ledgermq").options(storePath=sys.argv[1], subscribe="T", columns="queueId").load().count())
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    files = StoreFiles(tmp_path / "store")
    files.append([*interleaved(30), *interleaved(6, topic="order-lines"), Stored("RMQ_SYS_TRACE_TOPIC")])
    return str(files.root)


@pytest.mark.slow
def test_a_plain_job_reads_though_its_environment_is_not_on_the_path(store: str, tmp_path: Path) -> None:
    """Workers would be started with the system's Python, which has nothing of ours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "VIRTUAL"))}
    (tmp_path / "job.py").write_text(JOB)

    done = subprocess.run(
        [sys.executable, tmp_path / "job.py", store],
        env={**environment, "PATH": os.defpath},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.stdout == "30\n", done.stderr


def test_topics_are_tables_of_sql(spark: SparkSession, store: str) -> None:
    topics = register_views(spark, {"storePath": store})
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING ledgermq OPTIONS (storePath '{store}', subscribe 'T')")

    counts = [spark.table(name).count() for name in ("T", "`order-lines`", "t")]

    assert topics == ["T", "order-lines"]
    assert counts == [30, 6, 30]
    assert register_views(spark, {"storePath": store}, "order.*") == ["order-lines"]


def test_a_table_of_the_catalog_is_refused_with_what_to_write_instead(spark: SparkSession, store: str) -> None:
    """Spark would give its options to the schema, and none of them to the reader."""
    with pytest.raises(Exception, match=r"CREATE TEMPORARY VIEW \.\.\. USING ledgermq"):
        spark.sql(f"CREATE TABLE t USING ledgermq OPTIONS (storePath '{store}', subscribe 'T')")


def test_a_table_with_columns_is_refused_when_it_is_used(spark: SparkSession, store: str) -> None:
    """Spark creates it without calling the source, and then gives no options to reader or writer."""
    spark.sql(f"CREATE TABLE made (body BINARY) USING ledgermq OPTIONS (storePath '{store}', subscribe 'T')")
    try:
        for statement in ("SELECT * FROM made", "INSERT INTO made SELECT CAST('x' AS BINARY)"):
            with pytest.raises(Exception, match=r"Spark does not hand the options of a table to sources in Python"):
                spark.sql(statement).collect()
    finally:
        spark.sql("DROP TABLE made")


def test_a_table_is_as_long_as_when_it_was_first_read(spark: SparkSession, tmp_path: Path) -> None:
    """Spark plans it once; made again it has what has arrived since."""
    with start_embedded(store=str(tmp_path)) as embedded, blocking.open_producer(embedded.namesrv, "tests") as producer:
        source = {"nameServer": embedded.namesrv}
        producer.send(Message("growing", b"1"))
        register_views(spark, source, "growing")
        counts = [spark.table("growing").count()]
        producer.send(Message("growing", b"2"))
        counts.append(spark.table("growing").count())
        register_views(spark, source, "growing")
        counts.append(spark.table("growing").count())

    assert counts == [1, 1, 2]


def test_a_second_thread_gets_the_session_of_the_process(spark: SparkSession) -> None:
    found: list[Any] = []
    thread = Thread(target=lambda: found.append(session()))
    thread.start()
    thread.join()

    assert found[0].sparkContext is spark.sparkContext


@pytest.mark.parametrize("prepare", [register, lambda _: session()], ids=["register", "session"])
def test_a_thread_that_registers_writes_rows_of_another_thread(
    spark: SparkSession, broker: Embedded, prepare: Callable[[SparkSession], Any]
) -> None:
    """Spark looks for the format in the active session of the thread, and a thread that Python started has none."""
    topic = f"threads-{uuid4().hex}"
    create_topic(broker.namesrv, topic, 1)
    rows = spark.createDataFrame([("1",), ("2",)], "body string")
    failures: list[Exception] = []

    def write() -> None:
        try:
            prepare(spark)
            rows.write.format("ledgermq").options(nameServer=broker.namesrv, topic=topic).mode("append").save()
        except Exception as error:  # noqa: BLE001 - shown by the test, which a thread could not fail
            failures.append(error)

    thread = Thread(target=write)
    thread.start()
    thread.join()

    assert not failures
    assert spark.read.format("ledgermq").options(nameServer=broker.namesrv, subscribe=topic).load().count() == 2


@attrs.define(eq=False)
class RemoteSession:
    """Stands for a session of Spark Connect, which has no context in this process."""

    registered: list[str] = attrs.field(factory=list[str])

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - the name is Spark's
        raise AttributeError

    @property
    def dataSource(self) -> RemoteSession:  # noqa: N802
        return self

    def register(self, source: Any) -> None:
        self.registered.append(source.name())


def test_a_session_of_spark_connect_is_told_the_class() -> None:
    remote: Any = RemoteSession()
    register(remote)

    assert remote.registered == ["ledgermq"]


def test_what_spark_adds_to_the_options_of_a_query_is_accepted() -> None:
    """A misspelt option is still noticed."""
    given = {"nameServer": "a:1", "topic": "T", "queryname": "copies", "checkpointlocation": "/c"}

    assert write_options(given).checkpoint == "/c"
    with pytest.raises(BadOption, match="did you mean 'queryName'"):
        write_options({**given, "queryNames": "copies"})


@pytest.mark.parametrize("start", [session, lambda: register(NO_SESSION), lambda: register_views(NO_SESSION, {})])
def test_without_spark_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch, start: Callable[[], Any]) -> None:
    """By the functions, and by the commands with the status of an engine that failed."""
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(NoSpark, match=r"^pyspark is missing; .*pip install 'ledgermq\[spark\]'$"):
        start()
    command = CliRunner().invoke(main, ["pipeline", "stats", "T", "--store", "."])

    assert command.exit_code == 4
    assert command.stderr.startswith("Error: pyspark is missing; ")
