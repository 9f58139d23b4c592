"""How far the store is known to be on the medium, in store timestamps: where recovery may start (RocketMQ StoreCheckpoint).

A timestamp may lag behind the truth and never runs ahead of it: each is raised only after the sync that makes it true.
"""

from __future__ import annotations

import attrs

from ..message.fields import Field, Layout
from ..world.disk import Disk, DiskFile
from ..world.events import get_logger

log = get_logger(__name__)

FILE_SIZE = 4096
RECOVERY_MARGIN_MS = 3000
"""Recovery starts this much before the time in the checkpoint, because timestamps of neighbouring records differ a little."""

FIELDS = Layout(
    "checkpoint",
    (
        Field("physical_timestamp", "q", "newest record known forced in the commit log"),
        Field("logical_timestamp", "q", "newest record forced in the consume queues"),
        Field("index_timestamp", "q", "records up to which index files are forced"),
        Field("master_flushed_offset", "q", "what the master of this slave had forced, bytes"),
        Field("confirm_offset", "q", "on a slave: up to where its master lets consumers see, bytes"),
    ),
)
assert FIELDS.size == 40
CONFIRM_OFFSET_AT = FIELDS.offsets["confirm_offset"]

MARK_AT = 2048
"""The position of our own recovery mark, in the part of the file that RocketMQ does not use."""
MARK_SIZE_MAX = 256
"""How many bytes of the file are reserved for the mark, and as many for the note."""
DERIVE_ANEW = b"DERIVE ANEW"
"""Stored in place of the mark while a log is being replaced by another one."""
NOTE_AT = 3072
"""The position of the note, in a sector of its own. It is encoded like the mark and covers what was written, synced or not."""


@attrs.define(eq=False)
class Checkpoint:
    """The file's fields. `save` writes those that have changed, except `confirm_offset`, which `write_confirm_offset` writes.

    A worker thread may run `save` while the event loop writes `confirm_offset`: as `save` never writes that field, it cannot
    put an older value back.
    """

    disk: Disk
    path: str
    physical_timestamp: int = 0
    logical_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    """Change it through `write_confirm_offset` only."""
    mark: bytes = b""
    """The encoded recovery mark; the checkpoint does not look into it."""
    note: bytes = b""
    """The encoded note that was found by `load`."""
    _saved: bytes = b""
    """The fields and the mark as they were last synced."""
    _file: DiskFile | None = None
    """The open file through which `confirm_offset` is written."""

    def load(self) -> None:
        """Read the file. If it is missing, short or invalid, the fields stay 0, and recovery starts at the first file."""
        if not self.disk.exists(self.path):
            return
        file = self.disk.open(self.path, read_only=True)
        try:
            content = file.read(0, FIELDS.size)
            self.mark = file.read(MARK_AT, MARK_SIZE_MAX)
            self.note = file.read(NOTE_AT, MARK_SIZE_MAX)
        finally:
            file.close()
        if len(content) < FIELDS.size or min(values := FIELDS.codec.unpack(content)) < 0:
            log.warning("checkpoint_unreadable", path=self.path, size=len(content))
            return
        (
            self.physical_timestamp,
            self.logical_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        ) = values
        self._saved = content + self.mark

    @property
    def recovery_time(self) -> int:
        """All records stored before this time, in ms, are whole in the log and in the queues."""
        return max(0, min(self.physical_timestamp, self.logical_timestamp) - RECOVERY_MARGIN_MS)

    def is_of_another(self, store_timestamp: int, *, clean_exit: bool) -> bool:
        """Whether a broker that writes no mark has put the first record behind the mark.

        At a clean stop of ours the mark is at the end of the log, and our checkpoint's time is never newer than its mark.

        Args:
            store_timestamp: that of the record.
            clean_exit: no broker runs in the store, and the last one stopped in order.
        """
        return clean_exit or self.physical_timestamp > store_timestamp

    def save(self) -> None:
        """Write and sync the file, if a field or the mark has changed.

        The fields are within one sector of the medium, so a power cut leaves the old ones or the new ones. The same holds for
        the mark, which has a checksum of its own.

        Raises:
            OSError: the file may hold the old fields or the new ones; the next `save` writes again.
        """
        content = self._packed()
        if content + self.mark == self._saved:
            return
        new = not self.disk.exists(self.path)
        file = self.disk.open(self.path, create_size=FILE_SIZE) if new else self.disk.open(self.path)
        try:
            file.write(content[:CONFIRM_OFFSET_AT], 0)
            file.write(self.mark, MARK_AT)
            file.sync()
        finally:
            file.close()
        if new:
            self.disk.sync_directory(self.path.rpartition("/")[0] or ".")
        self._saved = content + self.mark

    def _packed(self) -> bytes:
        return FIELDS.codec.pack(
            self.physical_timestamp,
            self.logical_timestamp,
            self.index_timestamp,
            self.master_flushed_offset,
            self.confirm_offset,
        )

    @property
    def confirm_offset_synced(self) -> bool:
        """Whether a power cut leaves the present value of `confirm_offset`."""
        return self._saved[CONFIRM_OFFSET_AT : FIELDS.size] == self._packed()[CONFIRM_OFFSET_AT:]

    def write_note(self, note: bytes) -> None:
        """Write a note without syncing it, because it is not valid any more after a restart of the machine.

        Raises:
            OSError: the old note remains.
        """
        if not self.disk.exists(self.path):
            return
        file = self.disk.open(self.path)
        try:
            file.write(note, NOTE_AT)
        finally:
            file.close()

    def open(self) -> None:
        """Open the file for `write_confirm_offset`, creating it on the medium if there is none; blocks.

        Raises:
            OSError: the disk refused. The file may have been created.
        """
        if not self.disk.exists(self.path):
            self.save()
        self._file = self.disk.open(self.path)

    @property
    def is_open(self) -> bool:
        """Whether `write_confirm_offset` may be called."""
        return self._file is not None

    def close(self) -> None:
        """Close what `open` has opened."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def write_confirm_offset(self, offset: int) -> None:
        """Write this field alone, if it changes; the file must be open. This takes microseconds, so the event loop can do it.

        Durability: survives a kill of the process at once, and a power cut once `save` has returned.

        Raises:
            OSError: the old value counts as written, so that a repetition writes again.
        """
        if offset != self.confirm_offset:
            assert self._file is not None, "the checkpoint is not open"
            self._file.write(offset.to_bytes(8, "big"), CONFIRM_OFFSET_AT)
            self.confirm_offset = offset

    @property
    def derives_anew(self) -> bool:
        """Whether a log was being replaced by another one, so that nothing that was derived can be trusted."""
        return self.mark.startswith(DERIVE_ANEW)

    def forget(self, *, derive_anew: bool = False, evidence: bytes = b"") -> None:
        """Erase the mark and the note, so that the next start cannot use them, and save the other fields.

        Args:
            evidence: the encoded mark to leave instead; empty for none.
            derive_anew: the next start also drops all queues, because they may belong to a log that is being replaced.

        Raises:
            OSError: the old mark may remain.
        """
        self.mark, self.note = evidence.ljust(MARK_SIZE_MAX, b"\0"), bytes(MARK_SIZE_MAX)
        if derive_anew:
            self.mark = DERIVE_ANEW.ljust(MARK_SIZE_MAX, b"\0")
        self.write_note(self.note)
        self.save()
