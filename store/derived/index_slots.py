"""The slot table of an index file that is appended to: the newest entry of each slot, in memory, written page by page.

Unchanged pages are not written, and a page of an existing file is read when it is first needed. The table has native integers,
so that a slot is read and set without conversion; a page is converted as a whole when it is written.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable

from ...world.disk import DiskFile
from ...world.memory import untouched_memory

SLOT = struct.Struct(">i")
PAGE_SLOTS = 1024
_PAGE_SIZE = PAGE_SLOTS * SLOT.size
_PAGES_AT_ONCE = 32
"""How many neighbouring pages are written together at most; in a busy index nearly all pages have changed."""
_CHANGED_MAX = 1 << 16
"""How many changed slots are listed one by one; then they are reduced to the pages that they are in."""


class SlotTable:
    """Slots of one file.

    Args:
        at: position of the first slot in the file.
        count: how many there are.
        next_entry: entries from this number on do not count yet; None if nothing was ever written to the file.
        counted: returns the newest valid entry of the chain that begins at an entry which a slot of the file names, or 0.
    """

    def __init__(self, file: DiskFile, at: int, count: int, next_entry: int | None, counted: Callable[[int], int]) -> None:
        self.file = file
        self._at = at
        self._size = count * SLOT.size
        self._bytes = untouched_memory(self._size)
        self._entries = self._bytes.cast("i")
        self._counted = counted
        self._next_entry = next_entry or 0
        self._unread = set(range(-(-count // PAGE_SLOTS))) if next_entry is not None else set[int]()
        """Pages that were not read from the file yet."""
        self._changed: list[int] = []
        """Slots that have changed since `_look_through` was last called."""
        self._changed_pages: set[int] = set()
        self.gathered = 0
        """How many changes there were since all was written."""

    def newest(self, slot: int) -> int:
        """The newest entry of a slot, or 0."""
        if self._unread:
            self._read((slot,))
        return self._entries[slot]

    def push(self, slots: list[int], first: int) -> list[int]:
        """Make entries, numbered from `first` on, the newest ones of these slots; returns the previous entry of each slot."""
        if self._unread:
            self._read(slots)
        entries = self._entries
        previous: list[int] = []
        for number, slot in enumerate(slots, first):
            previous.append(entries[slot])
            entries[slot] = number
        self._changed += slots
        self.gathered += len(slots)
        if len(self._changed) > _CHANGED_MAX:
            self._look_through()
        return previous

    def take_back(self, slots: list[int], previous: list[int]) -> None:
        """Undo the `push` that returned `previous`."""
        for slot, entry in zip(reversed(slots), reversed(previous), strict=True):
            self._entries[slot] = entry

    def flush(self, pages_max: int | None = None) -> bool:
        """Write changed pages, at most `pages_max` of them; returns whether that was all.

        Raises:
            OSError: the disk refused; what is not written stays to be written.
        """
        self._look_through()
        pages = sorted(self._changed_pages)[:pages_max]
        start = 0
        for at, page in enumerate(pages):
            following = pages[at + 1] if at + 1 < len(pages) else -1
            if following != page + 1 or at + 1 - start == _PAGES_AT_ONCE:
                self._write(pages[start], page + 1)
                self._changed_pages.difference_update(pages[start : at + 1])
                start = at + 1
        if self._changed_pages:
            return False
        self.gathered = 0
        return True

    def _look_through(self) -> None:
        self._changed_pages.update([slot // PAGE_SLOTS for slot in self._changed])
        self._changed.clear()

    def _write(self, first: int, end: int) -> None:
        at = first * _PAGE_SIZE
        words = _words(self._bytes[at : min(end * _PAGE_SIZE, self._size)])
        self.file.write(memoryview(words).cast("B"), self._at + at)

    def _read(self, slots: Iterable[int]) -> None:
        for page in self._unread.intersection([slot // PAGE_SLOTS for slot in slots]):
            at = page * _PAGE_SIZE
            words = _words(self.file.read(self._at + at, min(_PAGE_SIZE, self._size - at)))
            if max(words) >= self._next_entry:  # rare: a flush was not completed, or the file is damaged
                words = array("I", map(self._counted, words))
            self._bytes[at : at + len(words) * SLOT.size] = memoryview(words).cast("B")
            self._unread.discard(page)


def big_endian(words: array[int]) -> array[int]:
    """Turn native numbers into big-endian ones, or the other way round, in place."""
    if sys.byteorder == "little":
        words.byteswap()
    return words


def _words(content: bytes | memoryview) -> array[int]:
    """Big-endian numbers as native ones, or the other way round."""
    words = array("I")
    words.frombytes(content)
    return big_endian(words)
