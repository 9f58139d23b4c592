"""What operators' tools may ask of a broker over HTTP: its metrics, and whether it is ready for its clients."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ..remoting.metrics import Latencies, LoopTurns
from ..remoting.monitoring import Monitoring
from ..store.message_store import MessageStore
from .broker import Broker
from .live_config import LiveConfig
from .metrics import Metrics
from .registration import Registration
from .role import LiveRole


@attrs.frozen(kw_only=True)
class Readiness:
    """The checks of one broker."""

    config: LiveConfig
    store: MessageStore
    role: LiveRole
    registration: Registration
    is_following: Callable[[], bool]
    """Whether a slave or follower is connected to its master or knows its leader."""
    lag_bytes: Callable[[], int]
    """How many bytes a slave is behind its master."""

    def faults(self) -> dict[str, str | None]:
        """What is missing for clients, by the name of the check; None where nothing is."""
        config, leads = self.config.now, self.role.takes_puts
        nobody = "no name server has registered this broker" if config.name_servers else None
        alone = f"{self.role.refusal}; and none is connected" if not (leads or self.is_following()) else None
        lag, lag_max = self.lag_bytes(), config.ha_max_gap_not_in_sync
        behind = f"{lag} bytes behind its master, haMaxGapNotInSync is {lag_max}" if lag > lag_max else None
        writability = self.store.writability
        return {
            "store": self.store.log.failure or (writability.refusal if leads else writability.disk_refusal),
            "registered": None if self.registration.registered_with else nobody,
            "role": alone,
            "lag": behind,
        }


def monitoring_of(broker: Broker, turns: LoopTurns, latencies: Latencies) -> Monitoring:
    """What operators' tools may ask over HTTP."""
    metrics = Metrics(
        cluster=broker.config.broker_cluster_name,
        broker=broker.config.broker_name,
        store=broker.store,
        role=broker.role,
        topics=broker.topics,
        groups=broker.groups,
        offsets=broker.offsets,
        consumers=broker.consumers,
        producers=broker.producers,
        stats=broker.stats,
        scrubber=broker.scrubber,
        replication=broker.replication.status,
        lag_bytes=lambda: broker.node.lag_bytes,
        turns=turns,
        latencies=latencies,
    )
    readiness = Readiness(
        config=broker.live_config,
        store=broker.store,
        role=broker.role,
        registration=broker.registration,
        is_following=lambda: broker.node.is_following,
        lag_bytes=lambda: broker.node.lag_bytes,
    )
    return Monitoring(metrics.text, readiness.faults)
