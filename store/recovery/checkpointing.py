"""Updating the checkpoint after files were synced (RocketMQ StoreCheckpoint, FlushConsumeQueueService).

Invariant: the mark and the timestamps in the checkpoint never run ahead of the medium: queues, index and log are synced first,
then the checkpoint is written. A note of what was written, synced or not, is updated more often; it survives a kill of the
process, but is not valid after a restart of the machine.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf

import attrs
import trio

from ...message.layout import span_of
from ...world.events import get_logger
from ...world.slices import in_slices
from ...world.ticks import next_tick
from ..checkpoint import Checkpoint
from ..derived.consumequeue import PRE_BLANK_SIZE, ConsumeQueue, Unit
from ..derived.deletions import deletions_file
from ..derived.index import IndexFiles
from ..derived.queue_places import save_places
from ..json_file import JsonFile
from ..message_store import MessageStore
from ..recovery_mark import INDEX_OFF, PartialIndex, RecoveryMark
from .damage import queue_begins, queue_ends

log = get_logger(__name__)

NOTE_SECONDS = 1.0
"""The interval at which the note is written, in seconds."""
QUEUES_SYNCED_AT_ONCE = 64
"""How many queues are synced concurrently. Between batches we pause for as long as the last batch took; the recovery mark
advances after the last one."""
CHECKPOINT_DELAY_INTERVALS_MAX = 5
"""The checkpoint is written at the latest after this many intervals, however few changes have gathered."""
INDEX_GATHERED_MIN = 20_000
"""While fewer slots of the key index have changed, the checkpoint is postponed, so that each page is written once for several
slots. The number bounds what a start after a kill has to read back."""
INDEX_PAGES_AT_ONCE = 256
"""How many pages of the key index are written in one turn of the event loop, which takes about a millisecond."""
CLOSE_DISPATCH_SECONDS = 5.0
"""How long closing continues to derive; the next start derives the rest."""


@attrs.define(eq=False, repr=False)
class CheckpointKeeper:
    """Keeps the checkpoint of one open store."""

    store: MessageStore
    checkpoint: Checkpoint
    _deletions: JsonFile = attrs.field(init=False)
    _marked: int = -1
    _noted: int = -1
    _written: RecoveryMark | None = None
    """The mark in the checkpoint, if this process has written it."""
    _partial: PartialIndex | None = None
    """How much of the index file that is being filled is on the medium."""
    _partial_at: float = -inf
    """When that part was synced."""
    _cuts: int = 0
    """Counts cuts of the log, so that a mark from before a cut is not written after it."""
    _removals: int = 0
    """Counts removals of files, so that a mark from before a removal does not say later that the files are there."""
    _removable: int = 0
    """Up to where the log may be removed. Segments are removed one by one, so a mark may be counted between two of them."""
    _cutting: bool = False
    """Whether a cut is in progress, from `begin_cut` to `end_cut`; neither a mark nor a note is written then."""
    _saving: trio.Lock = attrs.field(factory=trio.Lock)
    """Held by `save`, which also writes files other than the checkpoint, and is also called before files are removed."""
    _writing: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while the checkpoint file is written: otherwise one writer could put back what another has just replaced."""

    def __attrs_post_init__(self) -> None:
        self._deletions = deletions_file(self.store.world.disk, self.store.config.store_path_root_dir)

    async def run(self) -> None:
        """Write the checkpoint and the note, and sync the readable limit, at their intervals, until cancelled."""
        config = self.store.config
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keep_on, self.save, config.flush_interval_consume_queue / 1000)
            nursery.start_soon(self.keep_on, self.note, NOTE_SECONDS)  # no other sync delays it
            nursery.start_soon(self.keep_on, self.sync_readable, config.flush_interval_commit_log / 1000, 1)

    async def keep_on(
        self, act: Callable[[], Awaitable[None]], interval: float, intervals_max: int = CHECKPOINT_DELAY_INTERVALS_MAX
    ) -> None:
        """Call `act` at most once in `interval` seconds, and at least once in `intervals_max` of them; failures are logged."""
        acted_at = -inf
        while True:
            await next_tick(interval)
            now = trio.current_time()
            if self._has_gathered() or now >= acted_at + (intervals_max - 0.5) * interval:
                acted_at = now
                try:
                    await act()
                except OSError as error:
                    _warn_of_failure(error)

    def _has_gathered(self) -> bool:
        index = self.store.index
        return index is None or index.gathered >= INDEX_GATHERED_MIN or self.store.queues.open_files.awaited

    async def note(self) -> None:
        """Write the note: how far log, queues and index were written, synced or not.

        Raises:
            OSError: the disk refused; the old note remains.
        """
        store = self.store
        position = store.dispatcher.dispatched_offset
        # Another node may truncate a replica's log at any time: a note could outlive the bytes that it describes.
        if position == self._noted or store.log.readable_limit is not None or store.is_replica or self._cutting:
            return
        if store.events.unsaved_end:  # a start that begins behind a deletion would not know of it
            return
        changes = self._cuts, self._removals
        note = (await self._mark(position)).encode()
        if changes != (self._cuts, self._removals) or self._cutting or store.is_replica or store.events.unsaved_end:
            return  # the mark may mix what was before and after the change
        await self._flush_index()
        await store.world.workers.run(self.checkpoint.write_note, note)
        self._noted = position

    def note_readable(self) -> None:
        """Write the readable limit that another node has set, without syncing it.

        A slave keeps what its master had let consumers read, so a killed slave must start with the limit that it had in memory.
        """
        limit = self.store.log.readable_limit
        if limit is not None and self.checkpoint.is_open:
            with suppress(OSError):  # `sync_readable` writes it again and logs a failure
                self.checkpoint.write_confirm_offset(limit)

    async def sync_readable(self) -> None:
        """Sync the readable limit that other nodes have set, if there is one, so that a power cut leaves it.

        Raises:
            OSError: the disk refused; the medium may have an older limit.
        """
        if self.store.log.readable_limit is None:
            return
        async with self._writing:
            await self._write_limit()
            if not self.checkpoint.confirm_offset_synced:
                await self.store.world.workers.run(self.checkpoint.save)

    async def _write_limit(self) -> None:
        """Write the readable limit, or 0 if no other node limits this one; the caller holds `_writing`."""
        checkpoint = self.checkpoint
        if not checkpoint.is_open and checkpoint.confirm_offset != (self.store.log.readable_limit or 0):
            await self.store.world.workers.run(checkpoint.open)
        checkpoint.write_confirm_offset(self.store.log.readable_limit or 0)

    async def save(self, *, in_haste: bool = False) -> None:
        """Sync queues that have new units, then write the checkpoint with a new mark.

        Raises:
            OSError: the disk refused; the old checkpoint and mark remain.
        """
        async with self._saving:
            await self._save(in_haste=in_haste)

    async def _save(self, *, in_haste: bool) -> None:
        store, commit_log = self.store, self.store.log
        dispatcher, run = store.dispatcher, store.world.workers.run
        dispatched, timestamp = dispatcher.dispatched_offset, dispatcher.last_store_timestamp
        if commit_log.flushed_offset < dispatched:
            # The flushed bytes of a slave may end inside a record, and a start can only read on from the border between two.
            await commit_log.flush()
        position = min(commit_log.flushed_offset, dispatched)
        if position == self._marked and self._is_current() and not dispatcher.dirty and not store.events.unsaved_end:
            return
        cuts, removals = self._cuts, self._removals
        mark = await self._mark(position)
        await self._flush_index()
        deletions_saved = await self._save_deletions()
        await self._sync_queues(in_haste=in_haste)
        if store.index is not None:
            await run(store.index.sync_full, commit_log.flushed_offset)
            await self._sync_partial_index(store.index)
            self.checkpoint.index_timestamp = store.index.forced_timestamp
        async with self._writing:
            if timestamp and position == dispatched and cuts == self._cuts and not self._cutting and deletions_saved:
                checkpoint = self.checkpoint
                checkpoint.physical_timestamp = checkpoint.logical_timestamp = timestamp
                indexed = store.index.forced_offset if store.index is not None else -1
                full = store.index.full_files if store.index is not None else 0
                if removals != self._removals or mark.log_min_offset < self._removable:
                    mark = _after_removal(mark, max(mark.log_min_offset, self._removable))
                self._written = attrs.evolve(mark, indexed_offset=indexed, full_index_files=full).with_partial(self._partial)
                checkpoint.mark = self._written.encode()
                await self._write_limit()
                await run(checkpoint.save)
                self._marked = position

    def _is_current(self) -> bool:
        """Whether retention has removed no files since the mark was written."""
        mark = self._written
        return mark is not None and mark.log_min_offset == self.store.log.min_offset and mark.queue_begins >= 0

    async def _flush_index(self) -> None:
        # After a kill, records are indexed again from the mark on only, so slots changed in memory are written before it.
        index = self.store.index
        while index is not None and not index.flush(INDEX_PAGES_AT_ONCE):
            await trio.lowlevel.checkpoint()

    async def _sync_partial_index(self, index: IndexFiles) -> None:
        """Sync the index file that is being filled, if its interval has passed.

        Raises:
            OSError: the disk refused; after a power cut the file is built again.
        """
        if trio.current_time() < self._partial_at + self.store.config.flush_interval_index / 1000:
            return
        await self._flush_index()
        synced, cuts, commit_log = index.partial(self.store.dispatcher.dispatched_offset), self._cuts, self.store.log
        if synced is None:
            return
        # A record that a power cut removes from the log must not be in the index: its replacement would not be indexed.
        if commit_log.flushed_offset < synced.position:
            await commit_log.flush()
        if commit_log.flushed_offset >= synced.position:
            await self.store.world.workers.run(index.sync_partial, synced)
            if cuts == self._cuts:
                self._partial, self._partial_at = synced, trio.current_time()

    async def _save_deletions(self) -> bool:
        """Write the file of deletions, unless the log is not flushed behind the last one; returns whether the file has all.

        Raises:
            OSError: the disk refused; the next round tries again.
        """
        events = self.store.events
        if (end := events.unsaved_end) > self.store.log.flushed_offset:
            return False
        if end:
            await self.store.world.workers.run(self._deletions.save, await events.to_json())
            if events.unsaved_end == end:
                events.unsaved_end = 0
        return not events.unsaved_end

    async def _sync_queues(self, *, in_haste: bool) -> None:
        """Sync every queue that is dirty now.

        Raises:
            OSError: some could not be synced; those stay dirty.
        """
        dirty = self.store.dispatcher.dirty
        waiting = list(dirty)
        failed: list[ConsumeQueue] = []
        for start in range(0, len(waiting), QUEUES_SYNCED_AT_ONCE):
            began = trio.current_time()
            async with trio.open_nursery() as nursery:  # concurrently: the file system then commits many at once
                for queue in waiting[start : start + QUEUES_SYNCED_AT_ONCE]:
                    if queue in dirty:  # its topic has not been deleted meanwhile
                        del dirty[queue]
                        nursery.start_soon(self._sync, queue, failed)
            awaited = self.store.queues.open_files.awaited
            if awaited:
                self.store.dispatcher.wake()
            if start + QUEUES_SYNCED_AT_ONCE < len(waiting) and not in_haste and not awaited:
                await trio.sleep(trio.current_time() - began)
        if failed:
            dirty.update(dict.fromkeys(failed))
            raise OSError(errno.EIO, f"{len(failed)} consume queues could not be synced")

    async def _sync(self, queue: ConsumeQueue, failed: list[ConsumeQueue]) -> None:
        try:
            await self.store.world.workers.run(queue.sync)
            if (queue.is_deleted or self.store.queues.open_files.is_full) and queue not in self.store.dispatcher.dirty:
                queue.segments.park()
        except OSError as error:
            if self.store.queues.table.get((queue.topic, queue.queue_id)) is not queue:
                return  # its files were removed meanwhile
            failed.append(queue)
            log.warning("queue_sync_failed", topic=queue.topic, queue_id=queue.queue_id, reason=error.strerror or str(error))
        except trio.Cancelled:
            self.store.dispatcher.dirty[queue] = None  # the sync may not have begun; closing repeats it
            raise

    async def begin_cut(self, *, everything: bool = False) -> None:
        """Erase the mark and the note, and save the readable limit as it is now.

        Until `end_cut` is called, no mark is written, because a part of the log is about to be dropped.

        Args:
            everything: the whole log is dropped; a start before `end_cut` drops all that was derived from it.

        Raises:
            OSError: the disk refused; the old mark remains.
        """
        before, self._cutting = self._cutting, True
        self._cuts += 1
        self._removable = 0
        self._written = self._partial = None
        self._partial_at = -inf
        try:
            async with self._writing:
                await self._write_limit()
                await self.store.world.workers.run(partial(self.checkpoint.forget, derive_anew=everything))
        except BaseException:
            self._cutting = before  # nothing was cut; a node that is elected now never cuts, and its marks must be written
            raise

    def end_cut(self) -> None:
        """Allow marks to be written again, because queues and log agree."""
        self._cutting = False

    async def mark_until(self, offset: int) -> int:
        """Save a mark unless there is one at or behind `offset`; returns up to where log and queues are on the medium."""
        if self._marked_offset < offset:
            try:
                await self.save()
            except OSError as error:
                _warn_of_failure(error)
        return self._marked_offset

    @property
    def _marked_offset(self) -> int:
        mark = RecoveryMark.decode(self.checkpoint.mark)
        return mark.start if mark is not None else -1

    async def allow_removal(self, log_min_offset: int) -> None:
        """Save in the mark that the log may begin at `log_min_offset` from now on, and that index and queues may lose files.

        Raises:
            OSError: the disk refused. Nothing may be removed.
        """
        if self.store.events.unsaved_end:
            await self.save()  # after a crash, only the removed records would have the next offsets of queues
        self._removals += 1
        self._removable = log_min_offset
        async with self._writing:
            mark = RecoveryMark.decode(self.checkpoint.mark)
            if mark is not None:
                mark = _after_removal(mark, log_min_offset)
                self._written, self.checkpoint.mark = mark, mark.encode()
                await self.store.world.workers.run(self.checkpoint.save)
        self._removals += 1  # a mark may have been counted since, and the caller removes files in this turn

    async def _mark(self, position: int) -> RecoveryMark:
        """Make a mark at `position`, which counts the queues in several turns of the event loop.

        It names a record before `position` that is in a queue: the last one, if it is easily found. The counts of derived files
        let the next start notice what was damaged at rest. Records that are derived meanwhile are behind `position` and change
        no count; the caller checks whether the log was cut or files were removed.
        """
        store, index, table = self.store, self.store.index, self.store.queues.table
        crc = await store.events.crc()
        mark = RecoveryMark(
            *(position, position, -1, 0, 0, -1, store.world.disk.boot_id()),
            log_min_offset=store.log.min_offset,
            deletions_crc=crc,
            index_files=len(index.files) if index is not None else INDEX_OFF,
        )
        begins = ends = last_end = 0
        last: Unit | None = None
        async for piece in in_slices(list(table.items())):
            queues = [queue for key, queue in piece if table.get(key) is queue]  # others were removed meanwhile
            begins += queue_begins(queues)
            ends += queue_ends(queues, position)
            newest = max(
                (queue for queue in queues if last_end < queue.physical_end <= position), key=_physical_end, default=None
            )
            if newest is not None:
                last, last_end = newest.last_unit, newest.physical_end
        if last is None or last[1] == PRE_BLANK_SIZE:  # each queue goes beyond `position`, or has no units
            last = await _any_unit_before(table, position)
        mark = attrs.evolve(mark, queue_begins=begins, queue_ends=ends)
        if last is None:
            return mark
        offset, size, _ = last
        view = store.log.record(offset, size)
        span = span_of(view, 0, len(view)) if view is not None else None
        timestamp = span.store_timestamp if span else 0
        return attrs.evolve(mark, record_offset=offset, record_size=size, record_store_timestamp=timestamp)

    async def close(self) -> None:
        """Finish deriving, sync everything, and remove the abort file; it stays if something could not be derived or synced."""
        store, commit_log = self.store, self.store.log
        store.writability.shut_down = True
        root = store.config.store_path_root_dir
        try:
            await commit_log.flush()
            with trio.move_on_after(CLOSE_DISPATCH_SECONDS):
                while store.dispatcher.behind_bytes and store.dispatcher.round():
                    await trio.lowlevel.checkpoint()
            while store.dispatcher.dirty:
                await self.save(in_haste=True)
            if store.index is not None:
                await store.world.workers.run(store.index.sync)
                self.checkpoint.index_timestamp = store.index.forced_timestamp
            await self.save()
            await self.sync_readable()
            if commit_log.failure is None and not store.dispatcher.behind_bytes:
                mark, cleaner = RecoveryMark.decode(self.checkpoint.mark), store.cleaner
                if mark is not None and not (cleaner is not None and cleaner.is_behind):
                    await store.world.workers.run(save_places, store.world.disk, root, mark, list(store.queues.table.values()))
                store.world.disk.remove(f"{root}/abort")
        except OSError as error:
            log.error("store_not_closed_cleanly", path=root, reason=error.strerror or str(error))
        finally:
            self.checkpoint.close()
            store.close_files()
        log.info("store_closed", path=root, end=commit_log.max_offset)


def _physical_end(queue: ConsumeQueue) -> int:
    return queue.physical_end


async def _any_unit_before(table: Mapping[tuple[str, int], ConsumeQueue], position: int) -> Unit | None:
    """The last unit before `position` of the first queue that has one."""
    async for keys in in_slices(list(table)):
        for queue in filter(None, map(table.get, keys)):
            if (unit := queue.last_unit_before(position)) is not None:
                return unit
    return None


def _after_removal(mark: RecoveryMark, log_min_offset: int) -> RecoveryMark:
    """The mark of a store whose log may begin at `log_min_offset`, and whose queues and index may lose files."""
    index_files = min(mark.index_files, -1)
    return attrs.evolve(mark, log_min_offset=log_min_offset, queue_begins=-1, index_files=index_files, deletions_crc=-1)


def _warn_of_failure(error: OSError) -> None:
    log.warning("checkpoint_failed", reason=error.strerror or str(error))
