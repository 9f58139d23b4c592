"""Reading parts of the log's files without a map, in which a sector that the disk does not give would end the process."""

from __future__ import annotations

import errno

from ...world.disk import DiskFile
from ..errors import UnreadableLog


def read_part(file: DiskFile, path: str, position: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes of a file, at least one; fewer at its end and before those that cannot be read.

    Args:
        offset: the physical offset of the byte at `position`, for the error.

    Raises:
        UnreadableLog: the disk does not give that byte.
    """
    try:
        content, reason = file.read(position, size), OSError(errno.EIO, "the file ends before it")
    except OSError as error:
        content, reason = b"", error
    if not content:
        raise UnreadableLog(path, offset, reason) from reason
    return content
