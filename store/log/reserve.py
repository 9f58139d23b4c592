"""Room on the disk that is kept for what has to be written before a file can be deleted.

Before files of the log go, a checkpoint that no longer counts them is written, next offsets of queues and, in DLedger mode,
tables. On a disk without a free byte none of this would fit, so nothing could ever be deleted.
"""

from __future__ import annotations

from contextlib import suppress

import attrs

from ...world.disk import Disk

RESERVE_SHARE, RESERVE_BYTES_MIN = 64, 64 * 1024
"""The file is this part of a segment of the log, but no less: 16 MiB with RocketMQ's segments, enough for 400,000 offsets."""
_PIECE_BYTES = 1 << 20


@attrs.define(eq=False)
class Reserve:
    """A file of zeros, which is removed while its room is needed."""

    disk: Disk
    directory: str
    size: int

    @property
    def path(self) -> str:
        return f"{self.directory}/reserve"

    def release(self) -> None:
        """Remove the file if less than its size is free. Blocks.

        Raises:
            OSError: the disk refused.
        """
        if self.disk.usage(self.directory).free < self.size and self.disk.exists(self.path):
            self.disk.remove(self.path)

    def hold(self) -> None:
        """Write the file unless it is there, or would take more than half of what is free. Blocks.

        Raises:
            OSError: the disk refused; the file is not there.
        """
        if self.disk.exists(self.path) or self.disk.usage(self.directory).free < 2 * self.size:
            return
        file = self.disk.open(self.path, create_size=0)
        try:
            for position in range(0, self.size, _PIECE_BYTES):
                file.write(bytes(min(_PIECE_BYTES, self.size - position)), position)
        except OSError:
            with suppress(OSError):  # it may be shorter then; what was refused counts
                self.disk.remove(self.path)
            raise
        finally:
            file.close()
