"""Deleting what has expired and watching the disk (RocketMQ CleanCommitLogService, CleanConsumeQueueService).

`retention` decides what to delete; this module does it, every `clean_resource_interval` milliseconds. Queues and index follow
the log: their files are deleted when the records in them are gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Protocol

import attrs
import trio

from ...world.events import get_logger
from ...world.slices import ROWS_PER_SLICE, in_slices
from ...world.ticks import next_tick
from ..config import CONSUMED
from ..log.reserve import Reserve
from ..put_side import PutSide
from .retention import MANUAL_ROUNDS, FileAge, Reason, RetentionRules, disk_full, due

log = get_logger(__name__)

FILES_PER_TURN_MAX = 100
"""How many files of queues are removed in one turn of the event loop, which takes some 30 ms."""


@attrs.frozen
class Unread:
    """The oldest message that a group has not read."""

    physical_offset: int
    text: str
    """Who has not read what, for an operator."""


class Readers(Protocol):
    """What knows which messages have been read."""

    async def oldest_unread(self) -> Unread: ...

    async def note_lost(self, begins: Mapping[tuple[str, int], int], *, forced: bool) -> None:
        """Called after messages were deleted, with the min offset that each queue had before."""
        ...


async def _nothing_to_write(_log_min_offset: int) -> None:
    await trio.lowlevel.checkpoint()


async def _always(_end: int) -> bool:
    return True


async def _all_is_marked(offset: int) -> int:
    await trio.lowlevel.checkpoint()
    return offset


@attrs.define(eq=False)
class Cleaner:
    """Carries out retention on one store."""

    store: PutSide
    readers: Readers | None = None
    """Without it, nothing counts as read."""
    may_remove: Callable[[int], Awaitable[bool]] = _always
    """Whether nothing is derived from the log before a physical offset that only the log has; a failed one is asked again."""
    before_removal: Callable[[int], Awaitable[None]] = _nothing_to_write
    """Called before files are removed, with the log's later min offset, so that the next start does not count them as lost."""
    mark_until: Callable[[int], Awaitable[int]] = _all_is_marked
    """Advances the recovery mark to an offset if that is possible, and returns where the mark is then. After a power cut, the
    records behind the mark determine the ends of queues, so no file with such records is removed."""
    reserve: Reserve | None = None
    """Room for what is written before files are removed from a full disk."""
    is_behind: bool = False
    """Whether queues or index may still begin before the log, because following it failed."""
    _manual_rounds: int = 0
    _cleaning: trio.Lock = attrs.field(factory=trio.Lock)
    """Held while files are chosen and removed: two rounds at once would choose the same files, and remove younger ones too.
    Also held while queues follow the log: once segments are removed, the mark must not name the beginning from before."""

    async def run(self) -> None:
        """Clean at every interval, until cancelled."""
        step = self._hold_reserve
        while True:
            try:
                await step()
            except OSError as error:
                log.warning("cleaning_failed", reason=error.strerror or str(error))
            await next_tick(self.store.config.clean_resource_interval / 1000)
            step = self.clean

    async def _hold_reserve(self) -> None:
        if self.reserve is not None:
            await self.store.world.workers.run(self.reserve.hold)

    async def delete_expired(self) -> None:
        """Delete expired files now, whatever the hour, as an operator has requested.

        Raises:
            OSError: see `clean`.
        """
        self._manual_rounds = MANUAL_ROUNDS
        await self.clean()

    async def clean(self) -> None:
        """Delete the files that are due now, and check how full the disk is.

        Raises:
            OSError: a file could not be deleted or looked at; the next round tries again.
        """
        async with self._cleaning:
            await self._clean()
            await self._hold_reserve()

    async def _clean(self) -> None:
        rules, commit_log = RetentionRules.of(self.store.config), self.store.log
        now_ms = self.store.world.clock.wall_ms()
        ratio = self.store.disk_ratio()
        unread: Unread | None = None
        if self.readers is not None and rules.pressed(ratio) and rules.forcibly == CONSUMED:
            unread = await self.readers.oldest_unread()
        deletion = due(
            self._ages(),
            now_ms=now_ms,
            local_hour=datetime.fromtimestamp(now_ms / 1000).astimezone().hour,
            disk_ratio=ratio,
            rules=rules,
            manual=self._manual_rounds > 0,
            read_before=unread.physical_offset if unread is not None else 0,
        )
        self._manual_rounds = max(self._manual_rounds - 1, 0)
        # Files are kept that are not yet on the medium, or from which the queues are not yet derived.
        safe = min(commit_log.flushed_offset, self.store.dispatcher.dispatched_offset)
        oldest = commit_log.files()[: len(deletion.names)]
        removed = [segment for segment in oldest if segment.end <= safe]
        if self.is_behind:
            await self._follow_log()
        if removed and self.reserve is not None:
            await self.store.world.workers.run(self.reserve.release)
        if removed:
            safe = await self.mark_until(removed[-1].end)
            removed = [segment for segment in removed if segment.end <= safe]
        ends, has_ends = self.store.queue_ends, False
        await ends.append_pending()
        if removed:
            end = removed[-1].end
            # A replica cannot append them: when it is master, it appends those that its log lacks.
            is_replica = self.store.writability.hard_refusal is not None
            has_ends = not is_replica and await ends.append(end)
            kept = (is_replica or has_ends) and await self.may_remove(end)
            removed = removed if kept or deletion.reason is Reason.FORCED else []
        if removed:
            await self.before_removal(removed[-1].end)
        begins: dict[tuple[str, int], int] = {}
        async for queues in in_slices(list(self.store.queues.table.items()) if removed else [], ROWS_PER_SLICE):
            begins |= {key: queue.min_offset for key, queue in queues}
        try:
            for segment in removed:
                if commit_log.files()[:1] != [segment]:
                    break  # the log was cut meanwhile: what is the oldest file now was not chosen
                await commit_log.remove_oldest()
                if deletion.reason is Reason.FORCED:
                    # It had not expired: a consumer may not have read it yet.
                    log.warning("unexpired_segment_deleted", path=segment.path, used_ratio=round(ratio, 4))
                else:
                    log.info("segment_deleted", path=segment.path, reason=deletion.reason.value if deletion.reason else "")
        finally:  # the log may begin later although the disk failed
            if removed:
                ends.pending |= not has_ends  # a replica may have become master meanwhile, when its log still had them
                await self._follow_log()
                if self.readers is not None and deletion.reason is not Reason.CONSUMED:
                    await self.readers.note_lost(begins, forced=deletion.reason is Reason.FORCED)
        self._mark_disk(self.store.disk_ratio(), rules, unread)

    def _ages(self) -> list[FileAge]:
        disk = self.store.world.disk
        return [
            FileAge(segment.path.rpartition("/")[2], disk.modified_ms(segment.path), segment.size, segment.end)
            for segment in self.store.log.files()
        ]

    async def follow_log(self) -> None:
        """Delete the files of queues and index whose records are gone from the log.

        Raises:
            OSError: a file could not be deleted; the next round tries again.
        """
        async with self._cleaning:
            await self._follow_log()

    async def _follow_log(self) -> None:
        self.is_behind = True
        low, table = self.store.log.min_offset, self.store.queues.table
        async for queues in in_slices(list(table.items())):
            # A checkpoint that was written since the last slice counts the files that this one removes.
            await self.before_removal(low)
            removed = 0
            for key, queue in queues:
                if removed >= FILES_PER_TURN_MAX:
                    removed = 0
                    await trio.lowlevel.checkpoint()
                    await self.before_removal(low)
                if table.get(key) is queue and (count := queue.expire(low)):  # its topic has not been deleted meanwhile
                    removed += count
                    self.store.file_ends.pop(key, None)
        if self.store.index is not None:
            await self.before_removal(low)
            self.store.index.expire(low)
        self.is_behind = False

    def _mark_disk(self, ratio: float, rules: RetentionRules, unread: Unread | None) -> None:
        writability, full = self.store.writability, disk_full(ratio, rules)
        path, kept = self.store.config.commit_log_directory, f"; {unread.text}" if unread is not None and unread.text else ""
        if full and not writability.disk_full:
            log.error("disk_full", path=path, used_ratio=round(ratio, 4), unread=unread.text if unread is not None else "")
        elif writability.disk_full and not full:
            log.info("disk_has_space_again", path=path, used_ratio=round(ratio, 4))
        writability.disk_full = full
        writability.disk_state = f" ({path}: {ratio:.1%} used, {rules.warning_ratio:.0%} allowed{kept})"
