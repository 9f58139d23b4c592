"""Giving up the end of a damaged log on purpose, offline: what `DamagedLog` names as the last way out.

The store is locked meanwhile. Queues and index are not touched: the next start finds them ahead of the log and corrects them,
since the recovery mark, which would vouch for what is cut, is forgotten too.
"""

from __future__ import annotations

from ..world.disk import Disk
from .checkpoint import Checkpoint
from .errors import NoSuchOffset, StoreInUse
from .segments import Segments


def cut_log(disk: Disk, root: str, offset: int) -> int:
    """Drop everything from the physical offset `offset` on; returns how many bytes that were, fillers and zeros included.

    Raises:
        StoreInUse: a broker has the store open. Nothing was cut.
        NoSuchOffset: the log does not reach there. Nothing was cut.
        OSError: the disk refused; the cut may be repeated.
    Durability: on return the cut is on the medium.
    """
    try:
        lock = disk.lock(f"{root}/lock")
    except BlockingIOError:
        raise StoreInUse(root) from None
    try:
        directory = f"{root}/commitlog"
        names = [name for name in disk.list_directory(directory) if name.isdigit()]
        segments = Segments(disk, directory, disk.size(f"{directory}/{names[0]}") if names else 0)
        segments.load()
        try:
            if not segments.min_offset <= offset < segments.max_offset:
                raise NoSuchOffset(offset, segments.min_offset, segments.max_offset)
            checkpoint = Checkpoint(disk, f"{root}/checkpoint")
            checkpoint.load()
            checkpoint.forget()
            dropped = segments.max_offset - offset
            segments.truncate(offset)
            return dropped
        finally:
            segments.close()
    finally:
        lock.release()
