"""What the controller decides, request by request."""

from __future__ import annotations

import msgspec
import pytest

from ledgermq.ha.controller.decisions import (
    decide_alteration,
    decide_election,
    decide_id,
    decide_next_id,
    decide_registration,
    heard_from,
    new_timeout,
    next_look,
    replica_info,
    replicas_info,
)
from ledgermq.ha.controller.liveness import TIMEOUT_SECONDS, Liveness
from ledgermq.ha.controller.protocol import (
    REPLICAS_MAX,
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    ApplyBrokerIdRequest,
    BrokerHeartbeat,
    ElectMasterBody,
    ElectMasterRequest,
    GetReplicaInfoRequest,
    Mastership,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    SyncStateSet,
)
from ledgermq.ha.controller.state import BROKER_NAMES_MAX, STATE_BYTES_MAX, MasterElected, SetAltered, TimeoutChanged
from ledgermq.message.numbers import INT_MAX
from ledgermq.remoting.codes import ResponseCode

from .deciding import Cluster, refused, serving

# -------------------------------------------------------------------------------------------------------------------------- ids


def test_a_replica_gets_the_next_id_and_may_ask_again() -> None:
    cluster = Cluster(1)
    asked = decide_next_id(NextBrokerIdRequest(cluster_name="c1", broker_name="b1"), cluster.situation)
    assert asked.header == NextBrokerIdResponse(cluster_name="c1", broker_name="b1", next_broker_id=2)
    assert decide_next_id(NextBrokerIdRequest(cluster_name="c1", broker_name="new"), cluster.situation).header == (
        NextBrokerIdResponse(cluster_name="c1", broker_name="new", next_broker_id=1)
    )

    assert cluster.apply_id(2).events
    assert not cluster.apply_id(2).events

    with refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "gives out the id 3 next, not 2"):
        cluster.apply_id(2, "other:1;9")


def test_an_id_is_never_given_out_twice() -> None:
    """Not even after its replica was forgotten, whose process may still be there."""
    cluster = serving(1)
    cluster.clean(living=True)

    with refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "the id 4 next"):
        cluster.apply_id(1)
    cluster.apply_id(4)
    cluster.beat(4)
    cluster.elect(4)
    assert (cluster.set.master_id, cluster.set.master_epoch) == (4, 2)


def test_replicas_and_names_are_bounded() -> None:
    cluster = Cluster(REPLICAS_MAX)
    with refused(ResponseCode.SYSTEM_BUSY, f"{REPLICAS_MAX} replicas"):
        cluster.apply_id(REPLICAS_MAX + 1)
    cluster.state.sets.update({f"n{number}": cluster.set for number in range(BROKER_NAMES_MAX)})
    request = ApplyBrokerIdRequest(cluster_name="c1", broker_name="new", applied_broker_id=1, register_check_code="h:1;1")
    with refused(ResponseCode.SYSTEM_BUSY, "broker names"):
        decide_id(request, cluster.situation)


def test_the_state_stays_within_its_bound_whatever_the_replicas_become() -> None:
    """Room for the longest address, a time-out and a place in the set is kept for each, so that none of that is refused."""
    cluster, taken = Cluster(0), 0
    with refused(ResponseCode.SYSTEM_BUSY, f"{STATE_BYTES_MAX} are allowed; forget those"):
        while True:
            cluster.apply_id(1 + taken % REPLICAS_MAX, "a:1", name=f"n{taken // REPLICAS_MAX}")
            taken += 1
    assert taken > 8000

    cluster.liveness.begin(cluster.now)
    for one in [*cluster.state.sets.values()]:
        for broker_id in one.replicas:
            cluster.register(broker_id, name=one.name, address="h" * 294 + ":65535")
            cluster.beat(broker_id, name=one.name)
            beat = BrokerHeartbeat(
                cluster_name="c1", broker_name=one.name, broker_addr="h:1", broker_id=broker_id, heartbeat_timeout_mills=600_000
            )
            event = new_timeout(beat, cluster.situation)
            assert event is not None
            cluster.state.apply(event)
        everybody = frozenset(one.replicas)
        cluster.state.apply(
            MasterElected(
                name=one.name, master_id=max(everybody), master_epoch=INT_MAX, in_sync=everybody, in_sync_epoch=INT_MAX
            )
        )
    assert 0.5 * STATE_BYTES_MAX < cluster.state.size_bytes <= STATE_BYTES_MAX


def test_forgotten_names_make_room_for_new_ones() -> None:
    """Whoever takes all names once does not keep others out for ever; a name that comes back goes on above its old numbers."""
    cluster = Cluster(0)
    for number in range(BROKER_NAMES_MAX):
        cluster.apply_id(1, name=f"n{number}")
    with refused(ResponseCode.SYSTEM_BUSY, "1024 broker names have replicas; forget those of a name"):
        cluster.apply_id(1)

    cluster.liveness.begin(cluster.now - TIMEOUT_SECONDS)
    for number in range(BROKER_NAMES_MAX):
        cluster.clean(name=f"n{number}")
    cluster.apply_id(1)
    assert cluster.state.sets.keys() == {"b1"}

    for name in ("n0", "b2"):
        asked = decide_next_id(NextBrokerIdRequest(cluster_name="c1", broker_name=name), cluster.situation)
        assert asked.header == NextBrokerIdResponse(cluster_name="c1", broker_name=name, next_broker_id=2)
        with refused(ResponseCode.CONTROLLER_BROKER_ID_INVALID, "the id 2 next, not 1"):
            cluster.apply_id(1, name=name)
        assert cluster.apply_id(2, name=name).events
    assert cluster.state.sets["n0"].in_sync_epoch == 1


def test_a_broker_name_belongs_to_one_cluster() -> None:
    cluster = serving(1)
    with refused(ResponseCode.CONTROLLER_INVALID_REQUEST, "belongs to the cluster c1, not to c2"):
        decide_next_id(NextBrokerIdRequest(cluster_name="c2", broker_name="b1"), cluster.situation)
    with refused(ResponseCode.CONTROLLER_INVALID_REQUEST, "belongs to the cluster c1"):
        decide_election(ElectMasterRequest(broker_name="b1", cluster_name="c2", broker_id=1), cluster.situation)


@pytest.mark.parametrize("broker_id", [4, 0])
def test_who_has_no_id_has_to_get_one_first(broker_id: int) -> None:
    cluster = Cluster()
    for ask in (cluster.register, cluster.elect, cluster.beat):
        with refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, f"no replica {broker_id}"):
            ask(broker_id)


def test_a_replica_of_a_name_that_is_not_known_is_told_how_to_begin_anew() -> None:
    """One whose name has only been forgotten gets a new id; here its former controllers may still lead its group."""
    cluster = Cluster()
    for ask in (cluster.register, cluster.beat):
        with refused(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "no broker name b9 is .* replica 1 .*brokerIdentity"):
            ask(1, name="b9")


# -------------------------------------------------------------------------------------------------------------------- elections


def test_the_first_master_is_any_replica_that_is_alive() -> None:
    """The one with the longest log, if several are; there is no set yet."""
    cluster = Cluster()
    cluster.beat(1, max_offset=5, epoch=0)
    cluster.beat(2, max_offset=9, epoch=0)

    decision = cluster.elect(1)

    assert decision.header == Mastership(master_broker_id=2, master_address="h2:1", master_epoch=1, sync_state_set_epoch=1)
    assert isinstance(decision.body, ElectMasterBody)
    assert decision.body.sync_state_set == {2}
    assert decision.body.broker_member_group is not None
    assert decision.body.broker_member_group.broker_addrs == {1: "h1:1", 2: "h2:1", 3: "h3:1"}


def test_the_first_election_counts_on_from_the_epochs_of_a_classic_pair() -> None:
    """A made-up one does not use up the numbers, and later elections count by themselves."""
    cluster = Cluster()
    cluster.beat(1, max_offset=5, epoch=7)
    cluster.beat(2, max_offset=4, epoch=INT_MAX)
    cluster.elect(1)
    assert cluster.set.master_epoch == 8

    cluster.beat(1, 2, 3, max_offset=5, epoch=90)
    cluster.alter(*{cluster.set.master_id or 0, 3})
    cluster.now += 2 * TIMEOUT_SECONDS
    cluster.beat(3, max_offset=5, epoch=8)
    cluster.look()
    assert cluster.set.master_epoch == 9


def test_a_master_that_is_alive_stays() -> None:
    """Who asks is told of it, with the code that RocketMQ's brokers take for an answer too."""
    cluster = serving(1, 2)

    decision = cluster.elect(2)

    assert decision.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert decision.events == ()
    assert isinstance(decision.header, Mastership)
    assert decision.header.master_broker_id == 1


@pytest.mark.parametrize(
    ("ends", "winner"),
    [
        ({2: (1, 100, 5), 3: (2, 50, 5)}, 3),
        ({2: (1, 100, 5), 3: (1, 99, 1)}, 2),
        ({2: (1, 100, 5), 3: (1, 100, 1)}, 3),
        ({2: (1, 100, 5), 3: (1, 100, 5)}, 2),
    ],
    ids=["epoch", "log", "priority", "id"],
)
def test_members_of_the_set_are_elected_in_one_order(ends: dict[int, tuple[int, int, int]], winner: int) -> None:
    cluster = serving(1, 2, 3)
    cluster.now += TIMEOUT_SECONDS
    for broker_id, (epoch, max_offset, priority) in ends.items():
        cluster.beat(broker_id, epoch=epoch, max_offset=max_offset, election_priority=priority)

    cluster.look()

    assert (cluster.set.master_id, cluster.set.master_epoch) == (winner, 2)
    assert cluster.set.in_sync == {2, 3}


def test_nobody_outside_the_set_is_elected_because_nobody_else_is_there() -> None:
    cluster = serving(1, 2)
    cluster.now += TIMEOUT_SECONDS
    cluster.beat(3, max_offset=1000, epoch=1)

    cluster.look()
    assert cluster.set.master_id == 1
    with refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "of 1, 2 in sync none is alive, enableElectUncleanMaster is off"):
        cluster.elect(3)
    with refused(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE):
        cluster.elect()
    with refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "not in sync"):
        cluster.elect(3, designate=True)
    cluster.clean("1;2")
    with refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "all that were in sync were forgotten, enableElectUncleanMaster"):
        cluster.elect(3)


def test_an_unclean_election_is_switched_on_by_name() -> None:
    """And even then a member of the set goes first."""
    cluster = serving(1, 2, unclean=True)
    cluster.now += TIMEOUT_SECONDS
    cluster.beat(3, max_offset=1000, epoch=1)
    cluster.beat(2, max_offset=1)
    cluster.look()
    assert cluster.set.master_id == 2

    cluster.now += TIMEOUT_SECONDS
    cluster.beat(3)
    cluster.look()
    assert (cluster.set.master_id, cluster.set.master_epoch, cluster.set.in_sync) == (3, 3, {3})


def test_an_administrator_names_the_next_master() -> None:
    """It must be alive and in sync, so that nothing is lost."""
    cluster = serving(1, 2)
    with refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "replica 3 of b1 is not in sync"):
        cluster.elect(3, designate=True)

    cluster.elect(2, designate=True)
    assert (cluster.set.master_id, cluster.set.master_epoch, cluster.set.in_sync) == (2, 2, {1, 2})
    assert cluster.elect(2, designate=True).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST

    cluster.now += TIMEOUT_SECONDS
    with refused(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE):
        cluster.elect(1, designate=True)


def test_a_fresh_leader_waits_a_whole_period_before_it_judges() -> None:
    """Replicas that could not reach it before count from the moment when it began to lead."""
    cluster = serving(1, 2)
    cluster.now += 5 * TIMEOUT_SECONDS
    cluster.liveness.begin(cluster.now)
    cluster.beat(2)

    cluster.now += TIMEOUT_SECONDS - 0.1
    cluster.look()
    assert cluster.set.master_id == 1
    assert cluster.elect(2).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert next_look(cluster.situation) == pytest.approx(cluster.now + 0.1)

    cluster.beat(2)
    cluster.now += 0.1
    cluster.look()
    assert cluster.set.master_id == 2


def test_a_heartbeat_says_how_long_it_counts() -> None:
    cluster = serving(1, 2)
    cluster.beat(1, heartbeat_timeout_mills=500)
    assert next_look(cluster.situation) == cluster.now + 0.5

    cluster.now += 0.5
    cluster.look()

    assert cluster.set.master_id == 2


def test_a_time_out_becomes_part_of_the_state() -> None:
    """Once, and for replicas that exist."""
    cluster = serving(1, 2)
    beat = BrokerHeartbeat(cluster_name="c1", broker_name="b1", broker_addr="h:1", broker_id=1, heartbeat_timeout_mills=500)
    event = new_timeout(beat, cluster.situation)
    assert event is not None
    assert event == TimeoutChanged(name="b1", broker_id=1, timeout_millis=500)
    cluster.state.apply(event)
    assert new_timeout(beat, cluster.situation) is None

    cluster.liveness = Liveness()
    cluster.liveness.begin(cluster.now)
    assert next_look(cluster.situation) == cluster.now + 0.5
    for changed in ({"broker_id": 9}, {"broker_name": "b9"}, {"broker_id": None}, {"heartbeat_timeout_mills": None}):
        assert new_timeout(msgspec.structs.replace(beat, **changed), cluster.situation) is None  # type: ignore[arg-type]


def test_epochs_end_before_a_java_int_does() -> None:
    cluster = serving(1, 2)
    cluster.state.apply(MasterElected(name="b1", master_id=1, master_epoch=INT_MAX, in_sync=frozenset({1, 2}), in_sync_epoch=9))
    with refused(ResponseCode.CONTROLLER_INVALID_REQUEST, "used up"):
        cluster.elect(2, designate=True)


# ----------------------------------------------------------------------------------------------------------------- registration


def test_a_member_that_crashed_leaves_the_set() -> None:
    cluster = serving(1, 2)

    decision = cluster.register(2, max_offset=100, epoch=1)

    assert decision.events == (SetAltered(name="b1", in_sync=frozenset({1}), in_sync_epoch=3),)
    assert decision.header == RegisterBrokerResponse(
        cluster_name="c1",
        broker_name="b1",
        master_broker_id=1,
        master_address="h1:1",
        master_epoch=1,
        sync_state_set_epoch=3,
    )
    assert decision.body == SyncStateSet(sync_state_set=frozenset({1}), sync_state_set_epoch=3)


def test_a_master_that_crashed_is_replaced_by_another_member() -> None:
    """However long the log is that it reports."""
    cluster = serving(1, 2)

    cluster.register(1, max_offset=10_000, epoch=9)

    assert (cluster.set.master_id, cluster.set.master_epoch, cluster.set.in_sync) == (2, 2, {2})


def test_no_request_from_before_a_crash_takes_the_replica_in_that_crashed() -> None:
    """The master may have sent it when the replica had everything, and a network may deliver it late."""
    cluster = serving(1)
    before = cluster.set.in_sync_epoch

    cluster.register(2, max_offset=50, epoch=1)

    with refused(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH):
        cluster.alter(1, 2, set_epoch=before)
    assert (cluster.set.master_epoch, cluster.set.in_sync) == (1, {1})


def test_the_last_member_stays_although_it_crashed() -> None:
    """Nobody has more than it; as master it begins a new epoch."""
    cluster = serving(1, 2)
    cluster.now += TIMEOUT_SECONDS

    cluster.register(1, max_offset=50, epoch=1)

    assert (cluster.set.master_id, cluster.set.master_epoch, cluster.set.in_sync) == (1, 2, {1})


def test_while_it_is_not_known_who_lives_a_member_that_crashed_has_to_register_again() -> None:
    """A leader that has just been elected may not have heard of a member that has everything."""
    cluster = serving(1, 2)
    cluster.now += 5 * TIMEOUT_SECONDS
    cluster.liveness.begin(cluster.now)

    with refused(ResponseCode.CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS, "whether 2 of b1 are alive"):
        cluster.register(1, max_offset=50, epoch=1)
    cluster.beat(2)
    cluster.register(1, max_offset=50, epoch=1)

    assert (cluster.set.master_id, cluster.set.in_sync) == (2, {2})


def test_who_stopped_in_order_stays_in_the_set() -> None:
    """A master takes part in the election that follows."""
    cluster = serving(1, 2)
    assert cluster.register(2, max_offset=100, epoch=1, clean_stop=True).events == ()
    assert cluster.set.in_sync == {1, 2}

    cluster.register(1, max_offset=101, epoch=1, clean_stop=True)
    assert (cluster.set.master_id, cluster.set.master_epoch, cluster.set.in_sync) == (1, 2, {1, 2})


def test_who_stopped_in_order_and_has_a_shorter_log_than_before_leaves_the_set() -> None:
    """Its disk was replaced by a copy that was made after an earlier stop in order."""
    cluster = serving(1, 2)
    cluster.register(2, max_offset=99, epoch=1, clean_stop=True)
    assert (cluster.set.master_id, cluster.set.in_sync) == (1, {1})

    cluster = serving(1, 2)
    cluster.register(1, max_offset=99, epoch=1, clean_stop=True)
    assert (cluster.set.master_id, cluster.set.in_sync) == (2, {2})


def test_a_shorter_log_counts_until_the_registration_that_tells_of_it_has_been_carried_out() -> None:
    """One that is refused, or that the disk of a controller does not take, is repeated."""
    cluster = serving(1, 2)
    cluster.now += 5 * TIMEOUT_SECONDS
    cluster.liveness.begin(cluster.now)
    request = RegisterBrokerRequest(
        cluster_name="c1", broker_name="b1", broker_id=2, broker_address="h2:1", max_offset=99, epoch=1, clean_stop=True
    )

    with refused(ResponseCode.CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS):
        decide_registration(request, cluster.situation)
    cluster.beat(1)
    not_carried_out = decide_registration(request, cluster.situation)

    assert not_carried_out.events
    assert decide_registration(request, cluster.situation).events == not_carried_out.events


def test_of_two_brokers_with_one_identity_the_second_is_refused_by_name() -> None:
    """A directory that was copied is started twice. Two masters of one id would not be told apart by any epoch."""
    cluster = serving(1, 2)
    cluster.now += TIMEOUT_SECONDS / 2

    with refused(
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        "replica 1 of b1 is alive at h1:1, and a broker at h9:1 has the same identity.*let it begin empty",
    ):
        cluster.register(1, address="h9:1", max_offset=200, epoch=1)

    assert (cluster.set.master_epoch, cluster.set.replicas[1].address) == (1, "h1:1")
    assert cluster.situation.liveness.dies_at("b1", 1) < cluster.now + TIMEOUT_SECONDS


def test_a_broker_whose_identity_another_one_has_taken_meanwhile_has_to_register_again() -> None:
    cluster = serving(1, 2)
    cluster.now += TIMEOUT_SECONDS
    cluster.register(1, address="h9:1", max_offset=100, epoch=1)
    beat = BrokerHeartbeat(cluster_name="c1", broker_name="b1", broker_addr="h1:1", broker_id=1)

    with refused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "replica 1 of b1 is at h9:1, not at h1:1"):
        heard_from(beat, cluster.situation)
    with refused(ResponseCode.CONTROLLER_INVALID_REQUEST, "is alive at h9:1"):
        cluster.register(1, max_offset=100, epoch=1)


def test_a_broker_of_rocketmq_keeps_its_place() -> None:
    """It does not say whether it is a new process."""
    cluster = serving(1, 2)

    for broker_id in (1, 2):
        assert cluster.register(broker_id).events == ()
    assert (cluster.set.master_id, cluster.set.master_epoch) == (1, 1)


def test_a_registration_names_no_dead_master_and_notes_another_address() -> None:
    cluster = serving(1, 2)
    cluster.now += TIMEOUT_SECONDS
    request = RegisterBrokerRequest(cluster_name="c1", broker_name="b1", broker_id=3, broker_address="h9:1")

    decision = cluster.carry_out(decide_registration(request, cluster.situation))

    assert decision.header == RegisterBrokerResponse(cluster_name="c1", broker_name="b1")
    assert cluster.set.replicas[3].address == "h9:1"


# ---------------------------------------------------------------------------------------------------------------- SyncStateSets


def test_the_master_alters_the_set_once_for_each_epoch() -> None:
    cluster = serving(1)
    assert cluster.alter(1, 2).events
    with refused(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH):
        cluster.alter(1, set_epoch=1)
    assert cluster.alter(1).body == SyncStateSet(sync_state_set=frozenset({1}), sync_state_set_epoch=3)


def test_an_equal_set_gets_a_new_epoch_so_that_no_earlier_request_is_carried_out() -> None:
    """A master whose request was lost finds out by this who is not in the set."""
    cluster = serving(1)

    answer = cluster.alter(1)

    assert answer.body == SyncStateSet(sync_state_set=frozenset({1}), sync_state_set_epoch=2)
    assert answer.header == AlterSyncStateSetResponse(new_sync_state_set_epoch=2)
    with refused(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH):
        cluster.alter(1, 2, set_epoch=1)


@pytest.mark.parametrize(
    ("members", "fields", "code"),
    [
        ((1,), {"master": 2}, ResponseCode.CONTROLLER_INVALID_MASTER),
        ((1,), {"epoch": 0}, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        ((1,), {"epoch": 2}, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        ((1,), {"set_epoch": 1}, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        ((1,), {"set_epoch": 3}, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        ((1, 4), {}, ResponseCode.CONTROLLER_INVALID_REPLICAS),
        ((1, 2, 3), {}, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
        ((2,), {}, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        ((), {}, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
    ],
)
def test_an_alteration_that_does_not_fit_is_refused(
    members: tuple[int, ...], fields: dict[str, int], code: ResponseCode
) -> None:
    cluster = serving(1, 2)
    cluster.now += TIMEOUT_SECONDS
    cluster.beat(1)

    with refused(code, "nothing was changed"):
        cluster.alter(*members, **fields)
    assert cluster.set.in_sync == {1, 2}


def test_a_member_that_stays_need_not_be_alive() -> None:
    """Otherwise a master could not remove one silent member while the controller cannot hear another."""
    cluster = serving(1, 2, 3)
    cluster.now += TIMEOUT_SECONDS
    cluster.beat(1)

    cluster.alter(1, 2)

    assert cluster.set.in_sync == {1, 2}


def test_an_alteration_of_an_unknown_name_is_refused() -> None:
    request = AlterSyncStateSetRequest(broker_name="b9", master_broker_id=1, master_epoch=1)
    body = SyncStateSet(sync_state_set=frozenset({1}), sync_state_set_epoch=1)
    with refused(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "no broker name b9"):
        decide_alteration(request, body, Cluster().situation)


# -------------------------------------------------------------------------------------------------- cleaning, and what is asked


def test_living_replicas_are_forgotten_only_if_that_is_asked_for() -> None:
    cluster = serving(1, 2)
    for ids in ("2", None, "1;2"):
        with refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, "may be alive"):
            cluster.clean(ids)
    with refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, "no replica 7, x"):
        cluster.clean("7;x")

    cluster.clean("1", living=True)
    assert cluster.set.replicas.keys() == {2, 3}
    assert (cluster.set.master_id, cluster.set.in_sync) == (None, {2})

    cluster.look()
    assert (cluster.set.master_id, cluster.set.master_epoch) == (2, 2)


def test_all_dead_replicas_of_a_name_are_forgotten() -> None:
    cluster = serving(1, 2)
    cluster.now += TIMEOUT_SECONDS

    cluster.clean()

    assert not cluster.set.replicas
    with refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA):
        cluster.clean()


def test_a_question_names_the_last_master_and_which_replicas_are_alive() -> None:
    cluster = serving(1, 2)
    cluster.now += TIMEOUT_SECONDS
    cluster.beat(1)

    info = replica_info(GetReplicaInfoRequest(broker_name="b1"), cluster.situation)
    assert info.header == Mastership(master_broker_id=1, master_address="h1:1", master_epoch=1)
    assert info.body == SyncStateSet(sync_state_set=frozenset({1, 2}), sync_state_set_epoch=2)
    with refused(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST):
        replica_info(GetReplicaInfoRequest(broker_name="b9"), cluster.situation)

    one = replicas_info(cluster.set, cluster.situation)
    assert [(replica.broker_id, replica.alive) for replica in one.in_sync_replicas] == [(1, True), (2, False)]
    assert [(replica.broker_id, replica.alive) for replica in one.not_in_sync_replicas] == [(3, False)]
