"""Which replicas are alive, as one controller knows it from their heartbeats. Nothing of it is replicated. Pure.

A replica is alive while its last heartbeat is younger than the time-out that it carried. It is dead once nothing has been heard
of it for that time, of which only the time since this controller began to lead counts, because brokers may not have reached it
before. In between it is neither: it is not elected, and it is not replaced.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from .protocol import LOWEST_PRIORITY

TIMEOUT_SECONDS = 10.0
"""How long a replica counts as alive after a heartbeat that says no time (RocketMQ controllerHeartBeatTimeoutMills)."""


@attrs.frozen
class LogEnd:
    """How far the log of a replica reached when it was last heard of."""

    epoch: int = -1
    max_offset: int = -1


@attrs.define
class Heard:
    """The last that was heard of one replica."""

    at: float
    """Monotonic seconds."""
    timeout_seconds: float = TIMEOUT_SECONDS
    log_end: LogEnd = attrs.field(factory=LogEnd)
    priority: int = LOWEST_PRIORITY


@attrs.define(eq=False)
class Liveness:
    """What one controller has heard; times are those of its monotonic clock, in seconds."""

    leads_since: float = 0.0
    _heard: dict[tuple[str, int], Heard] = attrs.field(factory=dict[tuple[str, int], Heard])

    def begin(self, now: float) -> None:
        """Begin to judge, as a new leader does; heartbeats that were heard earlier still count as evidence of life."""
        self.leads_since = now

    def hear(self, name: str, broker_id: int, heard: Heard) -> None:
        """Take note of a heartbeat or a registration; the caller knows that the replica exists."""
        self._heard[name, broker_id] = heard

    def last(self, name: str, broker_id: int) -> Heard | None:
        """What was last heard of a replica; None if nothing was."""
        return self._heard.get((name, broker_id))

    def is_alive(self, name: str, broker_id: int, now: float) -> bool:
        """Whether the replica has been heard of within its time-out."""
        heard = self._heard.get((name, broker_id))
        return heard is not None and now < heard.at + heard.timeout_seconds

    def dies_at(self, name: str, broker_id: int, timeout_seconds: float = TIMEOUT_SECONDS) -> float:
        """When the replica is dead unless it is heard of before.

        Args:
            timeout_seconds: the time-out of a replica of which this controller has not heard.
        """
        heard = self._heard.get((name, broker_id))
        if heard is None:
            return self.leads_since + timeout_seconds
        return max(heard.at, self.leads_since) + heard.timeout_seconds

    def forget(self, name: str, broker_ids: Iterable[int]) -> None:
        """Forget replicas that were removed."""
        for broker_id in broker_ids:
            self._heard.pop((name, broker_id), None)
