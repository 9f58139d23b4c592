"""What brokers, controllers and administrators say to each other: headers and bodies of requests 904 and 1001 to 1013.

Headers are read with `of` and written with `ext`, bodies are read with `of` and written with `body`. Names and types are those
of rocketmq-remoting 5.5.0. Every field is bounded where it is read, in requests and in answers.
Requests 1005, 1007 and 1010 have neither header nor body; the texts of 1009 and 1010 are properties, as those of other servers.
Pure: whether a request may be carried out is not decided here.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

import msgspec

from ...message.errors import JsonError
from ...message.json import OF_STRANGERS_BYTES_MAX, dumps_strict, loads
from ...message.numbers import INT_MAX, INT_MIN, LONG_MAX
from ...remoting.bounds import NAME_CHARACTERS_MAX
from ...remoting.codes import ResponseCode
from ...remoting.command import RemotingCommand, wire_fields
from ...remoting.errors import RequestRefused
from ...world.logs import shortened
from ..classic.epochs import EPOCHS_MAX

REPLICAS_MAX = 64
"""How many replicas one broker name may have; an answer lists them all, and each of them costs its master a copy."""
NAMES_MAX = 1024
"""How many broker names one request may ask for, because one turn of the event loop collects the answer."""
ADDRESS_CHARACTERS_MAX = 300
"""The longest address: a host name, brackets and a port."""
CHECK_CODE_CHARACTERS_MAX = 600
"""The longest register check code: an address, a semicolon and the time at which the broker asked."""
PEERS_CHARACTERS_MAX = 32 * 1024
"""The longest list of the nodes of a controller group."""
HEARTBEAT_TIMEOUT_MILLIS_MAX = 600_000
"""The longest time that a broker may ask to be believed alive after a heartbeat. A longer one would delay every election."""
ANY_BROKER = -1
"""The `broker_id` of an election that no certain replica asks for."""
LOWEST_PRIORITY = INT_MAX
"""The default of `electionPriority`: a replica with a lower number is preferred."""

_NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z"
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=_NO_CONTROLS)]
"""The name of a cluster, a broker or a controller."""
Address = Annotated[str, msgspec.Meta(min_length=3, max_length=ADDRESS_CHARACTERS_MAX, pattern=r"^[!#-\[\]-~]+:[0-9]{1,5}\Z")]
"""`host:port`, in characters that take one byte each in JSON."""
BrokerId = Annotated[int, msgspec.Meta(ge=0, le=LONG_MAX)]
"""What the controller gives out, from 1 on; Apache's brokers use 0 for what has none yet."""
Epoch = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
LogEpoch = Annotated[int, msgspec.Meta(ge=-1, le=INT_MAX)]
"""The last epoch of a commit log; -1 if it has none."""
LogOffset = Annotated[int, msgspec.Meta(ge=-1, le=LONG_MAX)]
"""A physical offset of a commit log; -1 if the broker does not know it."""
Priority = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
CheckCode = Annotated[
    str,
    msgspec.Meta(
        max_length=CHECK_CODE_CHARACTERS_MAX,
        pattern=rf"^[!#-\[\]-~]{{1,{ADDRESS_CHARACTERS_MAX - 6}}}:[0-9]{{1,5}};{_NO_CONTROLS[1:]}",
    ),
]
BrokerIds = Annotated[frozenset[BrokerId], msgspec.Meta(max_length=REPLICAS_MAX)]
Addresses = Annotated[dict[BrokerId, Address], msgspec.Meta(max_length=REPLICAS_MAX)]


T = TypeVar("T")


class Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    """The fields of a request or an answer; a field that is None is absent."""

    @classmethod
    def of(cls, command: RemotingCommand) -> Self:
        """Read the header of a command.

        Raises:
            RequestRefused: a field is absent, of another type, or beyond its bound. Nothing was done.
        """
        return _converted(cls, command.ext)

    def ext(self) -> dict[str, str]:
        """The fields as a command carries them."""
        return wire_fields(msgspec.to_builtins(self))


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A JSON body."""

    @classmethod
    def of(cls, body: bytes) -> Self:
        """Read the body of a command.

        Raises:
            RequestRefused: it is not JSON, or a value is absent, of another type, or beyond its bound. Nothing was done.
        """
        return _converted(cls, _json(cls, body))

    def body(self) -> bytes:
        """The bytes as a command carries them: strict JSON with keys and members in order.

        Java writes integer keys bare, but its own mqadmin of 5.5.0 cannot read them in what it skips.
        """
        return dumps_strict(msgspec.to_builtins(self, order="deterministic"))


class Mastership(Header, frozen=True):
    """Who is the master of a broker name, as many answers say it; its id and address are absent if there is none.

    1008 is this, from the controller to a broker, one-way: there is another master, or none. Its body is a `SyncStateSet`.
    """

    master_broker_id: BrokerId | None = None
    master_address: Address | None = None
    master_epoch: Epoch | None = None
    sync_state_set_epoch: Epoch | None = None
    """Answers to 1004 leave this out, because their body says it."""


class SyncStateSet(Body, frozen=True):
    """The replicas in sync of one broker name, by id, and the number of its change."""

    sync_state_set: BrokerIds
    sync_state_set_epoch: Epoch


class AlterSyncStateSetRequest(Header, frozen=True):
    """1001, from a master: replace the set, if nothing has changed since the master learned of it; the new set is the body."""

    broker_name: Name
    master_broker_id: BrokerId
    master_epoch: Epoch


class AlterSyncStateSetResponse(Header, frozen=True):
    """The answer to 1001; its body is the new `SyncStateSet`."""

    new_sync_state_set_epoch: Epoch


class ElectMasterRequest(Header, frozen=True):
    """1002, from a replica without a master, or from an administrator, who names the one that is to become it."""

    broker_name: Name
    cluster_name: str = ""
    broker_id: Annotated[int, msgspec.Meta(ge=ANY_BROKER, le=LONG_MAX)] = ANY_BROKER
    designate_elect: bool = False


class BrokerMemberGroup(Body, frozen=True):
    """The addresses of all replicas of a broker name."""

    cluster: str
    broker_name: str
    broker_addrs: Addresses


class ElectMasterBody(Body, frozen=True):
    """The body of the answer to 1002, whose header is a `Mastership`."""

    sync_state_set: BrokerIds | None = None
    broker_member_group: BrokerMemberGroup | None = None


class RegisterBrokerRequest(Header, frozen=True):
    """1003, from a broker that has an id.

    A process sends it once, when it starts, and only brokers of ours send the last three fields. With them a registration says
    that the process is a new one, which may have lost what its predecessor acknowledged. Without them nothing is known of that.
    """

    cluster_name: Name
    broker_name: Name
    broker_id: BrokerId
    broker_address: Address
    max_offset: LogOffset | None = None
    """Where the log of the broker ends."""
    epoch: Epoch | None = None
    """The last epoch of its log."""
    clean_stop: bool = False
    """Whether its predecessor stopped in order, so that the log has all that it ever acknowledged."""


class RegisterBrokerResponse(Mastership, frozen=True, kw_only=True):
    """The answer to 1003; its body is a `SyncStateSet`."""

    cluster_name: Name
    broker_name: Name


class GetReplicaInfoRequest(Header, frozen=True):
    """1004, from a broker that asks who is the master. The answer is a `Mastership` and a `SyncStateSet`."""

    broker_name: Name


class GetMetadataResponse(Header, frozen=True):
    """The answer to 1005: which controller decides."""

    group: Name
    controller_leader_id: str | None = None
    """Absent while there is no leader."""
    controller_leader_address: Address | None = None
    """Where the leader answers requests; absent while it is not known."""
    is_leader: bool = False
    """Whether the controller that answers is the leader."""
    peers: Annotated[str, msgspec.Meta(max_length=PEERS_CHARACTERS_MAX)] = ""
    """`id:host:port` of each controller, a semicolon after each."""


class ReplicaIdentity(Body, frozen=True):
    """A replica in the answer to 1006."""

    broker_name: Name
    broker_id: BrokerId
    broker_address: Address
    alive: bool = False


class ReplicasInfo(Body, frozen=True):
    """The replicas of one broker name in the answer to 1006."""

    master_epoch: Epoch
    sync_state_set_epoch: Epoch
    in_sync_replicas: Annotated[list[ReplicaIdentity], msgspec.Meta(max_length=REPLICAS_MAX)]
    not_in_sync_replicas: Annotated[list[ReplicaIdentity], msgspec.Meta(max_length=REPLICAS_MAX)]
    master_broker_id: BrokerId | None = None
    master_address: Address | None = None


class BrokerReplicasInfo(Body, frozen=True):
    """The answer to 1006, which asks with a JSON list of broker names."""

    replicas_info_table: Annotated[dict[str, ReplicasInfo], msgspec.Meta(max_length=NAMES_MAX)]


class EpochEntry(Body, frozen=True):
    """One epoch in the log of a broker; `end_offset` is the largest long for the last one."""

    epoch: Epoch
    start_offset: LogOffset
    end_offset: LogOffset = LONG_MAX


class EpochEntryCache(Body, frozen=True):
    """The answer of a broker to 1007: the epochs of its log."""

    cluster_name: Name
    broker_name: Name
    broker_id: BrokerId
    epoch_list: Annotated[list[EpochEntry], msgspec.Meta(max_length=EPOCHS_MAX)]
    max_offset: LogOffset


class CleanBrokerDataRequest(Header, frozen=True):
    """1011, from an administrator: forget replicas, all of the broker name if no ids are given."""

    broker_name: Name
    cluster_name: str | None = None
    broker_controller_ids_to_clean: Annotated[str, msgspec.Meta(max_length=20 * REPLICAS_MAX)] | None = None
    """Ids with semicolons between them."""
    is_clean_living_broker: bool = False


class NextBrokerIdRequest(Header, frozen=True):
    """1012, from a broker without an id."""

    cluster_name: Name
    broker_name: Name


class NextBrokerIdResponse(Header, frozen=True):
    """The answer to 1012: the id that the broker may apply for."""

    cluster_name: Name
    broker_name: Name
    next_broker_id: BrokerId


class ApplyBrokerIdRequest(Header, frozen=True):
    """1013, from a broker: take this id. The same request may be repeated, as the check code tells a broker from others."""

    cluster_name: Name
    broker_name: Name
    applied_broker_id: BrokerId
    register_check_code: CheckCode
    """`address;time`."""


class ApplyBrokerIdResponse(Header, frozen=True):
    """The answer to 1013."""

    cluster_name: Name
    broker_name: Name


class BrokerHeartbeat(Header, frozen=True):
    """904, from a broker to each controller, and from 5.x brokers to name servers, which need only the first three fields."""

    cluster_name: Name
    broker_name: Name
    broker_addr: Address
    broker_id: BrokerId | None = None
    epoch: LogEpoch | None = None
    max_offset: LogOffset | None = None
    confirm_offset: LogOffset | None = None
    heartbeat_timeout_mills: Annotated[int, msgspec.Meta(ge=1, le=HEARTBEAT_TIMEOUT_MILLIS_MAX)] | None = None
    election_priority: Priority | None = None


def read_broker_names(body: bytes) -> list[str]:
    """Read the body of 1006.

    Raises:
        RequestRefused: it is not a JSON list of at most `NAMES_MAX` names. Nothing was done.
    """
    names: list[str] = _converted(_NAMES, _json(_NAMES, body))
    return names


_NAMES: Any = Annotated[list[Name], msgspec.Meta(max_length=NAMES_MAX)]


def _json(kind: Any, body: bytes) -> Any:
    try:
        return loads(body, loose_bytes_max=OF_STRANGERS_BYTES_MAX)
    except JsonError as error:
        raise _refusal(kind, error) from error


def _converted(kind: type[T], value: Any) -> T:
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise _refusal(kind, error) from error


def _refusal(kind: Any, error: Exception) -> RequestRefused:
    name = kind.__name__ if isinstance(kind, type) else "the list of broker names"
    return RequestRefused(ResponseCode.CONTROLLER_INVALID_REQUEST, f"{name}: {shortened(str(error), 200)}; nothing was done")
