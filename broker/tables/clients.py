"""The connected producers and consumers by group, from their heartbeats (RocketMQ ProducerManager, ConsumerManager).

A member is a client on a connection; one connection may carry several clients and groups. Members without a heartbeat for
`EXPIRY_SECONDS` are removed, those of a closed connection at once. Invariant: a group has members or it does not exist.
Bounds: the members of one connection (`MEMBERS_OF_CONNECTION_MAX`), and the bytes of the members of one group, of all members
and of all subscriptions.
Pure: connections are only compared, the time is an argument, and the groups to notify are returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import getsizeof

import attrs

from ...remoting.bounds import refuse
from ...remoting.command import FRAME_SIZE_MAX
from ...remoting.server import ServerConnection
from ..subscription import Subscription

EXPIRY_SECONDS = 120.0
"""A member without a heartbeat for this long is removed, and its connection is closed."""
SCAN_SECONDS = 10.0
"""How often expired members are looked for."""

MEMBERS_OF_CONNECTION_MAX = 4096
"""The most consumers of one connection, and also the most producers; a further one is refused. One process may
have hundreds of groups; the bound limits peers that send any number."""
MEMBER_BYTES = 600
"""How much memory a member takes besides its client id, estimated."""
MEMBERS_BYTES_MAX = 64 * 1024 * 1024
"""How much memory all consumers may take, and also all producers: some 90,000 of each. A further member is refused."""
GROUP_BYTES_MAX = FRAME_SIZE_MAX
"""How much memory the members of one group may take: some 24,000. A further one is refused. So the client ids of a group always
fit the answer that its members need to distribute the queues."""
SUBSCRIBED_BYTES_MAX = 128 * 1024 * 1024
"""How much memory the subscriptions of all groups may take: some 150,000. A heartbeat that would add more is refused."""

CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"
CONSUME_ACTIVELY, CONSUME_PASSIVELY = "CONSUME_ACTIVELY", "CONSUME_PASSIVELY"
CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"


@attrs.define(eq=False)
class Member:
    """One client of a group."""

    connection: ServerConnection
    client_id: str
    language: str
    version: int
    last_heartbeat: float
    """When the last heartbeat came, in seconds of the monotonic clock."""
    last_heartbeat_ms: int
    """The same time in milliseconds of the wall clock, for display."""


MemberKey = tuple[ServerConnection, str]


@attrs.define(eq=False)
class _Memberships:
    """The groups and clients of each connection, so that no search is needed when it closes."""

    _clients: dict[ServerConnection, dict[str, set[str]]] = attrs.field(factory=dict[ServerConnection, dict[str, set[str]]])
    _count: dict[ServerConnection, int] = attrs.field(factory=dict[ServerConnection, int])
    _bytes_of: dict[str, int] = attrs.field(factory=dict[str, int])
    """How much memory the members of each group take."""
    _bytes: int = 0

    def add(self, connection: ServerConnection, group: str, client_id: str) -> None:
        """Record a new member.

        Raises:
            RequestRefused: the connection has too many members, or those of the group or of all groups take too much memory.
                Nothing was recorded.
        """
        count = self._count.get(connection, 0)
        if count >= MEMBERS_OF_CONNECTION_MAX:
            raise refuse(f"one connection has at most {MEMBERS_OF_CONNECTION_MAX} members of groups")
        size = _bytes_of(client_id)
        if self._bytes_of.get(group, 0) + size > GROUP_BYTES_MAX:
            raise refuse(f"the members of the group {group} take {self._bytes_of[group]} of {GROUP_BYTES_MAX} bytes")
        if self._bytes + size > MEMBERS_BYTES_MAX:
            raise refuse(f"the members of all groups take {self._bytes} of {MEMBERS_BYTES_MAX} bytes")
        self._clients.setdefault(connection, {}).setdefault(group, set()).add(client_id)
        self._count[connection] = count + 1
        self._bytes_of[group] = self._bytes_of.get(group, 0) + size
        self._bytes += size

    def discard(self, connection: ServerConnection, group: str, client_id: str) -> None:
        """Remove an existing member."""
        groups = self._clients[connection]
        groups[group].discard(client_id)
        self._count[connection] -= 1
        self._release(group, client_id)
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._clients[connection], self._count[connection]

    def groups(self, connection: ServerConnection) -> Iterable[str]:
        return self._clients.get(connection, ())

    def drop(self, connection: ServerConnection) -> dict[str, set[str]]:
        """Remove a connection; return its clients by group."""
        self._count.pop(connection, None)
        dropped = self._clients.pop(connection, {})
        for group, client_ids in dropped.items():
            for client_id in client_ids:
                self._release(group, client_id)
        return dropped

    def _release(self, group: str, client_id: str) -> None:
        size = _bytes_of(client_id)
        self._bytes -= size
        self._bytes_of[group] -= size
        if not self._bytes_of[group]:
            del self._bytes_of[group]


def _bytes_of(client_id: str) -> int:
    return MEMBER_BYTES + getsizeof(client_id)


@attrs.define(eq=False)
class ConsumerGroup:
    """The connected members of a consumer group, and what they subscribe to."""

    name: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscriptions: dict[str, Subscription] = attrs.field(factory=dict[str, Subscription])
    members: dict[MemberKey, Member] = attrs.field(factory=dict[MemberKey, Member])
    subscribed: int = 0
    """How much memory `subscriptions` take."""

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    @property
    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    @property
    def connections(self) -> list[ServerConnection]:
        return list(dict.fromkeys(connection for connection, _ in self.members))

    def find(self, client_id: str) -> Member | None:
        """The member with this client id."""
        for member in self.members.values():
            if member.client_id == client_id:
                return member
        return None

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Apply a member's subscriptions; return whether topics were added or removed.

        Each topic keeps its subscription of the highest version; topics that the member does not name are removed.
        """
        before = self.subscriptions
        after: dict[str, Subscription] = {}
        for subscription in subscriptions:
            known = before.get(subscription.topic)
            newer = known is None or subscription.version > known.version
            after[subscription.topic] = subscription if newer or known is None else known
        self.subscriptions = after
        self.subscribed = sum(each.size for each in after.values())
        return before.keys() != after.keys()


@attrs.define(eq=False)
class _Expired:
    """The groups that lost members in an expiry scan, and the connections to close."""

    groups: list[str] = attrs.field(factory=list[str])
    connections: list[ServerConnection] = attrs.field(factory=list[ServerConnection])


@attrs.define(eq=False)
class Consumers:
    """All consumer groups that have members."""

    groups: dict[str, ConsumerGroup] = attrs.field(factory=dict[str, ConsumerGroup])
    _memberships: _Memberships = attrs.field(factory=_Memberships)
    _subscribed: int = 0
    """How much memory the subscriptions of all groups take."""

    def get(self, group: str) -> ConsumerGroup | None:
        return self.groups.get(group)

    def register(
        self, group: str, member: Member, subscriptions: Iterable[Subscription], settings: Mapping[str, str] | None = None
    ) -> bool:
        """Apply a heartbeat; return whether the group must rebalance (a member was added, or topics were added or removed).

        Args:
            settings: any of consume_type, message_model, consume_from_where.

        Raises:
            RequestRefused: a bound would be exceeded. Nothing was changed.
        """
        living = self.groups.get(group) or ConsumerGroup(group)
        wanted = list(subscriptions)
        subscribed = self._subscribed - living.subscribed + sum(each.size for each in wanted)
        if subscribed > max(SUBSCRIBED_BYTES_MAX, self._subscribed):
            raise refuse(f"the subscriptions of all groups take {self._subscribed} of {SUBSCRIBED_BYTES_MAX} bytes")
        key = member.connection, member.client_id
        came = key not in living.members
        if came:
            self._memberships.add(member.connection, group, member.client_id)
        self.groups[group] = living
        for name, value in (settings or {}).items():
            setattr(living, name, value)
        living.members[key] = member
        before = living.subscribed
        changed = living.subscribe(wanted)
        self._subscribed += living.subscribed - before
        return changed or came

    def differing(self, group: str, member: Member, subscriptions: Iterable[Subscription]) -> list[str]:
        """The topics in which a member that joins wants other messages than the members that are there."""
        living = self.groups.get(group)
        if living is None or (member.connection, member.client_id) in living.members:
            return []
        wanted = {each.topic: each.matched for each in subscriptions}
        known = {each.topic: each.matched for each in living.subscriptions.values()}
        return sorted(topic for topic in wanted.keys() | known.keys() if wanted.get(topic) != known.get(topic))

    def refresh(self, connection: ServerConnection, client_id: str, now: float, now_ms: int) -> None:
        """Apply a heartbeat that omits the subscriptions."""
        for group in self._memberships.groups(connection):
            member = self.groups[group].members.get((connection, client_id))
            if member is not None:
                member.last_heartbeat, member.last_heartbeat_ms = now, now_ms

    def unregister(self, group: str, connection: ServerConnection, client_id: str) -> bool:
        """Remove a member; return whether it existed."""
        living = self.groups.get(group)
        if living is None or living.members.pop((connection, client_id), None) is None:
            return False
        self._memberships.discard(connection, group, client_id)
        self._tidy(living)
        return True

    def drop(self, connection: ServerConnection) -> list[str]:
        """Remove the members of a closed connection; return the groups that lost one."""
        lost = self._memberships.drop(connection)
        for group, client_ids in lost.items():
            living = self.groups[group]
            for client_id in client_ids:
                del living.members[connection, client_id]
            self._tidy(living)
        return sorted(lost)

    def expire(self, now: float) -> _Expired:
        """Remove members whose heartbeats stopped; return the groups that lost one and the connections to close."""
        expired = _Expired()
        for living in list(self.groups.values()):
            silent = [key for key, member in living.members.items() if now - member.last_heartbeat > EXPIRY_SECONDS]
            for key in silent:
                del living.members[key]
                self._memberships.discard(key[0], living.name, key[1])
                expired.connections.append(key[0])
            if silent:
                self._tidy(living)
                expired.groups.append(living.name)
        return expired

    def groups_of_topic(self, topic: str) -> set[str]:
        """The groups with members that subscribe to the topic."""
        return {group.name for group in self.groups.values() if topic in group.subscriptions}

    def _tidy(self, living: ConsumerGroup) -> None:
        if not living.members:
            self._subscribed -= living.subscribed
            self.groups.pop(living.name, None)


@attrs.define(eq=False, repr=False)
class Producers:
    """All producer groups that have members."""

    groups: dict[str, dict[MemberKey, Member]] = attrs.field(factory=dict[str, dict[MemberKey, Member]])
    _memberships: _Memberships = attrs.field(factory=_Memberships)

    def members(self, group: str) -> list[Member]:
        return list(self.groups.get(group, {}).values())

    def register(self, group: str, member: Member) -> None:
        """Apply a heartbeat; raises RequestRefused if a bound would be exceeded."""
        key = member.connection, member.client_id
        if key not in self.groups.get(group, ()):
            self._memberships.add(member.connection, group, member.client_id)
        self.groups.setdefault(group, {})[key] = member

    def refresh(self, connection: ServerConnection, client_id: str, now: float, now_ms: int) -> None:
        """Apply a heartbeat that omits the groups."""
        for group in self._memberships.groups(connection):
            member = self.groups[group].get((connection, client_id))
            if member is not None:
                member.last_heartbeat, member.last_heartbeat_ms = now, now_ms

    def unregister(self, group: str, connection: ServerConnection, client_id: str) -> None:
        """Remove a member."""
        members = self.groups.get(group)
        if members is not None and members.pop((connection, client_id), None) is not None:
            self._memberships.discard(connection, group, client_id)
            self._tidy(group)

    def drop(self, connection: ServerConnection) -> None:
        """Remove the members of a closed connection."""
        for group, client_ids in self._memberships.drop(connection).items():
            for client_id in client_ids:
                del self.groups[group][connection, client_id]
            self._tidy(group)

    def expire(self, now: float) -> list[ServerConnection]:
        """Remove members whose heartbeats stopped; return the connections to close."""
        silent_connections: list[ServerConnection] = []
        for group, members in list(self.groups.items()):
            for key in [key for key, member in members.items() if now - member.last_heartbeat > EXPIRY_SECONDS]:
                del members[key]
                self._memberships.discard(key[0], group, key[1])
                self._tidy(group)
                silent_connections.append(key[0])
        return silent_connections

    def _tidy(self, group: str) -> None:
        if not self.groups[group]:
            del self.groups[group]
