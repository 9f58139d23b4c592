"""The metrics of a name server, and whether it is ready."""

from __future__ import annotations

from collections.abc import Iterator

from ..remoting.metrics import Family, Histograms, Latencies, LoopTurns, exposition, latencies_of, one, turns_of
from ..remoting.monitoring import Monitoring
from ..remoting.server import ServerConnection
from .routes import RouteTable


def monitoring_of(routes: RouteTable[ServerConnection], address: str, turns: LoopTurns, latencies: Latencies) -> Monitoring:
    """What operators' tools may ask a name server, which is ready as soon as it serves.

    Args:
        address: where it serves clients, which identifies it in the metrics.
    """
    constant = {"cluster": "", "node_type": "nameserver", "node_id": address}
    return Monitoring(lambda: exposition(constant, _families(routes, turns, latencies)), dict)


def _families(routes: RouteTable[ServerConnection], turns: LoopTurns, latencies: Latencies) -> Iterator[Family | Histograms]:
    yield one("ledgermq_namesrv_brokers", "Brokers that are registered.", lambda: routes.broker_count)
    yield one("ledgermq_namesrv_masterless_names", "Broker names without a master.", lambda: routes.masterless_count)
    yield one("ledgermq_namesrv_topics", "Topics that are registered.", lambda: routes.topic_count)
    yield latencies_of(latencies)
    yield turns_of(turns)
