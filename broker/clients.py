"""Who is connected: producers and consumers by group, from their heartbeats (RocketMQ ProducerManager, ConsumerManager).

A member is a client on a connection; one connection may carry several clients and groups. Members that say nothing for
`EXPIRY_SECONDS` are dropped, those of a closed connection at once. Invariant: a group has members or it does not exist.
Pure: connections are only compared, time is handed in, and what others must be told is returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from ..remoting.server import ServerConnection
from .subscription import Subscription

EXPIRY_SECONDS = 120.0
SCAN_SECONDS = 10.0

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
    """By the monotonic clock, seconds."""
    last_heartbeat_ms: int
    """By the wall clock, for people."""


MemberKey = tuple[ServerConnection, str]


@attrs.define(eq=False)
class ConsumerGroup:
    """The living part of a consumer group."""

    name: str
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET
    subscriptions: dict[str, Subscription] = attrs.field(factory=dict[str, Subscription])
    members: dict[MemberKey, Member] = attrs.field(factory=dict[MemberKey, Member])

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
        """Take a member's subscriptions; tell whether topics came or went.

        The highest version of each topic stays, topics that are not named go.
        """
        before = self.subscriptions
        after: dict[str, Subscription] = {}
        for subscription in subscriptions:
            known = before.get(subscription.topic)
            newer = known is None or subscription.version > known.version
            after[subscription.topic] = subscription if newer or known is None else known
        self.subscriptions = after
        return before.keys() != after.keys()


@attrs.define(eq=False)
class _Expired:
    """What an expiry scan dropped."""

    groups: list[str] = attrs.field(factory=list[str])
    connections: list[ServerConnection] = attrs.field(factory=list[ServerConnection])


@attrs.define(eq=False)
class Consumers:
    """All living consumer groups."""

    groups: dict[str, ConsumerGroup] = attrs.field(factory=dict[str, ConsumerGroup])
    _groups_of: dict[ServerConnection, set[str]] = attrs.field(factory=dict[ServerConnection, set[str]])

    def get(self, group: str) -> ConsumerGroup | None:
        return self.groups.get(group)

    def register(
        self, group: str, member: Member, subscriptions: Iterable[Subscription], settings: Mapping[str, str] | None = None
    ) -> bool:
        """Take a heartbeat; tell whether the group must rebalance (a member or topic came or went).

        Args:
            settings: any of consume_type, message_model, consume_from_where.
        """
        living = self.groups.get(group)
        if living is None:
            living = self.groups[group] = ConsumerGroup(group)
        for name, value in (settings or {}).items():
            setattr(living, name, value)
        key = member.connection, member.client_id
        came = key not in living.members
        living.members[key] = member
        self._groups_of.setdefault(member.connection, set()).add(group)
        return living.subscribe(subscriptions) or came

    def refresh(self, connection: ServerConnection, client_id: str, now: float, now_ms: int) -> None:
        """Take a heartbeat that leaves its subscriptions out."""
        for group in self._groups_of.get(connection, ()):
            member = self.groups[group].members.get((connection, client_id))
            if member is not None:
                member.last_heartbeat, member.last_heartbeat_ms = now, now_ms

    def unregister(self, group: str, connection: ServerConnection, client_id: str) -> bool:
        """Drop a member; tell whether it was there."""
        living = self.groups.get(group)
        if living is None or living.members.pop((connection, client_id), None) is None:
            return False
        self._tidy(living, connection)
        return True

    def drop(self, connection: ServerConnection) -> list[str]:
        """Forget a closed connection; return the groups that lost a member."""
        lost: list[str] = []
        for group in sorted(self._groups_of.pop(connection, ())):
            living = self.groups[group]
            for key in [key for key in living.members if key[0] is connection]:
                del living.members[key]
            lost.append(group)
            if not living.members:
                del self.groups[group]
        return lost

    def expire(self, now: float) -> _Expired:
        """Drop silent members; return the groups that lost one and the connections to close."""
        expired = _Expired()
        for living in list(self.groups.values()):
            silent = [key for key, member in living.members.items() if now - member.last_heartbeat > EXPIRY_SECONDS]
            for key in silent:
                del living.members[key]
                self._tidy(living, key[0])
                expired.connections.append(key[0])
            if silent:
                expired.groups.append(living.name)
        return expired

    def groups_of_topic(self, topic: str) -> set[str]:
        """Living groups that subscribe to the topic."""
        return {group.name for group in self.groups.values() if topic in group.subscriptions}

    def _tidy(self, living: ConsumerGroup, connection: ServerConnection) -> None:
        if not any(key[0] is connection for key in living.members):
            groups = self._groups_of.get(connection, set())
            groups.discard(living.name)
            if not groups:
                self._groups_of.pop(connection, None)
        if not living.members:
            self.groups.pop(living.name, None)


@attrs.define(eq=False)
class Producers:
    """All living producer groups."""

    groups: dict[str, dict[MemberKey, Member]] = attrs.field(factory=dict[str, dict[MemberKey, Member]])
    _groups_of: dict[ServerConnection, set[str]] = attrs.field(factory=dict[ServerConnection, set[str]])

    def members(self, group: str) -> list[Member]:
        return list(self.groups.get(group, {}).values())

    def register(self, group: str, member: Member) -> None:
        """Take a heartbeat."""
        self.groups.setdefault(group, {})[member.connection, member.client_id] = member
        self._groups_of.setdefault(member.connection, set()).add(group)

    def refresh(self, connection: ServerConnection, client_id: str, now: float, now_ms: int) -> None:
        """Take a heartbeat that leaves its groups out."""
        for group in self._groups_of.get(connection, ()):
            member = self.groups[group].get((connection, client_id))
            if member is not None:
                member.last_heartbeat, member.last_heartbeat_ms = now, now_ms

    def unregister(self, group: str, connection: ServerConnection, client_id: str) -> None:
        """Drop a member."""
        members = self.groups.get(group)
        if members is not None and members.pop((connection, client_id), None) is not None:
            self._tidy(group, connection)

    def drop(self, connection: ServerConnection) -> None:
        """Forget a closed connection."""
        for group in self._groups_of.pop(connection, ()):
            members = self.groups[group]
            for key in [key for key in members if key[0] is connection]:
                del members[key]
            if not members:
                del self.groups[group]

    def expire(self, now: float) -> list[ServerConnection]:
        """Drop silent members; return the connections to close."""
        silent_connections: list[ServerConnection] = []
        for group, members in list(self.groups.items()):
            for key in [key for key, member in members.items() if now - member.last_heartbeat > EXPIRY_SECONDS]:
                del members[key]
                self._tidy(group, key[0])
                silent_connections.append(key[0])
        return silent_connections

    def _tidy(self, group: str, connection: ServerConnection) -> None:
        members = self.groups[group]
        if not any(key[0] is connection for key in members):
            groups = self._groups_of.get(connection, set())
            groups.discard(group)
            if not groups:
                self._groups_of.pop(connection, None)
        if not members:
            del self.groups[group]
