"""The metrics of a controller, and whether it is ready: whether it leads or knows who does.

Every controller knows the broker names, masters and sets that are confirmed; only the leader knows which replicas are alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from ...remoting.codes import ResponseCode
from ...remoting.metrics import Family, Histograms, Latencies, LoopTurns, Row, exposition, latencies_of, one, turns_of
from ...remoting.monitoring import Monitoring
from .member import ControllerMember
from .service import ControllerService
from .state import BrokerSet


def monitoring_of(service: ControllerService, turns: LoopTurns, latencies: Latencies) -> Monitoring:
    """What operators' tools may ask a controller; all controllers of a group have one `node_id`, which is the group's name."""
    constant = {"cluster": "", "node_type": "controller", "node_id": service.config.group}
    return Monitoring(
        lambda: exposition(constant, _families(service, turns, latencies)),
        lambda: {"leader": None if service.node.replica.leading.leader is not None else "no controller leads"},
    )


def _families(service: ControllerService, turns: LoopTurns, latencies: Latencies) -> Iterator[Family | Histograms]:
    node = service.node
    yield from _of_the_group(node)
    yield one("ledgermq_controller_broker_names", "Broker names with replicas.", lambda: len(_sets(node)))
    yield one(
        "ledgermq_controller_masterless_names",
        "Broker names without a master.",
        lambda: sum(each.master_id is None for each in _sets(node)),
    )
    yield _by_name(node, "replicas", "Replicas that are registered.", lambda each: len(each.replicas))
    yield _by_name(node, "in_sync_replicas", "Replicas in sync, the master included.", lambda each: len(each.in_sync))
    yield _by_name(node, "master_epoch", "The epoch of the master.", lambda each: each.master_epoch)
    if node.replica.is_leader:
        yield _by_name(
            node,
            "live_replicas",
            "Replicas that the leading controller has heard of within their time-out.",
            lambda each: sum(node.situation.is_alive(each, broker_id) for broker_id in each.replicas),
        )
    yield one(
        "ledgermq_controller_elections", "Masters that this controller has elected.", lambda: node.elections, counter=True
    )
    yield Family(
        "ledgermq_controller_requests_refused",
        "Requests for a decision that this controller has refused.",
        ("code",),
        lambda: [((ResponseCode(code).name,), partial(service.refused.__getitem__, code)) for code in service.refused],
        counter=True,
    )
    yield latencies_of(latencies)
    yield turns_of(turns)


def _of_the_group(node: ControllerMember) -> Iterator[Family]:
    replica = node.replica
    yield one("ledgermq_raft_term", "The term.", lambda: replica.leading.term)
    yield one("ledgermq_raft_leads", "1 if this node leads, else 0.", lambda: replica.is_leader)
    yield one(
        "ledgermq_raft_knows_leader", "1 if this node knows who leads, else 0.", lambda: replica.leading.leader is not None
    )
    yield one("ledgermq_raft_committed_index", "The last committed entry.", lambda: replica.ledger.committed_index)
    yield one("ledgermq_raft_end_index", "The last entry.", lambda: replica.ledger.end_index)


def _sets(node: ControllerMember) -> list[BrokerSet]:
    return [each for each in node.state.sets.values() if each.replicas]


def _by_name(node: ControllerMember, name: str, text: str, value: Callable[[BrokerSet], float]) -> Family:
    def rows() -> list[Row]:
        return [((each.name,), partial(value, each)) for each in _sets(node)]

    return Family(f"ledgermq_controller_{name}", text, ("broker",), rows)
