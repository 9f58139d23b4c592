"""Starts that need not read the files of queues, because nobody has touched them since the last clean stop."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from ledgermq.store.message_store import MessageStore
from ledgermq.testing.logs import capture_logs
from ledgermq.world.disk import DiskFile, RealDisk

from ..stores import SetClock, derive_all, incoming, small_store
from ..watched_disk import WatchedFile

QUEUES, PER_QUEUE = 60, 130
"""A queue of so many messages has two files; a file has 100 units."""


@attrs.define(eq=False)
class CountedFile(WatchedFile):
    """Counts its reads under its path."""

    path: str = ""
    reads: Counter[str] = attrs.field(factory=Counter[str])

    def read(self, position: int, size: int) -> bytes:
        self.reads[self.path] += 1
        return super().read(position, size)


@attrs.frozen
class CountingDisk(RealDisk):
    """Counts the reads of each file and the directories that were listed."""

    reads: Counter[str] = attrs.field(factory=Counter[str])

    def open(self, path: str, *, create_size: int | None = None, read_only: bool = False) -> DiskFile:
        file = super().open(path, create_size=create_size, read_only=read_only)
        return CountedFile(file, path=path, reads=self.reads)

    def list_directory(self, path: str) -> list[str]:
        self.reads[f"{path}/"] += 1
        return super().list_directory(path)

    def of_queues(self) -> list[str]:
        """The files and directories of single queues that were looked into."""
        return [path for path in self.reads if "/consumequeue/TopicTest/" in path]


async def fill(path: Path) -> None:
    async with small_store(path, mapped_file_size_commit_log=1 << 20) as store:
        for _ in range(PER_QUEUE):
            store.put([incoming(queue_id=queue_id) for queue_id in range(QUEUES)])
        derive_all(store)


def ends(store: MessageStore) -> dict[tuple[str, int], tuple[int, int, int]]:
    return {key: (queue.min_offset, queue.max_offset, queue.physical_end) for key, queue in store.queues.table.items()}


async def test_a_start_after_a_clean_stop_reads_no_file_of_a_queue(tmp_path: Path) -> None:
    """It only looks whether the files are those of the stop, however many queues there are."""
    await fill(tmp_path)
    disk = CountingDisk()

    async with small_store(tmp_path, disk=disk, mapped_file_size_commit_log=1 << 20) as store:
        assert [path for path in disk.of_queues() if not path.endswith("TopicTest/")] == []
        assert len(ends(store)) == QUEUES
        assert {end[:2] for end in ends(store).values()} == {(0, PER_QUEUE)}
        store.put([incoming(b"next", queue_id=7)])
        derive_all(store)
        assert len(store.get("TopicTest", 7, 120, 32).slices) == 11


@pytest.mark.parametrize("how", ["killed", "no places", "other mark", "touched", "damaged", "shorter"])
async def test_what_may_have_changed_since_the_stop_is_read(tmp_path: Path, how: str) -> None:
    """After a kill all queues are, and otherwise those whose files another program has changed."""
    await fill(tmp_path)
    path = tmp_path / "consumequeue" / "TopicTest" / "7" / f"{2000:020}"
    if how == "killed":
        (tmp_path / "abort").touch()
    elif how == "no places":
        (tmp_path / "queuePlaces.json").unlink()
    elif how == "other mark":
        places = (tmp_path / "queuePlaces.json").read_bytes()
        async with small_store(tmp_path, mapped_file_size_commit_log=1 << 20) as store:
            store.put([incoming(queue_id=8)])
        (tmp_path / "queuePlaces.json").write_bytes(places)
    elif how == "touched":
        os.utime(path, (1, 1))
    elif how == "damaged":
        path.write_bytes(b"\xff" * 600 + path.read_bytes()[600:])
    else:
        path.unlink()
    disk = CountingDisk()

    async with small_store(tmp_path, disk=disk, mapped_file_size_commit_log=1 << 20) as store:
        looked_at = {path.split("TopicTest/")[1].split("/")[0] for path in disk.of_queues()} - {""}
        assert looked_at >= {"7"}
        assert len(looked_at) == (1 if how == "touched" else QUEUES)  # damage lets everything be derived again
        assert all(end[1] == PER_QUEUE + (how == "other mark" and key[1] == 8) for key, end in ends(store).items())


async def test_a_start_finds_the_same_ends_with_and_without_the_places(tmp_path: Path) -> None:
    """Queues whose first messages have expired or were deleted begin where they did."""
    settings: dict[str, Any] = {"file_reserved_time": 0, "mapped_file_size_commit_log": 1 << 16}
    clock = SetClock(wall=4_000_000_000_000)  # behind the times of the files, which so have expired
    async with small_store(tmp_path / "with", clock, **settings) as store:
        for number in range(1500):
            store.put([incoming(bytes(100), topic=f"T{number % 3}", queue_id=number % 7)])
        derive_all(store)
        await store.log.flush()
        assert store.cleaner is not None
        await store.cleaner.delete_expired()
        await store.event_done(store.delete_topic("T1"))
        store.put([incoming(topic="T1", queue_id=2), incoming(topic="T4", queue_id=0)])
        derive_all(store)
        expected = ends(store)
    shutil.copytree(tmp_path / "with", tmp_path / "without")
    (tmp_path / "without" / "queuePlaces.json").unlink()

    for name in ("with", "without"):
        with capture_logs() as events:
            async with small_store(tmp_path / name, clock, **settings) as store:
                assert ends(store) == expected
                assert store.log.min_offset > 0
        assert [event["event"] for event in events if event["log_level"] != "info"] == []
