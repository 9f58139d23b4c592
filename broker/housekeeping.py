"""What a broker does by the clock: it answers overdue pulls, counts, reads back its log, and forgets who is silent."""

from __future__ import annotations

from contextlib import suppress

import attrs

from ..remoting.dispatcher import Dispatcher
from ..remoting.errors import RequestRefused
from ..store.keeping.scrub import Scrubber
from ..world.clock import Clock
from ..world.slices import in_slices
from ..world.supervision import keep_running
from ..world.ticks import next_tick
from .requests.client_requests import ClientRequests
from .requests.pull import PullService
from .role import LiveRole
from .stats import Stats
from .tables.clients import SCAN_SECONDS
from .tables.locks import QueueLocks
from .tables.table_log import TableLog

HOUSEKEEPING_SECONDS = 1.0
"""How often the broker answers overdue pulls, updates its statistics and reads back a part of its log."""


@attrs.frozen(eq=False, kw_only=True, repr=False)
class Housekeeping:
    """The work of one broker that comes with time."""

    clock: Clock
    began: float
    """When the broker was made, by the monotonic clock."""
    dispatcher: Dispatcher
    role: LiveRole
    stats: Stats
    pulls: PullService
    clients: ClientRequests
    scrubber: Scrubber
    locks: QueueLocks
    table_log: TableLog

    async def run(self) -> None:
        """Do it until cancelled."""
        scan_at = self.clock.monotonic() + SCAN_SECONDS
        while True:
            await next_tick(HOUSEKEEPING_SECONDS)
            now = self.clock.monotonic()
            self.pulls.sweep(now)
            # Not the time of day, which may be set back or forward: rates are of the time that has passed.
            self.stats.tick(self.stats.started_ms + round((now - self.began) * 1000))
            if self.scrubber.is_due:
                self.dispatcher.start_soon(keep_running, "scrubbing", self.scrubber.tick)
            if now >= scan_at:
                scan_at = now + SCAN_SECONDS
                self.clients.expire(now)
                await self.end_leases(now)

    async def end_leases(self, now: float) -> None:
        """End the leases that nobody has renewed in time, in several turns: those of a client that is gone end together."""
        async for keys in in_slices(self.locks.keys()):
            if self.role.takes_puts and (expired := self.locks.expired(keys, now)):  # renewals are known to the master alone
                with suppress(RequestRefused):
                    self.table_log.put_leases(expired)
