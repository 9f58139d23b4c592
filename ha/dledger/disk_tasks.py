"""The disk operations of a node other than appends: group commit, repair after a failed sync, checkpoints, hard state.

One lock serialises the worker jobs that change or sync the ledger's files. In the meantime entries are appended on the event
loop; a sync covers what was written before it began.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import trio

from ...world.events import get_logger
from ...world.ticks import next_tick
from ...world.workers import Workers
from ..raft.ready import HardState
from .dialect import Core
from .ledger.hard_state import HardStateFile, TermAndVote
from .ledger.ledger import Ledger

log = get_logger(__name__)

RETRY_SECONDS = 1.0
"""Pause in seconds before a failed disk operation is tried again, or the ledger is healed after a failed append."""
REFUSALS_MAX = 3
"""After how many failed appends, syncs or repairs in a row a leader hands over; each comes at least a second after the last."""
REFUSALS_PAUSE = 30
"""After how many more it hands over again, because the disks of all nodes may be full."""


@attrs.define(eq=False)
class DiskTasks:
    """The disk operations of one node."""

    ledger: Ledger
    core: Core[Any]
    hard_state_file: HardStateFile
    workers: Workers
    sync: bool
    """Whether entries count as durable only when they are synced; otherwise they do as soon as they are written."""
    flush_seconds: float
    checkpoint_seconds: float
    on_durable: Callable[[], None]
    """Called when more of the log counts as durable."""
    on_failed: Callable[[str], bool]
    """Called with the reason when another node should lead; returns whether leadership is being transferred."""
    lock: trio.Lock = attrs.field(factory=trio.Lock)
    _grown: trio.Event = attrs.field(factory=trio.Event)
    _refusals: int = 0
    """How often in a row the disk has refused an append, a sync or a repair, less the pause after a transfer of leadership."""

    def __attrs_post_init__(self) -> None:
        self.ledger.on_withdrawn = self._withdrew

    def _withdrew(self) -> None:
        self._grown.set()

    def written(self) -> None:
        """Note that more of the log has been written."""
        self._refusals = 0
        if not self.sync:
            self.core.persisted(self.core.sync_point())
        self._grown.set()

    async def save(self, state: HardState) -> None:
        """Make term and vote durable, with retries until that succeeds; until then the node sends no message."""
        while True:
            try:
                await self.workers.run(self.hard_state_file.save, TermAndVote(state.term, state.vote or ""))
            except OSError as error:
                log.error("hard_state_not_saved", term=state.term, reason=error.strerror or str(error))
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    async def change(self, change: Callable[[], object]) -> None:
        """Run a change of the ledger's files on a worker, while no sync runs."""
        async with self.lock:
            await self.workers.run(change)

    async def sync_forever(self) -> None:
        """Run one sync after another; each covers all that was written before it began (group commit)."""
        while True:
            await self._grown.wait()
            if not self.sync:
                await trio.sleep(self.flush_seconds)
            self._grown = trio.Event()
            await self.sync_written()
            while self.ledger.failure is not None:
                self._refused()
                await trio.sleep(RETRY_SECONDS)
                await self._heal()

    def _refused(self) -> None:
        """Let another node lead after several refusals. On a full disk each repair succeeds, and the next append fails."""
        self._refusals += 1
        if self._refusals >= REFUSALS_MAX and self.on_failed("its disk takes no entries"):
            self._refusals = -REFUSALS_PAUSE

    async def sync_written(self) -> None:
        """Sync what has been written; if the disk fails, set the ledger's `failure`, which refuses appends."""
        ledger = self.ledger
        async with self.lock:
            point, start, end = self.core.sync_point(), ledger.synced_position, ledger.end
            if ledger.failure is None and end.position > start:
                try:
                    await self.workers.run(ledger.force, start, end.position)
                except OSError as error:
                    ledger.failed(error)
                    log.error("ledger_sync_failed", reason=ledger.failure, synced_index=ledger.synced_index)
                    self.on_failed("its disk fails to sync")
                else:
                    ledger.reached(end)
        if ledger.failure is None:
            self.core.persisted(point)
            self.on_durable()

    async def _heal(self) -> None:
        ledger = self.ledger
        async with self.lock:
            point = self.core.sync_point()
            try:
                await self.workers.run(ledger.heal)
            except OSError as error:
                log.warning("ledger_still_failing", reason=error.strerror or str(error))
                return
        log.info("ledger_healed", synced_index=ledger.synced_index)
        self.core.persisted(point)
        self.on_durable()

    async def checkpoint_forever(self) -> None:
        """Write the checkpoint at intervals of `checkpoint_seconds`."""
        while True:
            await next_tick(self.checkpoint_seconds)
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write the checkpoint if it has changed; if the disk fails, the next call tries again."""
        ledger = self.ledger
        async with self.lock:
            present = ledger.checkpoint
            known = present.synced_index, present.committed_index
            if known == (ledger.synced_index, ledger.committed_index) and not present.index_unsure:
                return
            try:
                await self.workers.run(ledger.write_checkpoint)
            except OSError as error:
                log.warning("ledger_checkpoint_not_written", reason=error.strerror or str(error))
