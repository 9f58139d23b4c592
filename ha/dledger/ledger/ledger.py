"""The entries of one node of a DLedger group, in DLedger's data and index files (DLedgerMmapFileStore).

An entry never uses the last 8 bytes of a data file, and a file that has no room for the next entry ends with a blank block.
Positions count through all data files; `places.py` maps an index to a position. Invariant: `begin_index <= committed_index + 1`
and `synced_index, committed_index <= end_index`. The bytes after the end are zeros, so that no later scan reads old bytes as
entries. No call is asynchronous: those that access the disk (`force`, `truncate`, `heal`) block and must run on a worker
thread.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from itertools import pairwise

import attrs

from ....message.checksum import crc32
from ....message.fields import Buffer
from ....store.errors import NotWritable, RecordTooLarge
from ....store.log.segments import Segment
from ...errors import CommittedEntries, HaError, LedgerGap
from .checkpoint import Checkpoint
from .entry_files import Stamp
from .layout import (
    BLANK,
    BLANK_SIZE,
    CHANNEL_CONFIGURATION,
    CHANNEL_MESSAGE,
    ENTRY,
    ENTRY_SIZE_MAX,
    HEADER_SIZE,
    INDEX,
    INDEX_SIZE,
    MAGIC_BLANK,
)
from .read_side import LedgerEnd, LedgerSlice, Places
from .terms import Terms
from .walk import Walked, walk_entries

_unpack_header = ENTRY.codec.unpack_from
_unpack_index = INDEX.codec.unpack_from


def is_blank(segment: Segment, at: int) -> bool:
    """Whether a blank block takes the rest of a file from `at` on."""
    rest = segment.size - at
    return rest >= BLANK_SIZE and BLANK.codec.unpack_from(segment.view, at) == (MAGIC_BLANK, rest)


@attrs.define(eq=False)
class Placed:
    """The place of the appended records."""

    first_index: int
    last_index: int
    start: int
    """The end of the ledger before the append; a blank block may be between it and the first entry."""
    offsets: list[int]
    """The physical offset of each record: 48 bytes after the position of its entry."""
    end: int
    """The end of the ledger after the append."""


@attrs.define(eq=False)
class Ledger(Places):
    """The entries of one node; `recovery.open_ledger` creates it."""

    synced_index: int = -1
    """The last entry up to which all are durable."""
    synced_position: int = 0
    committed_index: int = -1
    committed_position: int = 0
    """The end of the last committed entry; readers see nothing after it."""
    configurations: list[tuple[int, bytes]] = attrs.field(factory=list[tuple[int, bytes]])
    """The index and body of each configuration entry, and of the newest one before the ledger's beginning."""
    failure: str | None = None
    """Why the ledger refuses appends, after a failed append, sync or truncation; None while it accepts them."""
    on_withdrawn: Callable[[], None] = lambda: None
    """Called when a failed append has set `failure`."""
    indexed_until: int = -1
    """The last entry up to which all index records are durable."""
    _cut_failed: bool = False
    """Whether the last truncation or clearing failed; `failure` is then set until another one succeeds."""
    _index_unsure: bool = True
    """Whether a sync of the index may have failed, in this process or an earlier one."""
    forgotten: list[Segment] = attrs.field(factory=list[Segment])
    """The files that are no part of the ledger any more and are not deleted yet."""
    checkpoint: Checkpoint = attrs.field(factory=Checkpoint)
    """The content of the checkpoint file."""

    def commit(self, index: int) -> None:
        """Make the entries up to `index` readable, at most all that exist; the committed index never decreases."""
        index = min(index, self.end_index)
        if index > self.committed_index and index >= self.begin_index:
            self.committed_index = index
            self.committed_position = self.end_position if index == self.end_index else self.end_of(index)

    # ---------------------------------------------------------------------------------------------------------------- appending

    def append(self, term: int, records: Sequence[Buffer], *, patch: bool = True, channel: int = CHANNEL_MESSAGE) -> Placed:
        """Append one entry per record, as the leader of `term`.

        Args:
            term: at least that of the last entry.
            records: at least one.
            patch: whether the records are messages, into each of which its physical offset is written.
            channel: the channel of all these entries.

        Raises:
            RecordTooLarge: a record is too large for an entry or a file. Nothing was appended.
            NotWritable: the ledger has failed. Nothing was appended.
            OSError: the write failed. Nothing was appended; bytes after the end are ignored.
        Durability: none before `force` has returned.
        """
        self._check_writable()
        assert term >= self.end_term, (term, self.end_term)
        sizes = [len(record) + HEADER_SIZE for record in records]
        self._check_fit(max(sizes))
        start, first_index = self.end_position, self.end_index + 1
        try:
            offsets = self.files.write_entries(start, Stamp(first_index, term, channel, patch), records, sizes)
        except BaseException as error:
            self._withdraw(sum(sizes), len(sizes), error)
            raise
        self.terms.add(first_index, term)
        self.end_index += len(sizes)
        self.end_position = self.data.max_offset
        if channel == CHANNEL_CONFIGURATION:
            self.configurations += [(index, bytes(self.body(index))) for index in range(first_index, self.end_index + 1)]
        return Placed(first_index, self.end_index, start, offsets, self.end_position)

    def _check_writable(self) -> None:
        if self.failure is not None:
            raise NotWritable(self.failure)

    def _withdraw(self, size: int, count: int, reason: BaseException) -> None:
        """Remove what a failed append of `count` entries has written, and refuse appends until `heal` has synced that.

        After a power cut a removed entry could otherwise come back in place of one that was appended later at the same index
        and in the same term, and which other nodes have committed.

        Raises:
            AppendUnclear: the disk refused to remove it; `heal` tries again.
        """
        self.failure = f"what a failed append has written behind position {self.end_position} is being removed"
        self.on_withdrawn()
        ends = self.end_position, (self.end_index + 1) * INDEX_SIZE
        self.files.withdraw(ends, (size + BLANK_SIZE, count * INDEX_SIZE), reason)

    def _check_fit(self, size: int) -> None:
        room = self.data.segment_size - BLANK_SIZE
        if size > ENTRY_SIZE_MAX:
            raise RecordTooLarge(f"an entry of {size} bytes is larger than the {ENTRY_SIZE_MAX} that DLedger allows for one")
        if size > room:
            raise RecordTooLarge(f"an entry of {size} bytes is larger than the {room} that a file of the ledger takes")

    def append_walked(self, walked: Walked, entries: Buffer, first_index: int | None = None) -> None:
        """Append entries of another ledger of the group unchanged, from `first_index` on.

        Args:
            walked: the result of `walk_entries` over `entries`, without a fault. The position of the first entry to append is
                the end of this ledger, or the beginning of the next file if the entry does not fit into the last one.

        Raises:
            LedgerGap: the entries do not continue this ledger. Nothing was appended.
            NotWritable: the ledger has failed. Nothing was appended.
            OSError: the write failed. Nothing was appended; bytes after the end are ignored.
        Durability: none before `force` has returned.
        """
        self._check_writable()
        first = walked.first_index if first_index is None else first_index
        skipped = INDEX_SIZE * (first - walked.first_index)
        _, position, first_size, _, first_term = _unpack_index(walked.index_records, skipped)
        if first != self.end_index + 1 or first_term < self.end_term:
            raise LedgerGap(
                f"entry {first} of term {first_term} does not follow entry {self.end_index} of term {self.end_term}"
            )
        if first == 0 and not self.data.files and self.first_position == 0 < position and not position % self.data.segment_size:
            self.continue_from(position)  # the leader's ledger continues an older log, which has expired there
        size = walked.position - position
        self._check_joins(position, first_size, size)
        try:
            self.files.write_raw(
                self.end_position,
                position,
                memoryview(entries)[walked.at - size : walked.at],
                first,
                walked.index_records[skipped:],
            )
        except BaseException as error:
            self._withdraw(size, walked.next_index - first, error)
            raise
        self.note(walked, entries, first)
        self.end_index, self.end_position = walked.next_index - 1, walked.position

    def note(self, walked: Walked, entries: Buffer, first: int) -> None:
        """Record the terms and configurations of walked entries, from the index `first` on."""
        for (index, term), (next_run, _) in zip(walked.runs, [*walked.runs[1:], (walked.next_index, 0)], strict=True):
            if next_run > first:
                self.terms.add(max(index, first), term)
        for at in walked.configurations:
            _, size, index, *_ = _unpack_header(entries, at)
            if index >= first:
                self.configurations.append((index, bytes(memoryview(entries)[at + HEADER_SIZE : at + size])))

    def next_position(self, size: int, end: int | None = None) -> int:
        """The position of an entry of `size` bytes behind `end`: there, or in the next file if it does not fit into that one.

        Args:
            end: where the entry before it ends; by default that is the end of the ledger.
        """
        end, file_size = self.end_position if end is None else end, self.data.segment_size
        file_end = end - end % file_size + file_size
        return file_end if end % file_size and size + BLANK_SIZE > file_end - end else end

    def _check_joins(self, position: int, first_size: int, size: int) -> None:
        end, file_size = self.end_position, self.data.segment_size
        if position != self.next_position(first_size):
            raise LedgerGap(
                f"an entry of {first_size} bytes is sent for position {position}, this ledger ends at {end} and its files have "
                f"{file_size} bytes: mappedFileSizeCommitLog must be the same on all nodes of the group"
            )
        if position % file_size + size > file_size - BLANK_SIZE:
            raise LedgerGap(f"{size} bytes at position {position} do not fit a file of {file_size} bytes")

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on. Their bytes become zeros, which are durable when this returns. Blocks.

        Raises:
            CommittedEntries: some of these entries are committed. Nothing was removed.
            OSError: the disk failed; the ledger refuses appends until a later truncation succeeds.
        """
        if index > self.end_index:
            return
        if index <= self.committed_index:
            raise CommittedEntries(index, self.committed_index)
        end = self.end_of(index - 1)
        try:
            if index <= self.checkpoint.synced_index:
                # Otherwise the next start would report the removed entries as damage.
                self._save_checkpoint(index - 1, end, index_unsure=self.checkpoint.index_unsure)
            if self._cut_failed:
                # Zeros whose sync has failed are in the page cache but may be marked clean, so another sync would skip them.
                self.files.overwrite(end, self.end_position, index, self.end_index)
            # The index is cut first: a missing index record is rebuilt, but an entry that reappeared would be accepted.
            self.index.truncate(index * INDEX_SIZE)
            self.data.truncate(end)
            if self._cut_failed:
                # The same holds for entries before the cut that were not synced yet.
                unsynced = min(self.synced_position, end)
                self.data.rewrite(unsynced, end)
                self.data.sync(unsynced, max(end, unsynced + 1))
        except OSError as error:
            self._cut_failed = self._index_unsure = True
            self.failure = f"the disk refused to cut the ledger at position {end}: {error.strerror or error}"
            raise
        if self._cut_failed:
            self._cut_failed = False
            if not self.files.unclear:
                self.failure = None
        self.terms.truncate(index)
        while self.configurations and self.configurations[-1][0] >= index:
            self.configurations.pop()
        self.end_index, self.end_position = index - 1, end
        self.indexed_until = min(self.indexed_until, index - 1)
        if self.synced_index >= index:
            self.synced_index, self.synced_position = index - 1, end

    def clear(
        self, begin_index: int, position: int, before_term: int, configurations: Sequence[tuple[int, bytes]] = ()
    ) -> None:
        """Remove all entries and begin again with the entry `begin_index` at `position`; `delete_cleared` deletes the files.

        The ledger refuses appends until that has succeeded, or until it is reopened.

        Args:
            configurations: the index and body of the newest configuration entry before the new beginning, if there is one.

        Raises:
            OSError: the disk failed. The entries are still there.
        """
        self._cut_failed, self.failure = True, "the files of its former entries are not deleted yet"
        # The checkpoint is replaced first: it must not name entries that are removed. If a crash interrupts the removal, the
        # next start finishes it.
        fresh = Checkpoint(
            begin_index=begin_index,
            begin_position=position,
            before_term=before_term,
            synced_index=begin_index - 1,
            synced_position=position,
            configurations=tuple(configurations),
            data_directory=self._data_directory,
        )
        self.checkpoint_file.save(fresh)
        self.checkpoint = fresh
        if self.files.unclear:
            self.files.clear_withdrawn()
        self.forgotten += [*self.index.take_out(), *self.data.take_out()]
        self.begin_at(begin_index, position, before_term)
        self.configurations = list(configurations)

    def delete_cleared(self) -> None:
        """Delete the files that `clear` has taken out of the ledger, so that not even a power cut brings one back. Blocks.

        Raises:
            OSError: the disk failed; the call may be repeated.
        """
        self._delete_files()
        for run in (self.index, self.data):
            run.disk.sync_directory(run.directory)
        self.failure, self._cut_failed, self.files.unclear = None, False, False

    def begin_at(self, begin_index: int, position: int, before_term: int) -> None:
        """Set the beginning of a ledger that has no files."""
        self.first_position = self.end_position = self.synced_position = self.committed_position = position
        self.begin_index = begin_index
        self.end_index = self.synced_index = self.committed_index = self.indexed_until = begin_index - 1
        self.terms = Terms(begin_index, before_term)
        self.configurations.clear()

    def continue_from(self, position: int) -> None:
        """Set the first entry's position to `position`, the end of an older log; the ledger must be empty. Blocks.

        Raises:
            OSError: an empty file could not be removed.
        """
        assert self.empty
        assert self.begin_index == 0
        if self.data.files or self.index.files:  # entries that were never committed have been cut
            self.index.clear()
            self.data.clear()
        self.begin_at(0, position, self.terms.before)

    def begin_after(self, position: int) -> int | None:
        """The first index of the ledger after `forget_before(position)`; None if that would remove nothing."""
        kept = len(self._expired(position))
        return _unpack_header(self.data.files[kept].view, 0)[2] if kept else None

    def _expired(self, position: int) -> list[Segment]:
        stop = min(position, self.committed_position, self.synced_position)
        return [file for file, after in pairwise(self.data.files) if after.start <= stop]

    def forget_before(self, position: int) -> int:
        """Begin the ledger after the files that end at or before `position`; the last file is always kept.

        Entries that are not committed or not durable on this node are kept too, even if other nodes have committed them.

        Returns: how many data files can be deleted; `delete_forgotten` deletes them.
        """
        expired, begin = self._expired(position), self.begin_after(position)
        if begin is None:
            return 0
        self.terms.drop_before(begin)
        self.begin_index = begin
        while len(self.configurations) > 1 and self.configurations[1][0] < begin:
            del self.configurations[0]
        index_files = self.index.files
        old_index = [file for file, after in pairwise(index_files) if after.start <= begin * INDEX_SIZE]
        del self.data.files[: len(expired)], index_files[: len(old_index)]
        self.forgotten += expired + old_index
        return len(expired)

    def delete_forgotten(self) -> None:
        """Delete the files that `forget_before` has removed from the ledger. Blocks.

        Raises:
            OSError: a file could not be deleted; the next call continues with it.
        """
        self.write_checkpoint()  # otherwise the term before the first entry would be lost with the files
        self._delete_files()

    def _delete_files(self) -> None:
        while self.forgotten:
            self.data.disk.remove(self.forgotten[0].path)
            self.forgotten.pop(0).close()

    # ------------------------------------------------------------------------------------------------------------------ syncing

    def force(self, start: int, end: int) -> None:
        """Sync the data of [start, end). Blocks. The caller passes `end.position` and reports success with `reached`.

        Raises:
            OSError: these bytes may or may not be durable; the caller reports it with `failed`.
        """
        self.data.sync(start, end)

    def reached(self, end: LedgerEnd) -> None:
        """Note that everything before `end` is durable, except what was truncated in the meantime."""
        if end.position <= self.end_position and end.index <= self.end_index and end.index > self.synced_index:
            self.synced_index, self.synced_position = end.index, end.position

    def failed(self, error: OSError) -> None:
        """Note that a sync failed: unsynced entries may or may not be durable, and a later successful sync proves nothing."""
        self.failure = f"the disk failed to sync positions from {self.synced_position} on: {error.strerror or error}"

    @property
    def first_crc(self) -> int:
        """CRC-32 of the body of entry 0, which no other group has; 0 if it has expired, or may still be replaced."""
        try:
            return crc32(self.body(0)) if self.begin_index == 0 <= self.committed_index else 0
        except HaError:  # a damaged entry says nothing of its group
            return 0

    def write_checkpoint(self) -> None:
        """Write what is durable to the checkpoint, so that the next recovery reads only later entries. Blocks.

        Raises:
            OSError: the disk failed, or a truncation has failed, which may have removed durable entries; the old checkpoint is
                kept.
        """
        self._check_cut()
        index, position = self.synced_index, self.synced_position
        start, end = max(self.indexed_until + 1, self.begin_index) * INDEX_SIZE, (index + 1) * INDEX_SIZE
        if self._index_unsure:
            self.index.rewrite(start, end)  # after a failed sync, another one may skip the pages that were lost
        self._index_unsure = True
        self.index.sync(start, end)
        self._index_unsure, self.indexed_until = False, max(self.indexed_until, index)
        self._save_checkpoint(index, position)

    def _save_checkpoint(self, index: int, position: int, *, index_unsure: int = 0) -> None:
        checkpoint = Checkpoint(
            committed_index=min(self.committed_index, index),
            end_index=self.end_index,
            begin_index=self.begin_index,
            begin_position=self.begin_position,
            before_term=self.terms.before,
            synced_index=index,
            synced_term=self.terms.term_of(index),
            synced_position=position,
            configurations=tuple(pair for pair in self.configurations if pair[0] <= index),
            data_directory=self._data_directory,
            index_unsure=index_unsure,
        )
        self.checkpoint_file.save(checkpoint)
        self.checkpoint = checkpoint

    @property
    def _data_directory(self) -> str:
        """The directory of the data files if it is not the usual one, else an empty text."""
        return "" if self.data.directory == f"{self.checkpoint_file.directory}/data" else self.data.directory

    def heal(self) -> None:
        """Read the unsynced entries back, verify them, and write and sync them again, after a failed append or sync. Blocks.

        Raises:
            OSError: the disk failed, an entry reads back damaged, or a truncation has failed, which may leave entries without
                index records. Then `failure` is kept until it has been repeated, which repairs a failed sync as well.
        """
        self._check_cut()
        if self.files.unclear:
            self.files.clear_withdrawn()
        start, end = self.synced_position, self.end
        position, index, term = start, self.synced_index + 1, self.term_of(self.synced_index)
        while position < end.position:
            segment = self.data.find(position)
            assert segment is not None
            stop = min(segment.wrote, end.position - segment.start)
            walked = walk_entries(
                segment.view,
                position - segment.start,
                stop,
                position=position,
                next_index=index,
                term=self.terms.before if term is None else term,
                check_bodies=True,
            )
            if walked.fault is not None and not is_blank(segment, walked.at):
                raise OSError(errno.EIO, f"the unsynced entry {walked.next_index} reads back damaged: {walked.fault}")
            index, position = walked.next_index, segment.start + segment.size if walked.fault else walked.position
            term = self.term_of(index - 1)
        self.data.rewrite(start, end.position)
        self.data.created = True
        self.data.sync(start, end.position)
        if self.files.unclear:
            self._index_unsure = True  # until its sync has succeeded, and that covers one file only
            self.files.sync_withdrawn()
        self.failure = None
        self.reached(end)

    def _check_cut(self) -> None:
        if self._cut_failed:
            raise OSError(errno.EIO, "entries that a failed truncation has to remove are still in the ledger")

    def close(self) -> None:
        """Close the files; views of entries that were returned remain readable."""
        self.data.close()
        self.index.close()


__all__ = ["Ledger", "LedgerEnd", "LedgerSlice", "Placed"]
