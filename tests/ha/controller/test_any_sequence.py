"""What holds of the controller's decisions after any sequence of requests."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ledgermq.ha.controller.liveness import TIMEOUT_SECONDS, Liveness
from ledgermq.ha.controller.protocol import ANY_BROKER
from ledgermq.remoting.errors import RequestRefused

from .deciding import Cluster

IDS = st.integers(1, 4)
OFFSETS = st.integers(0, 3)


class AnySequence(RuleBasedStateMachine):
    """Requests in any order, from brokers that may know nothing new, with controllers that come and go."""

    @initialize(unclean=st.booleans())
    def begin(self, unclean: bool) -> None:
        self.cluster = Cluster(unclean=unclean)
        self.before = self.cluster.set

    def attempt(self, request: Any, *arguments: Any, **fields: Any) -> None:
        self.before = self.cluster.set
        try:
            request(*arguments, **fields)
        except RequestRefused:
            assert self.cluster.set == self.before

    @rule(broker_id=IDS, max_offset=OFFSETS, epoch=OFFSETS)
    def beat(self, broker_id: int, max_offset: int, epoch: int) -> None:
        self.attempt(self.cluster.beat, broker_id, max_offset=max_offset, epoch=epoch)

    @rule(broker_id=IDS, max_offset=st.none() | OFFSETS, clean_stop=st.booleans())
    def register(self, broker_id: int, max_offset: int | None, clean_stop: bool) -> None:
        self.attempt(self.cluster.register, broker_id, max_offset=max_offset, epoch=1, clean_stop=clean_stop)

    @rule(broker_id=IDS | st.just(ANY_BROKER), designate=st.booleans())
    def elect(self, broker_id: int, designate: bool) -> None:
        self.attempt(self.cluster.elect, broker_id, designate=designate)

    @rule(members=st.frozensets(IDS), behind=st.integers(0, 1), old=st.integers(0, 1))
    def alter(self, members: frozenset[int], behind: int, old: int) -> None:
        one = self.cluster.set
        epochs = {"set_epoch": max(one.in_sync_epoch - behind, 0), "epoch": max(one.master_epoch - old, 0)}
        self.attempt(self.cluster.alter, *members, **epochs)
        if (behind and one.in_sync_epoch) or old:
            assert self.cluster.set == one

    @rule(broker_id=IDS, living=st.booleans())
    def clean(self, broker_id: int, living: bool) -> None:
        self.attempt(self.cluster.clean, str(broker_id), living=living)

    @rule()
    def apply(self) -> None:
        if len(self.cluster.set.replicas) < 4:
            self.attempt(self.cluster.apply_id, self.cluster.set.next_id)

    @rule(seconds=st.sampled_from([0.5, TIMEOUT_SECONDS, 3 * TIMEOUT_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.cluster.now += seconds
        self.attempt(self.cluster.look)

    @rule()
    def lead_anew(self) -> None:
        self.cluster.liveness = Liveness()
        self.cluster.liveness.begin(self.cluster.now)
        self.before = self.cluster.set

    @invariant()
    def a_master_is_one_of_the_set(self) -> None:
        one = self.cluster.set
        assert one.in_sync <= one.replicas.keys()
        assert one.master_id is None or one.master_id in one.in_sync

    @invariant()
    def epochs_and_ids_grow(self) -> None:
        old, new = self.before, self.cluster.set
        assert new.next_id >= old.next_id > max(old.replicas, default=0)
        assert new.master_epoch >= old.master_epoch
        assert new.in_sync == old.in_sync or new.in_sync_epoch > old.in_sync_epoch
        if new.master_id not in (None, old.master_id):
            assert new.master_epoch == old.master_epoch + 1 or (old.first and new.master_epoch > old.master_epoch)

    @invariant()
    def masters_come_from_the_set(self) -> None:
        old, new = self.before, self.cluster.set
        if new.master_epoch > old.master_epoch and not old.first and not self.cluster.unclean:
            assert new.master_id in old.in_sync


TestAnySequence = AnySequence.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
