"""How much of the master's log each slave holds, and which puts that acknowledges (RocketMQ GroupTransferService).

A slave counts once per key: the node's identity in our dialect, the connection in the bare one, which has no identities.
Invariant: `confirmed` never decreases and is at most the offset that `replicas - 1` slaves have reported at the same time. The
transfer protocol refuses a report beyond the master's own log. In the bare dialect a slave's first report on a connection
proves nothing (`claim`): any peer can send one, and logs of equal length can differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import attrs

from ...store.log.pending import PendingPuts
from ...store.statuses import PutStatus

GAP_MAX = 256 * 1024 * 1024
"""A slave that is this many bytes behind does not count as available (haSlaveFallbehindMax, haMaxGapNotInSync)."""


@attrs.define(eq=False)
class Acknowledgements:
    """The acknowledgements of one master's slaves."""

    replicas: int = 2
    """How many copies, including the master's, a waiting put needs (inSyncReplicas)."""
    gap_max: int = GAP_MAX
    confirmed: int = 0
    """Enough slaves hold everything before this offset (RocketMQ's push2SlaveMaxOffset when one slave is enough)."""
    _held: dict[Hashable, int] = attrs.field(factory=dict[Hashable, int])
    _unproven: set[Hashable] = attrs.field(factory=set[Hashable])
    """Slaves in `_held` that have only claimed an offset, which acknowledges no put."""
    _pending: PendingPuts[PutStatus] = attrs.field(factory=lambda: PendingPuts(PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT))
    _last_end: int = 0
    _answered_end: int = 0
    """The value of `_last_end` when the first of the waiting puts began to wait."""

    @property
    def slave_count(self) -> int:
        """How many slaves are connected and have reported."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """How many puts wait."""
        return len(self._pending)

    def claim(self, slave: Hashable, offset: int) -> None:
        """Record that `slave` claims to hold everything before `offset`, although nothing was sent to it yet."""
        self._held[slave] = offset
        self._unproven.add(slave)

    def hold(self, slave: Hashable, offset: int) -> None:
        """Record that `slave` holds everything before `offset`, and answer the puts that this acknowledges."""
        self._held[slave] = offset
        self._unproven.discard(slave)
        proven = [held for other, held in self._held.items() if other not in self._unproven] if self._unproven else None
        if len(proven if proven is not None else self._held) >= self.replicas - 1:
            reached = self._reached(proven if proven is not None else self._held.values()) if self.replicas > 1 else offset
            if reached > self.confirmed:
                self.confirmed = reached
                self._pending.reach(reached)

    def _reached(self, held: Iterable[int]) -> int:
        """The offset up to which as many slaves hold the log as a put needs."""
        return sorted(held, reverse=True)[self.replicas - 2]

    def leave(self, slave: Hashable) -> None:
        """Remove a slave whose connection ended; what it confirmed stays confirmed."""
        self._held.pop(slave, None)
        self._unproven.discard(slave)

    def is_slave_ok(self, end: int) -> bool:
        """Whether enough slaves are connected and not too far behind (RocketMQ isSlaveOK)."""
        if len(self._held) < max(self.replicas - 1, 1):
            return False
        claimed = self._reached(self._held.values()) if self._unproven and self.replicas > 1 else 0
        return end - max(self.confirmed, claimed) < self.gap_max

    def in_sync_replicas(self, end: int) -> int:
        """How many copies are in sync: the master and every connected slave that is not too far behind (inSyncReplicasNums)."""
        return 1 + sum(end - offset < self.gap_max for offset in self._held.values())

    def wait(self, end: int, deadline: float, done: Callable[[PutStatus], None]) -> None:
        """Answer once: when enough nodes hold everything before `end`, or at the deadline.

        The deadline must not be before that of an earlier put.
        """
        if not self.is_slave_ok(end):
            done(PutStatus.SLAVE_NOT_AVAILABLE)
        elif self._is_acknowledged(end):
            done(PutStatus.PUT_OK)
        else:
            if not len(self._pending):
                self._answered_end = self._last_end
            self._pending.add(end, deadline, done)
        self._last_end = end

    def _is_acknowledged(self, end: int) -> bool:
        return end <= self.confirmed

    def expire(self, now: float) -> None:
        """Answer the puts whose deadline has passed."""
        self._pending.expire(now)

    def fail(self, status: PutStatus) -> None:
        """Answer all waiting puts with `status`."""
        self._pending.fail(status)

    def unanswered_from(self, log_end: int) -> int:
        """The offset from which on bytes may belong to a waiting put; `log_end` if none waits.

        A slave that begins with an empty log must begin here or before. Otherwise its first report would seem to cover bytes
        that were never sent to it.
        """
        return max(self.confirmed, self._answered_end) if len(self._pending) else log_end
