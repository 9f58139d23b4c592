"""Opening and closing a store: lock, load, recover, run, and leave it so that the next start finds everything.

Order of opening: lock, commit log, queues, checkpoint, index, recovery, queue offset table, abort file, tasks. A failure
anywhere closes what was opened and changes nothing more. The abort file stands from the last step of opening to the last of
closing.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf

import attrs
import structlog
import trio

from ..message.layout import encode_host, span_of
from ..world.real import World
from ..world.ticks import next_tick
from .append_log import AppendLog
from .checkpoint import Checkpoint
from .cleaning import Cleaner
from .commitlog import LocalLog, open_local_log
from .config import StoreConfig
from .consumequeue import PRE_BLANK_SIZE, ConsumeQueue, ConsumeQueues
from .dispatch import Dispatcher, TagsCodes
from .errors import StoreInUse
from .index import IndexFiles
from .message_store import MessageStore, queue_offsets_of
from .recovery import Recovered, RecoveryMark, recover

log = structlog.get_logger()

NOTE_SECONDS = 1.0
QUEUES_SYNCED_AT_ONCE = 64
"""Of thousands of dirty queues; the next ones follow after a pause as long as these took, and the mark waits for all."""
INTERVALS_MAX = 5
"""Of `flushIntervalConsumeQueue`, and of `NOTE_SECONDS`: the longest pause."""
INDEX_GATHERED_MIN = 20_000
"""Before so many changed slots, or the longest pause, the key index is left to gather: each page is then written for several
of them. It bounds what a start after a kill has to read back."""
INDEX_PAGES_AT_ONCE = 256
"""Pages of the key index that are written in one turn of the event loop: about a millisecond."""
CLOSE_DISPATCH_SECONDS = 5.0

WrapLog = Callable[[LocalLog], AppendLog]


@attrs.define(eq=False)
class _Opened:
    store: MessageStore
    local: LocalLog
    checkpoint: Checkpoint
    recovered: Recovered
    clean_exit: bool


@asynccontextmanager
async def open_message_store(
    world: World,
    config: StoreConfig,
    *,
    store_host: tuple[str, int] = ("127.0.0.1", 10911),
    wrap_log: WrapLog = lambda local: local,
) -> AsyncGenerator[MessageStore]:
    """Open the store of `config.store_path_root_dir`, making it if there is none.

    Args:
        store_host: address that message ids carry; clients must be able to reach it.
        wrap_log: puts another mode around the local log (classic HA).

    Raises:
        StoreInUse: another broker has it open. Nothing was changed.
        WrongSegmentSize, DamagedLog: see there. Nothing was cut.
        OSError: the disk refused.
    Durability: on leaving, everything appended is synced and the next start has nothing to recover.
    Cancellation: leaves the store as a clean exit does.
    """
    root = config.store_path_root_dir
    world.disk.make_directories(root)
    world.disk.make_directories(config.commit_log_directory)
    try:
        lock = world.disk.lock(f"{root}/lock")
    except BlockingIOError:
        raise StoreInUse(root) from None
    try:
        opened = await world.workers.run(_open, world, config, store_host, wrap_log)
        store = opened.store
        try:
            log.info(
                "store_opened",
                path=root,
                clean_exit=opened.clean_exit,
                read_from=opened.recovered.start,
                end=opened.recovered.end,
                records_read=opened.recovered.records,
                torn=opened.recovered.torn,
                queues=len(store.queues.table),
            )
            cleaner = store.cleaner = Cleaner(store, opened.local)
            keeper = _Keeper(opened)
            store.forget_mark = keeper.forget_mark
            await world.workers.run(_expect_abort, world, root)
            async with trio.open_nursery() as nursery:
                await nursery.start(store.log.run)
                await nursery.start(store.dispatcher.run)
                nursery.start_soon(keeper.keep_on, keeper.save, config.flush_interval_consume_queue / 1000)
                nursery.start_soon(keeper.keep_on, keeper.note, NOTE_SECONDS)  # which no sync of anything else delays
                if opened.local.readable_max is not None:
                    nursery.start_soon(keeper.keep_on, keeper.note_readable, config.flush_interval_commit_log / 1000, 1)
                nursery.start_soon(cleaner.run)
                yield store
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await _Keeper(opened).close()
    finally:
        lock.release()


def _expect_abort(world: World, root: str) -> None:
    """Make the abort file, on the medium: without it, a power cut would pass for a clean exit."""
    if not world.disk.exists(f"{root}/abort"):
        world.disk.open(f"{root}/abort", create_size=0).close()
    world.disk.sync_directory(root)


def _open(world: World, config: StoreConfig, store_host: tuple[str, int], wrap_log: WrapLog) -> _Opened:
    disk, root = world.disk, config.store_path_root_dir
    clean_exit = not disk.exists(f"{root}/abort")
    checkpoint = Checkpoint(disk, f"{root}/checkpoint")
    checkpoint.load()
    mark, note = RecoveryMark.decode(checkpoint.mark), RecoveryMark.decode(checkpoint.note)
    # After a mere crash of the process all written bytes are still in the page cache; only after a crash of the machine may
    # bytes that were written, but not synced, be missing in any order.
    kept_all = clean_exit or (mark is not None and mark.boot_id == disk.boot_id() != "")
    local = open_local_log(
        disk,
        world.clock,
        world.workers,
        directory=config.commit_log_directory,
        segment_size=config.mapped_file_size_commit_log,
        sync_flush=config.sync_flush,
        flush_interval_seconds=config.flush_interval_commit_log / 1000,
    )
    queues = ConsumeQueues(disk, f"{root}/consumequeue", config.mapped_file_size_consume_queue)
    index: IndexFiles | None = None
    try:
        queues.load(kept_all=kept_all)
        lost_from: int | None = None
        if config.message_index_enable:
            index = IndexFiles(
                disk,
                f"{root}/index",
                world.clock,
                slot_count=config.max_hash_slot_num,
                entry_count=config.max_index_num,
            )
            lost_from = index.load(kept_all=kept_all, forced_offset=-1 if mark is None else mark.indexed_offset)
            if mark is not None and not disk.exists(index.directory):
                lost_from = local.min_offset  # somebody took the index away to have it built anew
            disk.make_directories(index.directory)
        store = _assemble(world, config, store_host, wrap_log(local), queues, index)
        if local.readable_max is not None:
            local.readable_max = checkpoint.confirm_offset
        recovered = recover(
            local,
            list(queues.table.values()),
            store.dispatcher,
            checkpoint,
            mark,
            clean_exit=clean_exit,
            kept_all=kept_all,
            check_crc=config.check_crc_on_recover,
            note=note,
            index_lost_from=lost_from,
        )
        if local.readable_max is not None:
            _show_no_more_than(local, max(local.readable_max, store.dispatcher.dispatched_offset), checkpoint)
    except BaseException:
        _close_files(local, queues, index)
        raise
    if index is not None:
        index.cut(recovered.end)
    noted = (found.record_store_timestamp for found in (mark, note) if found is not None)
    store.last_timestamp = max(store.dispatcher.last_store_timestamp, *noted, 0)
    store.next_offsets.update(queue_offsets_of(queues.table.values()))
    local.on_syncing.append(store.dispatcher.sync_began)
    local.on_flushed.append(lambda _: store.dispatcher.wake())
    return _Opened(store, local, checkpoint, recovered, clean_exit)


def _show_no_more_than(local: LocalLog, readable: int, checkpoint: Checkpoint) -> None:
    """Let consumers see what lies before `readable`, as far as recovery has found it.

    What it has not found may come from the master again as other bytes. No later start may take them for what was readable.
    """
    local.readable_max = min(readable, local.max_offset)
    if local.readable_max < checkpoint.confirm_offset:
        checkpoint.confirm_offset = local.readable_max
        checkpoint.save()


def _assemble(
    world: World,
    config: StoreConfig,
    store_host: tuple[str, int],
    log_: AppendLog,
    queues: ConsumeQueues,
    index: IndexFiles | None,
) -> MessageStore:
    dispatcher = Dispatcher(log_, TagsCodes(config.delay_levels_ms), queues.of, index)
    store = MessageStore(config, world, log_, encode_host(*store_host), dispatcher, queues, index)

    def failed(error: OSError) -> None:
        if store.writability.queue_error is None:
            log.error("dispatch_failed", reason=error.strerror or str(error))
        store.writability.queue_error = error.strerror or str(error)

    def succeeded() -> None:
        store.writability.queue_error = None

    dispatcher.on_failure, dispatcher.on_success = failed, succeeded
    return store


def _close_files(local: LocalLog, queues: ConsumeQueues, index: IndexFiles | None) -> None:
    local.segments.close()
    queues.close()
    if index is not None:
        index.close()


@attrs.define(eq=False)
class _Keeper:
    """Moves the checkpoint with its mark along behind what is on the medium, and the note behind what is written."""

    opened: _Opened
    _marked: int = -1
    _noted: int = -1
    _cuts: int = 0
    _writing: trio.Lock = attrs.field(factory=trio.Lock)
    """Else one writer of the checkpoint could put back what another has just replaced."""

    async def keep_on(self, act: Callable[[], Awaitable[None]], interval: float, intervals_max: int = INTERVALS_MAX) -> None:
        """Call `save` or one that notes whenever it is time, until cancelled; failures are logged."""
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
        index = self.opened.store.index
        return index is None or index.gathered >= INDEX_GATHERED_MIN

    async def note(self) -> None:
        """Write down how far everything is that was written, synced or not.

        Raises:
            OSError: the disk refused; the old note stands.
        """
        store = self.opened.store
        position = store.dispatcher.dispatched_offset
        # Where a log may be cut at any time, by a master, a note could outlive what it speaks of.
        if position == self._noted or self.opened.local.readable_max is not None or store.writability.slave:
            return
        note = self._mark(position).encode()
        await self._flush_index()
        await store.world.workers.run(self.opened.checkpoint.write_note, note)
        self._noted = position

    async def note_readable(self) -> None:
        """Write down up to where the master lets consumers see, without forcing it.

        Raises:
            OSError: the disk refused; the old note stands.
        """
        checkpoint, local = self.opened.checkpoint, self.opened.local
        async with self._writing:
            if local.readable_max is not None and local.readable_max != checkpoint.confirm_offset:
                await self.opened.store.world.workers.run(checkpoint.write_confirm_offset, local.readable_max)

    async def save(self, *, in_haste: bool = False) -> None:
        """Sync queues that have new units, then write down how far everything is.

        Raises:
            OSError: the disk refused; the old checkpoint and mark stand.
        """
        store, local = self.opened.store, self.opened.local
        dispatcher, run = store.dispatcher, store.world.workers.run
        dispatched, timestamp = dispatcher.dispatched_offset, dispatcher.last_store_timestamp
        if local.flushed_offset < dispatched:
            # What a slave has flushed may end inside a record, and a start can read on from the border of one only.
            await local.flush()
        position = min(local.flushed_offset, dispatched)
        if position == self._marked and not dispatcher.dirty:
            return
        mark, cuts = self._mark(position), self._cuts
        await self._flush_index()
        await self._sync_queues(in_haste=in_haste)
        if store.index is not None:
            await run(store.index.sync_full, local.flushed_offset)
            self.opened.checkpoint.index_timestamp = store.index.forced_timestamp
        async with self._writing:
            if timestamp and position == dispatched and cuts == self._cuts:
                checkpoint = self.opened.checkpoint
                checkpoint.physical_timestamp = checkpoint.logical_timestamp = timestamp
                indexed = store.index.forced_offset if store.index is not None else -1
                checkpoint.mark = attrs.evolve(mark, indexed_offset=indexed).encode()
                checkpoint.confirm_offset = local.readable_max or 0
                await run(checkpoint.save)
                self._marked = position

    async def _flush_index(self) -> None:
        # What has gathered in memory when a process dies is indexed again from the mark on: it must be written before.
        index = self.opened.store.index
        while index is not None and not index.flush(INDEX_PAGES_AT_ONCE):
            await trio.lowlevel.checkpoint()

    async def _sync_queues(self, *, in_haste: bool) -> None:
        """Sync every queue that is dirty now.

        Raises:
            OSError: some could not be synced; they are dirty still.
        """
        dirty = self.opened.store.dispatcher.dirty
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
            await self.opened.store.world.workers.run(queue.sync)
        except OSError as error:
            failed.append(queue)
            log.warning("queue_sync_failed", topic=queue.topic, queue_id=queue.queue_id, reason=error.strerror or str(error))
        except trio.Cancelled:
            self.opened.store.dispatcher.dirty[queue] = None  # perhaps not even begun; closing does it
            raise

    async def forget_mark(self) -> None:
        """Write down that nothing is known to be on the medium, and that consumers see no more than they may now.

        Raises:
            OSError: the disk refused; the old mark stands.
        """
        self._cuts += 1
        async with self._writing:
            self.opened.checkpoint.confirm_offset = self.opened.local.readable_max or 0
            await self.opened.store.world.workers.run(self.opened.checkpoint.forget)

    def _mark(self, position: int) -> RecoveryMark:
        """A mark at `position`, naming a record before it that a queue knows: the last one if that is easily found."""
        store = self.opened.store
        boot_id = store.world.disk.boot_id()
        queues = store.queues.table.values()
        last = max(
            (queue for queue in queues if queue.physical_end <= position),
            key=lambda queue: queue.physical_end,
            default=None,
        )
        unit = last.unit(last.max_offset - 1) if last is not None else None
        if unit is None or unit[1] == PRE_BLANK_SIZE:  # each queue is ahead of the flush, or has nothing
            unit = next((unit for queue in queues if (unit := queue.last_unit_before(position)) is not None), None)
        if unit is None:
            return RecoveryMark(position, position, -1, 0, 0, -1, boot_id)
        offset, size, _ = unit
        view = self.opened.local.record(offset, size)
        span = span_of(view, 0, len(view)) if view is not None else None
        return RecoveryMark(position, position, offset, size, span.store_timestamp if span else 0, -1, boot_id)

    async def close(self) -> None:
        """Finish dispatch, sync everything, remove the abort file; what cannot be synced leaves the abort file standing."""
        store, local = self.opened.store, self.opened.local
        store.writability.shut_down = True
        root = store.config.store_path_root_dir
        try:
            await local.flush()
            with trio.move_on_after(CLOSE_DISPATCH_SECONDS):
                while store.dispatcher.behind_bytes and store.dispatcher.round():
                    await trio.lowlevel.checkpoint()
            while store.dispatcher.dirty:
                await self.save(in_haste=True)
            if store.index is not None:
                await store.world.workers.run(store.index.sync)
                self.opened.checkpoint.index_timestamp = store.index.forced_timestamp
            await self.save()
            if local.readable_max is not None:  # what was noted of it, forced
                self.opened.checkpoint.confirm_offset = local.readable_max
                await store.world.workers.run(self.opened.checkpoint.save)
            if local.failure is None and not store.dispatcher.behind_bytes:
                store.world.disk.remove(f"{root}/abort")
        except OSError as error:
            log.error("store_not_closed_cleanly", path=root, reason=error.strerror or str(error))
        finally:
            _close_files(local, store.queues, store.index)
        log.info("store_closed", path=root, end=local.max_offset)
