"""The locks of a store: one broker, or one offline command, has its files at a time.

The root is locked where RocketMQ locks it. The directories of the log may be elsewhere, and two stores may name the same one,
so each is locked itself. This leaves no file in it: RocketMQ refuses a log with a file that is no part of it.
"""

from __future__ import annotations

from contextlib import ExitStack

import attrs

from ..world.disk import Disk
from ..world.events import get_logger
from .errors import StoreInUse

log = get_logger(__name__)


@attrs.frozen(eq=False)
class StoreLock:
    """The locks of one store."""

    _held: ExitStack

    def release(self) -> None:
        self._held.close()


def lock_store(disk: Disk, root: str, *directories: str) -> StoreLock:
    """Lock a store, until the lock is released or the process ends.

    Args:
        directories: those of the log; one that does not exist is not locked.

    Raises:
        StoreInUse: another process, or another broker in this one, has one of the locks. None is held.
        OSError: the disk refused.
    """
    with ExitStack() as held:
        try:
            held.callback(disk.lock(f"{root}/lock").release)
        except BlockingIOError:
            raise StoreInUse(root) from None
        for directory in filter(disk.is_directory, directories):
            try:
                held.callback(disk.lock(directory).release)
            except BlockingIOError:
                raise StoreInUse(directory) from None
            except OSError as error:
                # A network file system that locks no directory; the lock of the root remains.
                log.warning("directory_not_locked", path=directory, reason=error.strerror or str(error))
        return StoreLock(held.pop_all())
