"""The lock of a store: one broker, or one offline command, has its files at a time."""

from __future__ import annotations

from ..world.disk import Disk, DiskLock
from .errors import StoreInUse


def lock_store(disk: Disk, root: str) -> DiskLock:
    """Lock a store, until the lock is released or the process ends.

    Raises:
        StoreInUse: another process, or another broker in this one, has the lock.
        OSError: the disk refused.
    """
    try:
        return disk.lock(f"{root}/lock")
    except BlockingIOError:
        raise StoreInUse(root) from None
