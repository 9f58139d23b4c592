"""Topics and queues that change while a read is planned."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from ledgermq.message.message import MessageQueue
from ledgermq.pipeline.catalog import StoreCatalog, batch_ranges
from ledgermq.pipeline.errors import DataLoss
from ledgermq.pipeline.options import ReadOptions, Stores, read_options
from ledgermq.pipeline.ranges import QueueRange

from .stores import StoreFiles, interleaved


class Deleting(StoreCatalog):
    """A catalog whose topic `U` is deleted as soon as its queues have been listed."""

    def queues(self, topics: Iterable[str]) -> dict[str, list[MessageQueue]]:
        found = super().queues(topics)
        shutil.rmtree(Path(self.place.paths[0]) / "consumequeue" / "U")
        return found


@pytest.fixture
def store(tmp_path: Path) -> dict[str, str]:
    files = StoreFiles(tmp_path / "store")
    files.append([*interleaved(9), *interleaved(9, topic="U")])
    return {"storePath": str(files.root), "subscribe": "T,U"}


def planned(store: dict[str, str], **options: str) -> list[QueueRange]:
    read: ReadOptions = read_options({**store, **options}, streaming=False)
    assert isinstance(read.place, Stores)
    return batch_ranges(Deleting(read.place), read)


def test_a_queue_that_is_deleted_while_a_batch_is_planned_is_named(store: dict[str, str]) -> None:
    """It is neither left out silently nor a failure without a name."""
    with pytest.raises(DataLoss, match=r"^U@store:0: the queue was deleted while the read was planned\."):
        planned(store)


def test_a_batch_may_go_on_without_a_queue_that_was_deleted(store: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """With one warning for each queue; the other topic is read completely."""
    ranges = planned(store, failOnDataLoss="false")

    assert ranges == [QueueRange(MessageQueue("T", "store", queue_id), 0, 3) for queue_id in range(3)]
    assert capsys.readouterr().err.count("the queue was deleted while the read was planned; going on without them") == 3
