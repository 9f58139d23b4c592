"""Opening and closing a store: lock, load, recover, run, and leave it so that the next start finds everything.

Order of opening: lock, commit log, queues, checkpoint, index, recovery, queue offset table, abort file, tasks. A failure
anywhere closes what was opened and changes nothing more. The abort file exists from the last step of opening to the last of
closing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import trio

from ..message.layout import encode_host
from ..world.disk import Disk
from ..world.events import get_logger
from ..world.files import make_directory
from ..world.real import World
from .checkpoint import Checkpoint
from .config import StoreConfig
from .derived.consumequeue import ConsumeQueues
from .derived.deletions import deletions_file
from .derived.dispatch import Dispatcher, TagsCodes
from .derived.events import LogEvents
from .derived.index import IndexFiles
from .derived.queue_places import load_places
from .errors import ForeignQueues
from .keeping.cleaning import Cleaner
from .locking import lock_store
from .log.commitlog import CommitLog, OpenCommitLog
from .log.local_commitlog import open_local_commit_log
from .log.reserve import RESERVE_BYTES_MIN, RESERVE_SHARE, Reserve
from .message_store import MessageStore
from .offline import unfinished_copy
from .recovery.checkpointing import CheckpointKeeper
from .recovery.damage import lost_index_files, lost_units, remove_corrupt_queues
from .recovery.recovery import Recovered, recover
from .recovery_mark import INDEX_OFF, RecoveryMark

log = get_logger(__name__)

FOREIGN_QUEUES = ("consumequeue_ext", "batchconsumequeue")
"""Directories of queues that only RocketMQ reads."""


@attrs.frozen(repr=False)
class _Opened:
    store: MessageStore
    checkpoint: Checkpoint
    recovered: Recovered
    clean_exit: bool


@asynccontextmanager
async def open_message_store(
    world: World,
    config: StoreConfig,
    *,
    store_host: tuple[str, int] = ("127.0.0.1", 10911),
    open_commit_log: OpenCommitLog = open_local_commit_log,
    log_directory: str = "",
) -> AsyncGenerator[MessageStore]:
    """Open the store of `config.store_path_root_dir`, creating it if there is none.

    Args:
        store_host: address that message ids carry; clients must be able to reach it.
        open_commit_log: opens the log of the wanted mode.
        log_directory: the directory of that log, if it is not `config.commit_log_directory`, which is locked in every mode.

    Raises:
        StoreInUse: another broker has it open. Nothing was changed.
        UnfinishedCopy: the store is being written by a copy that did not end, or has not yet. Nothing was changed.
        WrongSegmentSize, DamagedLog: see these classes. Nothing was truncated.
        OSError: the disk refused.
    Durability: on leaving, everything appended is synced and the next start has nothing to recover.
    Cancellation: leaves the store as a clean exit does.
    """
    root = config.store_path_root_dir
    if (copy := unfinished_copy(world.disk, root)) is not None:
        raise copy
    world.disk.make_directories(root)
    world.disk.make_directories(config.commit_log_directory)
    if log_directory:
        make_directory(world.disk, log_directory)
    lock = lock_store(world.disk, root, config.commit_log_directory, *filter(None, [log_directory]))
    try:
        opened = await world.workers.run(_open, world, config, store_host, open_commit_log)
        store, keeper = opened.store, CheckpointKeeper(opened.store, opened.checkpoint)
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
            cleaner = store.cleaner = Cleaner(store)
            store.checkpoints = keeper
            cleaner.reserve = Reserve(
                world.disk, root, max(config.mapped_file_size_commit_log // RESERVE_SHARE, RESERVE_BYTES_MIN)
            )
            cleaner.before_removal, cleaner.mark_until = keeper.allow_removal, keeper.mark_until
            await world.workers.run(_create_abort_file, world, root)
            async with trio.open_nursery() as nursery:
                await nursery.start(store.log.run)
                await nursery.start(store.dispatcher.run)
                nursery.start_soon(keeper.run)
                nursery.start_soon(cleaner.run)
                yield store
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await keeper.close()
    finally:
        lock.release()


def _create_abort_file(world: World, root: str) -> None:
    """Create the abort file on the medium: without it, a power cut would look like a clean exit."""
    if not world.disk.exists(f"{root}/abort"):
        world.disk.open(f"{root}/abort", create_size=0).close()
    world.disk.sync_directory(root)


@attrs.frozen
class _LastRun:
    """What the last run left, from which follows how far its files are believed."""

    checkpoint: Checkpoint
    mark: RecoveryMark | None
    note: RecoveryMark | None
    clean_exit: bool
    page_cache_intact: bool
    """Whether every byte that was written is still there.

    After a mere crash of the process all of them are still in the page cache; only after a crash of the machine may bytes that
    were written, but not synced, be missing in any order.
    """

    @classmethod
    def of(cls, disk: Disk, root: str) -> _LastRun:
        clean_exit = not disk.exists(f"{root}/abort")
        checkpoint = Checkpoint(disk, f"{root}/checkpoint")
        checkpoint.load()
        mark, note = RecoveryMark.decode(checkpoint.mark), RecoveryMark.decode(checkpoint.note)
        same_boot = mark is not None and mark.boot_id == disk.boot_id() != ""
        return cls(checkpoint, mark, note, clean_exit, clean_exit or same_boot)


def _open(world: World, config: StoreConfig, store_host: tuple[str, int], open_commit_log: OpenCommitLog) -> _Opened:
    disk, root = world.disk, config.store_path_root_dir
    for name in FOREIGN_QUEUES:
        if disk.list_directory(f"{root}/{name}"):
            raise ForeignQueues(f"{root}/{name}")
    last_run = _LastRun.of(disk, root)
    queues = ConsumeQueues(disk, f"{root}/consumequeue", config.mapped_file_size_consume_queue)
    if last_run.checkpoint.derives_anew:
        _drop_derived(disk, root, queues)
    store = _assemble(world, config, store_host, open_commit_log(world, config), queues)
    try:
        places = load_places(disk, root, last_run.mark) if last_run.clean_exit and last_run.mark is not None else None
        queues.load(
            page_cache_intact=last_run.page_cache_intact,
            places=places.table if places is not None else None,
            log_min_offset=places.log_min_offset if places is not None else 0,
        )
        store.events.load(deletions_file(disk, root))
        index_lost_from = _load_index(store, last_run)
        derived_damaged = _is_derived_damaged(store, last_run)
        recovered = _recover(store, last_run, index_lost_from, derived_damaged=derived_damaged)
    except BaseException:
        last_run.checkpoint.close()
        store.close_files()
        raise
    _continue(store, last_run, recovered)
    for queue in queues.table.values():
        if queue not in store.dispatcher.dirty:
            queue.segments.park()  # most queues are not used for long
    return _Opened(store, last_run.checkpoint, recovered, last_run.clean_exit)


def _load_index(store: MessageStore, last_run: _LastRun) -> int | None:
    """Load the index, if there is one; returns the physical offset from which on records have to be indexed again, or None."""
    index, log_start, mark = store.index, store.log.min_offset, last_run.mark
    if index is None:
        return None
    intact = last_run.page_cache_intact
    lost_from = index.load(
        page_cache_intact=intact,
        forced_offset=-1 if mark is None else mark.indexed_offset,
        partial=mark.partial_index if mark is not None else None,
    )
    disk, missing = store.world.disk, False
    if mark is not None:
        missing = not disk.exists(index.directory) or lost_index_files(
            mark, last_run.note, store.log, index, page_cache_intact=intact
        )
        behind = intact and index.end_physical_offset < mark.indexed_offset
        if not missing and (behind or (mark.index_files == INDEX_OFF and lost_from is None)):
            lost_from = index.end_physical_offset
    if missing or last_run.checkpoint.derives_anew:
        index.clear()
        lost_from = log_start
    disk.make_directories(index.directory)
    return lost_from


def _is_derived_damaged(store: MessageStore, last_run: _LastRun) -> bool:
    """Whether queues or deletions lack what the last run had derived, so that everything is derived again."""
    log, queues, mark = store.log, store.queues, last_run.mark
    damaged = (
        last_run.checkpoint.derives_anew
        or queues.damaged
        or remove_corrupt_queues(log, queues, page_cache_intact=last_run.page_cache_intact)
    )
    if mark is not None and not log.empty and store.world.disk.list_directory(queues.directory):
        damaged |= lost_units(mark, log, queues) or _lost_deletions(mark, store)
    return damaged


def _recover(store: MessageStore, last_run: _LastRun, index_lost_from: int | None, *, derived_damaged: bool) -> Recovered:
    """Make queues and index agree with the log, as far as consumers may read it."""
    log, dispatcher, checkpoint = store.log, store.dispatcher, last_run.checkpoint
    log.limit_readable(checkpoint.confirm_offset)
    recovered = recover(
        log,
        list(store.queues.table.values()),
        dispatcher,
        checkpoint,
        last_run.mark,
        clean_exit=last_run.clean_exit,
        page_cache_intact=last_run.page_cache_intact,
        check_crc=store.config.check_crc_on_recover,
        note=last_run.note,
        index_lost_from=index_lost_from,
        derived_damaged=derived_damaged,
    )
    if log.readable_limit is not None:
        checkpoint.open()
        _limit_readable(log, max(log.readable_limit, dispatcher.dispatched_offset), checkpoint)
    return recovered


def _continue(store: MessageStore, last_run: _LastRun, recovered: Recovered) -> None:
    """Let timestamps, queue offsets and derivation continue behind what was recovered."""
    log, dispatcher = store.log, store.dispatcher
    if store.index is not None:
        store.index.cut(recovered.end)
    noted = (found.record_store_timestamp for found in (last_run.mark, last_run.note) if found is not None)
    store.last_timestamp = max(dispatcher.last_store_timestamp, *noted, 0)
    store.take_up_next_offsets()
    store.events.recovering = False
    log.on_syncing.append(dispatcher.sync_began)
    log.on_readable.append(dispatcher.wake)
    log.on_truncated.append(dispatcher.cut)


def _drop_derived(disk: Disk, root: str, queues: ConsumeQueues) -> None:
    """Remove what was derived from a log that was being replaced; everything is derived again from the existing log."""
    log.warning("derived_files_dropped", path=root, reason="the last run ended while the log was being replaced")
    queues.clear()
    deletions = deletions_file(disk, root)
    for path in (deletions.path, deletions.backup_path):
        if disk.exists(path):
            disk.remove(path)
    disk.sync_directory(root)


def _lost_deletions(mark: RecoveryMark, store: MessageStore) -> bool:
    """Whether the deletions that were read differ from the mark's; deriving the whole log finds the right ones again."""
    events = store.events
    if mark.deletions_crc < 0 or store.log.min_offset != mark.log_min_offset:
        return False
    if events.crc_of(events.deletions.items()) == mark.deletions_crc:
        return False
    log.error("deletions_lost", path=deletions_file(store.world.disk, store.config.store_path_root_dir).path)
    return True


def _limit_readable(commit_log: CommitLog, readable: int, checkpoint: Checkpoint) -> None:
    """Let consumers read what is before `readable`, as far as recovery has found it.

    In place of what was not found, another node may send other bytes, which no later start may count as readable.
    """
    commit_log.limit_readable(min(readable, commit_log.max_offset))
    limit = commit_log.readable_limit
    if limit is not None and limit < checkpoint.confirm_offset:
        checkpoint.write_confirm_offset(limit)
        checkpoint.save()


def _assemble(
    world: World,
    config: StoreConfig,
    store_host: tuple[str, int],
    commit_log: CommitLog,
    queues: ConsumeQueues,
) -> MessageStore:
    index: IndexFiles | None = None
    if config.message_index_enable:
        index = IndexFiles(
            world.disk,
            f"{config.store_path_root_dir}/index",
            world.clock,
            slot_count=config.max_hash_slot_num,
            entry_count=config.max_index_num,
        )
    events = LogEvents(commit_log, queues, world.processor)
    dispatcher = Dispatcher(
        commit_log, TagsCodes(config.delay_levels_ms), queues.of, index, queues.open_files, on_control=events.apply
    )
    store = MessageStore(
        config=config,
        world=world,
        log=commit_log,
        store_host=encode_host(*store_host),
        dispatcher=dispatcher,
        queues=queues,
        index=index,
        events=events,
    )

    def failed(error: OSError) -> None:
        if store.writability.queue_error is None:
            log.error("dispatch_failed", path=error.filename or "", reason=error.strerror or str(error))
        store.writability.queue_error = error.strerror or str(error)

    def succeeded() -> None:
        if store.writability.queue_error is not None:
            log.info("dispatch_resumed", dispatched_offset=dispatcher.dispatched_offset)
        store.writability.queue_error = None

    dispatcher.on_failure, dispatcher.on_success = failed, succeeded
    return store
