"""One broker name whose replicas ask the controller, without a network: what tests of its decisions share."""

from __future__ import annotations

from typing import Any

import pytest

from ledgermq.ha.controller.decisions import (
    Decision,
    Situation,
    decide_alteration,
    decide_cleaning,
    decide_election,
    decide_id,
    decide_registration,
    heard_from,
    look_for_dead_masters,
)
from ledgermq.ha.controller.liveness import Liveness
from ledgermq.ha.controller.protocol import (
    ANY_BROKER,
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    BrokerHeartbeat,
    CleanBrokerDataRequest,
    ElectMasterRequest,
    RegisterBrokerRequest,
    SyncStateSet,
)
from ledgermq.ha.controller.state import BrokerSet, ControllerState
from ledgermq.remoting.codes import ResponseCode
from ledgermq.remoting.errors import RequestRefused


class Cluster:
    """One broker name, and the situation in which the controller decides about it."""

    def __init__(self, replicas: int = 3, *, unclean: bool = False) -> None:
        self.state, self.liveness, self.now, self.unclean = ControllerState(), Liveness(), 100.0, unclean
        for broker_id in range(1, replicas + 1):
            self.apply_id(broker_id)

    @property
    def situation(self) -> Situation:
        return Situation(self.state, self.liveness, self.now, self.unclean)

    @property
    def set(self) -> BrokerSet:
        return self.state.sets["b1"]

    def carry_out(self, decision: Decision) -> Decision:
        for event in decision.events:
            self.state.apply(event)
        return decision

    def apply_id(self, broker_id: int, code: str = "", *, name: str = "b1") -> Decision:
        request = ApplyBrokerIdRequest(
            cluster_name="c1",
            broker_name=name,
            applied_broker_id=broker_id,
            register_check_code=code or f"h{broker_id}:1;{broker_id}",
        )
        return self.carry_out(decide_id(request, self.situation))

    def beat(self, *ids: int, name: str = "b1", **log_end: int) -> None:
        for broker_id in ids:
            known = self.state.sets.get(name)
            address = known.replicas[broker_id].address if known is not None and broker_id in known.replicas else "h:1"
            beat = BrokerHeartbeat(cluster_name="c1", broker_name=name, broker_addr=address, broker_id=broker_id, **log_end)
            heard_from(beat, self.situation)

    def register(self, broker_id: int, *, name: str = "b1", address: str = "", **fields: Any) -> Decision:
        address = address or f"h{broker_id}:1"
        request = RegisterBrokerRequest(
            cluster_name="c1", broker_name=name, broker_id=broker_id, broker_address=address, **fields
        )
        return self.carry_out(decide_registration(request, self.situation))

    def elect(self, broker_id: int = ANY_BROKER, *, designate: bool = False) -> Decision:
        request = ElectMasterRequest(broker_name="b1", broker_id=broker_id, designate_elect=designate)
        return self.carry_out(decide_election(request, self.situation))

    def alter(
        self, *members: int, master: int | None = None, epoch: int | None = None, set_epoch: int | None = None
    ) -> Decision:
        one = self.set
        request = AlterSyncStateSetRequest(
            broker_name="b1",
            master_broker_id=one.master_id or 0 if master is None else master,
            master_epoch=one.master_epoch if epoch is None else epoch,
        )
        body = SyncStateSet(
            sync_state_set=frozenset(members), sync_state_set_epoch=one.in_sync_epoch if set_epoch is None else set_epoch
        )
        return self.carry_out(decide_alteration(request, body, self.situation))

    def clean(self, ids: str | None = None, *, living: bool = False, name: str = "b1") -> Decision:
        request = CleanBrokerDataRequest(broker_name=name, broker_controller_ids_to_clean=ids, is_clean_living_broker=living)
        return self.carry_out(decide_cleaning(request, self.situation))

    def look(self) -> None:
        self.carry_out(Decision(events=look_for_dead_masters(self.situation)))


def serving(*members: int, unclean: bool = False) -> Cluster:
    """Three replicas that are alive, the first of `members` being the master and these in sync."""
    cluster = Cluster(unclean=unclean)
    cluster.beat(members[0])
    cluster.elect(members[0])
    cluster.beat(1, 2, 3, max_offset=100, epoch=1)
    if len(members) > 1:
        cluster.alter(*members)
    return cluster


def refused(code: ResponseCode, match: str | None = None) -> Any:
    return pytest.raises(RequestRefused, match=match, check=lambda error: error.code == code)
