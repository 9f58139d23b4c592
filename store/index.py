"""Files that find messages by key: a table of slots, and chains of entries behind it (RocketMQ IndexFile).

The index is derived from the commit log and kept on disk alone: what was given to `put_batch` is found by the next `query`,
because the file's map shows every byte written. A file is never trusted after an abnormal exit unless the checkpoint
says that it was forced. Entries are found by hash: a caller compares topic and key of the messages itself.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from datetime import datetime
from itertools import islice

import attrs
import structlog

from ..message.fields import Field, Layout
from ..message.strings import hash_units
from ..world.clock import Clock
from ..world.disk import Disk, DiskFile

log = structlog.get_logger()

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
SLOT = struct.Struct(">i")

NAME_DIGITS = 17
_SECONDS_MAX = 0x7FFFFFFF

# Client-made unique keys of one producer differ in their last 8 characters only (milliseconds and a counter), so the
# hash of everything before is kept. Eight units more multiply it by 31^8.
_TAIL = 8
_MASK = 0xFFFFFFFF
_WEIGHTS = tuple(pow(31, _TAIL - 1 - place, 1 << 32) for place in range(_TAIL))
_ONWARD = pow(31, _TAIL, 1 << 32)
_BACKWARD = pow(31, -1, 1 << 32)
_NO_TAIL = "\0" * _TAIL
_TAIL_UNITS = struct.Struct(f"{_TAIL}B")
_PREFIXES_MAX = 4096
"""Remembered prefixes of one topic; a producer starts a new one every 65 seconds, and the table is emptied when full."""
_TOPICS_MAX = 1024

IndexEntry = tuple[str, str, str, int, int]
"""Topic, unique key or "", space-separated keys or "", physical offset, store timestamp of one record."""


class KeyHashes:
    """Hashes of topic#key, in two steps: a remembered state for the prefix, and a tail of eight units.

    For every key there is a state and an ASCII tail with `key_hash(state, tail)` right: a short key's tail is filled with NUL
    in front and its state divided by as many 31s (odd, so it has an inverse modulo 2^32); a key with a tail outside ASCII
    has its whole hash in the state.
    """

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, int]] = {}

    def prefixes_of(self, topic: str) -> dict[str, int]:
        """The remembered prefixes of a topic, "" never among them."""
        prefixes = self.topics.get(topic)
        if prefixes is None:
            if len(self.topics) >= _TOPICS_MAX:
                self.topics.clear()
            prefixes = self.topics[topic] = {}
        return prefixes

    def split(self, topic: str, key: str) -> tuple[int, str]:
        """State and tail of `key`, remembering its prefix if it has one worth that."""
        tail = key[-_TAIL:]
        if not tail.isascii():
            whole = hash_units(f"{topic}#{key}")
            return whole, _NO_TAIL
        if len(tail) < _TAIL:
            fill = _TAIL - len(tail)
            return hash_units(f"{topic}#") * pow(_BACKWARD, fill, 1 << 32) * _ONWARD & _MASK, "\0" * fill + tail
        prefix = key[:-_TAIL]
        state = hash_units(f"{topic}#{prefix}") * _ONWARD & _MASK
        if prefix:
            prefixes = self.prefixes_of(topic)
            if len(prefixes) >= _PREFIXES_MAX:
                prefixes.clear()
            prefixes[prefix] = state
        return state, tail


def key_hash(topic: str, key: str) -> int:
    """The hash of a key as entries hold it: Java's string hash, made non-negative."""
    return _positive(hash_units(f"{topic}#{key}"))


def _positive(unsigned: int) -> int:
    # Java: Math.abs of the signed value, and 0 where that stays negative.
    if unsigned < 0x80000000:
        return unsigned
    return 0x100000000 - unsigned if unsigned != 0x80000000 else 0


@attrs.define(eq=False)
class KeyBatch:
    """What a batch of records gives to be written, as parallel lists: one item per key."""

    states: list[int]
    tails: list[str]
    offsets: list[int]
    times: list[int]

    def hashes(self) -> list[int]:
        w0, w1, w2, w3, w4, w5, w6, w7 = _WEIGHTS
        return [
            total if (total := (s + a * w0 + b * w1 + c * w2 + d * w3 + e * w4 + f * w5 + g * w6 + h * w7) & _MASK) < 0x80000000
            else _positive(total)
            for s, (a, b, c, d, e, f, g, h) in zip(
                self.states, _TAIL_UNITS.iter_unpack("".join(self.tails).encode("ascii")), strict=True
            )
        ]  # fmt: skip


_PAGE_SLOTS = 1024
_PAGE_SIZE = _PAGE_SLOTS * SLOT.size
_PAGE_CHANGES_MAX = 16
"""Changed slots of one page that are gathered before the page is written; a slot alone costs as much as a page."""


class IndexFile:
    """One file: header, slots, entries.

    Entries are written at once. Changed slots gather in memory, by pages, and the header, which says how many entries count,
    is written when no changed slot is left (`flush`): so a file that was not flushed before a crash is one of an earlier time,
    and whoever recovers indexes again what came after it. After a failed write nothing counts that did not before.
    """

    def __init__(self, name: str, file: DiskFile, slot_count: int, entry_count: int) -> None:
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
        self._changed: dict[int, dict[int, int]] = {}
        """By page: slots whose newest entry is not written there yet."""
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
        """The newest entry of a slot, or 0.

        A slot may name an entry that the header does not count: a batch failed halfway. That entry, if written at all,
        names what was there before.
        """
        changed = self._changed.get(slot // _PAGE_SLOTS)
        if changed is not None and slot in changed:
            return changed[slot]
        entry: int = SLOT.unpack_from(self.view, HEADER.size + slot * SLOT.size)[0]
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
        slot_count, view, next_entry = self.slot_count, self.view, self.next_entry
        slot_of, pack_entry, entry_size = SLOT.unpack_from, ENTRY.codec.pack_into, ENTRY.size
        entries = bytearray(len(hashes) * entry_size)
        slots: dict[int, int] = {}
        changed = self._changed
        new_slots = 0
        number, at = next_entry, 0
        begin_timestamp = self.begin_timestamp if number > 1 else times[0]
        last_time, seconds = begin_timestamp, 0
        for value, offset, timestamp in zip(hashes, offsets, times, strict=True):
            slot = value % slot_count
            previous = slots.get(slot)
            if previous is None:
                page = changed.get(slot // _PAGE_SLOTS)
                if page is None or (previous := page.get(slot)) is None:
                    previous = slot_of(view, HEADER.size + slot * 4)[0]
                    if not 0 < previous < next_entry:
                        previous = self.newest_entry(slot) if previous > 0 else 0
                        if not previous:
                            new_slots += 1
            if timestamp != last_time:
                last_time = timestamp
                seconds = min(max(timestamp - begin_timestamp, 0) // 1000, _SECONDS_MAX)
            pack_entry(entries, at, value, offset, seconds, previous)
            slots[slot] = number
            number += 1
            at += entry_size
        self.file.write(entries, self.entries_at + next_entry * entry_size)
        if next_entry == 1:
            self.begin_physical_offset = offsets[0]
        self.begin_timestamp, self.end_timestamp, self.end_physical_offset = begin_timestamp, times[-1], offsets[-1]
        self.slots_in_use += new_slots
        self.next_entry = number
        self._remember(slots)

    def _remember(self, slots: dict[int, int]) -> None:
        changed = self._changed
        for slot, newest in slots.items():
            number = slot // _PAGE_SLOTS
            page = changed.get(number)
            if page is None:
                changed[number] = {slot: newest}
                continue
            page[slot] = newest
            if len(page) >= _PAGE_CHANGES_MAX:
                # The entries count already: a page that cannot be written now stays changed, and `flush` will say so.
                with contextlib.suppress(OSError):
                    self._write_page(number)

    def _write_page(self, number: int) -> None:
        at = HEADER.size + number * _PAGE_SIZE
        content = bytearray(self.view[at : min(at + _PAGE_SIZE, self.entries_at)])
        first = number * _PAGE_SLOTS
        for slot, newest in self._changed[number].items():
            SLOT.pack_into(content, (slot - first) * SLOT.size, newest)
        self.file.write(content, at)
        del self._changed[number]

    @property
    def gathered(self) -> int:
        return sum(map(len, self._changed.values()))

    def flush(self, pages_max: int | None = None) -> bool:
        """Write changed slots, of at most `pages_max` pages, and when none is left the header; tells whether all is written.

        Raises:
            OSError: the disk refused; what is not written stays to be written.
        """
        for number in list(islice(self._changed, pages_max)):
            self._write_page(number)
        if self._changed:
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
            if not name.isdigit() or self.disk.is_directory(path):
                continue
            size = self.disk.size(path)
            if size not in (0, self.file_size):
                # Perhaps of another configuration: it is neither read nor lost.
                log.warning("index_file_ignored", path=path, size=size, expected=self.file_size)
                continue
            index = IndexFile(name, self.disk.open(path), self.slot_count, self.entry_count) if size else None
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

    def put_batch(self, entries: Sequence[IndexEntry]) -> None:
        """Index records, in the order of the log; those below `end_physical_offset` are there already and are skipped.

        Raises:
            OSError: some of the entries, from one on, are not indexed. The same batch may be put again.
        """
        batch = self._batch(entries)
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

    def _batch(self, entries: Sequence[IndexEntry]) -> KeyBatch:
        states: list[int] = []
        tails: list[str] = []
        offsets: list[int] = []
        times: list[int] = []
        last_topic = ""
        prefixes = self._hashes.prefixes_of(last_topic)
        end = self.end_physical_offset
        for topic, unique_key, keys, offset, timestamp in entries:
            if offset < end:
                continue
            end = offset
            if topic != last_topic:
                prefixes = self._hashes.prefixes_of(topic)
                last_topic = topic
            if unique_key:
                state = prefixes.get(unique_key[:-_TAIL])
                tail = unique_key[-_TAIL:]
                if state is None or not tail.isascii():
                    state, tail = self._hashes.split(topic, unique_key)
                states.append(state)
                tails.append(tail)
                offsets.append(offset)
                times.append(timestamp)
            if keys:
                for key in keys.split(" "):
                    if key:
                        state, tail = self._hashes.split(topic, key)
                        states.append(state)
                        tails.append(tail)
                        offsets.append(offset)
                        times.append(timestamp)
        return KeyBatch(states, tails, offsets, times)

    def _with_room(self) -> IndexFile:
        if self.files and self.files[-1].room > 0:
            return self.files[-1]
        self.disk.make_directories(self.directory)
        name = self._new_name()
        path = f"{self.directory}/{name}"
        index = IndexFile(name, self.disk.open(path, create_size=self.file_size), self.slot_count, self.entry_count)
        try:
            if self.files:
                self.files[-1].flush()
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
        """Changed slots that are in memory only."""
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
