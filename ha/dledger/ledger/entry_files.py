"""Writing at the end of a ledger's data and index files: entries, blank blocks, index records.

The bytes of a failed append are overwritten with zeros, and the ledger accepts no further append until these are synced.
Otherwise a restart might find entries that were never reported as appended, after a power cut even in place of later ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ....message.checksum import crc32
from ....message.fields import Buffer
from ....message.layout import put_physical_offset
from ....store.errors import AppendUnclear
from ....store.log.segments import Segment, Segments
from .layout import BLANK, BLANK_SIZE, ENTRY, HEADER_SIZE, INDEX, INDEX_SIZE, MAGIC_BLANK, MAGIC_ENTRY, PATCH_AT

_pack_header_into = ENTRY.codec.pack_into
_pack_index_into = INDEX.codec.pack_into
_NO_HEADER = bytes(HEADER_SIZE)
_ZEROS = bytes(1024 * 1024)


@attrs.frozen
class Stamp:
    """The header fields that all entries of one append share."""

    first_index: int
    term: int
    channel: int
    patch: bool
    """Whether the bodies are messages, into each of which its physical offset is written."""


@attrs.define(eq=False)
class EntryFiles:
    """The data files and the index files of one ledger."""

    data: Segments
    index: Segments
    syncs: bool = True
    """Whether every append is synced soon after; the files are then prepared for it."""
    unclear: bool = False
    """Whether a failed append has written bytes after the end, and their removal is not synced yet."""
    _withdrawn_ends: tuple[int, int] = (0, 0)
    """The last failed append has written bytes between the end and this position, of the data and of the index."""
    _withdrawn: list[Segment] = attrs.field(factory=list[Segment])
    """The files that a failed append has created."""

    def write_entries(self, end: int, stamp: Stamp, records: Sequence[Buffer], sizes: list[int]) -> list[int]:
        """Write one entry and one index record for each record; return the physical offset of each record.

        Args:
            end: position where the log ends.
            stamp: the header fields that the entries share.
            records: the bodies.
            sizes: sizes of the entries in bytes, headers included.

        Raises:
            OSError: the write failed; the caller calls `withdraw`.
        """
        segment = self._last(end)
        offsets, index_records = list[int](), bytearray(INDEX_SIZE * len(sizes))
        first, free = 0, segment.size - segment.wrote - BLANK_SIZE
        for number, size in enumerate(sizes):
            if size > free:
                if number > first:
                    self._write_run(segment, stamp, records, sizes, range(first, number), offsets, index_records)
                segment = self.roll(segment)
                first, free = number, segment.size - BLANK_SIZE
            free -= size
        self._write_run(segment, stamp, records, sizes, range(first, len(sizes)), offsets, index_records)
        self.write_index(stamp.first_index, index_records)
        return offsets

    def _write_run(
        self,
        segment: Segment,
        stamp: Stamp,
        records: Sequence[Buffer],
        sizes: list[int],
        numbers: range,
        offsets: list[int],
        index_records: bytearray,
    ) -> None:
        """Write the entries numbered `numbers` into one file with one write."""
        parts: list[Buffer] = []
        for number in numbers:
            parts += (_NO_HEADER, records[number])
        buffer = bytearray().join(parts)
        term, channel, patch = stamp.term, stamp.channel, stamp.patch
        at, index, base = 0, stamp.first_index + numbers.start, segment.start + segment.wrote
        with memoryview(buffer) as view:
            for number in numbers:
                size, position = sizes[number], base + at
                if patch:
                    put_physical_offset(buffer, at + PATCH_AT, position + HEADER_SIZE)
                crc = crc32(view[at + HEADER_SIZE : at + size])
                _pack_header_into(buffer, at, MAGIC_ENTRY, size, index, term, position, channel, 0, crc, size - HEADER_SIZE)
                _pack_index_into(index_records, INDEX_SIZE * number, MAGIC_ENTRY, position, size, index, term)
                offsets.append(position + HEADER_SIZE)
                at += size
                index += 1
        if self.syncs:
            segment.prepare(len(buffer))
        segment.append(buffer)

    def write_raw(self, end: int, position: int, entries: Buffer, first_index: int, index_records: Buffer) -> None:
        """Write complete entries at `position`, which is the end of the log or the beginning of the next file.

        Raises:
            OSError: the write failed; the caller calls `withdraw`.
        """
        segment = self._last(end)
        if position != segment.start + segment.wrote:
            segment = self.roll(segment)
        if self.syncs:
            segment.prepare(len(entries))
        segment.append(entries)
        self.write_index(first_index, index_records)

    def _last(self, end: int) -> Segment:
        """The file to append to; a ledger that begins inside a file leaves zeros before its first entry."""
        begins = not self.data.files
        segment = self.data.last(end)
        if begins:
            segment.wrote = end - segment.start
        return segment

    def roll(self, segment: Segment) -> Segment:
        """End a file with a blank block, and create the next one."""
        remaining = segment.size - segment.wrote
        segment.file.write(BLANK.codec.pack(MAGIC_BLANK, remaining), segment.wrote)
        segment.wrote = segment.size
        return self.data.last()

    def write_index(self, first_index: int, records: Buffer) -> None:
        """Write index records at the end of the index, which is their place."""
        at, start = 0, first_index * INDEX_SIZE
        with memoryview(records) as view:
            while at < len(records):
                segment = self.index.last(start + at)
                segment.wrote = start + at - segment.start
                size = min(len(records) - at, segment.size - segment.wrote)
                segment.append(view[at : at + size])
                at += size

    def withdraw(self, ends: tuple[int, int], sizes_max: tuple[int, int], reason: BaseException) -> None:
        """Remove the bytes that a failed append has written after the end.

        Args:
            ends: where the data and the index end.
            sizes_max: how many bytes of each the append may have written into the file that holds its end.
            reason: why the append failed.

        Raises:
            AppendUnclear: they could not be removed now; `clear_withdrawn` tries again.
        """
        self.unclear = True
        data_end, index_end = zip((self.data, self.index), ends, sizes_max, strict=True)
        self._withdrawn_ends = self._take_back(*data_end), self._take_back(*index_end)
        try:
            self.clear_withdrawn()
        except OSError as error:
            raise AppendUnclear(error.errno, error.strerror) from reason

    def _take_back(self, run: Segments, end: int, size_max: int) -> int:
        """Let a run end at `end` again; returns the end of what is behind it in the last file."""
        while run.files and run.files[-1].start >= max(end, 1):
            self._withdrawn.append(run.files.pop())
        if not run.files:
            return end
        last = run.files[-1]
        at = last.wrote = end - last.start
        return end + last.nonzero_size(at, size_max)

    def clear_withdrawn(self) -> None:
        """Overwrite the bytes and delete the files that failed appends have left; `sync_withdrawn` makes that durable.

        Raises:
            OSError: the disk failed; the next call tries again.
        """
        while self._withdrawn:
            segment = self._withdrawn[-1]
            segment.file.clear(0)
            self.data.disk.remove(segment.path)
            self._withdrawn.pop().close()
        for run, until in zip((self.data, self.index), self._withdrawn_ends, strict=True):
            if run.files and until > run.files[-1].end:
                last = run.files[-1]
                # Not `clear`: it passes over what reads as zeros, and after a failed sync these may be missing on the medium.
                last.file.write(bytes(min(until - last.start, last.size) - last.wrote), last.wrote)

    def sync_withdrawn(self) -> None:
        """Sync what `clear_withdrawn` has changed. Blocks.

        Raises:
            OSError: the disk failed; both calls must be repeated.
        """
        for run in (self.data, self.index):
            run.created = True
            run.sync(run.max_offset, run.max_offset + 1)
        self.unclear = False

    def overwrite(self, position: int, end: int, index: int, end_index: int) -> None:
        """Overwrite entries and index records that are to be truncated with zeros, in the file that will be the last.

        Raises:
            OSError: the write failed.
        """
        for run, start, stop in ((self.data, position, end), (self.index, index * INDEX_SIZE, (end_index + 1) * INDEX_SIZE)):
            segment = run.find(start)
            if segment is None:
                continue
            run.own(segment)
            at, last = start - segment.start, min(stop - segment.start, segment.size)
            while at < last:
                size = min(len(_ZEROS), last - at)
                segment.file.write(memoryview(_ZEROS)[:size], at)
                at += size
