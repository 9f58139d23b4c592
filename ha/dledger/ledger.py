"""The entries of one node of a DLedger group, in DLedger's files: data, index, and what both say (DLedgerMmapFileStore).

An entry never touches the last 8 bytes of a data file, and a file that the next entry does not fit ends with a blank block.
Positions are those of the data files all together; `places.py` says how an index leads to one. Invariant: `begin_index <=
committed_index + 1` and `synced_index, committed_index <= end_index`; what lies behind the end reads as zeros, so that no later
scan takes old bytes for entries. Nothing here waits: the calls that reach for the medium (`force`, `truncate`, `heal`) block
and belong on a worker.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import pairwise

import attrs

from ...message.fields import Buffer
from ...store.errors import NotWritable
from ...store.segments import Segment
from ..errors import CommittedEntries, LedgerGap
from .checkpoint import Checkpoint
from .entry_files import Stamp
from .layout import (
    BLANK,
    BLANK_SIZE,
    BODY_SIZE_MAX,
    CHANNEL_CONFIGURATION,
    CHANNEL_MESSAGE,
    ENTRY,
    HEADER_SIZE,
    INDEX,
    INDEX_SIZE,
    MAGIC_BLANK,
)
from .places import LedgerEnd, LedgerSlice, Places
from .terms import Terms
from .walk import Walked, walk_entries

_unpack_header = ENTRY.codec.unpack_from
_unpack_index = INDEX.codec.unpack_from


@attrs.define(eq=False)
class Placed:
    """Where an append put its records."""

    first_index: int
    last_index: int
    start: int
    """End of the ledger before the append; a blank block may lie between it and the first entry."""
    offsets: list[int]
    """Physical offset of each record: 48 bytes behind the position of its entry."""
    end: int
    """End of the ledger after it."""


@attrs.define(eq=False)
class Ledger(Places):
    """One node's entries; `recovery.open_ledger` makes it."""

    synced_index: int = -1
    """Entries up to here are on the medium."""
    synced_position: int = 0
    committed_index: int = -1
    committed_position: int = 0
    """End of what is committed: readers see nothing behind it."""
    configurations: list[tuple[int, bytes]] = attrs.field(factory=list[tuple[int, bytes]])
    """Index and body of the entries that carry a configuration of the group, and of the newest one before the beginning."""
    failure: str | None = None
    """Why the ledger takes nothing, after a failed sync."""
    indexed_until: int = -1
    """Index records up to that of this entry are on the medium."""
    _cut_failed: bool = False
    """The last attempt to cut has failed, so `failure` is set until another one succeeds."""
    _index_unsure: bool = True
    """A sync of the index may have failed, in an earlier process too."""
    _forgotten: list[Segment] = attrs.field(factory=list[Segment])
    """Expired files that are still to be deleted."""
    checkpoint: Checkpoint = attrs.field(factory=Checkpoint)
    """What the checkpoint file says."""

    def commit(self, index: int) -> None:
        """Let readers see the entries up to `index`, at most all there are; the mark never goes back."""
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
            patch: the records are messages, and each one's physical offset is written into it.
            channel: of all these entries.

        Raises:
            NotWritable: a record is too large for an entry or a file, or the ledger has failed. Nothing was appended.
            OSError: the disk refused. Nothing was appended; bytes behind the end do not count.
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
            self.files.withdraw(start, self.end_index, error)
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
        if self.files.unclear:
            self.files.clear_withdrawn()

    def _check_fit(self, size: int) -> None:
        room = min(self.data.segment_size - BLANK_SIZE, BODY_SIZE_MAX + HEADER_SIZE)
        if size > room:
            raise NotWritable(f"an entry of {size} bytes is larger than the {room} that a file of the ledger takes")

    def append_walked(self, walked: Walked, entries: Buffer, first_index: int | None = None) -> None:
        """Append entries of another ledger of the group as they lie there, from `first_index` on.

        Args:
            walked: what `walk_entries` found in `entries`, which were whole. The position of the first one to append is the end
                of this ledger, or the beginning of the next file, if a blank block rightly ends the last file before it.

        Raises:
            LedgerGap: they do not continue this ledger. Nothing was appended.
            NotWritable: the ledger has failed. Nothing was appended.
            OSError: the disk refused. Nothing was appended; bytes behind the end do not count.
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
            self.files.withdraw(self.end_position, self.end_index, error)
            raise
        self.note(walked, entries, first)
        self.end_index, self.end_position = walked.next_index - 1, walked.position

    def note(self, walked: Walked, entries: Buffer, first: int) -> None:
        """Note terms and configurations of entries that were walked over, from `first` on."""
        for (index, term), (next_run, _) in zip(walked.runs, [*walked.runs[1:], (walked.next_index, 0)], strict=True):
            if next_run > first:
                self.terms.add(max(index, first), term)
        for at in walked.configurations:
            _, size, index, *_ = _unpack_header(entries, at)
            if index >= first:
                self.configurations.append((index, bytes(memoryview(entries)[at + HEADER_SIZE : at + size])))

    def next_position(self, size: int) -> int:
        """Where the next entry lies if it has `size` bytes: at the end, or in the next file if it does not fit the last one."""
        end, file_size = self.end_position, self.data.segment_size
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
        """Drop the entries from `index` on; what is cut reads as zeros and is synced before this returns. Blocks.

        Raises:
            CommittedEntries: some of them are committed. Nothing was cut.
            OSError: the disk refused; the ledger takes nothing until it is reopened.
        """
        if index > self.end_index:
            return
        if index <= self.committed_index:
            raise CommittedEntries(index, self.committed_index)
        end = self.end_of(index - 1)
        try:
            if index <= self.checkpoint.synced_index:
                # Otherwise the next start would take what is cut for damage.
                self._save_checkpoint(index - 1, end)
            if self._cut_failed:
                # Zeros whose sync has failed look as if they were there, and another sync alone would pass over them.
                self.files.overwrite(end, self.end_position, index, self.end_index)
            # The index first: a record without its entry is rebuilt, an entry that came back would be believed.
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
            self._cut_failed, self.failure = False, None
        self.terms.truncate(index)
        while self.configurations and self.configurations[-1][0] >= index:
            self.configurations.pop()
        self.end_index, self.end_position = index - 1, end
        self.indexed_until = min(self.indexed_until, index - 1)
        if self.synced_index >= index:
            self.synced_index, self.synced_position = index - 1, end

    def clear(self, begin_index: int, position: int, before_term: int) -> None:
        """Drop everything and begin anew with the entry `begin_index` at `position`, the beginning of a file. Blocks.

        Raises:
            OSError: the disk refused; the ledger takes nothing until it is reopened.
        """
        try:
            # The checkpoint first: it must not call for entries that are gone. The entries of a clearing that was cut short are
            # a beginning of the old log.
            fresh = Checkpoint(
                begin_index=begin_index, before_term=before_term, synced_index=begin_index - 1, synced_position=position
            )
            self.checkpoint_file.save(fresh)
            self.checkpoint = fresh
            self.index.clear()
            self.data.clear()
            self.failure, self._cut_failed = None, False
        except OSError as error:
            self.failure = f"the disk refused to empty the ledger: {error.strerror or error}"
            raise
        self.begin_at(begin_index, position, before_term)

    def begin_at(self, begin_index: int, position: int, before_term: int) -> None:
        """Set a ledger without files to its beginning."""
        self.first_position = self.end_position = self.synced_position = self.committed_position = position
        self.begin_index = begin_index
        self.end_index = self.synced_index = self.committed_index = self.indexed_until = begin_index - 1
        self.terms = Terms(begin_index, before_term)
        self.configurations.clear()

    def continue_from(self, position: int) -> None:
        """Let the first entry lie at `position`, the end of an older log; the ledger has never had one. Blocks.

        Raises:
            OSError: the disk refused to remove an empty file.
        """
        assert self.empty
        assert self.begin_index == 0
        if self.data.files or self.index.files:  # entries that were never committed have been cut
            self.index.clear()
            self.data.clear()
        self.begin_at(0, position, self.terms.before)

    def begin_after(self, position: int) -> int | None:
        """The index that the ledger would begin with after `forget_before(position)`; None if nothing would be forgotten."""
        kept = len(self._expired(position))
        return _unpack_header(self.data.files[kept].view, 0)[2] if kept else None

    def _expired(self, position: int) -> list[Segment]:
        stop = min(position, self.committed_position, self.synced_position)
        return [file for file, after in pairwise(self.data.files) if after.start <= stop]

    def forget_before(self, position: int) -> int:
        """Begin behind the files that lie wholly before `position`, but never behind the last one.

        What is not committed, or not on this medium yet although others have committed it, stays.

        Returns: how many data files can be deleted; `delete_forgotten` does it.
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
        self._forgotten += expired + old_index
        return len(expired)

    def delete_forgotten(self) -> None:
        """Delete the files that `forget_before` has left behind; blocks.

        Raises:
            OSError: the disk refused; the next call goes on.
        """
        self.write_checkpoint()  # or nobody would know the term before the first entry any more
        while self._forgotten:
            self._forgotten[0].close()
            self.data.disk.remove(self._forgotten[0].path)
            del self._forgotten[0]

    # ------------------------------------------------------------------------------------------------------------------ syncing

    def force(self, start: int, end: int) -> None:
        """Force the data of [start, end) to the medium; blocks. The caller passes `end.position` and notes it with `reached`.

        Raises:
            OSError: nothing may be assumed about these bytes; the caller notes it with `failed`.
        """
        self.data.sync(start, end)

    def reached(self, end: LedgerEnd) -> None:
        """Note that everything before `end` is on the medium; what was cut meanwhile does not count."""
        if end.position <= self.end_position and end.index <= self.end_index and end.index > self.synced_index:
            self.synced_index, self.synced_position = end.index, end.position

    def failed(self, error: OSError) -> None:
        """Note that a sync failed: what is not synced may or may not be on the medium, and another sync would not tell."""
        self.failure = f"the disk failed to sync positions from {self.synced_position} on: {error.strerror or error}"

    def write_checkpoint(self) -> None:
        """Note what is on the medium, so that the next recovery reads only what comes after it; blocks.

        Raises:
            OSError: the disk refused; the old checkpoint is there still.
        """
        index, position = self.synced_index, self.synced_position
        start, end = max(self.indexed_until + 1, self.begin_index) * INDEX_SIZE, (index + 1) * INDEX_SIZE
        if self._index_unsure:
            self.index.rewrite(start, end)  # after a failed sync, another one alone might pass over what it lost
        self._index_unsure = True
        self.index.sync(start, end)
        self._index_unsure, self.indexed_until = False, max(self.indexed_until, index)
        self._save_checkpoint(index, position)

    def _save_checkpoint(self, index: int, position: int) -> None:
        checkpoint = Checkpoint(
            committed_index=min(self.committed_index, index),
            end_index=self.end_index,
            begin_index=self.begin_index,
            before_term=self.terms.before,
            synced_index=index,
            synced_term=self.terms.term_of(index),
            synced_position=position,
            configurations=tuple(pair for pair in self.configurations if pair[0] <= index),
        )
        self.checkpoint_file.save(checkpoint)
        self.checkpoint = checkpoint

    def heal(self) -> None:
        """Read the unsynced entries back, verify them, write and sync them anew; blocks.

        Raises:
            OSError: the disk refused, or an entry reads back damaged.
        """
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
            if walked.fault is not None and not self._is_blank(segment, walked.at):
                raise OSError(errno.EIO, f"the unsynced entry {walked.next_index} reads back damaged: {walked.fault}")
            index, position = walked.next_index, segment.start + segment.size if walked.fault else walked.position
            term = self.term_of(index - 1)
        self.data.rewrite(start, end.position)
        self.data.created = True
        self.data.sync(start, end.position)
        self.failure = None
        self.reached(end)

    def _is_blank(self, segment: Segment, at: int) -> bool:
        return segment.size - at >= BLANK_SIZE and BLANK.codec.unpack_from(segment.view, at) == (MAGIC_BLANK, segment.size - at)

    def close(self) -> None:
        """Close the files; views that were handed out stay readable."""
        self.data.close()
        self.index.close()


__all__ = ["Ledger", "LedgerEnd", "LedgerSlice", "Placed"]
