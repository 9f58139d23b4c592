"""The ledger as the Raft core reads it: batches as slices of the files, and a snapshot for a peer that is too far behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from ..errors import CorruptLedger, LedgerGap
from ..raft.batch import Batch, Slice, Snapshot, TermRun
from ..raft.log import LogState
from ..raft.quorum import Configuration
from ..raft.units import NO_INDEX, LogIndex, PeerId
from .ledger.layout import BLANK_SIZE, INDEX, INDEX_SIZE
from .ledger.ledger import Ledger
from .ledger.received import BeginAnew, ReceivedEntries
from .ledger.walk import walk_entries
from .native.group_records import GroupConfiguration, configuration_record, read_configuration


def _always() -> bool:
    return True


@attrs.define(eq=False)
class LedgerReader:
    """Implements the core's `LogReader` for a ledger."""

    ledger: Ledger
    initial: GroupConfiguration
    """The configuration of the group before its first entry."""
    wall_ms: Callable[[], int]
    may_fill: Callable[[], bool] = _always
    """Whether a node that begins with this node's first entry finds all it needs in the log."""

    def state(self) -> LogState:
        """The state of the log for the start of the core."""
        ledger = self.ledger
        runs = tuple(TermRun(index, term) for index, term in ledger.terms.runs(ledger.begin_index, ledger.end_index))
        return LogState(ledger.begin_index - 1, ledger.terms.before, ledger.end_index, runs, self.configurations())

    def configurations(self) -> tuple[tuple[LogIndex, Configuration], ...]:
        """The newest configuration at or before the beginning of the log, and all later ones."""
        entries = [(index, read_configuration(body).configuration) for index, body in self.ledger.configurations]
        if not entries or entries[0][0] >= self.ledger.begin_index:
            entries.insert(0, (NO_INDEX, self.initial.configuration))
        return tuple(entries)

    def newest(self) -> GroupConfiguration:
        """The configuration in force, with addresses."""
        configurations = self.ledger.configurations
        return read_configuration(configurations[-1][1]) if configurations else self.initial

    @property
    def group_id(self) -> str:
        """The newest id of the group that its log has, committed or not; empty if there is none."""
        return self._group_id(self.ledger.end_index)

    @property
    def committed_group_id(self) -> str:
        """The newest id of the group that is committed, so that every node of the group has it or will; empty if none is."""
        return self._group_id(self.ledger.committed_index)

    def _group_id(self, last: LogIndex) -> str:
        found = (read_configuration(body).group_id for index, body in reversed(self.ledger.configurations) if index <= last)
        return next(filter(None, found), "")

    def batch(self, first_index: LogIndex, last_index: LogIndex, bytes_max: int) -> Batch:
        """Return entries as they are in the leader's file."""
        piece = self.ledger.slice_from(first_index, bytes_max, last_index)
        runs = tuple(TermRun(index, term) for index, term in self.ledger.terms.runs(first_index, piece.last_index))
        configurations: tuple[tuple[LogIndex, Configuration], ...] = ()
        if self.ledger.configurations and self.ledger.configurations[-1][0] >= first_index:
            configurations = tuple(
                (index, read_configuration(body).configuration)
                for index, body in self.ledger.configurations
                if first_index <= index <= piece.last_index
            )
        return Batch(first_index, piece.last_index, runs, len(piece.entries), piece, configurations)

    def snapshot(self, peer: PeerId) -> Snapshot | None:
        """Return the beginning of this log for a peer that lacks expired entries; None while `may_fill` forbids that."""
        del peer
        if not self.may_fill():
            return None
        ledger = self.ledger
        boundary = ledger.begin_index - 1
        index, group = NO_INDEX, self.initial
        for at, body in ledger.configurations:
            if at <= boundary:
                index, group = at, read_configuration(body)
        begin = BeginAnew(ledger.begin_position, index, configuration_record(group, self.wall_ms()))
        return Snapshot(boundary, ledger.terms.before, group.configuration, begin)


def write_slice(ledger: Ledger, piece: Slice) -> None:
    """Append received entries.

    Raises:
        LedgerGap, NotWritable, OSError: as `Ledger.append_walked`. Nothing was appended.
    """
    received = piece.batch.payload
    assert isinstance(received, ReceivedEntries)
    walked = received.walked
    if piece.last_index < piece.batch.last_index:  # the end of the batch was truncated before it was written
        number = piece.last_index - walked.first_index
        _, position, size, *_ = INDEX.codec.unpack_from(walked.index_records, INDEX_SIZE * number)
        end = walked.at - (walked.position - position) + size
        first = INDEX.codec.unpack_from(walked.index_records)
        walked = walk_entries(
            received.entries,
            0,
            end,
            position=first[1],
            next_index=walked.first_index,
            term=walked.runs[0][1],
            check_bodies=False,
        )
        if walked.fault is not None:
            raise LedgerGap(walked.fault)
    ledger.append_walked(walked, received.entries, piece.first_index)


@attrs.define(eq=False)
class JavaEntryReader:
    """Reads single entries for the core of the java dialect."""

    ledger: Ledger

    def entry(self, index: LogIndex) -> memoryview:
        """Return one entry with its header."""
        return self.ledger.entry(index)

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> Sequence[memoryview]:
        """Return entries from `first` on, at most to `last`; at least one, and more only within `bytes_max`.

        Raises:
            CorruptLedger: the header of an entry is damaged. A follower of DLedger that gets a wrong position appends no more.
        """
        ledger = self.ledger
        piece = ledger.slice_from(first, bytes_max, last)
        walked = walk_entries(
            piece.entries,
            0,
            len(piece.entries),
            position=piece.position,
            next_index=first,
            term=ledger.terms.term_of(first),
            check_bodies=False,
        )
        complete = walked.fault is None and walked.next_index == piece.last_index + 1
        if not complete or walked.runs != list(ledger.terms.runs(first, piece.last_index)):
            raise CorruptLedger(ledger.data.directory, walked.fault or f"entries from {first} on have other sizes or terms")
        found, at = list[memoryview](), 0
        for _, _, size, _, _ in INDEX.codec.iter_unpack(walked.index_records):
            found.append(piece.entries[at : at + size])
            at += size
        return found

    def fits(self, position: int, size: int, end: int | None = None) -> bool:
        """Whether `position` is the right place for an entry of `size` bytes behind `end`, by default the end of the log."""
        ledger = self.ledger
        return size <= ledger.data.segment_size - BLANK_SIZE and position == ledger.next_position(size, end)
