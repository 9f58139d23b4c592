"""Who holds how much of the master's log, and which puts that answers (RocketMQ GroupTransferService).

A slave counts once per key: the node's identity in our dialect, the connection in the bare one, where nothing better is known.
Invariant: `confirmed` never retreats and is at most what `replicas - 1` slaves have reported to hold at the same time; a report
beyond the master's own log never gets here, the transfer protocol refuses it. In the bare dialect a slave's first report on a
connection proves nothing (`claim`): anybody can send one, and equal offsets do not make equal logs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import attrs

from ...store.pending import PendingPuts
from ...store.statuses import PutStatus

GAP_MAX = 256 * 1024 * 1024
"""A slave that is this far behind does not count as available (haSlaveFallbehindMax, haMaxGapNotInSync)."""


@attrs.define(eq=False)
class Acknowledgements:
    """The master's books."""

    replicas: int = 2
    """Copies that a waiting put needs, the master's own included (inSyncReplicas)."""
    gap_max: int = GAP_MAX
    confirmed: int = 0
    """Everything before it is on enough slaves (RocketMQ's push2SlaveMaxOffset when one slave is enough)."""
    _held: dict[Hashable, int] = attrs.field(factory=dict[Hashable, int])
    _unproven: set[Hashable] = attrs.field(factory=set[Hashable])
    """Slaves in `_held` of which nothing but their own first word is known: what they claim to hold answers no put."""
    _pending: PendingPuts = attrs.field(factory=lambda: PendingPuts(PutStatus.FLUSH_SLAVE_TIMEOUT))
    _last_end: int = 0
    _answered_end: int = 0
    """`_last_end` as it was when a put began to wait and no other did."""

    @property
    def slave_count(self) -> int:
        """Slaves that are connected and have reported."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Puts that wait."""
        return len(self._pending)

    def claim(self, slave: Hashable, offset: int) -> None:
        """Note that `slave` says that it holds everything before `offset`, of which it was sent nothing yet."""
        self._held[slave] = offset
        self._unproven.add(slave)

    def hold(self, slave: Hashable, offset: int) -> None:
        """Note that `slave` holds everything before `offset`, and answer the puts that this makes safe."""
        self._held[slave] = offset
        self._unproven.discard(slave)
        proven = [held for other, held in self._held.items() if other not in self._unproven] if self._unproven else None
        if len(proven if proven is not None else self._held) >= self.replicas - 1:
            reached = self._reached(proven if proven is not None else self._held.values()) if self.replicas > 1 else offset
            if reached > self.confirmed:
                self.confirmed = reached
                self._pending.reach(reached)

    def _reached(self, held: Iterable[int]) -> int:
        """What as many slaves hold as a put needs."""
        return sorted(held, reverse=True)[self.replicas - 2]

    def leave(self, slave: Hashable) -> None:
        """Forget a slave whose connection ended; what it confirmed stays confirmed."""
        self._held.pop(slave, None)
        self._unproven.discard(slave)

    def is_slave_ok(self, end: int) -> bool:
        """RocketMQ isSlaveOK: enough slaves are connected, and the log has not run away from them."""
        if len(self._held) < max(self.replicas - 1, 1):
            return False
        claimed = self._reached(self._held.values()) if self._unproven and self.replicas > 1 else 0
        return end - max(self.confirmed, claimed) < self.gap_max

    def in_sync_replicas(self, end: int) -> int:
        """RocketMQ inSyncReplicasNums: the master and every connected slave that is not too far behind."""
        return 1 + sum(end - offset < self.gap_max for offset in self._held.values())

    def wait(self, end: int, deadline: float, done: Callable[[PutStatus], None]) -> None:
        """Answer once, when enough nodes hold everything before `end`, or at the deadline.

        The deadline is never earlier than that of a put that came before.
        """
        if not self.is_slave_ok(end):
            done(PutStatus.SLAVE_NOT_AVAILABLE)
        elif end <= self.confirmed:
            done(PutStatus.PUT_OK)
        else:
            if not len(self._pending):
                self._answered_end = self._last_end
            self._pending.add(end, deadline, done)
        self._last_end = end

    def expire(self, now: float) -> None:
        """Answer the puts that have waited for too long."""
        self._pending.expire(now)

    def fail(self, status: PutStatus) -> None:
        """Answer all puts that wait: there is nothing to wait for any more."""
        self._pending.fail(status)

    def unanswered_from(self, log_end: int) -> int:
        """Where bytes may begin whose put still waits; `log_end` when none does.

        A slave that begins with an empty log must begin here or before: its first report would otherwise seem to cover bytes
        that it was never sent.
        """
        return max(self.confirmed, self._answered_end) if len(self._pending) else log_end
