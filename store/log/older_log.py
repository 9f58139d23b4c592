"""The segments of a classic commit log that another log continues (RocketMQ's DLedgerCommitLog calls this "mix").

Invariant: once the other log has a record, the older log is sealed: a filler ends its last segment, nothing is appended, and it
only loses its oldest files. What identifies its end is kept in `dividedLog.json`, so that nodes of a group can compare theirs
without reading a segment.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import attrs

from ...message.layout import BLANK, MAGIC_BLANK, DerivedParts
from ..errors import DamagedLog
from ..json_file import JsonFile
from . import local_recovery
from .commitlog import Evidence
from .local_commitlog import LocalCommitLog

COMPARED_BYTES = 64 * 1024
"""How many of the last bytes of an older log are compared between nodes: copies that differ differ at their end."""


@attrs.frozen
class OlderEnd:
    """The end of an older log, which distinguishes copies with different messages."""

    divided_offset: int
    """End of its last file: the log that continues it begins there."""
    end: int
    """The end of its last record."""
    crc: int
    """CRC-32 of its last bytes before `end`, at most `COMPARED_BYTES` and of one file."""


@attrs.define(eq=False)
class OlderLog:
    """The older span of a divided log."""

    local: LocalCommitLog
    file: JsonFile
    """`dividedLog.json`."""
    end: OlderEnd | None = None
    """None before it is sealed."""

    @property
    def expired(self) -> bool:
        """Whether none of its files is left."""
        return not self.local.segments.files

    @property
    def files_end(self) -> int:
        """End of its last file."""
        last = self.local.segments.files[-1]
        return last.start + last.size

    def load(self) -> None:
        """Read `dividedLog.json`, and use it if it belongs to this log; blocks.

        Raises:
            OSError: the file exists and cannot be read.
        """
        kept: Any = self.file.load()
        if not isinstance(kept, dict):
            return
        fields = cast("dict[str, Any]", kept)
        numbers = [fields.get(name) for name in ("dividedOffset", "end", "crc")]
        if all(isinstance(number, int) for number in numbers) and numbers[0] == self.files_end:
            self.end = OlderEnd(*cast("list[int]", numbers))

    def save(self) -> None:
        """Write `dividedLog.json`; blocks.

        Raises:
            OSError: the file keeps its previous content.
        """
        if self.end is not None:
            self.file.save({"dividedOffset": self.end.divided_offset, "end": self.end.end, "crc": self.end.crc})

    # ---------------------------------------------------------------- reading

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        """See `CommitLog.records`."""
        return self.local.records(start, end)

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:
        """Walk from `start` to the end of the whole records; in a sealed log, over the filler at its end too."""
        position = start
        for position, parts in self.local.read_back(start, evidence):
            yield position, parts
        if not self.expired and position < self.files_end and self._sealed_at(position):
            yield self.files_end, None

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        """See `CommitLog.start_below`."""
        return self.local.start_below(acceptable)

    def check_heads(self, evidence: Evidence) -> None:
        """Make sure that every segment begins with a record of its own.

        Raises:
            DamagedLog: one does not. Nothing was changed.
        """
        if not self.expired:
            local_recovery.check_heads(self.local.segments, attrs.evolve(evidence, synced_offset=self.files_end))

    def _sealed_at(self, position: int) -> bool:
        last = self.local.segments.files[-1]
        if not last.start <= position <= last.start + last.size - BLANK.size:
            return False
        remaining, magic = BLANK.codec.unpack_from(last.view, position - last.start)
        return bool(magic == MAGIC_BLANK and remaining == self.files_end - position)

    # ---------------------------------------------------------------- sealing

    def recover_end(self, end: int, read_from: int, evidence: Evidence) -> bool:
        """End a log, which no other log continues yet, at `end`, and seal it; blocks.

        Returns, raises: as `CommitLog.end_at`.
        """
        if end == self.files_end:
            # The recovery mark of an earlier start, which sealed the log, is behind the filler: the last record is before it.
            local_recovery.check_heads(self.local.segments, evidence)
            self.identify_again()
            return False
        torn = False
        segment = self.local.segments.find(end)
        if segment is not None and self._sealed_at(end):
            # An earlier start sealed the log, and nothing was appended since: the filler is no torn record.
            local_recovery.check_heads(self.local.segments, evidence)
            self.local.rewrite(min(read_from, end), end)
        else:
            torn = self.local.end_at(end, read_from, evidence)
            self.local.rewrite(self.local.flushed_offset, end)
        self._seal(end)
        return torn

    def _seal(self, end: int) -> None:
        """End the last segment with a filler and sync it: what follows is in another log."""
        segments = self.local.segments
        last = segments.files[-1]
        if end < self.files_end:
            last.file.write(BLANK.codec.pack(self.files_end - end, MAGIC_BLANK), end - last.start)
            segments.sync(last.start, self.files_end)
        last.wrote = last.size
        self.end = self._identify(end)
        self.save()

    def _identify(self, end: int) -> OlderEnd:
        last = self.local.segments.files[-1]
        size = min(COMPARED_BYTES, max(end - last.start, 0))
        at = end - last.start - size
        return OlderEnd(self.files_end, end, zlib.crc32(last.view[at : at + size]))

    def identify_again(self) -> None:
        """Find the end of a log that another broker has sealed; blocks, and reads the last segment.

        Raises:
            DamagedLog: the last segment does not end with a filler. Nothing was changed.
            OSError: the disk refused.
        """
        last = self.local.segments.files[-1]
        end = last.start
        for position, parts in self.local.records(last.start, self.files_end):
            if parts is not None:
                end = position
        if end < self.files_end and not self._sealed_at(end):
            raise DamagedLog(self.local.directory, end, self.files_end)
        self.end = self._identify(end)
        self.save()

    # ---------------------------------------------------------------- expiry

    async def remove_oldest(self) -> None:
        """Delete the oldest file, which may be the last one: the newer log continues without it.

        Raises:
            OSError: the disk refused; the call may be repeated.
        """
        await self.local.remove_oldest()

    def drop(self) -> None:
        """Delete all files, the oldest first, so that what a crash leaves still reaches to the newer log; blocks.

        Raises:
            OSError: the disk refused; some files may be deleted.
        """
        segments = self.local.segments
        while segments.files:
            segments.remove(segments.files[0])
            segments.disk.sync_directory(segments.directory)

    def close(self) -> None:
        """Close the files; blocks."""
        self.local.close()
