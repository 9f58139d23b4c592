"""One file of the key index: header, slots, entries (RocketMQ IndexFile)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct

from ...message.fields import Field, Layout
from ...native import pack_entries
from ...world.disk import DiskFile
from ..recovery_mark import PartialIndex
from .index_slots import SLOT, SlotTable, big_endian

HEADER = Layout(
    "index file, header",
    (
        Field("begin_timestamp", "q", "store time of the first record indexed, ms"),
        Field("end_timestamp", "q", "store time of the last record indexed, ms"),
        Field("begin_physical_offset", "q", "the first record indexed"),
        Field("end_physical_offset", "q", "the last record indexed; earlier ones are duplicates"),
        Field("slots_in_use", "i", "slots with a chain"),
        Field("next_entry", "i", "number of the next entry; 1 in an empty file, entry 0 is never used"),
    ),
)
assert HEADER.size == 40

ENTRY = Layout(
    "index file, entry",
    (
        Field("key_hash", "i", "non-negative hash of topic#key"),
        Field("physical_offset", "q", "where the record is"),
        Field("seconds", "i", "store time after the file's begin timestamp, whole seconds"),
        Field("previous_entry", "i", "next older entry of the slot's chain, 0 = none"),
    ),
)
assert ENTRY.size == 20

_HASH_OF_ENTRY = Struct(">i16x")
"""The layout of an entry of which only the hash is read."""
assert _HASH_OF_ENTRY.size == ENTRY.size

WRITTEN_AT_ONCE = 1 << 20
"""How many bytes of a file are written again in one call."""
_SECONDS_MAX = 0x7FFFFFFF


def packed(hashes: Sequence[int], offsets: Sequence[int], times: Sequence[int], begin: int, previous: Sequence[int]) -> bytes:
    """The bytes of entries."""
    seconds_of = {time: min(max(time - begin, 0) // 1000, _SECONDS_MAX) for time in set(times)}
    return b"".join(map(ENTRY.codec.pack, hashes, offsets, [seconds_of[time] for time in times], previous))


_pack = pack_entries or packed


class IndexFile:
    """One file: header, slots, entries.

    Entries are written at once. Changed slots gather in memory, by pages, and the header, which says how many entries count,
    is written when no changed slot is left (`flush`): so a file that was not flushed before a crash is in an earlier state,
    and recovery indexes again what came after it. After a failed write, no entry counts that did not count before.
    """

    def __init__(self, name: str, file: DiskFile, slot_count: int, entry_count: int, *, created: bool = False) -> None:
        self.name = name
        self.file = file
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.view = file.view()
        self.entries_at = HEADER.size + slot_count * SLOT.size
        fields = HEADER.unpack(self.view)
        self.begin_timestamp: int = fields["begin_timestamp"]
        self.end_timestamp: int = fields["end_timestamp"]
        self.begin_physical_offset: int = fields["begin_physical_offset"]
        self.end_physical_offset: int = fields["end_physical_offset"]
        self.slots_in_use: int = fields["slots_in_use"]
        self.next_entry: int = fields["next_entry"] or 1
        self._end_before_uncounted()
        self.synced_entry = 0
        """The value of `next_entry` when the file was last synced."""
        self._created = created
        self._slots: SlotTable | None = None
        """The slot table, once entries have been appended."""
        self._flushed_entry = self.next_entry
        self.sync_failed = False
        """Whether a sync has failed. A later one would prove nothing, so after a power cut the file does not count."""

    def _end_before_uncounted(self) -> None:
        """End at the record of the first entry that was written but does not count, so that this record is indexed again.

        A write of the header that failed may have stored where the file ends, but not how many entries it has.
        """
        if self.sound and self.room:
            at = self.entries_at + self.next_entry * ENTRY.size
            _, offset, _, _ = ENTRY.codec.unpack_from(self.view, at)
            if any(self.view[at : at + ENTRY.size]):
                self.end_physical_offset = min(self.end_physical_offset, max(offset, 0))

    @property
    def sound(self) -> bool:
        """Whether the header is possible for a file of this size."""
        return 1 <= self.next_entry <= self.entry_count and 0 <= self.slots_in_use <= self.slot_count

    @property
    def room(self) -> int:
        return self.entry_count - self.next_entry

    def inherit(self, other: IndexFile) -> None:
        """Begin where `other` ended, as a new file does."""
        time, offset = other.end_timestamp, other.end_physical_offset
        self.file.write(HEADER.codec.pack(time, time, offset, offset, 0, 1), 0)
        self.begin_timestamp = self.end_timestamp = time
        self.begin_physical_offset = self.end_physical_offset = offset

    def newest_entry(self, slot: int) -> int:
        """The newest entry of a slot, or 0."""
        if self._slots is not None:
            return self._slots.newest(slot)
        return self._counted(SLOT.unpack_from(self.view, HEADER.size + slot * SLOT.size)[0])

    def _counted(self, entry: int) -> int:
        """The newest valid entry of the chain that begins at `entry`, or 0 if there is none.

        A slot may name an entry that the header does not count, because a flush was not completed. That entry, if it was
        written at all, names the one before it.
        """
        while entry >= self.next_entry:
            if entry >= self.entry_count:
                return 0
            previous: int = SLOT.unpack_from(self.view, self.entries_at + entry * ENTRY.size + 16)[0]
            if previous >= entry:
                return 0
            entry = previous
        return max(entry, 0)

    def append(self, hashes: Sequence[int], offsets: Sequence[int], times: Sequence[int]) -> None:
        """Write entries, at most `room` of them, and remember their slots.

        Raises:
            OSError: none of the entries counts; a later attempt overwrites what was written.
        """
        next_entry, slot_count = self.next_entry, self.slot_count
        table = self._slots
        if table is None:
            known = None if self._created else next_entry
            table = self._slots = SlotTable(self.file, HEADER.size, slot_count, known, self._counted)
        begin = self.begin_timestamp if next_entry > 1 else times[0]
        slots = [value % slot_count for value in hashes]
        previous = table.push(slots, next_entry)
        entries = _pack(hashes, offsets, times, begin, previous)
        try:
            self.file.write(entries, self.entries_at + next_entry * ENTRY.size)
        except OSError:
            table.take_back(slots, previous)
            raise
        if next_entry == 1:
            self.begin_physical_offset = offsets[0]
        self.begin_timestamp, self.end_timestamp, self.end_physical_offset = begin, times[-1], offsets[-1]
        self.slots_in_use += previous.count(0)
        self.next_entry += len(slots)

    @property
    def gathered(self) -> int:
        """Changes of slots that are in memory only."""
        return self._slots.gathered if self._slots is not None else 0

    def flush(self, pages_max: int | None = None) -> bool:
        """Write at most `pages_max` pages of changed slots, and the header when none is left; returns whether all is written.

        Raises:
            OSError: the disk refused; what is not written stays to be written.
        """
        if self._slots is not None and not self._slots.flush(pages_max):
            return False
        if self._flushed_entry != self.next_entry:
            header = HEADER.codec.pack(
                self.begin_timestamp,
                self.end_timestamp,
                self.begin_physical_offset,
                self.end_physical_offset,
                self.slots_in_use,
                self.next_entry,
            )
            self.file.write(header, 0)
            self._flushed_entry = self.next_entry
        return True

    def complete(self) -> None:
        """Write what has gathered of a full file, and free the memory.

        Raises:
            OSError: the disk refused; what is not written stays to be written.
        """
        self.flush()
        self._slots = None

    def meets(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may have records of that time."""
        return self.begin_timestamp <= end_ms and self.end_timestamp >= begin_ms

    def collect(
        self, wanted: int, number: int, count_max: int, begin_ms: int, end_ms: int, found: list[int], entries_max: int
    ) -> int:
        """Add offsets of entries with the hash `wanted`, newest first, until `found` holds `count_max`.

        Args:
            number: the entry to begin at; entries of other hashes are in the same chain.
            entries_max: how many entries of the chain are read at most.

        Returns: the entry to continue at, 0 if there is none.
        """
        unpack_entry, view = ENTRY.codec.unpack_from, self.view
        for _ in range(entries_max):
            if number <= 0 or len(found) >= count_max:
                return 0
            value, offset, seconds, previous = unpack_entry(view, self.entries_at + number * ENTRY.size)
            # Seconds were rounded down: the record of this entry was stored in the second from `earliest` on.
            earliest = self.begin_timestamp + seconds * 1000
            if seconds < 0 or earliest + 999 < begin_ms:
                return 0
            if value == wanted and earliest <= end_ms:
                found.append(offset)
            if previous >= number:
                return 0
            number = previous
        return number

    def rewind(self, next_entry: int) -> None:
        """Let only the entries before `next_entry` count, which are on the medium.

        After a power cut a slot may name a later entry, which was lost; so all slots are built again.

        Raises:
            OSError: the disk refused; the file must not be used.
        """
        entries = self.view[self.entries_at + ENTRY.size : self.entries_at + next_entry * ENTRY.size]
        slots, slot_count = array("i", bytes(self.slot_count * SLOT.size)), self.slot_count
        for number, (value,) in enumerate(_HASH_OF_ENTRY.iter_unpack(entries), 1):
            slots[value % slot_count] = number
        _, offset, seconds, _ = ENTRY.codec.unpack_from(self.view, self.entries_at + (next_entry - 1) * ENTRY.size)
        self.next_entry, self.slots_in_use, self._slots = next_entry, slot_count - slots.count(0), None
        self.end_physical_offset, self.end_timestamp = offset, self.begin_timestamp + seconds * 1000 + 999
        self.file.write(memoryview(big_endian(slots)).cast("B"), HEADER.size)
        self._flushed_entry, self.synced_entry, self._created = 0, 0, False
        self.flush()

    def is_at(self, partial: PartialIndex) -> bool:
        """Whether the last entry that `partial` counts belongs to the record that `partial` names."""
        if not self.sound or not 1 < partial.next_entry <= self.entry_count:
            return False
        _, offset, _, _ = ENTRY.codec.unpack_from(self.view, self.entries_at + (partial.next_entry - 1) * ENTRY.size)
        return bool(offset == partial.end_physical_offset)

    def cut(self, physical_offset: int) -> None:
        """Let the file end before `physical_offset`; later records are indexed again."""
        self.end_physical_offset = physical_offset
        self._flushed_entry = self.synced_entry = 0
        self.flush()

    def clear_uncounted(self) -> None:
        """Remove entries that an earlier process has written and that do not count; their records may be dropped from the log.

        Raises:
            OSError: some of them may be left.
        """
        self.file.clear(self.entries_at + self.next_entry * ENTRY.size)

    def write_again(self) -> None:
        """Write every byte as it is, because a sync has failed and another one alone would prove nothing; blocks.

        Nothing else may write to the file meanwhile.

        Raises:
            OSError: the disk refused.
        """
        self.flush()
        used = self.entries_at + self.next_entry * ENTRY.size
        for start in range(0, used, WRITTEN_AT_ONCE):
            self.file.write(bytes(self.view[start : min(start + WRITTEN_AT_ONCE, used)]), start)
        self.synced_entry, self.sync_failed = 0, False

    def sync(self) -> None:
        self.flush()
        count = self.next_entry
        try:
            self.file.sync()
        except OSError:
            self.sync_failed = True
            raise
        self.synced_entry = count

    def close(self) -> None:
        self.view.release()
        self.file.close()
