"""Writing from a real Spark session: batches, streams, and batches that Spark runs again."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ledgermq.pipeline.errors import BadOption, Unavailable
from ledgermq.pipeline.options import write_options
from ledgermq.pipeline.outgoing import Rows
from ledgermq.pipeline.sender import Began
from ledgermq.pipeline.sink import LedgermqWriter, Notes, _this_driver  # pyright: ignore[reportPrivateUsage]
from ledgermq.testing.embedded import Embedded

from .brokers import all_bodies, create_topic, numbered, send
from .copying import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy(spark: SparkSession, namesrv: str, source: str, target: str, checkpoint: Path, **options: str) -> None:
    """Copy what is new in one topic to another one, a few messages at a time."""
    stream = (
        spark.readStream.format("ledgermq")
        .options(nameServer=namesrv, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="40")
        .load()
    )
    writer = stream.writeStream.format("ledgermq").trigger(availableNow=True)
    written = {"nameServer": namesrv, "topic": target, "checkpointLocation": str(checkpoint), **options}
    run_to_end(lambda: writer.options(**written).start())


def test_rows_become_messages(spark: SparkSession, broker: Embedded) -> None:
    """Every column arrives where a consumer looks for it."""
    create_topic(broker.namesrv, "written", 2)
    rows = spark.sql(
        "select 'written' topic, 'hello' body, 'paid' tags, 'k1 k2' keys, map('own', 'x', 'UNIQ_KEY', 'ignored') properties, "
        "1 queueId, 7 flag, timestamp'2024-05-06 07:08:09.123Z' bornTimestamp"
    )

    rows.write.format("ledgermq").mode("append").options(nameServer=broker.namesrv).save()

    (row,) = spark.read.format("ledgermq").options(nameServer=broker.namesrv, subscribe="written").load().collect()
    assert (bytes(row.body), row.tags, row.keys, row.queueId, row.flag) == (b"hello", "paid", "k1 k2", 1, 7)
    assert row.properties["own"] == "x"
    assert row.msgId != "ignored"
    assert str(row.bornTimestamp) == "2024-05-06 07:08:09.123000"


def test_a_batch_that_is_run_again_writes_nothing_twice(spark: SparkSession, broker: Embedded, tmp_path: Path) -> None:
    """As after a driver that died between the sink's commit and Spark's own: its commit is missing, the batch runs again."""
    create_topic(broker.namesrv, "from", 3)
    create_topic(broker.namesrv, "to", 3)
    send(broker.namesrv, "from", 100)
    copy(spark, broker.namesrv, "from", "to", tmp_path)
    last = max(int(path.name) for path in (tmp_path / "commits").iterdir() if path.name.isdigit())
    (tmp_path / "commits" / str(last)).unlink()
    send(broker.namesrv, "from", 30, begin=100)

    copy(spark, broker.namesrv, "from", "to", tmp_path)

    assert all_bodies(broker.namesrv, "to") == numbered(range(130))
    assert len(list((tmp_path / "ledgermq-sink").iterdir())) <= 2


@pytest.mark.parametrize(
    ("query", "options", "mode", "said"),
    [
        ("select 1 body", {}, "append", "must be binary or string, not int"),
        ("select 'x' body", {}, "append", "no column 'topic'"),
        ("select 'x' body, 1 price", {"topic": "T"}, "append", "'price' that no message has"),
        ("select 'x' body", {"topic": "T"}, "overwrite", "cannot be replaced"),
        ("select 'x' body", {"topic": "T", "sendBatchByte": "1"}, "append", "did you mean 'sendBatchBytes'"),
        pytest.param(
            "select 'x' body", {"topic": "nowhere"}, "append", "the topic 'nowhere' does not exist", marks=pytest.mark.slow
        ),
        pytest.param("select cast(null as string) body", {"topic": "T"}, "append", "null body", marks=pytest.mark.slow),
        ("select repeat('x', 100) body", {"topic": "T", "maxMessageBytes": "99"}, "append", "100 bytes, 99 are allowed"),
    ],
)
def test_mistakes_are_named(
    spark: SparkSession, broker: Embedded, query: str, options: dict[str, str], mode: str, said: str
) -> None:
    """By the option, the column or the row, and nothing is written."""
    with pytest.raises(Exception, match=r"ledgermq|body|topic") as refused:
        spark.sql(query).write.format("ledgermq").mode(mode).options(nameServer=broker.namesrv, **options).save()

    assert said in str(refused.value)


def notes_of(path: Path) -> Notes:
    return Notes.of(write_options({"nameServer": "h:1", "checkpointLocation": str(path)}))


def test_where_a_batch_began_is_noted_once(tmp_path: Path) -> None:
    """Whoever plans the batch again learns what the first one noted."""
    first, repeated = notes_of(tmp_path).begin(3, lambda: Began({}, 17))
    again, repeated_again = notes_of(tmp_path).begin(3, lambda: Began({}, 99))

    assert (first.timestamp_ms, repeated, again.timestamp_ms, repeated_again) == (17, False, 17, True)
    assert json.loads((tmp_path / "ledgermq-sink" / "3.json").read_text())["timestamp_ms"] == 17


def test_the_batch_is_the_last_one_in_the_log_of_offsets(tmp_path: Path) -> None:
    """Hidden files of checksums lie beside them."""
    (tmp_path / "offsets").mkdir()
    for name in ("8", "9", "10", ".10.crc", "11.tmp"):
        (tmp_path / "offsets" / name).touch()

    assert notes_of(tmp_path).batch() == 10


def test_a_checkpoint_is_for_one_batch_job(tmp_path: Path) -> None:
    """Rows of a second job that equal rows of the first would be taken for repetitions; the first may be started again."""
    notes_of(tmp_path).check_job("T from body=body")
    notes_of(tmp_path).check_job("T from body=body")
    with pytest.raises(BadOption, match="another job, with another topic or other columns, has begun"):
        notes_of(tmp_path).check_job("U from body=body")
    notes_of(tmp_path).end_job()
    with pytest.raises(BadOption, match="a job has ended with this checkpoint"):
        notes_of(tmp_path).check_job("T from body=body")


def test_a_second_batch_job_with_the_checkpoint_of_the_first_is_refused(
    spark: SparkSession, broker: Embedded, tmp_path: Path
) -> None:
    create_topic(broker.namesrv, "batch-jobs", 2)
    options = {"nameServer": broker.namesrv, "topic": "batch-jobs", "checkpointLocation": str(tmp_path)}
    rows = spark.range(30).selectExpr("lpad(id, 6, '0') body")
    rows.write.format("ledgermq").mode("append").options(**options).save()

    with pytest.raises(Exception, match="a job has ended with this checkpoint"):
        rows.write.format("ledgermq").mode("append").options(**options).save()

    assert all_bodies(broker.namesrv, "batch-jobs") == numbered(range(30))


@pytest.mark.slow
def test_a_job_that_still_runs_keeps_others_from_its_checkpoint(spark: SparkSession, broker: Embedded, tmp_path: Path) -> None:
    """Rows of both would count as one job's. A job that failed, or whose driver is gone, may be started again."""
    create_topic(broker.namesrv, "running-jobs", 2)
    options = {"nameServer": broker.namesrv, "topic": "running-jobs", "checkpointLocation": str(tmp_path)}

    def write(body: str) -> None:
        rows = spark.range(30).selectExpr(f"{body} body")
        rows.write.format("ledgermq").mode("append").options(**options).save()

    with pytest.raises(Exception, match="null body"):
        write("cast(null as string)")
    path = tmp_path / "ledgermq-sink" / "job.json"
    failed = json.loads(path.read_text())
    context: Any = spark.sparkContext
    gateway = context._gateway
    started = int(Path(f"/proc/{gateway.proc.pid}/stat").read_text().rpartition(")")[2].split()[19])
    driver = {"host": socket.gethostname(), "pid": gateway.proc.pid, "started": started}
    assert context.parallelize([0], 1).map(lambda _: _this_driver()).collect() == [driver]
    path.write_text(json.dumps({**failed, "driver": driver}))

    with pytest.raises(Exception, match=f"the job of process {gateway.proc.pid} is writing with this checkpoint"):
        write("lpad(id, 6, '0')")

    assert failed["driver"] is None
    path.write_text(json.dumps({**failed, "driver": {**driver, "started": started - 1}}))
    write("lpad(id, 6, '0')")
    assert all_bodies(broker.namesrv, "running-jobs") == numbered(range(30))


def test_a_job_notes_the_driver_that_runs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A second one that begins at once finds the note of the first."""
    driver = {"host": socket.gethostname(), "pid": os.getpid(), "started": 0}
    monkeypatch.setattr("ledgermq.pipeline.sink._this_driver", lambda: driver)
    monkeypatch.setattr("ledgermq.pipeline.sink._is_running", lambda found: found == driver)
    notes_of(tmp_path).check_job("T from body=body")

    with pytest.raises(BadOption, match=f"the job of process {os.getpid()} is writing"):
        notes_of(tmp_path).check_job("T from body=body")

    notes_of(tmp_path).stop_job()
    notes_of(tmp_path).check_job("T from body=body")


def test_a_job_that_cannot_begin_may_be_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the same session, whose driver still runs."""
    driver = {"host": socket.gethostname(), "pid": os.getpid(), "started": 0}
    monkeypatch.setattr("ledgermq.pipeline.sink._this_driver", lambda: driver)
    monkeypatch.setattr("ledgermq.pipeline.sink._is_running", lambda found: found == driver)
    options = write_options(
        {"nameServer": "127.0.0.1:1", "topic": "T", "checkpointLocation": str(tmp_path), "failoverTimeoutMs": "100"}
    )

    for _ in range(2):
        with pytest.raises(Unavailable, match="no name server answered"):
            LedgermqWriter(options, Rows({"body": "body"}, "T", 1000, allow_null_body=False))


@pytest.mark.parametrize("given", [{}, {"checkpointLocation": "nosuch://host/path"}])
def test_without_a_checkpoint_that_can_be_read_nothing_is_written_exactly_once(given: dict[str, Any]) -> None:
    """The ways out are named."""
    with pytest.raises(BadOption, match="checkpointLocation"):
        Notes.of(write_options({"nameServer": "h:1", **given}))
