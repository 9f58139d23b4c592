"""The jobs as functions, each over a small topic."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ledgermq import Message, blocking
from ledgermq.cli.pipeline import security_of
from ledgermq.pipeline.errors import BadOption
from ledgermq.pipeline.jobs.archive import archive
from ledgermq.pipeline.jobs.audit import audit
from ledgermq.pipeline.jobs.copies import replay, stream
from ledgermq.pipeline.jobs.letters import dead_letters, redrive, summary
from ledgermq.pipeline.jobs.places import sole_user
from ledgermq.pipeline.jobs.stats import stats
from ledgermq.testing.embedded import Embedded
from ledgermq.world.disk import RealDisk

from ...ha.dledger.ledgers import force, messages, open_small
from ..brokers import all_bodies, bodies, create_topic, numbered, send
from ..copying import run_to_end
from ..stores import Stored, StoreFiles, interleaved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    written = StoreFiles(tmp_path / "store", segment_size=8192)
    written.append(interleaved(120))
    return written


def test_an_archive_is_replayed_in_order_and_once(
    spark: SparkSession, files: StoreFiles, broker: Embedded, tmp_path: Path
) -> None:
    """A replay that is started again with its checkpoint sends only what is new in the archive, also from more queues.

    The name of the topic may look like a number, and messages may have been replayed before.
    """
    create_topic(broker.namesrv, "007", 5)
    to, source = str(tmp_path / "archive"), {"storePath": str(files.root), "subscribe": "007"}
    target = {"nameServer": broker.namesrv, "checkpointLocation": str(tmp_path / "checkpoint")}
    replayed_before = {"REPLAY_SOURCE": "U/elsewhere/0/0"}
    files.append([*interleaved(90, topic="007"), *(Stored("007", 0, b"%d" % at, replayed_before) for at in range(5))])
    archive(spark, source, to)

    assert replay(spark, to, target) == 95
    files.append(interleaved(25, queues=5, topic="007"))
    archive(spark, source, to)
    assert replay(spark, to, target) == 120

    placed = [message for message, *_ in files.placed if message.topic == "007"]
    expected = {queue_id: [each.body for each in placed if each.queue_id == queue_id] for queue_id in range(5)}
    assert {queue.queue_id: found for queue, found in bodies(broker.namesrv, "007").items()} == expected
    rows = spark.read.format("ledgermq").options(nameServer=broker.namesrv, subscribe="007").load().collect()
    assert {row.properties["REPLAY_SOURCE"].rpartition("/")[0] for row in rows} == {f"007/store/{at}" for at in range(5)}
    assert {row.bornTimestamp.year for row in rows} == {2020}


def test_an_archive_without_what_a_replay_needs_is_refused(
    spark: SparkSession, files: StoreFiles, broker: Embedded, tmp_path: Path
) -> None:
    """The column is named before anything is sent."""
    to = str(tmp_path / "archive")
    archive(spark, {"storePath": str(files.root), "subscribe": "T", "columns": "topic,storeTimestamp,body"}, to)

    with pytest.raises(BadOption, match=r"option 'directory': the column 'brokerName' is missing"):
        replay(spark, to, {"nameServer": broker.namesrv})


def test_a_stream_goes_through_sql(spark: SparkSession, broker: Embedded, tmp_path: Path) -> None:
    """From a topic to a topic, and what is new the next time."""
    create_topic(broker.namesrv, "orders", 2)
    create_topic(broker.namesrv, "paid", 2)
    source = {"nameServer": broker.namesrv, "subscribe": "orders", "startingOffsets": "earliest"}
    for begin in (0, 50):
        send(broker.namesrv, "orders", 50, begin)
        run_to_end(
            lambda: stream(
                spark,
                source,
                {"nameServer": broker.namesrv, "topic": "paid"},
                checkpoint=str(tmp_path),
                sql="select body, tags from input where tags = 'paid'",
                available_now=True,
            )
        )

    assert all_bodies(broker.namesrv, "paid") == numbered(range(1, 100, 2))


@pytest.mark.slow
def test_stats_describe_windows_queues_and_keys(spark: SparkSession, files: StoreFiles) -> None:
    """Without reading a body; a window may be shorter than a second."""
    found = stats(spark, {"storePath": str(files.root), "subscribe": "T"}, window="500 milliseconds")

    (window,) = found.windows.collect()
    queues = found.queues.collect()
    assert (window.messages, window.bytes) == (120, sum(size for *_, size in files.placed))
    assert window.messagesPerSecond == 240
    assert window.latencyP50 == pytest.approx(1_700_000_000_000 - 1_600_000_000_123, abs=200)
    assert [row.messages for row in queues] == [40, 40, 40]
    assert sum(row.share for row in queues) == pytest.approx(1)
    assert found.keys.count() == 20


def test_dead_letters_are_explained_and_sent_back_once(spark: SparkSession, broker: Embedded, tmp_path: Path) -> None:
    """To the topics that they came from, also if they are divided into other tasks when the job is run again."""
    create_topic(broker.namesrv, "origin", 1)
    create_topic(broker.namesrv, "%DLQ%workers", 1)
    with blocking.open_producer(broker.namesrv, group="tests") as producer:
        for number in range(10):
            properties = {"RETRY_TOPIC": "origin", "reason": "too late" if number % 2 else "no stock"}
            producer.send(Message("%DLQ%workers", b"%06d" % number, tag="t", properties=properties))
    source = {"nameServer": broker.namesrv}
    letters, divided = (dead_letters(spark, {**source, "minPartitions": count}, "workers") for count in ("1", "5"))
    target = {**source, "checkpointLocation": str(tmp_path)}

    explained = {(row.originTopic, row.reason): row.messages for row in summary(letters).collect()}
    sent = [redrive(letters, target), redrive(divided, target)]

    assert explained == {("origin", "too late"): 5, ("origin", "no stock"): 5}
    assert sent == [10, 10]
    assert all_bodies(broker.namesrv, "origin") == numbered(range(10))


@pytest.fixture
def replicas(files: StoreFiles, tmp_path: Path) -> tuple[Path, Path]:
    shutil.copytree(files.root, tmp_path / "slave")
    return files.root, tmp_path / "slave"


def test_equal_replicas_are_equal_though_one_is_behind(
    spark: SparkSession, files: StoreFiles, replicas: tuple[Path, Path]
) -> None:
    """They are compared up to the end of the shorter one."""
    files.append(interleaved(30))

    found = audit(spark, [str(path) for path in replicas])

    assert found.sound
    assert found.end == min(found.ends.values()) < max(found.ends.values())


@pytest.mark.parametrize("at", [90, 5000])
def test_the_first_difference_is_named_by_its_record(
    spark: SparkSession, files: StoreFiles, replicas: tuple[Path, Path], at: int
) -> None:
    """With both bytes, the file and the place; and the damaged replica is found by itself too."""
    path = replicas[1] / "commitlog" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)

    found = audit(spark, [str(each) for each in replicas])

    (difference,) = found.differences
    message, offset, position, _ = next(each for each in files.placed if each[2] + each[3] > at)
    assert (difference.physical_offset, difference.file) == (at, str(path))
    assert f"the record at {position} (topic T, queue {message.queue_id}, queue offset {offset})" in str(difference)
    assert not found.sound


def test_a_path_that_is_no_store_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """Before anything is compared."""
    with pytest.raises(BadOption, match="commitlog"):
        audit(spark, [str(tmp_path)])


@pytest.mark.slow
def test_commands_run_the_jobs(files: StoreFiles, tmp_path: Path, pipeline_command: Callable[..., Any]) -> None:
    """With exit statuses that scripts can tell apart."""
    to, store = str(tmp_path / "archive"), str(files.root)

    archived = pipeline_command("archive", "T", "--store", store, "--to", to, "--json")
    described = pipeline_command("stats", "T", "--store", store, "--by", "queue", "--json")
    compacted = pipeline_command("compact", "T", "--store", store, "--to", str(tmp_path / "compact"))
    audited = pipeline_command("audit", store)
    unknown = pipeline_command("stats", "TT", "--store", store, status=2)
    nowhere = pipeline_command("stats", "T", status=2)
    compacted_again = pipeline_command("compact", "T", "--store", store, "--to", str(tmp_path / "compact"))
    not_compacted = [pipeline_command("compact", "T", "--store", store, "--to", each, status=2) for each in (to, __file__)]
    bad_option = pipeline_command("archive", "T", "--store", store, "--to", to, "--option", "mode=LENIENT", status=2)
    bad_window = pipeline_command("stats", "T", "--store", store, "--window", "1 minutee", status=2)
    copied = ("stream", "T", "--store", store, "--sink", "noop", "--checkpoint", to)
    bad_trigger = pipeline_command(*copied, "--trigger", "soon", status=2)
    with sole_user(to):
        used = pipeline_command(*copied, "--available-now", status=2)
    bad_delay = pipeline_command(*copied, "--watermark", "storeTimestamp 10 secnds", status=2)

    assert json.loads(archived.stdout)["rows"] == 120
    assert [row["messages"] for row in json.loads(described.stdout)] == [40, 40, 40]
    assert compacted.stdout == compacted_again.stdout == "120 keys\n"
    assert "'_ledgermq' and all else there would be deleted" in not_compacted[0].stderr
    assert all("name a new directory" in each.stderr for each in not_compacted)
    assert audited.stdout.endswith("sound\n")
    assert "the topic 'TT' does not exist" in unknown.stderr
    assert "--namesrv HOST:PORT, or --store DIR" in nowhere.stderr
    assert "FAILFAST, DROPMALFORMED, PERMISSIVE" in bad_option.stderr
    assert "option 'window': a number and a unit are expected, such as '1 minute'" in bad_window.stderr
    assert "(got 'soon')" in bad_trigger.stderr
    assert "option 'watermark'" in bad_delay.stderr
    assert f"option 'checkpoint': another run uses this checkpoint; nothing was read or written (got {to!r})" in used.stderr


def test_a_stream_that_ends_by_itself_takes_no_interval(
    spark: SparkSession, files: StoreFiles, tmp_path: Path, pipeline_command: Callable[..., Any]
) -> None:
    """Neither the command nor the function begins a query."""
    store, checkpoint = str(files.root), tmp_path / "checkpoint"
    interval, copied = "1 second", ("stream", "T", "--store", store, "--sink", "noop", "--checkpoint", str(checkpoint))

    refused = pipeline_command(*copied, "--trigger", interval, "--available-now", status=2)
    with pytest.raises(BadOption, match="takes no interval"):
        stream(
            spark, {"storePath": store, "subscribe": "T"}, {}, checkpoint=str(checkpoint), target_format="noop",
            trigger=interval, available_now=True,
        )  # fmt: skip

    assert "--trigger and --available-now exclude each other; nothing was read or written" in refused.stderr
    assert not checkpoint.exists()


def test_ledgers_are_compared_as_far_as_they_are_committed(spark: SparkSession, tmp_path: Path) -> None:
    """Two nodes may hold other entries behind the committed index; before it, the first difference is named by its entry."""
    nodes = [tmp_path / name for name in ("one", "two")]
    for node, body_size in zip(nodes, (100, 200), strict=True):
        ledger = open_small(RealDisk(), str(node))
        ledger.append(1, messages(0, 50))
        ledger.append(2, messages(50, 10, body_size))
        ledger.commit(49)
        force(ledger)
        ledger.write_checkpoint()
        ledger.close()

    sound = audit(spark, [str(node) for node in nodes])
    path = nodes[1] / "dledger-n0" / "data" / f"{4096:020d}"
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    damaged = audit(spark, [str(node) for node in nodes])

    assert sound.sound, sound
    (difference,) = damaged.differences
    assert difference.physical_offset == 4096 + 300
    assert "of term 1 at" in difference.record
    assert any("does not have the CRC" in problem for problem in damaged.problems[str(nodes[1])])
    assert damaged.problems[str(nodes[0])] == []


def test_what_a_sink_needs_to_reach_the_cluster_is_taken_from_the_source() -> None:
    """Keys and certificates, but not what only a read has."""
    given = ("accessKey=a", "secretKey=s", "tls.enable=true", "pullMaxMessages=5")

    assert security_of(given) == {"accessKey": "a", "secretKey": "s", "tls.enable": "true"}


@pytest.mark.slow
def test_commands_that_write_run_the_jobs(
    files: StoreFiles, broker: Embedded, tmp_path: Path, pipeline_command: Callable[..., Any]
) -> None:
    """An archive goes to a topic, the topic through SQL to another one, and letters back to where they came from."""
    for topic in ("replayed", "copied", "died", "%DLQ%shop"):
        create_topic(broker.namesrv, topic, 2 if topic == "copied" else 3)
    with blocking.open_producer(broker.namesrv, group="tests") as producer:
        producer.send(Message("%DLQ%shop", b"letter", properties={"RETRY_TOPIC": "died", "reason": "no stock"}))
    to, place = str(tmp_path / "archive"), ("--namesrv", broker.namesrv)
    pipeline_command("archive", "T", "--store", str(files.root), "--to", to)

    replayed = pipeline_command("replay", to, "--topic", "replayed", *place, "--checkpoint", str(tmp_path / "replay"))
    sql = ("--sql", "select body from input where tags = 'paid'")
    stream_of = ("replayed", "--to", "copied", *place, *sql, "--option", "startingOffsets=earliest", "--available-now")
    pipeline_command("stream", *stream_of, "--checkpoint", str(tmp_path / "stream"))
    explained = pipeline_command("dlq", "shop", *place, "--json")
    redriven = pipeline_command("dlq", "shop", *place, "--redrive", "--checkpoint", str(tmp_path / "dlq"))
    nowhere = pipeline_command("stream", "replayed", *place, "--checkpoint", str(tmp_path / "none"), status=2)

    paid = sorted(message.body for message, *_ in files.placed if message.properties["TAGS"] == "paid")
    assert replayed.stdout == "120 messages\n"
    assert all_bodies(broker.namesrv, "copied") == paid
    assert json.loads(explained.stdout)[0]["reason"] == "no stock"
    assert redriven.stdout == "1 messages\n"
    assert all_bodies(broker.namesrv, "died") == [b"letter"]
    assert "either --to TOPIC or --sink FORMAT" in nowhere.stderr
