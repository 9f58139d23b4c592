"""Routes: the route answers of a name server as values, and the table of broker addresses made from them.

Invariant: every address in the table is in a route (RocketMQ `cleanOfflineBroker`). The names are those of RocketMQ's
`TopicRouteData`, `BrokerData`, `QueueData`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import attrs

from ..message.flags import PERM_READ, PERM_WRITE
from ..message.message import MessageQueue
from ..message.units import MASTER_ID
from ..world.address import Address
from .errors import NoRouteReason

AUTO_CREATE_TOPIC = "TBW102"
"""The topic whose settings brokers use when a first send creates a topic."""

AUTO_CREATE_QUEUES = 4
"""How many queues a topic gets at most when a first send creates it (`defaultTopicQueueNums` of RocketMQ's clients)."""

ROUTE_QUEUES_MAX = 100_000
"""A route with more queues of one topic is refused, because a client makes an object of each."""


@attrs.frozen
class BrokerRoute:
    """One broker name and the addresses of its members; id 0 is the master."""

    name: str
    cluster: str
    addresses: Mapping[int, Address]


@attrs.frozen
class QueueRoute:
    """The queues of a topic on one broker name."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int


@attrs.frozen
class TopicRoute:
    """The brokers and queues of one topic."""

    topic: str
    brokers: tuple[BrokerRoute, ...]
    queues: tuple[QueueRoute, ...]
    order_configuration: str = ""

    def publish_queues(self) -> list[MessageQueue]:
        """The queues that are writable and whose broker has a master, in the order that all clients use."""
        with_master = {broker.name for broker in self.brokers if MASTER_ID in broker.addresses}
        if self.order_configuration:
            return list(self._ordered_queues(with_master))
        return [
            MessageQueue(self.topic, queue.broker_name, queue_id)
            for queue in sorted(self.queues, key=lambda queue: queue.broker_name)
            if queue.perm & PERM_WRITE and queue.broker_name in with_master
            for queue_id in range(queue.write_queues)
        ]

    def subscribe_queues(self) -> list[MessageQueue]:
        """The queues that are readable and whose broker has any member."""
        reachable = {broker.name for broker in self.brokers if broker.addresses}
        return sorted(
            MessageQueue(self.topic, queue.broker_name, queue_id)
            for queue in self.queues
            if queue.perm & PERM_READ and queue.broker_name in reachable
            for queue_id in range(queue.read_queues)
        )

    def why_not_publishable(self) -> NoRouteReason:
        """The reason when `publish_queues` is empty."""
        writable = any(queue.perm & PERM_WRITE and queue.write_queues for queue in self.queues)
        return NoRouteReason.NO_MASTER if writable else NoRouteReason.NO_PERMISSION

    def as_template_for(self, topic: str) -> TopicRoute:
        """Make the route that `topic` will have after its first send created it from this template."""
        queues = tuple(
            attrs.evolve(
                queue,
                read_queues=min(queue.read_queues, AUTO_CREATE_QUEUES),
                write_queues=min(queue.write_queues, AUTO_CREATE_QUEUES),
            )
            for queue in self.queues
        )
        return attrs.evolve(self, topic=topic, queues=queues)

    def _ordered_queues(self, with_master: Container[str]) -> Iterable[MessageQueue]:
        # `b1:4;b2:4` replaces the queues of the route for producers.
        for item in self.order_configuration.split(";"):
            broker_name, _, count = item.partition(":")
            if broker_name in with_master:
                yield from (MessageQueue(self.topic, broker_name, queue_id) for queue_id in range(_ordered(count)))


def _ordered(count: str) -> int:
    """How many queues an order configuration gives a broker; 0 if it is malformed."""
    return int(count) if count.isascii() and count.isdigit() and len(count) <= len(str(ROUTE_QUEUES_MAX)) else 0


def parse_route(topic: str, body: Mapping[str, Any]) -> TopicRoute:
    """Read a TopicRouteData body.

    Raises:
        ValueError: an address or a number is malformed, or there are more than `ROUTE_QUEUES_MAX` queues.
        KeyError, TypeError: the body has another structure.
    """
    try:
        brokers = sorted(map(parse_broker, body.get("brokerDatas") or ()), key=lambda broker: broker.name)
        queues = sorted(
            (
                QueueRoute(str(item["brokerName"]), int(item["readQueueNums"]), int(item["writeQueueNums"]), int(item["perm"]))
                for item in body.get("queueDatas") or ()
            ),
            key=lambda queue: queue.broker_name,
        )
        order = str(body.get("orderTopicConf") or "")
    except AttributeError as error:
        raise TypeError(f"a list or a text stands where an object should: {error}") from error
    count = max(sum(max(queue.read_queues, 0) for queue in queues), sum(max(queue.write_queues, 0) for queue in queues))
    if max(count, sum(_ordered(item.partition(":")[2]) for item in order.split(";"))) > ROUTE_QUEUES_MAX:
        raise ValueError(f"a topic has up to {ROUTE_QUEUES_MAX} queues")
    return TopicRoute(topic, tuple(brokers), tuple(queues), order)


def parse_broker(item: Mapping[str, Any]) -> BrokerRoute:
    """Read one BrokerData object; raises as `parse_route` does."""
    addresses = {int(broker_id): Address.parse(address) for broker_id, address in item["brokerAddrs"].items()}
    return BrokerRoute(str(item["brokerName"]), str(item.get("cluster") or ""), addresses)


@attrs.define
class RouteTable:
    """All routes of one client, and the broker addresses in them."""

    routes: dict[str, TopicRoute] = attrs.field(factory=dict[str, TopicRoute])
    _brokers: dict[str, BrokerRoute] = attrs.field(factory=dict[str, BrokerRoute])

    def update(self, route: TopicRoute) -> bool:
        """Store a route; return whether it has changed. If several routes name a broker, the latest one is used."""
        before = self.routes.get(route.topic)
        self.routes[route.topic] = route
        names = {broker.name for broker in route.brokers}
        for broker in route.brokers:
            self._brokers[broker.name] = broker
        if before is not None and any(broker.name not in names for broker in before.brokers):
            self._forget_offline_brokers()  # which looks at all routes
        return before != route

    def forget(self, topic: str) -> None:
        """Drop the route of a topic that is gone."""
        self.routes.pop(topic, None)
        self._forget_offline_brokers()

    def master(self, broker_name: str) -> Address | None:
        """The address to send to; None while there is no master."""
        broker = self._brokers.get(broker_name)
        return None if broker is None else broker.addresses.get(MASTER_ID)

    def member(self, broker_name: str, broker_id: int, avoid: frozenset[Address] = frozenset()) -> tuple[Address, int] | None:
        """The member to read from: the wanted one, else the one after it, else any; one in `avoid` only if all are."""
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.addresses:
            return None
        usable = {each: address for each, address in broker.addresses.items() if address not in avoid}
        usable = usable or dict(broker.addresses)
        for wanted in (broker_id, broker_id + 1) if broker_id != MASTER_ID else (broker_id,):
            if wanted in usable:
                return usable[wanted], wanted
        chosen = min(usable)
        return usable[chosen], chosen

    def has_other_members(self, address: Address) -> bool:
        """Whether the messages of the broker at `address` can be read from another member too."""
        return any(len(broker.addresses) > 1 and address in broker.addresses.values() for broker in self._brokers.values())

    def masters(self) -> list[Address]:
        """The addresses of all masters."""
        return [broker.addresses[MASTER_ID] for broker in self._brokers.values() if MASTER_ID in broker.addresses]

    def members(self) -> list[Address]:
        """The addresses of all brokers, including slaves."""
        return [address for broker in self._brokers.values() for address in broker.addresses.values()]

    def _forget_offline_brokers(self) -> None:
        named = {broker.name for route in self.routes.values() for broker in route.brokers}
        for name in self._brokers.keys() - named:
            del self._brokers[name]
