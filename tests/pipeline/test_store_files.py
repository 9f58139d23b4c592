"""A store that a broker writes while it is scanned, and its consume queues beside whoever adds to them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from ledgermq import Message, blocking
from ledgermq.pipeline import store_files
from ledgermq.pipeline.catalog import batch_ranges
from ledgermq.pipeline.columns import chosen
from ledgermq.pipeline.options import read_options
from ledgermq.pipeline.reading import TaskReader, open_catalog
from ledgermq.pipeline.store_files import Store
from ledgermq.testing.embedded import start_embedded

from .brokers import create_topic
from .brokers import send as send_numbered
from .stores import Stored, StoreFiles, interleaved

SCANS = 12


def test_a_store_is_scanned_while_its_broker_writes(tmp_path: Path) -> None:
    """Each scan gives every queue from its beginning without a gap, and at least what the one before it gave."""
    settings = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "6000"}
    stopped = threading.Event()
    counts: list[int] = []
    with start_embedded(store=str(tmp_path), settings=settings) as embedded:
        create_topic(embedded.namesrv, "T", 3)
        send_numbered(embedded.namesrv, "T", 1)  # a scan finds a topic from its first message on

        def send() -> None:
            with blocking.open_producer(embedded.namesrv, group="writer") as producer:
                while not stopped.is_set():
                    producer.send_batch([Message("T", b"x" * 300, tag="a", keys=["k"]) for _ in range(20)])

        sender = threading.Thread(target=send)
        sender.start()
        try:
            options = read_options({"storePath": str(tmp_path / "0"), "subscribe": "T", "verifyCrc": "true"}, streaming=False)
            catalog = open_catalog(options)
            while sender.is_alive() and (len(counts) < SCANS or counts[-1] == counts[0]):
                catalog = open_catalog(options)
                found: dict[int, list[int]] = {}
                for task in catalog.plan(batch_ranges(catalog, options), options):
                    for batch in TaskReader(options, chosen(options.content)).read(task):
                        for queue_id, offset in zip(
                            batch.column("queueId").to_pylist(), batch.column("queueOffset").to_pylist(), strict=True
                        ):
                            found.setdefault(queue_id, []).append(offset)
                assert all(sorted(offsets) == list(range(len(offsets))) for offsets in found.values())
                counts.append(sum(map(len, found.values())))
        finally:
            stopped.set()
            sender.join()

    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_the_end_of_a_queue_is_found_again_after_it_grew_or_was_cut(tmp_path: Path) -> None:
    """The search starts at the end that was known, whether the queue has grown by one file or by many."""
    files = StoreFiles(tmp_path, queue_file_units=10)
    files.append(interleaved(5, queues=1))
    store = Store(str(tmp_path), "a")

    ends = [store.bounds([("T", 0)])["T", 0]]
    for count in (1, 30, 3):
        files.append(interleaved(count, queues=1))
        ends.append(store.bounds([("T", 0)])["T", 0])
    last = max((tmp_path / "consumequeue" / "T" / "0").iterdir())
    last.unlink()
    ends.append(store.bounds([("T", 0)])["T", 0])

    assert ends == [(0, 5), (0, 6), (0, 36), (0, 39), (0, 30)]


def test_a_large_queue_has_as_many_samples_as_tasks_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is divided into more tasks than it had samples before."""
    monkeypatch.setattr(store_files, "UNITS_AT_ONCE", 0)
    monkeypatch.setattr(store_files, "PARTITION_BYTES", 1000)
    files = StoreFiles(tmp_path / "store")
    files.append(Stored("T", 0) for _ in range(4000))
    options = read_options({"storePath": str(files.root), "subscribe": "T", "maxBytesPerPartition": "1000"}, streaming=False)
    catalog = open_catalog(options)

    tasks = catalog.plan(batch_ranges(catalog, options), options)

    assert len(tasks) > 256
    assert sum(each.count for task in tasks for each in task) == 4000
    assert max(each.count for task in tasks for each in task) <= 2 * 4000 // len(tasks)


def test_a_queue_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    """The broker creates its files with the first message."""
    StoreFiles(tmp_path).append(interleaved(3))

    assert Store(str(tmp_path), "a").bounds([("T", 7), ("none", 0)]) == {("T", 7): (0, 0), ("none", 0): (0, 0)}


def write_table(files: StoreFiles, topics: dict[str, tuple[int, int]], log_offset: int | None) -> None:
    """Write the table of topics as a broker does, with read and write queues; Apache's has no offset of the log."""
    table = {name: {"readQueueNums": read, "writeQueueNums": write, "perm": 6} for name, (read, write) in topics.items()}
    config = files.root / "config"
    config.mkdir(exist_ok=True)
    stored = {"topicConfigTable": table, **({} if log_offset is None else {"logOffset": log_offset})}
    (config / "topics.json").write_text(json.dumps(stored))


def test_a_topic_that_is_newer_than_the_table_is_there_with_its_first_message(tmp_path: Path) -> None:
    """So are queues that were added since. Directories of topics that the table no longer has are older than it."""
    files = StoreFiles(tmp_path)
    files.append([*interleaved(4, queues=4, topic="deleted"), *interleaved(8, queues=4, topic="grown")])
    files.append(interleaved(4, queues=4, topic="shrinking"))
    write_table(files, {"grown": (4, 4), "shrinking": (2, 4), "empty": (8, 8)}, files.position)
    before = Store(str(tmp_path), "a").topics()

    files.append([*interleaved(3, topic="new"), *interleaved(6, queues=6, topic="grown")])
    files.append(interleaved(4, queues=4, topic="shrinking"))
    store = Store(str(tmp_path), "a")

    assert before == {"empty": 8, "grown": 4, "shrinking": 2}
    assert store.topics() == {"empty": 8, "grown": 6, "new": 3, "shrinking": 2}
    assert store.topics(["new", "deleted", "../consumequeue/new"]) == {"new": 3}


def test_a_table_of_apache_names_all_topics(tmp_path: Path) -> None:
    """An Apache broker writes it before a topic's first message, and it removes directories of deleted topics late."""
    files = StoreFiles(tmp_path)
    files.append(interleaved(4, topic="deleted"))
    write_table(files, {"T": (1, 1)}, None)

    assert Store(str(tmp_path), "a").topics() == {"T": 1}
