"""What the controllers of a group agree on: for each broker name its replicas, its master and its replicas in sync.

The state changes in one way: `apply` takes an event, and events are what the group replicates. An event holds new values and no
differences, so that applying one twice changes nothing. Master epochs, the epochs of SyncStateSets and the ids that are given
out never decrease, not even when replicas are forgotten. Names follow RocketMQ's ReplicasInfoManager. Pure.

A broker name whose replicas were all forgotten gives way once there is no room for another name. From then on new names begin
with ids and epochs above those of every name that gave way, because any of them may be one that comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import msgspec

from .errors import CorruptEvents
from .protocol import ADDRESS_CHARACTERS_MAX, Mastership, SyncStateSet

BROKER_NAMES_MAX = 1024
"""How many broker names with replicas a group keeps; a further one is refused. One turn of the event loop looks at them all."""
STATE_BYTES_MAX = 4 * 1024 * 1024
"""How large the state may become as JSON; beyond that no further replica is taken. One turn of the event loop writes it all."""
GROWTH_BYTES_MAX = ADDRESS_CHARACTERS_MAX + 64
"""How much a replica may add to the state once it is taken: another address, a time-out, its place in the set, and epochs.

This room is kept for each, so that nothing that a replica does later has to be refused for want of it.
"""
PIECE_BYTES = 64 * 1024
"""About how large one piece of a state record becomes; a broker name is never divided."""


class Replica(msgspec.Struct, frozen=True):
    """One replica of a broker name."""

    address: str
    """Where it serves clients and takes notices."""
    check_code: str
    """What it sent when it took its id, so that it can be told from another broker that wants the same one."""
    timeout_millis: int | None = None
    """For how long a heartbeat of it counts, so that a new leader knows it, too; None until it has said so."""


class BrokerSet(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of one broker name."""

    cluster: str
    name: str
    replicas: dict[int, Replica] = {}
    next_id: int = 1
    """The id that the next replica gets. Ids of replicas that were forgotten are not given out again."""
    master_id: int | None = None
    master_epoch: int = 0
    """The number of the latest mastership."""
    in_sync: frozenset[int] = frozenset()
    """The SyncStateSet: replicas that have every message that was ever acknowledged."""
    in_sync_epoch: int = 0
    first: bool = True
    """Whether no master has been elected since the first replica came, so that none of them has acknowledged anything."""

    @property
    def master_address(self) -> str | None:
        return self.replicas[self.master_id].address if self.master_id is not None else None

    @property
    def mastership(self) -> Mastership:
        """The master and the epochs, as answers and notices say them."""
        return Mastership(
            master_broker_id=self.master_id,
            master_address=self.master_address,
            master_epoch=self.master_epoch,
            sync_state_set_epoch=self.in_sync_epoch,
        )

    @property
    def sync_state_set(self) -> SyncStateSet:
        """The set and its epoch, as answers and notices say them."""
        return SyncStateSet(sync_state_set=self.in_sync, sync_state_set_epoch=self.in_sync_epoch)


class IdApplied(msgspec.Struct, frozen=True, kw_only=True, tag="id_applied"):
    """A replica has got its id; the first one of a broker name makes the name known."""

    cluster: str
    name: str
    broker_id: int
    address: str
    check_code: str


class AddressChanged(msgspec.Struct, frozen=True, kw_only=True, tag="address_changed"):
    """A replica serves at another address."""

    name: str
    broker_id: int
    address: str


class TimeoutChanged(msgspec.Struct, frozen=True, kw_only=True, tag="timeout_changed"):
    """The heartbeats of a replica count for another time."""

    name: str
    broker_id: int
    timeout_millis: int


class MasterElected(msgspec.Struct, frozen=True, kw_only=True, tag="master_elected"):
    """A new mastership has begun, with a set of its own."""

    name: str
    master_id: int
    master_epoch: int
    in_sync: frozenset[int]
    in_sync_epoch: int


class SetAltered(msgspec.Struct, frozen=True, kw_only=True, tag="set_altered"):
    """Replicas have joined the SyncStateSet or left it."""

    name: str
    in_sync: frozenset[int]
    in_sync_epoch: int


class ReplicasForgotten(msgspec.Struct, frozen=True, kw_only=True, tag="replicas_forgotten"):
    """An administrator has removed replicas; if the master is among them, there is none from here on."""

    name: str
    broker_ids: frozenset[int]
    in_sync_epoch: int


class StatePiece(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="state"):
    """A part of the whole state, with which the log before the first piece is no longer needed."""

    number: int
    count: int
    sets: tuple[BrokerSet, ...]
    first_id: int = 1
    """As that of the state, in each piece."""
    first_epoch: int = 0
    """As that of the state, in each piece."""


Change = IdApplied | AddressChanged | TimeoutChanged | MasterElected | SetAltered | ReplicasForgotten
Event = Change | StatePiece

_decode = msgspec.json.Decoder(list[Event]).decode
_encode = msgspec.json.Encoder().encode


def encode_events(events: Sequence[Event]) -> bytes:
    """Encode the events of one decision, which take effect together, as the body of one entry."""
    return _encode(events)


def decode_events(body: bytes | memoryview) -> list[Event]:
    """Decode the body of an entry.

    Raises:
        CorruptEvents: no version of this program known here has written it. Nothing was applied.
    """
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptEvents(str(error)) from error


def changed(old: BrokerSet, event: Change) -> BrokerSet:
    """The replicas of a broker name after an event."""
    replace = msgspec.structs.replace
    if isinstance(event, IdApplied):
        replicas = {**old.replicas, event.broker_id: Replica(event.address, event.check_code)}
        first = old.first or not old.replicas
        return replace(old, replicas=replicas, next_id=max(old.next_id, event.broker_id + 1), first=first)
    if isinstance(event, AddressChanged):
        replica = replace(old.replicas[event.broker_id], address=event.address)
        return replace(old, replicas={**old.replicas, event.broker_id: replica})
    if isinstance(event, TimeoutChanged):
        replica = replace(old.replicas[event.broker_id], timeout_millis=event.timeout_millis)
        return replace(old, replicas={**old.replicas, event.broker_id: replica})
    if isinstance(event, MasterElected):
        return replace(
            old,
            master_id=event.master_id,
            master_epoch=event.master_epoch,
            in_sync=event.in_sync,
            in_sync_epoch=event.in_sync_epoch,
            first=False,
        )
    if isinstance(event, SetAltered):
        return replace(old, in_sync=event.in_sync, in_sync_epoch=event.in_sync_epoch)
    return replace(
        old,
        replicas={broker_id: kept for broker_id, kept in old.replicas.items() if broker_id not in event.broker_ids},
        master_id=None if old.master_id in event.broker_ids else old.master_id,
        in_sync=old.in_sync - event.broker_ids,
        in_sync_epoch=event.in_sync_epoch,
    )


@attrs.define(eq=False)
class ControllerState:
    """The state of one controller.

    `known` is False after its log began anew, without the entries before its beginning: until a whole state record has been
    applied, changes mean nothing and are left out.
    """

    sets: dict[str, BrokerSet] = attrs.field(factory=dict[str, BrokerSet])
    first_id: int = 1
    """The id that the first replica of a new broker name gets; no name that gave way has given it out."""
    first_epoch: int = 0
    """The epochs of the master and of the set with which a new broker name begins; none of a name that gave way is larger."""
    known: bool = True
    _sizes: dict[str, int] = attrs.field(factory=dict[str, int])
    _pieces: list[StatePiece] = attrs.field(factory=list[StatePiece])

    @property
    def size_bytes(self) -> int:
        """How large the state is as JSON."""
        return sum(self._sizes.values())

    @property
    def reserved_bytes(self) -> int:
        """How large the state may become with the replicas that it has."""
        return self.size_bytes + GROWTH_BYTES_MAX * sum(len(one.replicas) for one in self.sets.values())

    def apply(self, event: Event) -> None:
        """Change the state by one event.

        Raises:
            CorruptEvents: the event does not fit the state. Nothing was changed.
        """
        if isinstance(event, StatePiece):
            self._collect(event)
        elif self.known:
            old = self.sets.get(event.name)
            if old is None:
                if not isinstance(event, IdApplied):
                    raise CorruptEvents(f"an event changes the broker name {event.name!r}, which has no replica")
                self._make_room()
                old = self._new(event)
            try:
                self._put(changed(old, event))
            except KeyError as error:
                raise CorruptEvents(f"an event changes replica {error} of {event.name!r}, which is not there") from error

    def _make_room(self) -> None:
        """Let broker names without replicas give way if there is no room for another name."""
        if len(self.sets) < BROKER_NAMES_MAX:
            return
        for one in [one for one in self.sets.values() if not one.replicas]:
            self.first_id = max(self.first_id, one.next_id)
            self.first_epoch = max(self.first_epoch, one.master_epoch, one.in_sync_epoch)
            del self.sets[one.name], self._sizes[one.name]

    def _new(self, event: IdApplied) -> BrokerSet:
        epoch = self.first_epoch
        return BrokerSet(cluster=event.cluster, name=event.name, next_id=self.first_id, master_epoch=epoch, in_sync_epoch=epoch)

    def _put(self, one: BrokerSet) -> None:
        self.sets[one.name] = one
        self._sizes[one.name] = len(_encode(one))

    def _collect(self, piece: StatePiece) -> None:
        # The pieces of a record follow each other. A leader that was deposed in between leaves a record without its end.
        if piece.number == 0:
            self._pieces.clear()
        if piece.number != len(self._pieces):
            self._pieces.clear()
            return
        self._pieces.append(piece)
        if len(self._pieces) == piece.count:
            pieces = [*self._pieces]
            self.forget()
            self.known = True
            self.first_id, self.first_epoch = piece.first_id, piece.first_epoch
            for part in pieces:
                for one in part.sets:
                    self._put(one)

    def pieces(self) -> Iterator[StatePiece]:
        """The whole state, in pieces of about `PIECE_BYTES`."""
        parts: list[list[BrokerSet]] = [[]]
        size = 0
        for name in sorted(self.sets):
            if parts[-1] and size + self._sizes[name] > PIECE_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(self.sets[name])
            size += self._sizes[name]
        for number, part in enumerate(parts):
            yield StatePiece(
                number=number,
                count=len(parts),
                sets=tuple(part),
                first_id=self.first_id,
                first_epoch=self.first_epoch,
            )

    def forget(self) -> None:
        """Begin with nothing known, because the log began anew."""
        self.sets, self._sizes, self.known = {}, {}, False
        self.first_id, self.first_epoch = 1, 0
        self._pieces.clear()
