"""Reading a store's files beside whoever writes, deletes and damages them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.batches import Batches
from ledgermq.pipeline.catalog import StoreCatalog, batch_ranges
from ledgermq.pipeline.columns import available
from ledgermq.pipeline.errors import CorruptStore, DataLoss
from ledgermq.pipeline.options import Content, ReadOptions, Stores, read_options
from ledgermq.pipeline.ranges import QueueRange
from ledgermq.pipeline.segment_reader import Reader, read_segments
from ledgermq.pipeline.store_files import Store
from ledgermq.store.derived.consumequeue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE

from .stores import Stored, StoreFiles, interleaved

COUNT = 300


def options_of(root: Path, **changes: str) -> ReadOptions:
    return read_options({"storePath": str(root), "brokerName": "a", "subscribe": "T", **changes}, streaming=False)


def rows_of(
    root: Path, task: list[QueueRange], content: Content | None = None, *, fail: bool = True
) -> tuple[list[dict[str, Any]], list[str]]:
    content = content or Content()
    warnings: list[str] = []
    reader = Reader(Batches(available(content)), content, fail, warnings.append)
    return [row for batch in read_segments(Store(str(root), "a"), task, reader) for row in batch.to_pylist()], warnings


def whole(root: Path, **changes: str) -> list[QueueRange]:
    return batch_ranges(StoreCatalog(Stores((str(root),), ("a",))), options_of(root, **changes))


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    written = StoreFiles(tmp_path, segment_size=8192, queue_file_units=40)
    written.append(interleaved(COUNT))
    return written


def change(path: Path, at: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(value)


@settings(max_examples=25)
@given(
    st.lists(st.builds(Stored, st.sampled_from(["T", "U"]), st.integers(0, 2), st.binary(max_size=300)), max_size=40),
    st.integers(1, 9),
)
def test_any_store_is_read_whole_in_any_number_of_tasks(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Stored], partitions: int
) -> None:
    """In order within each queue, nothing of other topics, across files of the log and of queues."""
    root = tmp_path_factory.mktemp("store")
    written = StoreFiles(root, segment_size=1024, queue_file_units=7)
    written.append([Stored(), *messages])
    catalog = StoreCatalog(Stores((str(root),), ("a",)))
    options = options_of(root, minPartitions=str(partitions))

    tasks = catalog.plan(batch_ranges(catalog, options), options)
    rows = [row for task in tasks for row in rows_of(root, list(task))[0]]

    for queue_id in range(3):
        expected = [message.body for message, *_ in written.placed if (message.topic, message.queue_id) == ("T", queue_id)]
        assert [row["body"] for row in rows if row["queueId"] == queue_id] == expected


def test_units_and_records_that_come_later_are_read_next_time(files: StoreFiles) -> None:
    """A catalog that is kept, as a stream's is, sees the queue grow, over several files at once."""
    catalog = StoreCatalog(Stores((str(files.root),), ("a",)))
    queue = MessageQueue("T", "a", 0)

    before = catalog.bounds([queue])[queue]
    files.append(interleaved(3))
    after_one = catalog.bounds([queue])[queue]
    files.append(interleaved(600))
    after_many = catalog.bounds([queue])[queue]

    assert (before.max, after_one.max, after_many.max) == (100, 101, 301)


def test_a_unit_whose_record_is_not_complete_yet_is_the_end(files: StoreFiles) -> None:
    """It is read when it is."""
    message, offset, position, size = files.placed[-1]
    path = files.root / "commitlog" / f"{position - position % 8192:020d}"
    record = path.read_bytes()[position % 8192 :][:size]
    change(path, position % 8192, bytes(size))
    catalog = StoreCatalog(Stores((str(files.root),), ("a",)))
    queue = MessageQueue("T", "a", message.queue_id)

    torn = catalog.bounds([queue])[queue]
    change(path, position % 8192, record)

    assert torn.max == offset
    assert catalog.bounds([queue])[queue].max == offset + 1


def test_expired_files_are_behind_the_oldest_message(files: StoreFiles) -> None:
    """What retention has deleted is not asked for."""
    (files.root / "commitlog" / f"{0:020d}").unlink()
    gone = sum(position < 8192 for _, _, position, _ in files.placed)

    ranges = whole(files.root)

    assert sum(each.count for each in ranges) == COUNT - gone > 0
    assert len(rows_of(files.root, ranges)[0]) == COUNT - gone


def test_retention_that_overtakes_a_task_is_an_error_that_says_how_many(files: StoreFiles) -> None:
    """Or a warning, if the user has said so; what is left is read."""
    ranges = whole(files.root)
    (files.root / "commitlog" / f"{0:020d}").unlink()
    gone = sum(position < 8192 for _, _, position, _ in files.placed)

    with pytest.raises(DataLoss, match="from offset 0 on are no longer in the log"):
        rows_of(files.root, ranges)
    rows, warnings = rows_of(files.root, ranges, fail=False)

    assert len(rows) == COUNT - gone
    assert len(warnings) == 3


def test_queue_files_that_expired_are_reported(files: StoreFiles) -> None:
    """The queue begins later than was planned."""
    ranges = whole(files.root)[:1]
    (files.root / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()

    with pytest.raises(DataLoss, match="offsets 0 to 39 are gone, the oldest message has offset 40"):
        rows_of(files.root, ranges)
    rows, warnings = rows_of(files.root, ranges, fail=False)

    assert [row["queueOffset"] for row in rows] == list(range(40, 100))
    assert len(warnings) == 1


def test_a_topic_that_was_deleted_while_it_was_read_is_reported(files: StoreFiles) -> None:
    """Its queues are gone, though the log still has its records."""
    ranges = whole(files.root)
    shutil.rmtree(files.root / "consumequeue" / "T")

    with pytest.raises(DataLoss, match=r"offset 0 was planned, but the queue in .* ends there now"):
        rows_of(files.root, ranges)
    rows, warnings = rows_of(files.root, ranges, fail=False)

    assert (rows, len(warnings)) == ([], 3)


def test_a_queue_that_was_cut_is_reported(files: StoreFiles) -> None:
    """As a failover to a shorter replica does."""
    ranges = whole(files.root)
    change(files.root / "consumequeue" / "T" / "0" / f"{80 * UNIT_SIZE:020d}", 5 * UNIT_SIZE, bytes(15 * UNIT_SIZE))

    with pytest.raises(DataLoss, match="15 messages from offset 85 on"):
        rows_of(files.root, ranges)
    assert len(rows_of(files.root, ranges, fail=False)[0]) == COUNT - 15


def test_a_gap_in_a_queue_is_reported(files: StoreFiles) -> None:
    """Units without a record stand where a broker found some missing."""
    ranges = whole(files.root)
    blank = UNIT.pack(physical_offset=0, size=PRE_BLANK_SIZE, tags_code=0)
    change(files.root / "consumequeue" / "T" / "0" / f"{0:020d}", 7 * UNIT_SIZE, blank)

    with pytest.raises(DataLoss, match="1 messages from offset 7 on"):
        rows_of(files.root, ranges)
    assert len(rows_of(files.root, ranges, fail=False)[0]) == COUNT - 1


@pytest.mark.parametrize(
    ("at", "value", "check"),
    [(4, b"\0\0\0\0", "magic"), (0, b"\0\0\0\x5b", "size"), (31, b"\x09", "elsewhere"), (15, b"\x09", "another queue")],
)
def test_damage_is_named_by_file_place_and_check(files: StoreFiles, at: int, value: bytes, check: str) -> None:
    """Three modes: an error, passed over with a warning, or a row that says what is wrong."""
    _, offset, position, _ = files.placed[150]
    path = files.root / "commitlog" / f"{position - position % 8192:020d}"
    change(path, position % 8192 + at, value)
    ranges = whole(files.root)

    with pytest.raises(CorruptStore) as found:
        rows_of(files.root, ranges)
    dropped, warnings = rows_of(files.root, ranges, Content(mode="DROPMALFORMED"))
    kept, _ = rows_of(files.root, ranges, Content(mode="PERMISSIVE"))

    for text in (str(path), str(position), check, f"T@a:0, queue offset {offset}", "Nothing was skipped"):
        assert text in str(found.value)
    assert len(dropped) == COUNT - 1
    assert check in warnings[0]
    (corrupt,) = (row for row in kept if row["_corrupt"])
    assert check in corrupt["_corrupt"]
    assert corrupt["body"] is None
    assert len(kept) == COUNT


def test_a_changed_body_is_found_if_asked(files: StoreFiles) -> None:
    """The structure is sound; only the CRC tells."""
    _, _, position, _ = files.placed[10]
    change(files.root / "commitlog" / f"{0:020d}", position + 90, b"#")

    assert len(rows_of(files.root, whole(files.root))[0]) == COUNT
    with pytest.raises(CorruptStore, match="the CRC of its body"):
        rows_of(files.root, whole(files.root), Content(verify_crc=True))


def test_equal_hashes_do_not_make_equal_tags(tmp_path: Path) -> None:
    """Java's hash of `Aa` is that of `BB`."""
    files = StoreFiles(tmp_path)
    files.append([Stored(properties={"TAGS": tag}) for tag in ("Aa", "BB", "Aa", "C")])

    rows, _ = rows_of(tmp_path, whole(tmp_path), Content(tags=("Aa", "C")))

    assert [row["tags"] for row in rows] == ["Aa", "Aa", "C"]


def test_a_property_that_is_empty_is_none(tmp_path: Path) -> None:
    """As for RocketMQ's own clients; whoever writes rows as they were read writes the same message."""
    files = StoreFiles(tmp_path)
    files.append([Stored("T"), Stored("T", raw_properties=b"TAGS\x01\x02KEYS\x01\x02other\x01\x02")])

    found, _ = rows_of(tmp_path, whole(tmp_path))

    assert [(row["tags"], row["keys"], row["properties"]) for row in found] == [(None, None, [])] * 2


def test_only_topics_and_queues_that_may_be_read_are_there(files: StoreFiles) -> None:
    """The broker's table of topics decides: what it does not name was deleted."""
    numbers = '"readQueueNums":2,"writeQueueNums":2'
    table = f'{{"topicConfigTable":{{"T":{{{numbers},"perm":6}},"W":{{{numbers},"perm":2}}}}}}'
    (files.root / "config").mkdir()
    (files.root / "config" / "topics.json").write_text(table)
    files.append([attrs.evolve(each, topic=topic) for each in interleaved(3) for topic in ("W", "gone")])
    catalog = StoreCatalog(Stores((str(files.root),), ("a",)))

    assert catalog.topics() == ["T"]
    found = catalog.queues(["T", "gone", "W"])
    assert [queue.queue_id for queue in found["T"]] == [0, 1]
    assert found["gone"] == found["W"] == []


def test_files_of_a_ledger_are_part_of_the_log(files: StoreFiles) -> None:
    """Records have a header before them there; consume queues lead behind it."""
    moved = files.root / "dledger-n0" / "data"
    moved.mkdir(parents=True)
    last = max((files.root / "commitlog").iterdir())
    last.rename(moved / last.name)

    assert len(rows_of(files.root, whole(files.root))[0]) == COUNT
