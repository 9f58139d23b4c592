"""The commit log of DLedger mode: message records as entries of a replicated ledger (RocketMQ DLedgerCommitLog).

Invariant: readers see nothing after the committed position, and a put is answered PUT_OK only when its entries are durable on a
majority. Each record is the body of one entry, after a header of 48 bytes; a physical offset is the position after the header.
This class skips blank blocks and entries that are not messages. The replica decides about leadership, truncation and sending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import trio

from ...message.layout import Check, DerivedParts, check_record, derived_parts
from ...store.errors import NotWritable
from ...store.log.commitlog import Appended, Done, Evidence, LogFile
from ...store.statuses import PutStatus
from ...world.events import get_logger
from ..errors import CorruptLedger
from ..raft.errors import Refused
from .ledger.layout import ENTRY, HEADER_SIZE, MAGIC_ENTRY
from .ledger.ledger import is_blank
from .ledger.walk import is_message
from .outcomes import Outcome
from .replica import Replica
from .status import Leading

log = get_logger(__name__)

_unpack_header = ENTRY.codec.unpack_from

STATUSES = {
    Outcome.COMMITTED: PutStatus.PUT_OK,
    Outcome.TERM_CHANGED: PutStatus.UNKNOWN_ERROR,
    Outcome.TIMED_OUT: PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
}
"""The status of a put by outcome, as RocketMQ 5 maps DLedger's codes 200, 501 and 502. The two failures leave the outcome
unknown: the entry may still be committed, or be replaced by another leader's."""


@attrs.define(eq=False, repr=False)
class DLedgerCommitLog:
    """Implements `CommitLog` by a replicated ledger."""

    replica: Replica
    timeout_seconds: float = 5.0
    """How long a put waits for a majority (syncFlushTimeout); then it is answered IN_SYNC_REPLICAS_NOT_ENOUGH."""
    on_readable: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    on_truncated: list[Callable[[int], None]] = attrs.field(factory=list[Callable[[int], None]])
    on_syncing: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]])
    """Never called: what a node derives while it syncs delays its acknowledgement, for which the group waits."""

    waits = True
    may_answer_early = False

    def __attrs_post_init__(self) -> None:
        self.replica.on_committed.append(self._committed)
        self.replica.on_role.append(self._role_changed)

    @property
    def directory(self) -> str:
        return self.replica.settings.files.directory

    @property
    def failure(self) -> str | None:
        return self.replica.stopped or self.replica.ledger.failure

    @property
    def empty(self) -> bool:
        return not self.replica.ledger.data.files

    @property
    def min_offset(self) -> int:
        return self.replica.ledger.begin_position

    @property
    def max_offset(self) -> int:
        return self.replica.ledger.end_position

    @property
    def flushed_offset(self) -> int:
        return self.replica.ledger.synced_position

    @property
    def committed_offset(self) -> int:
        return self.replica.ledger.committed_position

    @property
    def readable_offset(self) -> int:
        return self.replica.ledger.committed_position

    @property
    def readable_limit(self) -> int | None:
        return self.replica.ledger.committed_position

    def limit_readable(self, offset: int) -> None:
        """Do nothing, because the ledger itself limits reads to committed entries."""

    def append(self, records: Sequence[bytes], *, together: bool = False) -> Appended:  # noqa: ARG002 - never together
        """See `CommitLog.append`. A batch may span two files, because all nodes, Java's too, must place entries alike."""
        try:
            placed = self.replica.propose(records)
        except Refused as error:
            raise NotWritable(str(error)) from error
        return Appended(placed.start, placed.offsets, placed.end)

    def when_stored(self, end: int, done: Done) -> None:
        ledger = self.replica.ledger
        if end <= ledger.committed_position:
            done(PutStatus.PUT_OK)
        elif not self.replica.is_leader:
            done(PutStatus.UNKNOWN_ERROR)
        else:
            index = ledger.end_index if end >= ledger.end_position else ledger.index_at(end - 1)
            deadline = self.replica.world.clock.monotonic() + self.timeout_seconds
            self.replica.when_committed(index, deadline, lambda outcome: done(STATUSES[outcome]))

    def _committed(self, _index: int, _position: int) -> None:
        for listener in self.on_readable:
            listener()

    def _role_changed(self, leading: Leading) -> None:
        # Appended but uncommitted entries may now be replaced by those of another leader.
        if leading.leader != self.replica.settings.self_id:
            for listener in self.on_truncated:
                listener(self.committed_offset)

    def record(self, offset: int, size: int) -> memoryview | None:
        return self.replica.ledger.record(offset, size)

    def slice_from(self, offset: int, size_max: int) -> memoryview:
        segment = self.replica.ledger.data.find(offset)
        if segment is None:
            return memoryview(b"")
        at = offset - segment.start
        return segment.view[at : min(segment.wrote, at + size_max)]

    def read(self, offset: int, size: int, more: int = 0) -> memoryview:
        return self.replica.ledger.data.read(offset, size, more)

    def segment_end(self, offset: int) -> int:
        size = self.replica.ledger.data.segment_size
        return offset - offset % size + size

    def records(self, start: int, end: int) -> Iterator[tuple[int, DerivedParts | None]]:
        ledger, position = self.replica.ledger, max(self._entry_start(start), self.min_offset)
        while position < end:
            segment = ledger.data.find(position)
            if segment is None:
                return
            view, base = segment.view, segment.start
            at, stop = position - base, min(segment.wrote, end - base)
            while stop - at >= HEADER_SIZE:
                magic, size, *_ = _unpack_header(view, at)
                if magic != MAGIC_ENTRY or size < HEADER_SIZE or at + size > stop:
                    break
                body_at, at = at + HEADER_SIZE, at + size
                parts = derived_parts(view, body_at, at) if is_message(view[body_at:at]) else None
                yield base + at, parts
            # A blank block follows the last entry of each file but the last, whose end is the end of the log.
            position = base + segment.size
            if base + at == segment.end or position > end or not is_blank(segment, at):
                return
            yield position, None

    def _entry_start(self, offset: int) -> int:
        """The start of the entry whose record is at `offset`, as the index names records; else `offset` itself."""
        segment = self.replica.ledger.data.find(offset)
        at = -1 if segment is None else offset - segment.start - HEADER_SIZE
        if segment is not None and at >= 0:
            magic, _, _, _, position, *_ = _unpack_header(segment.view, at)
            if (magic, position) == (MAGIC_ENTRY, segment.start + at):
                return segment.start + at
        return offset

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self.replica.run(task_status=task_status)

    async def flush(self) -> None:
        await self.replica.disk.sync_written()

    def close(self) -> None:
        self.replica.close_files()

    # ---------------------------------------------------------------- recovery: the ledger has verified its entries already

    def start_below(self, acceptable: Callable[[int, int], bool]) -> int:
        for segment in reversed(self.replica.ledger.data.files):
            if segment.wrote < HEADER_SIZE:
                continue
            check, span = check_record(segment.view, HEADER_SIZE, segment.wrote)
            if check is Check.RECORD and span is not None and acceptable(span.physical_offset, span.store_timestamp):
                return segment.start
        return self.min_offset

    def read_back(self, start: int, evidence: Evidence) -> Iterator[tuple[int, DerivedParts | None]]:  # noqa: ARG002 - see above
        return self.records(start, self.max_offset)

    def end_at(self, end: int, read_from: int, evidence: Evidence) -> bool:  # noqa: ARG002 - see above
        if end < self.max_offset:
            raise CorruptLedger(self.directory, f"entries were verified up to position {self.max_offset}, a walk ends at {end}")
        return False

    # ---------------------------------------------------------------- retention

    def files(self) -> list[LogFile]:
        return [LogFile(one.path, one.start, one.end, one.size) for one in self.replica.ledger.data.files]

    async def remove_oldest(self) -> None:
        await self.replica.expire_oldest()

    async def truncate(self, offset: int) -> None:
        """Refuse, because only the group's leader causes truncations, and never of committed entries.

        Raises:
            NotWritable: always. Nothing was truncated.
        """
        raise NotWritable(f"a ledger is truncated by its leader only; nothing behind {offset} was cut")

    async def clear(self) -> None:
        """Refuse, as `truncate` does.

        Raises:
            NotWritable: always. Nothing was dropped.
        """
        raise NotWritable("a ledger is emptied by its leader only; nothing was dropped")
