"""Streams: offsets, limits, restarts, what is gone."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

from ledgermq import Message, blocking
from ledgermq.message.message import MessageQueue
from ledgermq.pipeline import ranges, stream
from ledgermq.pipeline.broker_client import BrokerCatalog
from ledgermq.pipeline.catalog import Bounds
from ledgermq.pipeline.columns import available
from ledgermq.pipeline.errors import DataLoss, UnknownTopic
from ledgermq.pipeline.options import read_options
from ledgermq.pipeline.ranges import Task
from ledgermq.pipeline.reading import open_catalog
from ledgermq.pipeline.stream import LedgermqStreamReader, Progress
from ledgermq.testing.embedded import Embedded, start_embedded

from .brokers import create_topic, delete_topic, send
from .stores import Stored, StoreFiles, interleaved

_PLACES = ("queueId", "queueOffset", "partition", "offset")
"""Columns with queue and offset, in both styles of columns."""

Seen = list[tuple[int, list[tuple[int, int]]]]


@attrs.define(eq=False)
class Engine:
    """Runs a stream reader as Spark does with Trigger.AvailableNow, on one journal of offsets, without Spark's start-up."""

    journal: list[str] = attrs.field(factory=list[str])
    """Ends of batches, as the checkpoint holds them."""
    committed: int = 0
    """How many batches have ended."""
    subscription: dict[str, str] = attrs.field(factory=lambda: {"subscribe": "T"})
    on_batch: Callable[[list[tuple[int, int]]], object] = lambda _: None
    """Called with the rows of each batch."""

    def __call__(self, *, fail: bool = False, **options: Any) -> Seen:
        """Read all that is there; with `fail`, die in the first batch that has rows. Returns the batches."""
        given = {**self.subscription, "startingOffsets": "earliest", **options}
        read = read_options(given, streaming=True)
        columns = tuple(column for column in available(read.content) if column.name in _PLACES)
        reader = LedgermqStreamReader(read, columns)
        reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        seen: Seen = []
        while True:
            if len(self.journal) == self.committed:
                begin = self.journal[-1] if self.journal else json.dumps(reader.initialOffset())
                end = json.dumps(reader.latestOffset(json.loads(begin), limit))
                if self.journal and end == begin:
                    return seen
                self.journal.append(end)
            begin = self.journal[-2] if len(self.journal) > 1 else json.dumps(reader.initialOffset())
            found = self._batch(reader, begin, self.journal[-1])
            if fail and found:
                raise RuntimeError("halt here")
            seen.append((self.committed, found))
            self.on_batch(found)
            self.committed += 1
            reader.commit(json.loads(self.journal[-1]))

    @staticmethod
    def _batch(reader: LedgermqStreamReader, begin: str, end: str) -> list[tuple[int, int]]:
        tasks = pickle.loads(  # noqa: S301 - what Spark does
            pickle.dumps((reader, reader.partitions(json.loads(begin), json.loads(end))))
        )
        batches = [batch for partition in tasks[1] for batch in tasks[0].read(partition)]
        return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


@pytest.fixture
def run() -> Engine:
    return Engine()


def rows(seen: Seen) -> list[tuple[int, int]]:
    return [row for _, batch in seen for row in batch]


def expected(counts: list[int], begin: list[int] | None = None) -> list[tuple[int, int]]:
    begin = begin or [0] * len(counts)
    return [(queue, offset) for queue, (low, high) in enumerate(zip(begin, counts, strict=True)) for offset in range(low, high)]


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    written = StoreFiles(tmp_path / "store", segment_size=4096, queue_file_units=20)
    written.append(interleaved(90))
    return written


def test_every_message_is_read_once_over_limits_and_restarts(files: StoreFiles, run: Engine) -> None:
    """Batches have about as many messages as the limit says; a query that is started again goes on."""
    options: dict[str, Any] = {"storePath": str(files.root), "maxOffsetsPerTrigger": "30"}

    first = run(**options)
    nothing = run(**options)
    files.append(interleaved(30))
    second = run(**options)

    assert sorted(rows(first)) == expected([30, 30, 30])
    assert [len(batch) for _, batch in first] == [0, 30, 30, 30]
    assert rows(nothing) == []
    assert sorted(rows(second)) == expected([40, 40, 40], [30, 30, 30])


def test_a_batch_that_failed_is_read_again_as_it_was(files: StoreFiles, run: Engine) -> None:
    """Whatever the limit says by then."""
    options: dict[str, Any] = {"storePath": str(files.root)}
    with pytest.raises(Exception, match="halt here"):
        run(fail=True, **options, maxOffsetsPerTrigger="30")

    again = run(**options, maxOffsetsPerTrigger="3")

    assert again[0] == (1, expected([10, 10, 10]))
    assert sorted(rows(again)) == expected([30, 30, 30])


def test_bytes_bound_a_batch_too(files: StoreFiles, run: Engine) -> None:
    """As the sizes of records in the consume queue tell."""
    sizes = [len(batch) for _, batch in run(storePath=str(files.root), maxBytesPerTrigger="6000")]

    assert sum(sizes) == 90
    assert len(sizes) > 3
    assert max(sizes) < 40


def test_a_query_that_begins_at_the_end_loses_nothing_before_its_first_batch(files: StoreFiles, run: Engine) -> None:
    """Where it began is journaled before anything was read, even if it dies before that is committed."""
    options: dict[str, Any] = {"storePath": str(files.root), "startingOffsets": "latest"}
    run(**options)
    run.committed = 0
    files.append(interleaved(6))

    seen = run(**options)

    assert json.loads(run.journal[0]) == {"T": {"store": {"0": 30, "1": 30, "2": 30}}}
    assert rows(seen) == expected([32, 32, 32], [30, 30, 30])


def test_a_topic_that_gets_more_queues_is_read_from_their_beginning(files: StoreFiles, run: Engine) -> None:
    """They are not in the checkpoint yet."""
    run(storePath=str(files.root))
    files.append(interleaved(10, queues=5))

    assert sorted(rows(run(storePath=str(files.root)))) == expected([32, 32, 32, 2, 2], [30, 30, 30, 0, 0])


def test_a_pattern_takes_in_topics_that_come_later(files: StoreFiles, run: Engine) -> None:
    """From their beginning, as they were not there when the query began; topics of the system stay out."""
    run.subscription = {"subscribePattern": "T.*|%.*"}
    options: dict[str, Any] = {"storePath": str(files.root)}
    run(**options, startingOffsets="latest")
    files.append(interleaved(6, topic="T2"))
    files.append(interleaved(6, topic="other"))
    files.append(interleaved(6, topic="%RETRY%g"))

    assert sorted(rows(run(**options, startingOffsets="latest"))) == expected([2, 2, 2])


def test_a_pattern_without_topics_waits_for_the_first_one(tmp_path: Path, run: Engine) -> None:
    """A batch finds nothing; a stream goes on."""
    files = StoreFiles(tmp_path / "store")
    files.append(interleaved(3, topic="other"))
    run.subscription = {"subscribePattern": "T.*"}
    options: dict[str, Any] = {"storePath": str(files.root)}
    nothing = run(**options)
    files.append(interleaved(3))

    assert rows(nothing) == []
    assert sorted(rows(run(**options))) == expected([1, 1, 1])


def test_a_thousand_queues_are_one_batch(tmp_path: Path, run: Engine) -> None:
    """Few messages of many queues share a task."""
    files = StoreFiles(tmp_path / "store", segment_size=1 << 20, queue_file_units=4)
    files.append(interleaved(1000, queues=1000))

    seen = run(storePath=str(files.root))

    assert [len(batch) for _, batch in seen] == [0, 1000]


def test_retention_that_overtakes_a_stream_is_an_error_or_a_warning(files: StoreFiles, run: Engine) -> None:
    """Never a silent gap, and never a message twice."""
    options: dict[str, Any] = {"storePath": str(files.root), "maxOffsetsPerTrigger": "3"}
    first = files.placed[0][2]
    with pytest.raises(Exception, match="halt here"):
        run(fail=True, **options)
    (files.root / "commitlog" / f"{0:020d}").unlink()
    left = [(each.queue_id, offset) for each, offset, position, _ in files.placed if position >= 4096]

    with pytest.raises(Exception, match="were deleted before they were read") as gone:
        run(**options)
    seen = run(**options, failOnDataLoss="false")

    assert first == 0
    assert "failOnDataLoss" in str(gone.value)
    assert sorted(rows(seen)) == sorted(left)


def test_a_batch_is_divided_alike_after_retention_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink that writes exactly once knows each task by its number, so a task keeps what is left of its messages."""
    with start_embedded() as cluster:
        create_topic(cluster.namesrv, "R", 2)
        send(cluster.namesrv, "R", 200)
        given = {"nameServer": cluster.namesrv, "subscribe": "R", "startingOffsets": "earliest", "failOnDataLoss": "false"}
        read = read_options({**given, "maxRecordsPerPartition": "30"}, streaming=True)
        reader = LedgermqStreamReader(read, available(read.content))
        start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
        reader.latestOffset(start, limit)
        end = reader.latestOffset(start, limit)
        before: list[Task] = [partition.value for partition in reader.partitions(start, end)]
        bounds = BrokerCatalog.bounds

        def moved(self: BrokerCatalog, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
            return {queue: Bounds(70, each.max) for queue, each in bounds(self, queues).items()}

        monkeypatch.setattr(BrokerCatalog, "bounds", moved)
        after: list[Task] = [partition.value for partition in reader.partitions(start, end)]

    def messages(task: Task) -> list[tuple[MessageQueue, int]]:
        return [(each.queue, offset) for each in task for offset in range(each.start, each.end)]

    assert len(before) > 6
    assert [messages(task) for task in after] == [[each for each in messages(task) if each[1] >= 70] for task in before]


def test_a_batch_from_files_is_divided_alike_after_retention_has_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While each queue has a task of its own: one whose messages are all gone still counts."""
    monkeypatch.setattr(ranges, "SMALL_RECORDS", 10)
    files = StoreFiles(tmp_path / "store", segment_size=4096, queue_file_units=20)
    files.append([Stored(queue_id=0)] * 20 + [Stored(queue_id=1)] * 60 + [Stored(queue_id=2)] * 30)
    given = {"storePath": str(files.root), "subscribe": "T", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    read = read_options(given, streaming=True)
    reader = LedgermqStreamReader(read, available(read.content))
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    reader.latestOffset(start, limit)
    end = reader.latestOffset(start, limit)
    before: list[Task] = [partition.value for partition in reader.partitions(start, end)]
    (files.root / "commitlog" / f"{0:020d}").unlink()

    after: list[Task] = [partition.value for partition in reader.partitions(start, end)]

    assert [[each.queue.queue_id for each in task] for task in before] == [[0], [1], [2]]
    assert [[each.queue.queue_id for each in task] for task in after] == [[], [1], [2]]
    assert [sum(each.count for each in task) for task in after] == [0, before[1][0].count - after[1][0].start, 30]


def test_a_topic_that_is_deleted_under_a_stream_is_an_error_or_dropped(files: StoreFiles, run: Engine) -> None:
    """Its last offsets stay in the checkpoint."""
    files.append(interleaved(9, topic="U"))
    options: dict[str, Any] = {"storePath": str(files.root), "subscribe": "T,U"}
    run(**options)
    shutil.rmtree(files.root / "consumequeue" / "U")
    files.append(interleaved(3))

    with pytest.raises(Exception, match=r"no longer exists|does not exist"):
        run(**options)
    seen = run(storePath=str(files.root), failOnDataLoss="false")

    assert sorted(rows(seen)) == expected([31, 31, 31], [30, 30, 30])


def test_large_messages_fill_a_batch_through_a_broker_too(broker: Embedded, run: Engine) -> None:
    """Their size is learnt from a few of them; a broker only says how many there are."""
    create_topic(broker.namesrv, "large", 1)
    with blocking.open_producer(broker.namesrv, group="tests") as producer:
        for _ in range(20):
            producer.send(Message("large", random.Random(1).randbytes(200_000)))
    run.subscription = {"subscribe": "large"}

    seen = run(nameServer=broker.namesrv, maxBytesPerTrigger="1000000")

    assert [len(batch) for _, batch in seen] == [0, 4, 4, 4, 4, 4]


def test_a_query_begins_again_without_a_topic_that_was_deleted(files: StoreFiles, run: Engine) -> None:
    """Though its options still name the topic; one that never was is a mistake also then."""
    files.append(interleaved(9, topic="U"))
    options: dict[str, Any] = {"storePath": str(files.root), "subscribe": "T,U"}
    run(**options)
    shutil.rmtree(files.root / "consumequeue" / "U")
    files.append(interleaved(3))

    with pytest.raises(DataLoss, match=r"^U@store:0: the queue no longer exists; it was read up to offset 3"):
        run(**options)
    with pytest.raises(UnknownTopic, match="'TT' does not exist"):
        run(storePath=str(files.root), subscribe="T,TT", failOnDataLoss="false")
    seen = run(**options, failOnDataLoss="false")

    assert sorted(rows(seen)) == expected([31, 31, 31], [30, 30, 30])


def test_a_query_goes_on_without_a_broker_that_is_gone_for_good(run: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Name servers do not know it, so it is not waited for in every batch; when it is there again, nothing was skipped."""
    with start_embedded(nodes=2) as cluster:
        create_topic(cluster.namesrv, "T", 2)
        send(cluster.namesrv, "T", 40)
        options: dict[str, Any] = {"nameServer": cluster.namesrv, "failoverTimeoutMs": "100"}
        first = rows(run(**options))
        cluster.stop(cluster.addresses[1])
        send(cluster.namesrv, "T", 10)

        with pytest.raises(DataLoss, match=r"^T@broker-b:0: the queue no longer exists; it was read up to offset \d+"):
            run(**options)
        without = rows(run(**options, failOnDataLoss="false"))
        cluster.start(cluster.addresses[1])
        send(cluster.namesrv, "T", 10)
        again = rows(run(**options))

    assert [len(first), len(without), len(again)] == [40, 10, 10]
    assert capsys.readouterr().err.count("T@broker-b:1: the queue no longer exists") == 1


def test_a_broker_is_read_as_its_files_are(broker: Embedded, run: Engine) -> None:
    """The same offsets by the same rules."""
    create_topic(broker.namesrv, "T", 3)
    send(broker.namesrv, "T", 90)

    seen = run(nameServer=broker.namesrv, maxOffsetsPerTrigger="40")

    assert len(rows(seen)) == len(set(rows(seen))) == 90
    assert len(seen) >= 3


def test_a_topic_that_is_created_again_is_read_from_its_first_message(
    broker: Embedded, run: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its offsets continue, so nothing is skipped or repeated; what had not been read before the deletion is a loss."""
    run.subscription = {"subscribe": "again"}
    options: dict[str, Any] = {"nameServer": broker.namesrv, "maxOffsetsPerTrigger": "10"}
    create_topic(broker.namesrv, "again", 1)
    send(broker.namesrv, "again", 20)
    run.on_batch = lambda found: delete_topic(broker.namesrv, "again") if len(found) == 10 else None
    with pytest.raises(DataLoss, match=r"again@broker-a:0: .*(no longer exists|offsets 10 to 19, were deleted)"):
        run(**options)
    run.on_batch = lambda _: None
    create_topic(broker.namesrv, "again", 1)
    send(broker.namesrv, "again", 5)

    with pytest.raises(DataLoss, match="10 messages, offsets 10 to 19, were deleted before they were read"):
        run(**options)
    seen = run(**options, failOnDataLoss="false")

    assert rows(seen) == [(0, offset) for offset in range(20, 25)]
    assert "10 messages, offsets 10 to 19, were deleted" in capsys.readouterr().err


def test_a_stream_reports_how_far_it_is_behind(files: StoreFiles) -> None:
    """The end of the log, beside the end of the batch."""
    options = read_options(
        {"storePath": str(files.root), "subscribe": "T", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"},
        streaming=True,
    )
    reader = LedgermqStreamReader(options, available(options.content))
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, reader.getDefaultReadLimit()) == begin

    end = reader.latestOffset(begin, reader.getDefaultReadLimit())

    assert end == {"T": {"store": {"0": 10, "1": 10, "2": 10}}}
    assert reader.reportLatestOffset() == {"T": {"store": {"0": 30, "1": 30, "2": 30}}}


def test_a_batch_may_wait_until_it_is_worth_it(files: StoreFiles) -> None:
    """For as long as the user allows."""
    given = {"storePath": str(files.root), "subscribe": "T", "startingOffsets": "latest", "minOffsetsPerTrigger": "10"}
    patient, hasty = (read_options({**given, "maxTriggerDelay": delay}, streaming=True) for delay in ("1h", "0ms"))
    readers = [LedgermqStreamReader(options, available(options.content)) for options in (patient, hasty)]
    begin = [reader.initialOffset() for reader in readers]
    for reader, start in zip(readers, begin, strict=True):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    files.append(interleaved(3))

    ends = [reader.latestOffset(start, reader.getDefaultReadLimit()) for reader, start in zip(readers, begin, strict=True)]

    assert ends[0] == begin[0]
    assert ends[1] == {"T": {"store": {"0": 31, "1": 31, "2": 31}}}


def test_a_deleted_topic_does_not_hide_the_queues_that_others_get(
    files: StoreFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss is reported once, not at every poll, and the query goes on with the topics that exist."""
    files.append(interleaved(9, topic="U"))
    options = read_options(
        {"storePath": str(files.root), "subscribe": "T,U", "startingOffsets": "earliest", "failOnDataLoss": "false"},
        streaming=True,
    )
    progress = Progress(options, open_catalog(options))
    start = progress.poll(progress.start())
    shutil.rmtree(files.root / "consumequeue" / "U")
    files.append(interleaved(5, queues=5))

    monkeypatch.setattr(stream, "SUBSCRIPTION_SECONDS", 0.0)
    for _ in range(2):
        progress.poll(start)
    latest = progress.poll(start)

    assert {str(queue): end for queue, end in latest.items() if queue.topic == "T"} == {
        f"T@store:{queue_id}": 31 if queue_id < 3 else 1 for queue_id in range(5)
    }
    assert capsys.readouterr().err.count("U@store:0: the queue no longer exists; it was read up to offset 3") == 1


def test_a_store_that_is_older_than_the_checkpoint_is_an_error_or_a_warning(
    files: StoreFiles, run: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restored backup gives its next messages offsets that the query has read, so they would be skipped silently."""
    run(storePath=str(files.root))
    shutil.rmtree(files.root)
    restored = StoreFiles(files.root)
    restored.append(interleaved(30))

    with pytest.raises(DataLoss, match="it was read up to offset 30 and ends at 10 now"):
        run(storePath=str(files.root))
    assert rows(run(storePath=str(files.root), failOnDataLoss="false")) == []
    assert capsys.readouterr().err.count("ends at 10 now") == 3
