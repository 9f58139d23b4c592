"""What a leading controller decides: from the state, from who is alive, and from a request, to events and an answer. Pure.

Elections have one table, `elect`. A master is only ever elected from the SyncStateSet, unless the operator has switched on
elections of others by name (`enableElectUncleanMaster`); nobody is elected because nobody else is there. Each mastership has an
epoch of its own, and its set has those members of the former one that are alive, each of which has every acknowledged message.

Stricter than RocketMQ: a process that registers after a crash may have lost what its predecessor acknowledged. It leaves the
set at once while other members are alive, and so does not stay master. RocketMQ's own brokers do not say whether a registration
is that of a new process; they are trusted, as RocketMQ does.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import msgspec

from ...message.numbers import INT_MAX
from ...remoting.codes import ResponseCode
from ...remoting.errors import RequestRefused
from .liveness import TIMEOUT_SECONDS, Heard, Liveness, LogEnd
from .protocol import (
    ANY_BROKER,
    LOWEST_PRIORITY,
    REPLICAS_MAX,
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    ApplyBrokerIdRequest,
    ApplyBrokerIdResponse,
    Body,
    BrokerHeartbeat,
    BrokerMemberGroup,
    CleanBrokerDataRequest,
    ElectMasterBody,
    ElectMasterRequest,
    GetReplicaInfoRequest,
    Header,
    Mastership,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from .state import (
    BROKER_NAMES_MAX,
    STATE_BYTES_MAX,
    AddressChanged,
    BrokerSet,
    Change,
    ControllerState,
    IdApplied,
    MasterElected,
    Replica,
    ReplicasForgotten,
    SetAltered,
    TimeoutChanged,
    changed,
)

SCAN_EVENTS_MAX = 64
"""How many elections one look at all masters decides; the next look follows at once."""
FIRST_EPOCH_MAX = INT_MAX // 2
"""The largest epoch of a log that the first election counts on from, so that whoever makes one up leaves enough of them."""


@attrs.frozen
class Situation:
    """What a decision is made from."""

    state: ControllerState
    liveness: Liveness
    now: float
    """Monotonic seconds."""
    unclean: bool = False
    """Whether a replica outside the SyncStateSet may be elected if no member is alive (enableElectUncleanMaster)."""

    def is_alive(self, one: BrokerSet, broker_id: int) -> bool:
        return self.liveness.is_alive(one.name, broker_id, self.now)

    def dies_at(self, one: BrokerSet, broker_id: int) -> float:
        """When a replica is dead unless it is heard of before, in monotonic seconds."""
        millis = one.replicas[broker_id].timeout_millis
        return self.liveness.dies_at(one.name, broker_id, TIMEOUT_SECONDS if millis is None else millis / 1000)

    def is_dead(self, one: BrokerSet, broker_id: int) -> bool:
        return self.now >= self.dies_at(one, broker_id)

    def has_master(self, one: BrokerSet) -> bool:
        """Whether there is a master that is not known to be dead."""
        return one.master_id is not None and not self.is_dead(one, one.master_id)


@attrs.frozen
class Decision:
    """An answer, to be sent once the events, if there are any, have been committed and applied."""

    header: Header | None = None
    body: Body | None = None
    events: tuple[Change, ...] = ()
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None


# ---------------------------------------------------------------------------------------------------------------- elections


def elect(one: BrokerSet, situation: Situation, *, without: int | None = None) -> int | None:
    """The replica that becomes master; None if nobody may.

    | who takes part | when |
    |---|---|
    | members of the SyncStateSet that are alive | always |
    | all replicas that are alive | in the first election of a broker name |
    | all replicas that are alive | if no member of the set is, and unclean elections are switched on |

    Among them the order is: the latest epoch of the log, the longest log, the lowest number of priority, the lowest id.

    Args:
        without: a member of the set that does not count as one.
    """
    alive = [broker_id for broker_id in one.replicas if situation.is_alive(one, broker_id)]
    candidates = [broker_id for broker_id in alive if broker_id in one.in_sync and broker_id != without]
    if not candidates and (one.first or situation.unclean):
        candidates = alive

    def rank(broker_id: int) -> tuple[int, int, int, int]:
        heard = situation.liveness.last(one.name, broker_id)
        end, priority = (heard.log_end, heard.priority) if heard is not None else (LogEnd(), LOWEST_PRIORITY)
        return -end.epoch, -end.max_offset, priority, broker_id

    return min(candidates, key=rank, default=None)


def election_of(one: BrokerSet, master_id: int, situation: Situation, *, without: int | None = None) -> MasterElected:
    """The event with which a replica becomes master."""
    kept = {member for member in one.in_sync if member != without and situation.is_alive(one, member)}
    reached = one.master_epoch
    if one.first:  # a classic group whose mode is switched has epochs that it has given itself
        heard = filter(None, (situation.liveness.last(one.name, broker_id) for broker_id in one.replicas))
        reached = max([reached, *(last.log_end.epoch for last in heard if last.log_end.epoch <= FIRST_EPOCH_MAX)])
    return MasterElected(
        name=one.name,
        master_id=master_id,
        master_epoch=_next_epoch(one, reached),
        in_sync=frozenset(kept if master_id in kept else {master_id}),
        in_sync_epoch=_next_epoch(one, one.in_sync_epoch),
    )


def look_for_dead_masters(situation: Situation) -> tuple[Change, ...]:
    """The elections that are due because a master is dead, or has been forgotten."""
    events: list[Change] = []
    for one in situation.state.sets.values():
        if not one.first and not situation.has_master(one) and len(events) < SCAN_EVENTS_MAX:
            master = elect(one, situation)
            if master is not None:
                events.append(election_of(one, master, situation))
    return tuple(events)


def next_look(situation: Situation) -> float:
    """When the next master is dead unless it is heard of before, in monotonic seconds; infinite if none can be."""
    moments = (situation.dies_at(one, one.master_id) for one in situation.state.sets.values() if one.master_id is not None)
    return min((moment for moment in moments if moment > situation.now), default=float("inf"))


def decide_election(request: ElectMasterRequest, situation: Situation) -> Decision:
    """1002: a replica asks for a master, or an administrator names the next one.

    Raises:
        RequestRefused: nobody may be elected, or not the one who is named. Nothing was changed.
    """
    one = _registered(situation, request.broker_name)
    _check_cluster(one, request.cluster_name)
    named = request.broker_id
    if named != ANY_BROKER and named not in one.replicas:
        raise _need_to_register(f"{one.name} has no replica {named}")
    if situation.has_master(one) and not (request.designate_elect and named != one.master_id):
        return Decision(
            one.mastership,
            ElectMasterBody(sync_state_set=one.in_sync, broker_member_group=_members(one)),
            code=ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            remark=f"{one.name} has the master {one.master_id}; nothing was changed",
        )
    master = _designated(one, named, situation) if request.designate_elect else elect(one, situation)
    if master is None:
        code = (
            ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE if named == ANY_BROKER else ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        )
        raise RequestRefused(
            code,
            f"no replica of {one.name} may become master: "
            f"{f'of {_listed(one.in_sync)} in sync none is alive' if one.in_sync else 'all that were in sync were forgotten'}, "
            f"enableElectUncleanMaster is {'on, and no other is alive' if situation.unclean else 'off'}; nothing was changed",
        )
    event = election_of(one, master, situation)
    new = changed(one, event)
    return Decision(new.mastership, ElectMasterBody(sync_state_set=new.in_sync, broker_member_group=_members(new)), (event,))


def _designated(one: BrokerSet, named: int, situation: Situation) -> int:
    if not situation.is_alive(one, named):
        raise RequestRefused(
            ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"replica {named} of {one.name} is not alive; nothing was changed"
        )
    if not one.first and named not in one.in_sync and not situation.unclean:
        raise RequestRefused(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"replica {named} of {one.name} is not in sync (in sync: {_listed(one.in_sync)}) and may lack acknowledged "
            "messages, and enableElectUncleanMaster is off; nothing was changed",
        )
    return named


# ------------------------------------------------------------------------------------------------------- ids and registration


def decide_next_id(request: NextBrokerIdRequest, situation: Situation) -> Decision:
    """1012: the id that a new replica may apply for. Nothing is reserved.

    Raises:
        RequestRefused: the broker name belongs to another cluster.
    """
    one = situation.state.sets.get(request.broker_name)
    if one is not None:
        _check_cluster(one, request.cluster_name)
    next_id = one.next_id if one is not None else situation.state.first_id
    return Decision(
        NextBrokerIdResponse(cluster_name=request.cluster_name, broker_name=request.broker_name, next_broker_id=next_id)
    )


def decide_id(request: ApplyBrokerIdRequest, situation: Situation) -> Decision:
    """1013: a replica takes the next id; it may repeat that with the same check code.

    Raises:
        RequestRefused: another replica has the id or had it, or there are too many. Nothing was changed.
    """
    state, broker_id = situation.state, request.applied_broker_id
    one = state.sets.get(request.broker_name)
    if one is not None:
        _check_cluster(one, request.cluster_name)
    answer = ApplyBrokerIdResponse(cluster_name=request.cluster_name, broker_name=request.broker_name)
    taken = one.replicas.get(broker_id) if one is not None else None
    if taken is not None and taken.check_code == request.register_check_code:
        return Decision(answer)
    if broker_id != (next_id := one.next_id if one is not None else state.first_id):
        raise RequestRefused(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"{request.broker_name} gives out the id {next_id} next, not {broker_id}; ask for it again. Nothing was changed",
        )
    if one is None and len(state.sets) >= BROKER_NAMES_MAX and all(other.replicas for other in state.sets.values()):
        raise _full(f"{BROKER_NAMES_MAX} broker names have replicas; forget those of a name that is not needed")
    if one is not None and len(one.replicas) >= REPLICAS_MAX:
        raise _full(f"{one.name} has {REPLICAS_MAX} replicas")
    if (reserved := state.reserved_bytes) >= STATE_BYTES_MAX:
        raise _full(
            f"the replicas that are registered may take {reserved} bytes of the state, {STATE_BYTES_MAX} are allowed; forget "
            "those that are not needed"
        )
    event = IdApplied(
        cluster=request.cluster_name,
        name=request.broker_name,
        broker_id=broker_id,
        address=request.register_check_code.partition(";")[0],
        check_code=request.register_check_code,
    )
    return Decision(answer, events=(event,))


def decide_registration(request: RegisterBrokerRequest, situation: Situation) -> Decision:
    """1003: a replica has started, which is a sign of life, too.

    | the process | it leaves the set | a new mastership begins, if it was the master |
    |---|---|---|
    | of a broker that does not say what it has (RocketMQ's) | no | no |
    | stopped in order before | no | yes, and it takes part |
    | may have lost messages; another member lives | yes | yes, without it |
    | may have lost messages; all other members are dead | no | yes, and it takes part |
    | may have lost messages, and is not in the set | the set gets a new epoch | no |

    One whose log ends before where it was last heard to end may have lost messages, however it stopped: its disk was replaced
    by a copy that was made after an earlier stop in order.

    Raises:
        RequestRefused: it has no id here; or another broker with the same one is alive; or whether other members live is not
            known yet, and it has to register again. Nothing was changed.
    """
    old, broker_id, replica = _known_replica(request, situation)
    if replica.address != request.broker_address and situation.is_alive(old, broker_id):
        raise RequestRefused(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"replica {broker_id} of {old.name} is alive at {replica.address}, and a broker at {request.broker_address} has "
            "the same identity: if its directory is a copy, stop it, move its store away and let it begin empty; if the broker "
            "has moved, it is registered once the former process counts as dead. Nothing was changed",
        )
    before = situation.liveness.last(old.name, broker_id)
    shorter = before is not None and request.max_offset is not None and request.max_offset < before.log_end.max_offset
    # The next registration is judged by the longer end, too: this one may be refused, or its events not be committed.
    heard_from(msgspec.structs.replace(request, max_offset=None) if shorter else request, situation)
    events: list[Change] = []
    if replica.address != request.broker_address:
        events.append(AddressChanged(name=old.name, broker_id=broker_id, address=request.broker_address))
    if request.max_offset is not None and old.in_sync:
        events += _after_restart(old, broker_id, situation, lossy=shorter or not request.clean_stop)
    new = old
    for event in events:
        new = changed(new, event)
    master = msgspec.structs.asdict(new.mastership) if situation.has_master(new) else {}
    header = RegisterBrokerResponse(cluster_name=new.cluster, broker_name=new.name, **master)
    return Decision(header, new.sync_state_set, tuple(events))


def _after_restart(one: BrokerSet, broker_id: int, situation: Situation, *, lossy: bool) -> Iterable[Change]:
    """What follows from the new process of a replica, which may have lost messages."""
    if broker_id not in one.in_sync:
        if not lossy:
            return []
        # The master may have asked to take it in while it had everything, and that request may still be under way.
        return [SetAltered(name=one.name, in_sync=one.in_sync, in_sync_epoch=_next_epoch(one, one.in_sync_epoch))]
    others = [member for member in one.in_sync if member != broker_id]
    leaves = False
    if lossy:
        leaves = any(situation.is_alive(one, member) for member in others)
        if not leaves and (unknown := [member for member in others if not situation.is_dead(one, member)]):
            raise RequestRefused(
                ResponseCode.CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS,
                f"this controller has just been elected and does not know whether {_listed(unknown)} of {one.name} are alive; "
                "register again. Nothing was changed",
            )
    without = broker_id if leaves else None
    if broker_id == one.master_id:
        master = elect(one, situation, without=without)
        if master is not None:
            return [election_of(one, master, situation, without=without)]
    if leaves:
        epoch = _next_epoch(one, one.in_sync_epoch)
        return [SetAltered(name=one.name, in_sync=one.in_sync - {broker_id}, in_sync_epoch=epoch)]
    return []


def new_timeout(heartbeat: BrokerHeartbeat, situation: Situation) -> TimeoutChanged | None:
    """The event that a heartbeat causes if it counts for another time than earlier ones; the caller knows the replica."""
    millis, broker_id = heartbeat.heartbeat_timeout_mills, heartbeat.broker_id
    one = situation.state.sets.get(heartbeat.broker_name)
    replica = one.replicas.get(broker_id) if one is not None and broker_id is not None else None
    if replica is None or broker_id is None or millis is None or replica.timeout_millis == millis:
        return None
    return TimeoutChanged(name=heartbeat.broker_name, broker_id=broker_id, timeout_millis=millis)


def heard_from(request: BrokerHeartbeat | RegisterBrokerRequest, situation: Situation) -> None:
    """Take note of a sign of life, which changes the liveness of the situation and nothing else.

    Raises:
        RequestRefused: no such replica is registered, or another broker has registered with its id since. It was not noted.
    """
    one, broker_id, replica = _known_replica(request, situation)
    if isinstance(request, BrokerHeartbeat) and request.broker_addr != replica.address:
        raise _need_to_register(f"replica {broker_id} of {one.name} is at {replica.address}, not at {request.broker_addr}")
    heard = situation.liveness.last(one.name, broker_id) or Heard(situation.now)
    end = heard.log_end
    if request.max_offset is not None:
        end = LogEnd(-1 if request.epoch is None else request.epoch, request.max_offset)
    heard = attrs.evolve(heard, at=situation.now, log_end=end)
    if isinstance(request, BrokerHeartbeat):
        if request.heartbeat_timeout_mills is not None:
            heard.timeout_seconds = request.heartbeat_timeout_mills / 1000
        if request.election_priority is not None:
            heard.priority = request.election_priority
    situation.liveness.hear(one.name, broker_id, heard)


# ------------------------------------------------------------------------------------------------------------- SyncStateSets


def decide_alteration(request: AlterSyncStateSetRequest, body: SyncStateSet, situation: Situation) -> Decision:
    """1001: the master replaces the set, by compare-and-set of its epoch, of the master and of the master's epoch.

    A member that stays need not be alive, because keeping it loses nothing; one that joins must be. An equal set gets a new
    epoch, too, so that no earlier request of the master can be carried out any more.

    Raises:
        RequestRefused: the master does not know the newest state, or a member may not be one. Nothing was changed.
    """
    one = _registered(situation, request.broker_name, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED)
    new = body.sync_state_set
    if one.master_id is None or request.master_broker_id != one.master_id:
        raise _fenced(ResponseCode.CONTROLLER_INVALID_MASTER, one, "the master", one.master_id, request.master_broker_id)
    if request.master_epoch != one.master_epoch:
        code = ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
        raise _fenced(code, one, "the epoch of the master", one.master_epoch, request.master_epoch)
    if body.sync_state_set_epoch != one.in_sync_epoch:
        code = ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        raise _fenced(code, one, "the epoch of the SyncStateSet", one.in_sync_epoch, body.sync_state_set_epoch)
    if unknown := new - one.replicas.keys():
        raise RequestRefused(
            ResponseCode.CONTROLLER_INVALID_REPLICAS, f"{one.name} has no replica {_listed(unknown)}; nothing was changed"
        )
    if dead := [member for member in new - one.in_sync if not situation.is_alive(one, member)]:
        raise RequestRefused(
            ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"{_listed(dead)} of {one.name} are not alive; nothing was changed"
        )
    if one.master_id not in new:
        raise RequestRefused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"a SyncStateSet of {one.name} has its master {one.master_id}; nothing was changed",
        )
    event = SetAltered(name=one.name, in_sync=new, in_sync_epoch=_next_epoch(one, one.in_sync_epoch))
    return Decision(
        AlterSyncStateSetResponse(new_sync_state_set_epoch=event.in_sync_epoch), changed(one, event).sync_state_set, (event,)
    )


def decide_cleaning(request: CleanBrokerDataRequest, situation: Situation) -> Decision:
    """1011: an administrator removes replicas.

    Raises:
        RequestRefused: one of them is not there; or is not known to be dead, and that was not asked for. Nothing was changed.
    """
    one = _registered(situation, request.broker_name, ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA)
    if not one.replicas:
        raise RequestRefused(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, f"{one.name} has no replica; nothing was changed"
        )
    _check_cluster(one, request.cluster_name)
    named = request.broker_controller_ids_to_clean
    texts = [text.strip() for text in named.split(";") if text.strip()] if named else [*map(str, one.replicas)]
    known = {str(broker_id): broker_id for broker_id in one.replicas}
    if unknown := [text for text in texts if text not in known]:
        raise RequestRefused(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"{one.name} has no replica {', '.join(unknown)}; nothing was changed",
        )
    gone = frozenset(known[text] for text in texts)
    living = [broker_id for broker_id in gone if not situation.is_dead(one, broker_id)]
    if living and not request.is_clean_living_broker:
        raise RequestRefused(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"{_listed(living)} of {one.name} may be alive: stop them, or add --living (cleanLivingBroker of mqadmin). Nothing "
            "was changed",
        )
    return Decision(
        events=(ReplicasForgotten(name=one.name, broker_ids=gone, in_sync_epoch=_next_epoch(one, one.in_sync_epoch)),)
    )


# ------------------------------------------------------------------------------------------------------------------- questions


def replica_info(request: GetReplicaInfoRequest, situation: Situation) -> Decision:
    """1004: the master of a broker name, dead or alive, and its set.

    Raises:
        RequestRefused: there is no such broker name.
    """
    one = _registered(situation, request.broker_name, ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST)
    header = Mastership(
        master_broker_id=one.master_id, master_address=one.master_address, master_epoch=one.master_epoch or None
    )
    return Decision(header, one.sync_state_set)


def replicas_info(one: BrokerSet, situation: Situation) -> ReplicasInfo:
    """1006: all replicas of one of the broker names for which it asks."""
    identities = [
        (
            broker_id in one.in_sync,
            ReplicaIdentity(
                broker_name=one.name,
                broker_id=broker_id,
                broker_address=replica.address,
                alive=situation.is_alive(one, broker_id),
            ),
        )
        for broker_id, replica in sorted(one.replicas.items())
    ]
    return ReplicasInfo(
        master_broker_id=one.master_id,
        master_address=one.master_address,
        master_epoch=one.master_epoch,
        sync_state_set_epoch=one.in_sync_epoch,
        in_sync_replicas=[identity for in_sync, identity in identities if in_sync],
        not_in_sync_replicas=[identity for in_sync, identity in identities if not in_sync],
    )


def _members(one: BrokerSet) -> BrokerMemberGroup:
    addresses = {broker_id: replica.address for broker_id, replica in one.replicas.items()}
    return BrokerMemberGroup(cluster=one.cluster, broker_name=one.name, broker_addrs=addresses)


def _registered(
    situation: Situation, name: str, code: ResponseCode = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
) -> BrokerSet:
    one = situation.state.sets.get(name)
    if one is None:
        raise RequestRefused(code, f"no broker name {name} is registered here; nothing was changed")
    return one


def _known_replica(request: BrokerHeartbeat | RegisterBrokerRequest, situation: Situation) -> tuple[BrokerSet, int, Replica]:
    broker_id = request.broker_id
    one = situation.state.sets.get(request.broker_name)
    if one is None:
        raise RequestRefused(
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            f"no broker name {request.broker_name} is registered here, and a broker says that it is replica {broker_id} of it: "
            "these are other controllers than before, or they have lost what they knew. Correct controllerAddr; or, if these "
            "shall elect from now on, stop all brokers of the name, remove brokerIdentity from their stores, and start the one "
            "that was master last first. Nothing was changed",
        )
    _check_cluster(one, request.cluster_name)
    if broker_id is None or (replica := one.replicas.get(broker_id)) is None:
        raise _need_to_register(f"{one.name} has no replica {broker_id}")
    return one, broker_id, replica


def _check_cluster(one: BrokerSet, cluster: str | None) -> None:
    if cluster and one.cluster != cluster:
        raise RequestRefused(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"the broker name {one.name} belongs to the cluster {one.cluster}, not to {cluster}; nothing was changed",
        )


def _next_epoch(one: BrokerSet, epoch: int) -> int:
    if epoch >= INT_MAX:
        raise RequestRefused(
            ResponseCode.CONTROLLER_INVALID_REQUEST, f"the epochs of {one.name} are used up at {epoch}; nothing was changed"
        )
    return epoch + 1


def _need_to_register(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, f"{reason}; nothing was changed")


def _fenced(code: ResponseCode, one: BrokerSet, what: str, current: object, got: object) -> RequestRefused:
    return RequestRefused(code, f"{what} of {one.name} is {current}, the request has {got}; nothing was changed")


def _full(reason: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_BUSY, f"{reason}; nothing was changed")


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "nobody"
