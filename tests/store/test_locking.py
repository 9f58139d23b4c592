"""Who may open the files of a store."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from ledgermq.store.errors import StoreInUse
from ledgermq.store.keeping.cutting import cut_log
from ledgermq.store.message_store import MessageStore
from ledgermq.store.opening import open_message_store
from ledgermq.testing.logs import capture_logs
from ledgermq.world.disk import DiskLock, RealDisk

from .stores import incoming, small_config, small_store, small_world


@pytest.mark.parametrize("linked", [False, True])
async def test_two_stores_do_not_share_a_directory_of_the_log(tmp_path: Path, *, linked: bool) -> None:
    """Their roots differ, and both name one directory for the log, or one of them a link to it; the second changes nothing."""
    log_directory = tmp_path / "first" / "commitlog"
    if linked:
        (tmp_path / "link").symlink_to(log_directory)
    shared = str(tmp_path / "link" if linked else log_directory)
    async with small_store(tmp_path / "first") as store:
        await store.put_one(incoming())
        before = {path.name: path.read_bytes() for path in log_directory.iterdir()}

        with pytest.raises(StoreInUse, match="is in use by another broker"):
            async with small_store(tmp_path / "second", store_path_commit_log=shared):
                pytest.fail("two stores share a log")
        with pytest.raises(StoreInUse):
            cut_log(RealDisk(), str(tmp_path / "second"), 0, shared)

        assert {path.name: path.read_bytes() for path in log_directory.iterdir()} == before
    async with small_store(tmp_path / "second", store_path_commit_log=shared) as store:
        assert store.max_offset("TopicTest", 1) == 1


async def test_the_directory_of_a_log_of_another_mode_is_locked_too(tmp_path: Path) -> None:
    """A ledger lies elsewhere than the classic log, and two nodes may be given the same place for it."""
    shared = str(tmp_path / "shared" / "data")

    def opened(name: str) -> AbstractAsyncContextManager[MessageStore]:
        return open_message_store(small_world(), small_config(tmp_path / name), log_directory=shared)

    async with opened("first"):
        with pytest.raises(StoreInUse):
            async with opened("second"):
                pytest.fail("two nodes share a ledger")
    async with opened("second"):
        pass


class NoDirectoryLocks(RealDisk):
    """As a network file system that locks files only."""

    def lock(self, path: str) -> DiskLock:
        if self.is_directory(path):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
        return super().lock(path)


async def test_a_disk_that_locks_no_directory_is_used_without(tmp_path: Path) -> None:
    """The lock of the root remains, and a warning names what is not locked."""
    with capture_logs() as events:
        async with small_store(tmp_path, disk=NoDirectoryLocks()):
            with pytest.raises(StoreInUse):
                async with small_store(tmp_path, disk=NoDirectoryLocks()):
                    pytest.fail("two brokers share a store")

    assert [event["path"] for event in events if event["event"] == "directory_not_locked"] == [f"{tmp_path}/commitlog"]
