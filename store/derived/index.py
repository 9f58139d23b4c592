"""Files that find messages by key: each is a table of slots, and chains of entries behind it (RocketMQ IndexService).

The index is derived from the commit log and kept on disk only: what was passed to `put_batch` is found by the next `query`,
because every byte written is visible in the file's map. After a power cut a file counts only as far as the recovery mark says
that it was synced. Entries are found by hash: the caller must compare topic and key of the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile

import attrs

from ...message.numbers import is_digits
from ...native import hash_keys
from ...world.clock import Clock
from ...world.disk import Disk
from ...world.events import get_logger
from ..errors import LinkInStore
from ..recovery_mark import PartialIndex
from .index_file import ENTRY, HEADER, IndexFile
from .index_keys import IndexEntry, KeyHashes, key_hash
from .index_slots import SLOT

log = get_logger(__name__)

NAME_DIGITS = 17
SEARCHED_PER_STEP = 10_000
"""How many entries one step of a search reads, which takes about 7 ms. A common key may have millions of entries, and all that
are newer than the time of the search are read first."""


class IndexFiles:
    """The run of index files, oldest first. One task writes and reads; `sync_full` may run in another thread."""

    def __init__(
        self, disk: Disk, directory: str, clock: Clock, *, slot_count: int = 5_000_000, entry_count: int = 20_000_000
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.clock = clock
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.files: list[IndexFile] = []
        self.hash_keys = hash_keys
        """Hashes keys in compiled code; None if Python does."""
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
        """The physical offset of the last record indexed; 0 if there is none."""
        return self.files[-1].end_physical_offset if self.files else 0

    def load(self, *, page_cache_intact: bool, forced_offset: int, partial: PartialIndex | None = None) -> int | None:
        """Open the files of the directory.

        Args:
            page_cache_intact: every byte that was written is known to be there.
            forced_offset: `forced_offset` as the recovery mark has it. Unless `page_cache_intact`, files that are not full or
                end behind it may lack any bytes: they and all later files are deleted.
            partial: how much of one of these files is on the medium; it is continued there instead of deleted.

        Returns:
            The physical offset from which on records have to be indexed again; None if none have.
        """
        lost, restored = False, None
        for name in self.disk.list_directory(self.directory):
            path = f"{self.directory}/{name}"
            if self.disk.is_link(path):
                raise LinkInStore(path)
            if not is_digits(name) or self.disk.is_directory(path):
                continue
            size = self.disk.size(path)
            if size not in (0, self.file_size):
                # It may belong to another configuration, so it is neither read nor deleted.
                log.warning("index_file_ignored", path=path, size=size, expected=self.file_size)
                continue
            index = IndexFile(name, self.disk.open(path), self.slot_count, self.entry_count) if size else None
            if self.files and self.files[-1].room and restored is None:  # an older copy: every file but the last one is full
                lost = True
                log.warning("index_file_deleted", path=f"{self.directory}/{self.files[-1].name}", size=self.file_size)
                self._delete(self.files.pop())
            if index is not None and not lost and index.sound:
                forced = index.room == 0 and index.end_physical_offset <= forced_offset
                if page_cache_intact or forced:
                    index.synced_entry = index.next_entry if forced else 0
                    self.files.append(index)
                    continue
                if partial is not None and int(name) == partial.name and index.is_at(partial):
                    index.rewind(partial.next_entry)
                    self.files.append(index)
                    lost, restored = True, partial.position
                    continue
            lost = True
            log.warning("index_file_deleted", path=path, size=size)
            if index is not None:
                index.close()
            self.disk.remove(path)
        if restored is not None:
            return restored
        return None if page_cache_intact and not lost else self.end_physical_offset

    def clear(self) -> None:
        """Delete every file."""
        while self.files:
            self._delete(self.files.pop())

    @property
    def full_files(self) -> int:
        """How many files, from the oldest on, are full and on the medium."""
        forced = (index.room == 0 and index.synced_entry == index.next_entry for index in self.files)
        return sum(1 for _ in takewhile(bool, forced))

    def put_batch(self, entries: Sequence[IndexEntry]) -> None:
        """Index records, in the order of the log; those below `end_physical_offset` are there already and are skipped.

        Raises:
            OSError: some of the entries, from one on, are not indexed. The same batch may be put again.
        """
        if self.hash_keys is not None:
            hashes, offsets, times = self.hash_keys(entries, self.end_physical_offset)
        else:
            batch = self._hashes.batch_of(entries, self.end_physical_offset)
            hashes, offsets, times = batch.hashes(), batch.offsets, batch.times
        start, count = 0, len(hashes)
        while start < count:
            index = self._with_room()
            stop = min(count, start + index.room)
            if start == 0 and stop == count:
                index.append(hashes, offsets, times)
                return
            index.append(hashes[start:stop], offsets[start:stop], times[start:stop])
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
        """Physical offsets, ascending, of the up to `count_max` newest records stored in that time whose key has the same hash.

        Times are exact to the second: a record that was stored in the second of `begin_ms`, but earlier, is found too. All
        entries of the key are read at once; `search` reads them in steps.
        """
        search = self.search(topic, key, count_max, begin_ms, end_ms)
        while not search.step():
            pass
        return search.offsets

    def search(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> IndexSearch:
        """Begin to search as `query` does, in steps between which records may be indexed and files may be deleted."""
        files: list[IndexFile] = []
        for index in reversed(self.files):
            if index.meets(begin_ms, end_ms):
                files.append(index)
            if index.begin_timestamp < begin_ms:
                break
        return IndexSearch(self, key_hash(topic, key), count_max, begin_ms, end_ms, files)

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
        """The newest file that is on the medium together with all earlier ones."""
        forced = None
        for index in self.files:
            if index.synced_entry != index.next_entry:
                break
            forced = index
        return forced

    @property
    def forced_offset(self) -> int:
        """The physical offset of the last record in files that are on the medium, for the recovery mark; -1 if none are."""
        forced = self._forced()
        return forced.end_physical_offset if forced else -1

    @property
    def forced_timestamp(self) -> int:
        """The store time of the last record in files that are on the medium, for the checkpoint; 0 if there are none."""
        forced = self._forced()
        return forced.end_timestamp if forced else 0

    @property
    def gathered(self) -> int:
        """How many changes of slots are in memory only."""
        return self.files[-1].gathered if self.files else 0

    def flush(self, pages_max: int | None = None) -> bool:
        """Write what has gathered in memory, at most `pages_max` pages of it; returns whether that was all.

        Raises:
            OSError: the disk refused; a later call writes the rest.
        """
        return not self.files or self.files[-1].flush(pages_max)

    def partial(self, position: int) -> PartialIndex | None:
        """How much `sync_partial` will sync, if everything is flushed and indexed up to `position`; None if nothing."""
        if not self.files or self.files[-1].next_entry == 1 or self.files[-1].sync_failed:
            return None
        last = self.files[-1]
        return PartialIndex(int(last.name), last.next_entry, last.end_physical_offset, position)

    def sync_partial(self, partial: PartialIndex) -> None:
        """Sync what has been written of the file that `partial` names; may run while another task writes.

        That file may be full by now, and not the last one any more.

        Raises:
            OSError: the file is not synced; only `sync` tries it again.
        """
        index = next((index for index in self.files if int(index.name) == partial.name), None)
        if index is None:  # its records were cut or have expired
            return
        try:
            index.file.sync()
        except OSError:
            index.sync_failed = True
            raise
        self.disk.sync_directory(self.directory)

    def sync_full(self, flushed_offset: int) -> None:
        """Sync full files whose records are all flushed: after a crash, the index must not have records that the log lacks.

        Raises:
            OSError: a file could not be written or synced; a failed sync is tried again by `sync` alone.
        """
        for index in self.files[:-1]:
            if index.end_physical_offset >= flushed_offset:
                break
            if index.synced_entry != index.next_entry and not index.sync_failed:
                index.sync()
                self.disk.sync_directory(self.directory)

    def sync(self) -> None:
        """Sync everything, at shutdown; a file whose sync has failed before is written again first.

        Raises:
            OSError: something is not synced.
        """
        for index in self.files:
            if index.sync_failed:
                index.write_again()
            if index.synced_entry != index.next_entry:
                index.sync()
        if self.files:
            self.disk.sync_directory(self.directory)

    def cut(self, physical_offset: int) -> None:
        """Let records from `physical_offset` on be indexed again, because the log was cut there.

        Entries of removed records stay in a file that has others too; readers check the record that an entry points to.

        Raises:
            OSError: some files still end behind `physical_offset`.
        """
        while self.files and self.files[-1].end_physical_offset >= physical_offset:
            index = self.files[-1]
            if index.begin_physical_offset < physical_offset:
                index.cut(physical_offset)
                break
            self._delete(self.files.pop())
        if self.files:
            self.files[-1].clear_uncounted()

    def close(self) -> None:
        for index in self.files:
            index.close()
        self.files.clear()


@attrs.define(eq=False)
class IndexSearch:
    """The search for records by key, from the newest to the oldest entry."""

    index: IndexFiles
    wanted: int
    """The hash of the key."""
    count_max: int
    begin_ms: int
    end_ms: int
    _files: list[IndexFile]
    """The files that are not searched yet, newest first; entries that are added later are not found."""
    _number: int = 0
    """The next entry in the first of these files; 0 if its chain has not been looked up."""
    _found: list[int] = attrs.field(factory=list[int])

    def step(self, entries_max: int = SEARCHED_PER_STEP) -> bool:
        """Read at most `entries_max` entries; returns whether the search is complete."""
        while self._files and len(self._found) < self.count_max:
            file = self._files[0]
            if file in self.index.files:  # else its records have left the log, and it is closed
                number = self._number or file.newest_entry(self.wanted % file.slot_count)
                self._number = file.collect(
                    self.wanted, number, self.count_max, self.begin_ms, self.end_ms, self._found, entries_max
                )
                if self._number:
                    return False
            self._files.pop(0)
            self._number = 0
        return True

    @property
    def offsets(self) -> list[int]:
        """The physical offsets found so far, ascending."""
        return sorted(set(self._found))


def _following(name: str) -> str:
    return f"{int(name) + 1:0{NAME_DIGITS}}"
