"""Moving the checkpoint along behind what is on the medium (RocketMQ StoreCheckpoint, FlushConsumeQueueService).

Invariant: the mark and the timestamps in the checkpoint never run ahead of the medium: queues, index and log are synced first,
then the checkpoint is written. A note of what was written, synced or not, follows faster; it outlives the process, not the
machine.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

import attrs
import trio

from ..message.layout import span_of
from ..world.events import get_logger
from ..world.ticks import next_tick
from .checkpoint import Checkpoint
from .consumequeue import PRE_BLANK_SIZE, ConsumeQueue
from .damage import queue_begins, queue_ends
from .deletions import deletions_file
from .index import IndexFiles
from .json_file import JsonFile
from .message_store import MessageStore
from .recovery_mark import PartialIndex, RecoveryMark

log = get_logger(__name__)

NOTE_SECONDS = 1.0
"""How often what has been written is noted, in seconds."""
QUEUES_SYNCED_AT_ONCE = 64
"""How many queues are synced concurrently. Between batches we pause for as long as the last batch took; the recovery mark
advances after the last one."""
CHECKPOINT_DELAY_INTERVALS_MAX = 5
"""The checkpoint is written at the latest after this many intervals, however few changes have gathered."""
INDEX_GATHERED_MIN = 20_000
"""With fewer changed slots of the key index, the checkpoint is put off, so that each page is written once for several slots.
It bounds what a start after a kill has to read back."""
INDEX_PAGES_AT_ONCE = 256
"""Pages of the key index that are written in one turn of the event loop: about a millisecond."""
CLOSE_DISPATCH_SECONDS = 5.0
"""How long closing goes on deriving; what is not derived by then, the next start derives."""


@attrs.define(eq=False)
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
    """What is on the medium of the index file that is being filled."""
    _partial_at: float = -inf
    """When it was synced."""
    _cuts: int = 0
    """Counts cuts of the log, so that a mark from before a cut is not written after it."""
    _cutting: bool = False
    """Between `begin_cut` and `end_cut` nothing may be said about how far anything is."""
    _saving: trio.Lock = attrs.field(factory=trio.Lock)
    """Held by `save`, which writes files beside the checkpoint: whoever removes files calls it too."""
    _writing: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while the checkpoint file is written: otherwise one writer could put back what another has just replaced."""

    def __attrs_post_init__(self) -> None:
        self._deletions = deletions_file(self.store.world.disk, self.store.config.store_path_root_dir)

    async def run(self) -> None:
        """Write checkpoint, note and limit whenever it is time, until cancelled."""
        config = self.store.config
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keep_on, self.save, config.flush_interval_consume_queue / 1000)
            nursery.start_soon(self.keep_on, self.note, NOTE_SECONDS)  # no sync of anything else delays it
            nursery.start_soon(self.keep_on, self.note_readable, config.flush_interval_commit_log / 1000, 1)

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
                    log.warning("checkpoint_failed", reason=error.strerror or str(error))

    def _has_gathered(self) -> bool:
        index = self.store.index
        return index is None or index.gathered >= INDEX_GATHERED_MIN

    async def note(self) -> None:
        """Write down how far everything is that was written, synced or not.

        Raises:
            OSError: the disk refused; the old note stands.
        """
        store = self.store
        position = store.dispatcher.dispatched_offset
        # Another node may truncate a replica's log at any time: a note could outlive the bytes that it describes.
        if position == self._noted or store.log.readable_limit is not None or store.is_replica or self._cutting:
            return
        if store.events.unsaved_end:  # a start that reads on behind a deletion would not know of it
            return
        note = self._mark(position).encode()
        await self._flush_index()
        await store.world.workers.run(self.checkpoint.write_note, note)
        self._noted = position

    async def note_readable(self) -> None:
        """Write down up to where other nodes let consumers see, if they have a say, without syncing it.

        Raises:
            OSError: the disk refused; the old limit remains.
        """
        checkpoint = self.checkpoint
        async with self._writing:
            limit = self.store.log.readable_limit
            if limit is not None and limit != checkpoint.confirm_offset:
                await self.store.world.workers.run(checkpoint.write_confirm_offset, limit)

    async def save(self, *, in_haste: bool = False) -> None:
        """Sync queues that have new units, then write down how far everything is.

        Raises:
            OSError: the disk refused; the old checkpoint and mark stand.
        """
        async with self._saving:
            await self._save(in_haste=in_haste)

    async def _save(self, *, in_haste: bool) -> None:
        store, commit_log = self.store, self.store.log
        dispatcher, run = store.dispatcher, store.world.workers.run
        dispatched, timestamp = dispatcher.dispatched_offset, dispatcher.last_store_timestamp
        if commit_log.flushed_offset < dispatched:
            # What a slave has flushed may end inside a record, and a start can read on from the border of one only.
            await commit_log.flush()
        position = min(commit_log.flushed_offset, dispatched)
        if position == self._marked and self._is_current() and not dispatcher.dirty and not store.events.unsaved_end:
            return
        mark, cuts = self._mark(position), self._cuts
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
                self._written = attrs.evolve(mark, indexed_offset=indexed, full_index_files=full).with_partial(self._partial)
                checkpoint.mark = self._written.encode()
                checkpoint.confirm_offset = commit_log.readable_limit or 0
                await run(checkpoint.save)
                self._marked = position

    def _is_current(self) -> bool:
        """Whether the mark says what there is, as far as retention changes that."""
        mark = self._written
        return mark is not None and mark.log_min_offset == self.store.log.min_offset and mark.queue_begins >= 0

    async def _flush_index(self) -> None:
        # What has gathered in memory when a process dies is indexed again from the mark on: it must be written before.
        index = self.store.index
        while index is not None and not index.flush(INDEX_PAGES_AT_ONCE):
            await trio.lowlevel.checkpoint()

    async def _sync_partial_index(self, index: IndexFiles) -> None:
        """Sync the index file that is being filled, if it is time.

        Raises:
            OSError: the disk refused; after a power cut the file is made anew.
        """
        if trio.current_time() < self._partial_at + self.store.config.flush_interval_index / 1000:
            return
        await self._flush_index()
        synced, cuts, commit_log = index.partial(self.store.dispatcher.dispatched_offset), self._cuts, self.store.log
        if synced is None:
            return
        # A record that a power cut takes from the log must not be in the index: what comes in its place would not be indexed.
        if commit_log.flushed_offset < synced.position:
            await commit_log.flush()
        if commit_log.flushed_offset >= synced.position:
            await self.store.world.workers.run(index.sync_partial)
            if cuts == self._cuts:
                self._partial, self._partial_at = synced, trio.current_time()

    async def _save_deletions(self) -> bool:
        """Write the deletions down, unless a power cut may still take the last one; tells whether the file has all.

        Raises:
            OSError: the disk refused; the next round tries again.
        """
        events = self.store.events
        if (end := events.unsaved_end) > self.store.log.flushed_offset:
            return False
        if end:
            await self.store.world.workers.run(self._deletions.save, events.to_json())
            if events.unsaved_end == end:
                events.unsaved_end = 0
        return not events.unsaved_end

    async def _sync_queues(self, *, in_haste: bool) -> None:
        """Sync every queue that is dirty now.

        Raises:
            OSError: some could not be synced; they are dirty still.
        """
        dirty = self.store.dispatcher.dirty
        waiting = list(dirty)
        failed: list[ConsumeQueue] = []
        for start in range(0, len(waiting), QUEUES_SYNCED_AT_ONCE):
            began = trio.current_time()
            async with trio.open_nursery() as nursery:  # at once: the file system then commits many in one go
                for queue in waiting[start : start + QUEUES_SYNCED_AT_ONCE]:
                    if queue in dirty:  # its topic has not been deleted meanwhile
                        del dirty[queue]
                        nursery.start_soon(self._sync, queue, failed)
            if start + QUEUES_SYNCED_AT_ONCE < len(waiting) and not in_haste:
                await trio.sleep(trio.current_time() - began)
        if failed:
            dirty.update(dict.fromkeys(failed))
            raise OSError(errno.EIO, f"{len(failed)} consume queues could not be synced")

    async def _sync(self, queue: ConsumeQueue, failed: list[ConsumeQueue]) -> None:
        try:
            await self.store.world.workers.run(queue.sync)
        except OSError as error:
            if self.store.queues.table.get((queue.topic, queue.queue_id)) is not queue:
                return  # its files were removed meanwhile
            failed.append(queue)
            log.warning("queue_sync_failed", topic=queue.topic, queue_id=queue.queue_id, reason=error.strerror or str(error))
        except trio.Cancelled:
            self.store.dispatcher.dirty[queue] = None  # perhaps not even begun; closing does it
            raise

    async def begin_cut(self, *, everything: bool = False) -> None:
        """Write down that nothing is known to be on the medium, and that consumers see no more than they may now.

        Until `end_cut` is called, no mark is written: a part of the log is about to go.

        Args:
            everything: the whole log goes; a start before `end_cut` drops all that was derived from it.

        Raises:
            OSError: the disk refused; the old mark stands.
        """
        self._cuts += 1
        self._cutting = True
        self._written = self._partial = None
        self._partial_at = -inf
        async with self._writing:
            self.checkpoint.confirm_offset = self.store.log.readable_limit or 0
            await self.store.world.workers.run(partial(self.checkpoint.forget, derive_anew=everything))

    def end_cut(self) -> None:
        """Marks may be written again: queues and log agree."""
        self._cutting = False

    async def allow_removal(self, log_min_offset: int) -> None:
        """Write down that the log may begin at `log_min_offset` from now on, and that index and queues may lose files.

        Raises:
            OSError: the disk refused. Nothing may be removed.
        """
        if self.store.events.unsaved_end:
            await self.save()  # or a crash now would need the removed records to find out where queues go on
        async with self._writing:
            mark = RecoveryMark.decode(self.checkpoint.mark)
            if mark is not None:
                mark = attrs.evolve(mark, log_min_offset=log_min_offset, queue_begins=-1, index_files=-1, deletions_crc=-1)
                self._written, self.checkpoint.mark = mark, mark.encode()
                await self.store.world.workers.run(self.checkpoint.save)

    def _mark(self, position: int) -> RecoveryMark:
        """A mark at `position`, naming a record before it that a queue knows: the last one if that is easily found."""
        store = self.store
        boot_id = store.world.disk.boot_id()
        queues = store.queues.table.values()
        last = max(
            (queue for queue in queues if queue.physical_end <= position),
            key=lambda queue: queue.physical_end,
            default=None,
        )
        unit = last.last_unit if last is not None else None
        if unit is None or unit[1] == PRE_BLANK_SIZE:  # each queue is ahead of the flush, or has nothing
            unit = next((unit for queue in queues if (unit := queue.last_unit_before(position)) is not None), None)
        if unit is None:
            return self._counted(RecoveryMark(position, position, -1, 0, 0, -1, boot_id))
        offset, size, _ = unit
        view = self.store.log.record(offset, size)
        span = span_of(view, 0, len(view)) if view is not None else None
        timestamp = span.store_timestamp if span else 0
        return self._counted(RecoveryMark(position, position, offset, size, timestamp, -1, boot_id))

    def _counted(self, mark: RecoveryMark) -> RecoveryMark:
        """Add what there is of derived files, for the next start to notice what was damaged at rest."""
        store, queues, index = self.store, self.store.queues.table.values(), self.store.index
        return attrs.evolve(
            mark,
            log_min_offset=store.log.min_offset,
            queue_begins=queue_begins(queues),
            queue_ends=queue_ends(queues, mark.dispatched_offset),
            deletions_crc=store.events.crc,
            index_files=len(index.files) if index is not None else -1,
        )

    async def close(self) -> None:
        """Finish deriving, sync everything, remove the abort file; what cannot be synced leaves the abort file in place."""
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
            if commit_log.readable_limit is not None:  # the noted limit, synced
                self.checkpoint.confirm_offset = commit_log.readable_limit
                await store.world.workers.run(self.checkpoint.save)
            if commit_log.failure is None and not store.dispatcher.behind_bytes:
                store.world.disk.remove(f"{root}/abort")
        except OSError as error:
            log.error("store_not_closed_cleanly", path=root, reason=error.strerror or str(error))
        finally:
            store.close_files()
        log.info("store_closed", path=root, end=commit_log.max_offset)
