"""The message store: one log and what is derived from it (RocketMQ DefaultMessageStore).

`put_side` writes, `read_side` reads, and both work on the same `parts`; this module has what concerns both: following another
broker's log, and the queues as a whole. Everything runs on the event loop; only syncing and recovery run on worker threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from math import inf
from typing import Protocol

import attrs
import trio

from ..message.control import deletion_of
from ..message.layout import is_part_of_record
from ..world.events import get_logger
from ..world.slices import in_slices
from .derived.consumequeue import ConsumeQueue
from .derived.events import LogEvents
from .errors import DamagedLog, NotWritable
from .keeping.cleaning import Cleaner
from .put_side import PutSide
from .read_side import ReadSide

events = get_logger(__name__)

GOES_ON_SECONDS = 0.01
"""How long deriving waits before it tries a round again that could not go on yet."""
RECORDS_PER_TURN = 1000
"""How many records one turn of the event loop walks over."""
QUEUES_PER_TURN = 10_000
"""How many queues one turn of the event loop asks for their next offset, in a microsecond each."""


class Checkpoints(Protocol):
    """What a store needs of the keeper of its checkpoint (`CheckpointKeeper`)."""

    def note_readable(self) -> None: ...

    async def begin_cut(self, *, everything: bool) -> None: ...

    def end_cut(self) -> None: ...


@attrs.define(eq=False, kw_only=True, repr=False)
class MessageStore(PutSide, ReadSide):
    """One broker's messages."""

    events: LogEvents
    cleaner: Cleaner | None = None
    """Carries out retention while the store is open."""
    checkpoints: Checkpoints | None = None
    """Records what is on the medium while the store is open, except while the log is being cut."""
    on_queues_cut: list[Callable[[Mapping[tuple[str, int], int]], None]] = attrs.field(
        factory=list[Callable[[Mapping[tuple[str, int], int]], None]]
    )
    """Called with the new ends of the queues that have lost messages, by topic and queue id."""

    # ---------------------------------------------------------------- following a master

    async def cut(self, offset: int) -> None:
        """Drop every record at or behind `offset`, from the log and from the queues: the master does not have it.

        Raises:
            OSError: the disk refused. Log and queues end where the cut has come to.
        Cancellation: not interrupted. A cut that was begun only would prevent all marks until the next one.
        """
        with trio.CancelScope(shield=True):
            await self.begin_cut()
            try:
                await self.log.truncate(offset)
            finally:  # what a cut that failed has dropped comes again, and is derived again
                self._cut_derived(max(offset, self.log.max_offset))

    def _cut_derived(self, offset: int) -> None:
        """Drop what was derived from records at or behind `offset`.

        Raises:
            OSError: the disk refused the cut of some queues, or that of the index. No mark is written before the next cut.
        """
        self.dispatcher.cut(offset)
        ends: dict[tuple[str, int], int] = {}
        failures: list[OSError] = []
        for key, queue in self.queues.table.items():
            if queue.last_mention > offset:
                try:
                    queue.truncate(offset)
                except OSError as error:
                    failures.append(error)
                ends[key] = self.next_offsets[key] = queue.max_offset
                self.file_ends.pop(key, None)
        self.events.cut(offset)
        for notify in self.on_queues_cut:
            notify(ends)
        if self.index is not None:
            self.index.cut(offset)
        if failures:
            raise failures[0]
        self._end_cut()

    async def clear(self) -> None:
        """Drop every record; the log begins anew with the next raw bytes.

        Raises:
            OSError: the disk refused; the next start finds out what is left.
        Cancellation: as that of `cut`.
        """
        with trio.CancelScope(shield=True):
            await self.begin_cut(everything=True)
            await self.log.clear()
        ends = dict.fromkeys(self.queues.table, 0)
        self.drop_everything_derived()
        for notify in self.on_queues_cut:
            notify(ends)

    async def begin_cut(self, *, everything: bool = False) -> None:
        """Erase the mark and the note before a part of the log is dropped, so that no start uses them; see `CheckpointKeeper`.

        Raises:
            OSError: the disk refused. Nothing may be cut.
        """
        if self.checkpoints is not None:
            await self.checkpoints.begin_cut(everything=everything)

    def _end_cut(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.end_cut()

    async def become_writable(self) -> None:
        """Derive the whole log, drop an incomplete last record, and continue the queue offsets from there.

        No other node may limit what is readable to less than the whole log, and nothing may be appended meanwhile.

        Raises:
            OSError, DamagedLog: as `drop_incomplete_record`; the call may be repeated.
            NotWritable: a part of the log cannot be derived now, and its queue offsets would be given out a second time; the
                call may be repeated.
        """
        await self._derive_readable()
        if self.dispatcher.dispatched_offset < self.log.max_offset:
            await self.log.flush()  # with synchronous flush, what is not synced cannot be read
            await self._derive_readable()
            if self.log.readable_limit is None:
                await self.drop_incomplete_record()
        derived, end = self.dispatcher.dispatched_offset, self.log.max_offset
        if derived < end:
            reason = self.log.failure or "other nodes have not confirmed it"
            raise NotWritable(f"the log cannot be read from physical offset {derived} to its end at {end}: {reason}")
        await self._take_up_next_offsets_in_slices()
        self.queue_ends.pending = self.queue_ends.filled_from() > 0
        self.last_timestamp = max(self.last_timestamp, self.dispatcher.last_store_timestamp)

    async def _derive_readable(self) -> None:
        dispatcher = self.dispatcher
        while dispatcher.behind_bytes:
            if dispatcher.round():
                await self.world.processor.next_turn()
            elif dispatcher.goes_on_later:
                await trio.sleep(GOES_ON_SECONDS)
            else:
                return

    async def drop_incomplete_record(self) -> None:
        """Drop the first bytes of a record at the end of the log; a slave has them whose master ended before it sent the rest.

        What is appended behind them would be read by nobody.

        Raises:
            OSError: the disk refused; the call may be repeated.
            DamagedLog: the bytes behind the last whole record are no part of one. Nothing was dropped.
        """
        log, end = self.log, self.log.max_offset
        position = max(self.dispatcher.dispatched_offset, log.min_offset)
        begun = -1
        while begun < position < end:
            begun = position
            for position, _ in islice(log.records(begun, end), RECORDS_PER_TURN):  # noqa: B007 - the last one counts
                pass
            await self.world.processor.next_turn()
        if position >= end:
            return
        rest = log.slice_from(position, end - position)
        if len(rest) < end - position or not is_part_of_record(rest, position, log.segment_end(position) - position):
            raise DamagedLog(log.directory, position, log.flushed_offset)
        events.warning("incomplete_record_dropped", physical_offset=position, dropped_bytes=end - position)
        await self.cut(position)

    def take_up_next_offsets(self) -> None:
        """Let queues continue behind their last message, or at the offset of their last deletion if they have no later one."""
        self.file_ends.clear()
        self.next_offsets = self._next_offsets_of({**self.events.deletions, **self.queues.table})

    async def _take_up_next_offsets_in_slices(self) -> None:
        """Do the same in several turns of the event loop; the offsets change in the last one."""
        self.file_ends.clear()
        found: dict[tuple[str, int], int] = {}
        keys = list({**self.events.deletions, **self.queues.table})
        async for piece in in_slices(keys, QUEUES_PER_TURN, next_turn=self.world.processor.next_turn):
            found |= self._next_offsets_of(piece)
        self.next_offsets = found

    def _next_offsets_of(self, keys: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        queues, deletions = self.queues.table, self.events.deletions
        found = {key: deletions[key][-1].queue_offset for key in keys if deletions.get(key)}
        for key, end in queue_offsets_of(queues[key] for key in keys if key in queues).items():
            found[key] = max(end, found.get(key, 0))
        return found

    def drop_everything_derived(self) -> None:
        """Drop what was derived from a log that now begins elsewhere; its new records are derived as they arrive.

        `begin_cut` must come before it, so that a start after a crash does the same.

        Raises:
            OSError: the disk refused; the call may be repeated.
        """
        self.dispatcher.cut(0)
        self.events.clear()
        if self.index is not None:
            self.index.cut(0)
        self.queues.clear()  # queues of another stretch of the log begin elsewhere
        self.dispatcher.dirty.clear()
        self.next_offsets.clear()
        self.file_ends.clear()
        self._end_cut()

    # ---------------------------------------------------------------- queues

    def topics(self) -> set[str]:
        """Topics that have messages."""
        return {topic for (topic, _), queue in self.queues.table.items() if queue.max_offset > queue.min_offset}

    def has_messages(self, topic: str) -> bool:
        """Whether a topic has messages."""
        queues = (self.queues.table[topic, queue_id] for queue_id in self.queues.ids(topic))
        return any(queue.max_offset > queue.min_offset for queue in queues)

    def queue_ids(self, topic: str) -> list[int]:
        """Queues of a topic that have been written to."""
        return self.queues.ids(topic)

    def delete_topic(self, topic: str) -> int:
        """Delete a topic's messages; the offsets of its queues continue. Records stay in the log until their segments expire.

        The deletion is an event of the log: messages that are put after this call are kept, on every node.

        Returns, raises, durability: as `append_event`.
        """
        return self.append_event(deletion_of(topic, self.next_offsets_of(topic)))

    def drop_queues(self, topic: str) -> None:
        """Remove a topic's queues from this node, as if it had never had messages; the log has no record of that."""
        for queue in self.queues.delete(topic):
            self.dispatcher.dirty.pop(queue, None)
        for key in [key for key in self.next_offsets if key[0] == topic]:
            del self.next_offsets[key]
            self.file_ends.pop(key, None)

    def catch_up(self, rounds_max: float = inf) -> None:
        """Derive what is readable and was put on this node, so that queues and index have what was acknowledged before."""
        self.dispatcher.catch_up(rounds_max)

    @property
    def dispatch_behind_bytes(self) -> int:
        """How many bytes of the log consumers cannot read yet: not derived, not flushed, or beyond a slave's readable limit."""
        return max(self.log.max_offset - self.dispatcher.dispatched_offset, 0)

    def close_files(self) -> None:
        """Close log, queues and index; blocks, and syncs nothing."""
        self.log.close()
        self.queues.close()
        if self.index is not None:
            self.index.close()


def queue_offsets_of(queues: Iterable[ConsumeQueue]) -> dict[tuple[str, int], int]:
    """The next offset of each queue, by topic and queue id, as the queues have it."""
    return {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
