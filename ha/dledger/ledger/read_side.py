"""The read side of a ledger: maps indexes to positions and back, and returns slices and entries.

Data files hold consecutive entries, index files one record of 32 bytes per entry, so the position of an index is one lookup.
"""

from __future__ import annotations

import attrs

from ....store.log.segments import Segments
from ...errors import CorruptLedger
from .checkpoint import CheckpointFile
from .entry_files import EntryFiles
from .layout import HEADER_SIZE, INDEX, INDEX_SIZE, MAGIC_ENTRY
from .terms import Terms

_unpack_index = INDEX.codec.unpack_from


@attrs.frozen
class LedgerSlice:
    """Complete entries as they are in one data file."""

    first_index: int
    last_index: int
    position: int
    entries: memoryview


@attrs.frozen
class LedgerEnd:
    """The end of a ledger at some moment."""

    index: int
    position: int


@attrs.define(eq=False)
class Places:
    """The readable part of a ledger."""

    files: EntryFiles
    checkpoint_file: CheckpointFile
    first_position: int = 0
    """The position where the ledger began; the older log that it continues ends there. It may lie inside a data file."""
    begin_index: int = 0
    end_index: int = -1
    """The index of the last entry; `begin_index - 1` while there is none."""
    end_position: int = 0
    terms: Terms = attrs.field(factory=Terms)

    @property
    def data(self) -> Segments:
        """The data files."""
        return self.files.data

    @property
    def index(self) -> Segments:
        """The index files."""
        return self.files.index

    @property
    def empty(self) -> bool:
        return self.end_index < self.begin_index

    @property
    def end_term(self) -> int:
        """The term of the last entry."""
        return self.terms.last

    @property
    def end(self) -> LedgerEnd:
        return LedgerEnd(self.end_index, self.end_position)

    @property
    def begin_position(self) -> int:
        """The position of the first entry: the beginning of the first data file, unless the ledger began inside that."""
        return max(self.first_position, self.data.min_offset)

    def term_of(self, index: int) -> int | None:
        """The term of an entry or of the one before the first; None if the ledger does not know it."""
        if not self.begin_index - 1 <= index <= self.end_index:
            return None
        return self.terms.term_of(index)

    def place_of(self, index: int) -> tuple[int, int]:
        """Return the position and size of an entry, which must be in the ledger.

        Raises:
            CorruptLedger: the index record is not that of this entry.
        """
        assert self.begin_index <= index <= self.end_index, (self.begin_index, index, self.end_index)
        at = index * INDEX_SIZE
        segment = self.index.find(at)
        if segment is not None:
            magic, position, size, found, _ = _unpack_index(segment.view, at - segment.start)
            if magic == MAGIC_ENTRY and found == index:
                return position, size
        raise CorruptLedger(
            self.index.directory,
            f"the index record of entry {index} is not there (a start without the directory of the index makes it anew)",
        )

    def end_of(self, index: int) -> int:
        """The position where an entry ends; for `begin_index - 1`, where the first entry begins."""
        if index < self.begin_index:
            return self.begin_position
        position, size = self.place_of(index)
        return position + size

    def index_at(self, position: int) -> int:
        """The index of the last entry that begins at or before `position`; `begin_index - 1` if none does."""
        low, high = self.begin_index, self.end_index + 1
        while low < high:
            middle = (low + high) // 2
            if self.place_of(middle)[0] <= position:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def slice_from(self, index: int, size_max: int, last_max: int | None = None) -> LedgerSlice:
        """Return complete entries from `index` on as they are in one data file, at least one.

        Args:
            index: index of the first entry.
            size_max: the most bytes of all entries together; a larger first entry is returned alone.
            last_max: the largest index that the last entry may have.
        """
        position, size = self.place_of(index)
        segment = self.data.find(position)
        assert segment is not None
        limit = position + max(size_max, size)
        highest = self.end_index if last_max is None else min(last_max, self.end_index)
        if segment is self.data.files[-1] and highest == self.end_index and self.end_position <= limit:
            last, end = highest, self.end_position
        else:
            last = min(self.index_at(min(limit, segment.start + segment.size) - 1), highest)
            end = self.end_of(last)
            if end > limit:
                last -= 1
                end = self.end_of(last)
        return LedgerSlice(index, last, position, segment.view[position - segment.start : end - segment.start])

    def entry(self, index: int) -> memoryview:
        """Return the bytes of one entry, header included."""
        return self.slice_from(index, 0).entries

    def body(self, index: int) -> memoryview:
        """Return the body of one entry."""
        return self.slice_from(index, 0).entries[HEADER_SIZE:]

    def record(self, offset: int, size: int) -> memoryview | None:
        """Return `size` bytes at the physical offset `offset`, or None if the ledger does not have them or no longer does."""
        segment = self.data.find(offset)
        if segment is None:
            return None
        at = offset - segment.start
        return segment.view[at : at + size] if at + size <= segment.wrote else None
