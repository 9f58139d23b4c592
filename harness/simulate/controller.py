"""The controller's decisions on virtual time, with brokers whose logs are lists; there is no event loop.

One broker name has three replicas. Masters append messages and acknowledge those that all members of the SyncStateSet have, as
far as they know the set. Replicas are killed, lose the end of their logs in crashes, and are cut off from each other and from
the controllers, of which another one leads from time to time. What must hold is in `check` and `check_event`.
"""

from __future__ import annotations

import random
from collections import Counter

import attrs

from ledgermq.ha.controller import decisions
from ledgermq.ha.controller.decisions import Decision, Situation
from ledgermq.ha.controller.liveness import Liveness
from ledgermq.ha.controller.protocol import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    BrokerHeartbeat,
    ElectMasterRequest,
    RegisterBrokerRequest,
    SyncStateSet,
)
from ledgermq.ha.controller.state import (
    BrokerSet,
    Change,
    ControllerState,
    MasterElected,
    StatePiece,
    decode_events,
    encode_events,
)
from ledgermq.remoting.errors import RequestRefused
from ledgermq.testing.history import History

from ..outcome import Outcome

STEPS = 400
REPLICAS = 3
CONTROLLERS = 3
TIMEOUT_SECONDS = 1.0
STEP_SECONDS = 0.2
CLUSTER, NAME = "c1", "b1"


@attrs.define(eq=False)
class Broker:
    """One replica: what is on its disk, and what its process knows."""

    broker_id: int
    log: list[tuple[int, int]] = attrs.field(factory=list[tuple[int, int]])
    """The epoch and the number of each message."""
    durable: int = 0
    """How many messages a crash leaves."""
    up: bool = True
    registered: bool = False
    clean_stop: bool = True
    lossy: bool = False
    """Whether a crash has taken messages, and no registration has said so yet."""
    cut_off: bool = False
    """Whether no request reaches a controller."""
    master_id: int | None = None
    epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    in_sync_epoch: int = -1
    may_be_in_sync: frozenset[int] = frozenset()
    """Members of a set for which it has asked without getting an answer."""

    @property
    def leads(self) -> bool:
        return self.up and self.registered and self.master_id == self.broker_id

    def forget_role(self) -> None:
        self.registered, self.master_id, self.epoch, self.in_sync_epoch = False, None, 0, -1
        self.in_sync = self.may_be_in_sync = frozenset()


@attrs.define(eq=False)
class ControllerRun:
    """The run of one seed."""

    rng: random.Random
    unclean: bool
    state: ControllerState = attrs.field(factory=ControllerState)
    controllers: list[Liveness] = attrs.field(factory=lambda: [Liveness() for _ in range(CONTROLLERS)])
    deaf: set[int] = attrs.field(factory=set[int])
    """The controllers that heartbeats do not reach."""
    leader: int = 0
    leads_since: float = 0.0
    now: float = 0.0
    brokers: dict[int, Broker] = attrs.field(factory=dict[int, Broker])
    parted: set[frozenset[int]] = attrs.field(factory=set[frozenset[int]])
    acknowledged: set[tuple[int, int]] = attrs.field(factory=set[tuple[int, int]])
    appended: int = 0
    counts: Counter[str] = attrs.field(factory=Counter[str])
    trace: list[str] = attrs.field(factory=list[str])
    violations: list[str] = attrs.field(factory=list[str])

    def run(self) -> None:
        for broker_id in range(1, REPLICAS + 1):
            code = f"h{broker_id}:1;1"
            request = ApplyBrokerIdRequest(
                cluster_name=CLUSTER, broker_name=NAME, applied_broker_id=broker_id, register_check_code=code
            )
            self.brokers[broker_id] = Broker(broker_id)
            self.commit(decisions.decide_id(request, self.situation()))
        for _ in range(STEPS):
            self.step()
            if self.violations:
                return

    def situation(self) -> Situation:
        return Situation(self.state, self.controllers[self.leader], self.now, self.unclean)

    @property
    def set(self) -> BrokerSet:
        return self.state.sets[NAME]

    def step(self) -> None:
        self.now += STEP_SECONDS * self.rng.uniform(0.5, 1.5)
        self.disturb()
        for broker in self.shuffled():
            self.beat(broker)
        self.commit(Decision(events=decisions.look_for_dead_masters(self.situation())), by_look=True)
        for broker in self.shuffled():
            if broker.up and not broker.cut_off:
                self.talk(broker)
        for broker in self.shuffled():
            if broker.leads:
                self.lead(broker)
        self.check()

    def shuffled(self) -> list[Broker]:
        return self.rng.sample([*self.brokers.values()], REPLICAS)

    # ------------------------------------------------------------------------------------------------------------------- faults

    def disturb(self) -> None:
        broker = self.rng.choice([*self.brokers.values()])
        # What a lossy crash has taken must be somewhere else, until the replica has said that it crashed.
        safe = not any(one.lossy for one in self.brokers.values())
        kind = self.rng.choices(
            ("nothing", "kill", "crash", "stop", "start", "cut", "part", "heal", "leader", "deaf"),
            (40, 4, 6, 3, 14, 4, 6, 14, 5, 4),
        )[0]
        if kind in ("kill", "stop", "crash") and broker.up and safe:
            if kind == "crash" and not self.others_have_all(broker):
                return
            broker.up, broker.clean_stop = False, kind == "stop"
            broker.forget_role()
            if kind == "crash" and len(broker.log) > broker.durable:
                del broker.log[broker.durable :]
                broker.lossy = broker.broker_id in self.set.in_sync
        elif kind == "start" and not broker.up:
            broker.up, broker.durable = True, len(broker.log)
        elif kind == "cut" and safe:
            broker.cut_off = True
        elif kind == "part":
            self.parted.add(frozenset(self.rng.sample([*self.brokers], 2)))
        elif kind == "heal":
            self.parted.clear()
            self.deaf.clear()
            for one in self.brokers.values():
                one.cut_off = False
        elif kind == "leader":
            self.leader, self.leads_since = self.rng.randrange(CONTROLLERS), self.now
            self.controllers[self.leader].begin(self.now)
            self.deaf.discard(self.leader)
        elif kind == "deaf":
            self.deaf.add(self.rng.choice([number for number in range(CONTROLLERS) if number != self.leader]))
        else:
            return
        self.note(kind, f"broker {broker.broker_id}")

    def others_have_all(self, broker: Broker) -> bool:
        """Whether a replica may lose the end of its log: it is not in sync, or all other members, one at least, are at hand."""
        others = [self.brokers[member] for member in self.set.in_sync if member != broker.broker_id]
        at_hand = all(one.up and not one.cut_off for one in others)
        return broker.broker_id not in self.set.in_sync or (len(others) > 0 and at_hand)

    # ------------------------------------------------------------------------------------------------------------------ brokers

    def beat(self, broker: Broker) -> None:
        if not (broker.up and broker.registered) or broker.cut_off:
            return
        heartbeat = BrokerHeartbeat(
            cluster_name=CLUSTER,
            broker_name=NAME,
            broker_addr=f"h{broker.broker_id}:1",
            broker_id=broker.broker_id,
            epoch=broker.log[-1][0] if broker.log else 0,
            max_offset=len(broker.log),
            heartbeat_timeout_mills=round(TIMEOUT_SECONDS * 1000),
        )
        for number, liveness in enumerate(self.controllers):
            if number not in self.deaf:
                decisions.heard_from(heartbeat, attrs.evolve(self.situation(), liveness=liveness))

    def talk(self, broker: Broker) -> None:
        """Register, ask for a master, or learn what has changed."""
        if not broker.registered:
            request = RegisterBrokerRequest(
                cluster_name=CLUSTER,
                broker_name=NAME,
                broker_id=broker.broker_id,
                broker_address=f"h{broker.broker_id}:1",
                max_offset=len(broker.log),
                epoch=broker.log[-1][0] if broker.log else 0,
                clean_stop=broker.clean_stop,
            )
            try:
                decision = decisions.decide_registration(request, self.situation())
            except RequestRefused:
                self.counts["not known yet"] += 1
                return
            broker.registered, broker.clean_stop, broker.lossy = True, False, False
            self.commit(decision)
        if not self.situation().has_master(self.set):
            asked = ElectMasterRequest(cluster_name=CLUSTER, broker_name=NAME, broker_id=broker.broker_id)
            try:
                self.commit(decisions.decide_election(asked, self.situation()))
            except RequestRefused:
                self.counts["no master"] += 1
        if self.rng.random() < 0.6:
            self.learn(broker)

    def learn(self, broker: Broker) -> None:
        one = self.set
        if one.master_epoch > broker.epoch or (one.master_epoch == broker.epoch and one.in_sync_epoch > broker.in_sync_epoch):
            broker.master_id, broker.epoch = one.master_id, one.master_epoch
        if one.master_epoch == broker.epoch:
            broker.in_sync, broker.in_sync_epoch, broker.may_be_in_sync = one.in_sync, one.in_sync_epoch, frozenset()

    def lead(self, broker: Broker) -> None:
        for _ in range(self.rng.randrange(3)):
            self.appended += 1
            broker.log.append((broker.epoch, self.appended))
        followers = [one for one in self.brokers.values() if self.follows(one, broker)]
        for one in followers:
            if self.rng.random() < 0.8:
                self.copy(broker, one)
        for one in (broker, *followers):
            if self.rng.random() < 0.3:
                one.durable = len(one.log)
        self.acknowledge(broker)
        caught_up = {one.broker_id for one in followers if one.log == broker.log}
        wanted = broker.in_sync | caught_up
        if self.rng.random() < 0.2:
            wanted = frozenset({broker.broker_id, *(one.broker_id for one in followers if one.broker_id in wanted)})
        if wanted != broker.in_sync and not broker.may_be_in_sync and self.rng.random() < 0.5:
            self.alter(broker, wanted)

    def follows(self, one: Broker, master: Broker) -> bool:
        parted = frozenset((one.broker_id, master.broker_id)) in self.parted
        knows = one.registered and one.master_id == master.broker_id and one.epoch == master.epoch
        return one is not master and one.up and not parted and knows

    def copy(self, master: Broker, one: Broker) -> None:
        same = next(
            (at for at, (left, right) in enumerate(zip(master.log, one.log, strict=False)) if left != right),
            min(len(master.log), len(one.log)),
        )
        one.log[same:] = master.log[same:]
        one.durable = min(one.durable, same) if same < one.durable else one.durable

    def acknowledge(self, broker: Broker) -> None:
        members = [self.brokers[member] for member in broker.in_sync | broker.may_be_in_sync if member != broker.broker_id]
        if broker.broker_id not in broker.in_sync or not all(self.follows(member, broker) for member in members):
            return
        end = min([len(broker.log), *(len(member.log) for member in members if member.log == broker.log[: len(member.log)])])
        if all(member.log[:end] == broker.log[:end] for member in members):
            self.acknowledged.update(broker.log[:end])

    def alter(self, broker: Broker, wanted: frozenset[int]) -> None:
        if broker.cut_off:
            return
        request = AlterSyncStateSetRequest(broker_name=NAME, master_broker_id=broker.broker_id, master_epoch=broker.epoch)
        body = SyncStateSet(sync_state_set=wanted, sync_state_set_epoch=broker.in_sync_epoch)
        broker.may_be_in_sync = wanted
        try:
            decision = decisions.decide_alteration(request, body, self.situation())
        except RequestRefused as error:
            self.note("refused", str(error))
            broker.may_be_in_sync = frozenset()
            return
        self.commit(decision)
        if self.rng.random() < 0.8:  # otherwise the answer is lost
            broker.in_sync, broker.in_sync_epoch, broker.may_be_in_sync = wanted, self.set.in_sync_epoch, frozenset()

    # ------------------------------------------------------------------------------------------------------------------- checks

    def commit(self, decision: Decision, *, by_look: bool = False) -> None:
        for event in decode_events(encode_events(decision.events)):
            old = self.state.sets.get(NAME)
            self.state.apply(event)
            self.note("event", str(event))
            assert not isinstance(event, StatePiece)
            if old is not None:
                self.check_event(old, self.set, event, by_look=by_look)

    def check_event(self, old: BrokerSet, new: BrokerSet, event: Change, *, by_look: bool) -> None:
        if new.in_sync_epoch < old.in_sync_epoch or (new.in_sync != old.in_sync and new.in_sync_epoch == old.in_sync_epoch):
            self.violate(f"the epoch of the set does not grow: {old} {new}")
        if isinstance(event, MasterElected):
            self.counts["elected"] += 1
            if new.master_epoch <= old.master_epoch:
                self.violate(f"epoch {new.master_epoch} of a mastership comes after {old.master_epoch}")
            if old.master_epoch and not self.unclean and new.master_id not in old.in_sync:
                self.violate(f"{new.master_id} was elected, the set is {set(old.in_sync)}")
            if by_look and old.master_id is not None and self.now < self.leads_since + TIMEOUT_SECONDS:
                self.violate(f"a controller that leads for {self.now - self.leads_since:.2f} s has judged a master dead")
        elif old.master_epoch == new.master_epoch and old.master_id != new.master_id:
            self.violate(f"epoch {new.master_epoch} has two masters")

    def check(self) -> None:
        one = self.set
        if one.master_id is not None and one.master_id not in one.in_sync:
            self.violate(f"the master {one.master_id} is not in the set {set(one.in_sync)}")
        for member in () if self.unclean else one.in_sync:
            broker = self.brokers[member]
            if not broker.lossy and (lost := self.acknowledged - set(broker.log)):
                self.violate(f"{member} is in sync and lacks the acknowledged {sorted(lost)[:3]}")

    def note(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.trace.append(f"{self.now:7.2f} {kind} {text}")

    def violate(self, text: str) -> None:
        self.violations.append(f"at {self.now:.2f}: {text}")


def simulate_controller(seed: int) -> Outcome:
    """Run one seed."""
    rng = random.Random(seed)  # noqa: S311 - never secrets
    run = ControllerRun(rng, unclean=rng.random() < 0.1)
    run.run()
    counts = run.counts + Counter(acknowledged=len(run.acknowledged))
    drawn = f"unclean elections {'on' if run.unclean else 'off'}"
    return Outcome(History(sync_flush=False), run.violations, counts, drawn=drawn, trace=run.trace)
