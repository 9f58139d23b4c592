"""Deleting what has expired and watching the disk (RocketMQ CleanCommitLogService, CleanConsumeQueueService).

The decisions are those of `retention`; here they are carried out, every `clean_resource_interval`. Queues and index follow the
log: what they say about records that are gone goes too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

import attrs
import trio

from ..world.events import get_logger
from ..world.ticks import next_tick
from .put_side import PutSide
from .retention import MANUAL_ROUNDS, FileAge, Reason, RetentionRules, disk_full, due

log = get_logger(__name__)


async def _nothing_to_write(_log_min_offset: int) -> None:
    await trio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Cleaner:
    """Carries out retention on one store."""

    store: PutSide
    before_removal: Callable[[int], Awaitable[None]] = _nothing_to_write
    """Called with what will be the log's min offset before files are removed: the next start must not miss them."""
    _manual_rounds: int = 0

    async def run(self) -> None:
        """Clean at every interval, until cancelled."""
        while True:
            await next_tick(self.store.config.clean_resource_interval / 1000)
            try:
                await self.clean()
            except OSError as error:
                log.warning("cleaning_failed", reason=error.strerror or str(error))

    async def delete_expired(self) -> None:
        """An operator asks for expired files to go now, whatever the hour.

        Raises:
            OSError: see `clean`.
        """
        self._manual_rounds = MANUAL_ROUNDS
        await self.clean()

    async def clean(self) -> None:
        """One round.

        Raises:
            OSError: a file could not be deleted or looked at; the next round tries again.
        """
        rules, commit_log = RetentionRules.of(self.store.config), self.store.log
        now_ms = self.store.world.clock.wall_ms()
        ratio = self.store.disk_ratio()
        deletion = due(
            self._ages(),
            now_ms=now_ms,
            local_hour=datetime.fromtimestamp(now_ms / 1000).astimezone().hour,
            disk_ratio=ratio,
            rules=rules,
            manual=self._manual_rounds > 0,
        )
        self._manual_rounds = max(self._manual_rounds - 1, 0)
        # What is not yet on the medium, or not yet in the queues, which are derived from it, stays.
        safe = min(commit_log.flushed_offset, self.store.dispatcher.dispatched_offset)
        oldest = commit_log.files()[: len(deletion.names)]
        removed = [segment for segment in oldest if segment.end <= safe]
        await self.store.queue_ends.pay()
        if removed and not await self._keep_queue_ends(removed[-1].end) and deletion.reason is not Reason.FORCED:
            removed = []
        if removed:
            await self.before_removal(removed[-1].end)
        for segment in removed:
            await commit_log.remove_oldest()
            if deletion.reason is Reason.FORCED:
                # Before its time: somebody may still have wanted to read it.
                log.warning("unexpired_segment_deleted", path=segment.path, used_ratio=round(ratio, 4))
            else:
                log.info("segment_deleted", path=segment.path, reason=deletion.reason.value if deletion.reason else "")
        if removed:
            await self.follow_log()
        self._mark_disk(disk_full(self.store.disk_ratio(), rules), ratio)

    async def _keep_queue_ends(self, low: int) -> bool:
        """Say in the log where queues go on whose messages before `low` are about to go; returns whether that is said.

        A replica cannot say it, and need not: its master does.
        """
        ends = self.store.queue_ends
        if self.store.writability.hard_refusal is not None or await ends.say(low):
            return True
        ends.owed = True
        return False

    def _ages(self) -> list[FileAge]:
        disk = self.store.world.disk
        return [
            FileAge(segment.path.rpartition("/")[2], disk.modified_ms(segment.path), segment.size)
            for segment in self.store.log.files()
        ]

    async def follow_log(self) -> None:
        """Drop what queues and index say about records that are gone from the log.

        Raises:
            OSError: a file could not be deleted; the next round tries again.
        """
        low = self.store.log.min_offset
        await self.before_removal(low)
        for queue in self.store.queues.table.values():
            queue.expire(low)
        if self.store.index is not None:
            self.store.index.expire(low)

    def _mark_disk(self, full: bool, ratio: float) -> None:
        writability = self.store.writability
        if full != writability.disk_full:
            log.warning("disk_full" if full else "disk_has_space_again", used_ratio=round(ratio, 4))
        writability.disk_full = full
