"""Files that find messages by key: a table of slots, and chains of entries behind it (RocketMQ IndexFile).

The index is derived from the commit log and kept on disk alone: what was given to `put_batch` is found by the next `query`,
because the file's map shows every byte written. A file is never trusted after an abnormal exit unless the checkpoint
says that it was forced. Entries are found by hash: a caller compares topic and key of the messages itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile

from ..message.fields import Field, Layout
from ..world.clock import Clock
from ..world.disk import Disk, DiskFile
from ..world.events import get_logger
from .errors import LinkInStore
from .index_keys import IndexEntry, KeyHashes, key_hash
from .index_slots import SLOT, SlotTable

log = get_logger(__name__)

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

NAME_DIGITS = 17
_SECONDS_MAX = 0x7FFFFFFF


class IndexFile:
    """One file: header, slots, entries.

    Entries are written at once. Changed slots gather in memory, by pages, and the header, which says how many entries count,
    is written when no changed slot is left (`flush`): so a file that was not flushed before a crash is one of an earlier time,
    and whoever recovers indexes again what came after it. After a failed write nothing counts that did not before.
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
        self.synced_entry = 0
        """`next_entry` when the file was last forced."""
        self._created = created
        self._slots: SlotTable | None = None
        """Once entries have been appended."""
        self._flushed_entry = self.next_entry
        self.sync_failed = False
        """A sync has failed: another one proves nothing, so after a power cut the file does not count."""

    @property
    def sound(self) -> bool:
        """Whether the header can be that of a file of this size."""
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
        """The newest of a chain's entries from `entry` on that counts, or 0.

        A slot may name an entry that the header does not count: not all that had changed was written. That entry, if written at
        all, names what was there before.
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
        seconds_of = {time: min(max(time - begin, 0) // 1000, _SECONDS_MAX) for time in set(times)}
        slots = [value % slot_count for value in hashes]
        previous = table.push(slots, next_entry)
        entries = b"".join(map(ENTRY.codec.pack, hashes, offsets, [seconds_of[time] for time in times], previous))
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
        """Write changed slots, of at most `pages_max` pages, and when none is left the header; tells whether all is written.

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
        """Write what has gathered of a full file, and let go of the memory.

        Raises:
            OSError: the disk refused; what is not written stays to be written.
        """
        self.flush()
        self._slots = None

    def meets(self, begin_ms: int, end_ms: int) -> bool:
        """Whether records of that time may be in here."""
        return self.begin_timestamp <= end_ms and self.end_timestamp >= begin_ms

    def collect(self, wanted: int, count_max: int, begin_ms: int, end_ms: int, found: list[int]) -> None:
        """Add offsets of entries with the hash `wanted`, newest first, until `found` holds `count_max`."""
        unpack_entry, view = ENTRY.codec.unpack_from, self.view
        number = self.newest_entry(wanted % self.slot_count)
        while number > 0 and len(found) < count_max:
            value, offset, seconds, previous = unpack_entry(view, self.entries_at + number * ENTRY.size)
            # Seconds were rounded down: a record of this entry lies within the second from `earliest` on.
            earliest = self.begin_timestamp + seconds * 1000
            if seconds < 0 or earliest + 999 < begin_ms:
                return
            if value == wanted and earliest <= end_ms:
                found.append(offset)
            if previous >= number:
                return
            number = previous

    def cut(self, physical_offset: int) -> None:
        """End before `physical_offset`."""
        self.end_physical_offset = physical_offset
        self._flushed_entry = self.synced_entry = 0
        self.flush()

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


class IndexFiles:
    """The run of index files, oldest first. One task writes and reads; `sync_full` may run elsewhere."""

    def __init__(
        self, disk: Disk, directory: str, clock: Clock, *, slot_count: int = 5_000_000, entry_count: int = 20_000_000
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.clock = clock
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.files: list[IndexFile] = []
        self._hashes = KeyHashes()

    @property
    def file_size(self) -> int:
        return HEADER.size + self.slot_count * SLOT.size + self.entry_count * ENTRY.size

    @property
    def end_timestamp(self) -> int:
        """Store time of the last record indexed, ms; 0 if there is none."""
        return self.files[-1].end_timestamp if self.files else 0

    @property
    def end_physical_offset(self) -> int:
        """The last record indexed; 0 if there is none."""
        return self.files[-1].end_physical_offset if self.files else 0

    def load(self, *, kept_all: bool, forced_offset: int) -> int | None:
        """Open the files of the directory.

        Args:
            kept_all: every byte that was written is known to be there.
            forced_offset: `forced_offset` when it was last written down. Files that are not full or end behind it may, unless
                `kept_all`, miss bytes of any kind: they are deleted, and with them all that follow.

        Returns:
            The physical offset from which on records have to be indexed anew; None if none have.
        """
        lost = False
        for name in self.disk.list_directory(self.directory):
            path = f"{self.directory}/{name}"
            if self.disk.is_link(path):
                raise LinkInStore(path)
            if not name.isdigit() or self.disk.is_directory(path):
                continue
            size = self.disk.size(path)
            if size not in (0, self.file_size):
                # Perhaps of another configuration: it is neither read nor lost.
                log.warning("index_file_ignored", path=path, size=size, expected=self.file_size)
                continue
            index = IndexFile(name, self.disk.open(path), self.slot_count, self.entry_count) if size else None
            if self.files and self.files[-1].room:  # an older copy: every file but the last one is full
                lost = True
                log.warning("index_file_deleted", path=f"{self.directory}/{self.files[-1].name}", size=self.file_size)
                self._delete(self.files.pop())
            if index is not None and not lost and index.sound:
                forced = index.room == 0 and index.end_physical_offset <= forced_offset
                if kept_all or forced:
                    index.synced_entry = index.next_entry if forced else 0
                    self.files.append(index)
                    continue
            lost = True
            log.warning("index_file_deleted", path=path, size=size)
            if index is not None:
                index.close()
            self.disk.remove(path)
        return None if kept_all and not lost else self.end_physical_offset

    def clear(self) -> None:
        """Delete every file."""
        while self.files:
            self._delete(self.files.pop())

    @property
    def full_files(self) -> int:
        """Files that are full and on the medium."""
        forced = (index.room == 0 and index.synced_entry == index.next_entry for index in self.files)
        return sum(1 for _ in takewhile(bool, forced))

    def put_batch(self, entries: Sequence[IndexEntry]) -> None:
        """Index records, in the order of the log; those below `end_physical_offset` are there already and are skipped.

        Raises:
            OSError: some of the entries, from one on, are not indexed. The same batch may be put again.
        """
        batch = self._hashes.batch_of(entries, self.end_physical_offset)
        hashes = batch.hashes()
        start, count = 0, len(hashes)
        while start < count:
            index = self._with_room()
            stop = min(count, start + index.room)
            if start == 0 and stop == count:
                index.append(hashes, batch.offsets, batch.times)
                return
            index.append(hashes[start:stop], batch.offsets[start:stop], batch.times[start:stop])
            start = stop

    def _with_room(self) -> IndexFile:
        if self.files and self.files[-1].room > 0:
            return self.files[-1]
        self.disk.make_directories(self.directory)
        name = self._new_name()
        path = f"{self.directory}/{name}"
        file = self.disk.open(path, create_size=self.file_size)
        index = IndexFile(name, file, self.slot_count, self.entry_count, created=True)
        try:
            if self.files:
                self.files[-1].complete()
                index.inherit(self.files[-1])
        except OSError:
            self._delete(index)
            raise
        self.files.append(index)
        log.info("index_file_created", path=path)
        return index

    def _new_name(self) -> str:
        now = datetime.fromtimestamp(self.clock.wall_ms() / 1000).astimezone()
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03}"
        if self.files and name <= self.files[-1].name:
            # The clock went back, or two files came within one millisecond: names must keep their order.
            name = _following(self.files[-1].name)
        while self.disk.exists(f"{self.directory}/{name}"):
            name = _following(name)
        return name

    def query(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets, ascending, of up to `count_max` newest records whose key hashes alike, stored in that time.

        Times are as exact as the file keeps them: a record of the second of `begin_ms` is found even if it is earlier.
        """
        wanted = key_hash(topic, key)
        found: list[int] = []
        for index in reversed(self.files):
            if index.meets(begin_ms, end_ms):
                index.collect(wanted, count_max, begin_ms, end_ms, found)
            if index.begin_timestamp < begin_ms or len(found) >= count_max:
                break
        return sorted(set(found))

    def expire(self, min_physical_offset: int) -> list[str]:
        """Delete files whose records have all left the log, never the last one; returns their names."""
        deleted: list[str] = []
        while len(self.files) > 1 and self.files[0].end_physical_offset < min_physical_offset:
            index = self.files.pop(0)
            self._delete(index)
            deleted.append(index.name)
        return deleted

    def _delete(self, index: IndexFile) -> None:
        index.close()
        self.disk.remove(f"{self.directory}/{index.name}")

    def _forced(self) -> IndexFile | None:
        """The newest file that is on the medium like all before it."""
        forced = None
        for index in self.files:
            if index.synced_entry != index.next_entry:
                break
            forced = index
        return forced

    @property
    def forced_offset(self) -> int:
        """The last record indexed in files that are on the medium, for the recovery mark; -1 if there are none."""
        forced = self._forced()
        return forced.end_physical_offset if forced else -1

    @property
    def forced_timestamp(self) -> int:
        """Its store time, for the checkpoint; 0 if there is none."""
        forced = self._forced()
        return forced.end_timestamp if forced else 0

    @property
    def gathered(self) -> int:
        """Changes of slots that are in memory only."""
        return self.files[-1].gathered if self.files else 0

    def flush(self, pages_max: int | None = None) -> bool:
        """Write what has gathered in memory, at most `pages_max` pages of it; tells whether that was all.

        Raises:
            OSError: the disk refused; the rest stays to be written.
        """
        return not self.files or self.files[-1].flush(pages_max)

    def sync_full(self, flushed_offset: int) -> None:
        """Force files that are full, as far as the log is forced: the index must not know more than the log after a crash.

        Raises:
            OSError: a file could not be forced; it is tried again next time.
        """
        for index in self.files[:-1]:
            if index.end_physical_offset >= flushed_offset:
                break
            if index.synced_entry != index.next_entry and not index.sync_failed:
                index.sync()
                self.disk.sync_directory(self.directory)

    def sync(self) -> None:
        """Force everything, at shutdown.

        Raises:
            OSError: something is not forced.
        """
        for index in self.files:
            if index.synced_entry != index.next_entry and not index.sync_failed:
                index.sync()
        if self.files:
            self.disk.sync_directory(self.directory)

    def cut(self, physical_offset: int) -> None:
        """The log was cut there: what comes next at these offsets is not indexed yet.

        Entries of records that are gone stay in a file that has others too; readers find no such message where they point.

        Raises:
            OSError: some files still end behind `physical_offset`.
        """
        while self.files and self.files[-1].end_physical_offset >= physical_offset:
            index = self.files[-1]
            if index.begin_physical_offset < physical_offset:
                index.cut(physical_offset)
                return
            self._delete(self.files.pop())

    def close(self) -> None:
        for index in self.files:
            index.close()
        self.files.clear()


def _following(name: str) -> str:
    return f"{int(name) + 1:0{NAME_DIGITS}}"
