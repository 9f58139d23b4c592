"""The values that the admin client returns."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...message.units import MASTER_ID
from ..route import BrokerRoute


@attrs.frozen
class QueueRange:
    """The offsets that a queue holds: `min_offset` to `max_offset`, without the latter."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int


@attrs.frozen
class GroupPosition:
    """The position of a group in one queue."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int

    @property
    def lag(self) -> int:
        """How many messages the group has not committed yet."""
        return self.broker_offset - self.consumer_offset


@attrs.frozen
class Connection:
    """A client that a broker knows."""

    client_id: str
    address: str
    language: str
    version: int


@attrs.frozen
class GroupConnections:
    """The members of a consumer group that are online."""

    members: tuple[Connection, ...]
    consume_type: str
    message_model: str
    consume_from: str
    subscriptions: Mapping[str, str]
    """The filter expression of each topic."""


@attrs.frozen
class User:
    """A user of a broker, without the password."""

    broker: str
    name: str
    is_super: bool
    is_enabled: bool


@attrs.frozen
class Right:
    """What a user of a broker may or may not do with a resource."""

    broker: str
    user: str
    resource: str
    """`Topic:NAME`, `Topic:BEGINNING*`, `Topic:*`, the same of `Group` and `Cluster`, or `*`."""
    actions: tuple[str, ...]
    allows: bool
    sources: tuple[str, ...] = ()
    """The addresses and networks from where requests have to come; none means all."""
    policy: str = "Custom"


@attrs.frozen
class Cluster:
    """Brokers as a name server knows them."""

    brokers: tuple[BrokerRoute, ...]

    def without_master(self, cluster: str | None = None) -> list[str]:
        """The names of brokers, of one cluster or of all, that have no master now."""
        brokers = [broker for broker in self.brokers if cluster in (None, broker.cluster)]
        return sorted(broker.name for broker in brokers if MASTER_ID not in broker.addresses)
