"""Messages of deleted topics are not shown, whether the store's table or only its log says that they were deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledgermq.ha.dledger.ledger.layout import CHANNEL_CONFIGURATION
from ledgermq.message.control import CONTROL_TOPIC, KIND_PROPERTY, deletion_of
from ledgermq.message.flags import TRANSACTION_ROLLBACK
from ledgermq.message.json import dumps_strict
from ledgermq.message.layout import encode_record
from ledgermq.message.message import MessageQueue
from ledgermq.message.properties import encode_properties
from ledgermq.pipeline.catalog import Bounds, StoreCatalog
from ledgermq.pipeline.deleted import Deletions
from ledgermq.pipeline.errors import DataLoss
from ledgermq.pipeline.log_files import SegmentFiles
from ledgermq.pipeline.options import Stores
from ledgermq.pipeline.ranges import QueueRange
from ledgermq.store.checkpoint import MARK_AT
from ledgermq.store.derived.deletions import Deletion
from ledgermq.world.disk import RealDisk

from ..ha.dledger.ledgers import HOST, messages, open_small
from .stores import StoreFiles, interleaved
from .test_segment_reader import rows_of, whole

COUNT = 300
QUEUE = MessageQueue("T", "a", 0)


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    written = StoreFiles(tmp_path, segment_size=8192, queue_file_units=40)
    written.append(interleaved(COUNT))
    return written


def bounds(files: StoreFiles) -> Bounds:
    return StoreCatalog(Stores((str(files.root),), ("a",))).bounds([QUEUE])[QUEUE]


def note(files: StoreFiles, deletion: Deletion) -> None:
    """Write the store's table of deletions."""
    listed = [[deletion.queue_offset, deletion.physical_offset, deletion.size]]
    table = {"deletedQueues": {"T": {str(queue_id): listed for queue_id in range(3)}}}
    (files.root / "deletedQueues.json").write_text(json.dumps(table))


def test_a_topic_made_anew_begins_behind_its_deletion(files: StoreFiles) -> None:
    """The units of deleted messages are still in the files; the table says from which offset on messages count."""
    at, size = files.delete_topic("T")
    note(files, Deletion(at, size, 100))
    files.mark(files.position)

    deleted = bounds(files)
    files.append(interleaved(3))

    assert deleted == Bounds(100, 100)
    assert [row["queueOffset"] for row in rows_of(files.root, whole(files.root))[0]] == [100, 100, 100]
    with pytest.raises(DataLoss, match="offsets 0 to 99 are gone"):
        rows_of(files.root, [QueueRange(QUEUE, 0, 101)])


@pytest.mark.parametrize("marked", [True, False])
def test_a_deletion_that_only_the_log_has_counts(files: StoreFiles, marked: bool) -> None:
    """The broker writes the table some seconds later; until then the log behind the recovery mark is searched."""
    if marked:
        files.mark(files.placed[200][2])
    files.delete_topic("T")
    files.append(interleaved(5))

    assert bounds(files) == Bounds(100, 102)
    assert sorted(row["queueOffset"] for row in rows_of(files.root, whole(files.root))[0]) == [100, 100, 100, 101, 101]


def test_a_store_of_apache_is_not_searched(files: StoreFiles) -> None:
    """Its checkpoint has no recovery mark. Nothing but the broker's own tables can say that a topic was deleted."""
    (files.root / "checkpoint").write_bytes(bytes(4096))
    files.delete_topic("T")
    files.append(interleaved(3))

    assert bounds(files) == Bounds(0, 101)


def test_a_mark_that_is_being_written_is_no_mark(files: StoreFiles) -> None:
    """The end of the log is searched instead."""
    files.mark(files.position)
    path = files.root / "checkpoint"
    content = bytearray(path.read_bytes())
    content[MARK_AT] ^= 1
    path.write_bytes(content)
    files.delete_topic("T")
    files.append(interleaved(3))

    assert bounds(files) == Bounds(100, 101)


def test_a_deletion_counts_once_consumers_know_of_it(files: StoreFiles) -> None:
    """A control record behind the last record of any queue may still be replaced, as in a Raft log."""
    files.delete_topic("T")

    assert bounds(files) == Bounds(0, 100)


def test_a_stream_of_polls_sees_a_deletion_that_comes_later(files: StoreFiles) -> None:
    """Each poll searches only what is new in the log, and misses nothing."""
    catalog = StoreCatalog(Stores((str(files.root),), ("a",)))
    before = catalog.bounds([QUEUE])[QUEUE]
    files.append(interleaved(30))
    between = catalog.bounds([QUEUE])[QUEUE]
    files.delete_topic("T")
    files.append(interleaved(3))

    assert (before, between) == (Bounds(0, 100), Bounds(0, 110))
    assert catalog.bounds([QUEUE])[QUEUE] == Bounds(110, 111)


def test_a_deletion_in_the_table_that_the_log_does_not_have_does_not_count(files: StoreFiles) -> None:
    """The log was truncated behind it, so nothing was deleted."""
    _, _, position, size = files.placed[-1]
    note(files, Deletion(position, size, 100))

    assert bounds(files) == Bounds(0, 100)


def test_the_deletion_of_another_topic_changes_nothing(files: StoreFiles) -> None:
    """The control record names the topic."""
    files.delete_topic("other")
    files.append(interleaved(3))

    assert bounds(files) == Bounds(0, 101)


def test_a_deletion_in_a_ledger_is_found_behind_entries_that_are_no_records(tmp_path: Path) -> None:
    """An entry may carry a configuration of the group instead of a message."""
    queue = encode_record(b"T", 0, 1, b"new", b"", 0, 0, 0, HOST, 1, HOST)
    control = deletion_of("T", {0: 1})
    properties = encode_properties({KIND_PROPERTY: control.kind}).encode()
    record = encode_record(
        CONTROL_TOPIC.encode(), 0, 0, dumps_strict(control.content), properties, 0, TRANSACTION_ROLLBACK, 0, HOST, 1, HOST
    )
    ledger = open_small(RealDisk(), str(tmp_path))
    ledger.append(1, messages(0, 1))
    ledger.append(1, [b"a configuration"], channel=CHANNEL_CONFIGURATION, patch=False)
    placed = ledger.append(1, [record])
    ledger.append(1, [queue])
    end = ledger.end_position
    ledger.close()
    log = SegmentFiles(str(tmp_path))
    log.refresh()
    deletions = Deletions(str(tmp_path), log, RealDisk())

    deletions.refresh(placed.start)
    before = deletions.position_of("T")
    deletions.refresh(end)

    assert before == 0
    assert deletions.position_of("T") == placed.offsets[0]
