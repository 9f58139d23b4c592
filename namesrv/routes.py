"""The route table: live brokers, the topics they serve and the routes that clients get (RocketMQ RouteInfoManager). Pure.

Invariant: a broker name is in `_brokers`, in its cluster and in the routes of its topics exactly as long as one of its
addresses is registered; what else is kept of its topics goes in several turns of the event loop (`unlist`). An address is
registered until its connection ends or its timeout passes without a refresh.
Connections are opaque here; times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

import attrs
import orjson

from ..message.data_version import DataVersion
from ..message.flags import PERM_READ_WRITE, PERM_WRITE
from ..message.units import MASTER_ID
from ..remoting.bounds import refuse
from ..remoting.codes import ResponseCode
from ..remoting.errors import RequestRefused
from .bounds import BROKERS_MAX, BROKERS_OF_CONNECTION_MAX, QUEUE_ENTRIES_MAX, TOPICS_BYTES_MAX, TOPICS_KNOWN_MAX
from .registration import RegisteredTopics, TopicConfig

BROKER_TIMEOUT_SECONDS = 120.0
"""After this time without a refresh a broker expires, unless it registered with a timeout of its own."""

UNIT, UNIT_SUB = 1, 2

EXPIRED_MAX = 64
"""How many brokers expire in one turn of the event loop; thousands of one name would take a second."""
SORTED_MAX = 20_000
"""Up to this number of topics a list is sorted; sorting more would take too long a turn of the event loop."""

MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Topics whose routes tell brokers of RocketMQ 5 the members of their name, so they name no acting masters."""

ESCAPED_BYTES_MAX = 6
"""The most bytes that one character has in JSON."""

Connection = TypeVar("Connection", bound=Hashable)


@attrs.frozen
class Broker:
    """A broker process behind one address, as it registers."""

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str = ""
    timeout_seconds: float = BROKER_TIMEOUT_SECONDS
    enable_acting_master: bool | None = None
    """None for a broker before 5.x, which has no acting masters."""
    zone: str | None = None


@attrs.frozen
class Registered:
    """The answer to a registration; the master's addresses are empty unless a slave registered whose master is known."""

    master_address: str = ""
    master_ha_address: str = ""
    replaced_address: str | None = None
    """Another address that was registered under the same name and id until now."""
    left_out: int = 0
    """How many topics of the registration are beyond a bound."""


@attrs.frozen
class MinIdChange:
    """Another broker of a name has the lowest id now: one with a lower id registered, or the one with the lowest left."""

    broker_name: str
    broker_id: int
    address: str
    recipients: tuple[str, ...]
    """The addresses of the brokers to notify."""
    offline_address: str = ""
    """The address of the broker that left, if one left."""
    ha_address: str = ""
    """The HA address of the broker that registered, if one did."""


@attrs.define(eq=False)
class _BrokerGroup:
    """The brokers of one name: a master and its slaves."""

    cluster: str
    name: str
    addresses: dict[int, str] = attrs.field(factory=dict[int, str])
    enable_acting_master: bool = False
    zone: str | None = None

    def to_json(self, addresses: Mapping[int, str] | None = None) -> dict[str, Any]:
        return {
            "brokerAddrs": dict(self.addresses if addresses is None else addresses),
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
            "zoneName": self.zone,
        }


@attrs.define(eq=False)
class _Live(Generic[Connection]):
    """When one address was last refreshed, and over which connection it registered."""

    broker: Broker
    connection: Connection
    data_version: DataVersion
    refreshed: float
    lacks_topics: bool = False
    """Whether topics of the broker were left out or deleted here, so that it has to register all of them again."""


def _bytes_of(topic: str) -> int:
    return len(orjson.dumps(topic)) + 1


def _sorted(names: Collection[str]) -> list[str]:
    """A list of names, in order unless there are more than `SORTED_MAX`."""
    return sorted(names) if len(names) <= SORTED_MAX else list(names)


def _queue_data(broker_name: str, config: TopicConfig) -> dict[str, Any]:
    return {
        "brokerName": broker_name,
        "perm": config.perm,
        "readQueueNums": config.read_queue_nums,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": config.write_queue_nums,
    }


@attrs.define(eq=False, repr=False)
class RouteTable(Generic[Connection]):
    """The registered brokers and topics of a name server."""

    _topics: dict[str, dict[str, TopicConfig]] = attrs.field(factory=dict[str, dict[str, TopicConfig]])
    """By topic and broker name."""
    _brokers: dict[str, _BrokerGroup] = attrs.field(factory=dict[str, _BrokerGroup])
    _clusters: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]])
    _live: dict[tuple[str, str], _Live[Connection]] = attrs.field(factory=dict[tuple[str, str], _Live[Connection]])
    """By cluster and address."""
    _topics_of: dict[str, set[str]] = attrs.field(factory=dict[str, set[str]])
    """By broker name, the topics of `_topics` that have an entry for it."""
    _entries: int = 0
    """How many topics all broker names have together."""
    _leaving: dict[str, None] = attrs.field(factory=dict[str, None])
    """Names without a broker whose topics are still listed; `unlist` removes them."""

    @property
    def broker_count(self) -> int:
        """How many brokers are registered."""
        return len(self._live)

    @property
    def masterless_count(self) -> int:
        """How many broker names have no master."""
        return sum(MASTER_ID not in group.addresses for group in self._brokers.values())

    @property
    def topic_count(self) -> int:
        """How many topics are registered."""
        return len(self._topics)

    _topics_bytes: int = 0
    """How many bytes the names of all topics have as JSON."""
    min_id_changes: list[MinIdChange] = attrs.field(factory=list[MinIdChange])
    """Changes of which the brokers were not yet notified, for names with acting masters."""

    # registration and expiry of brokers

    def register(
        self,
        broker: Broker,
        registered: RegisteredTopics,
        connection: Connection,
        now: float,
        *,
        forget_missing_topics: bool = False,
    ) -> Registered:
        """Apply a registration.

        Raises:
            RequestRefused: a single topic of a broker that never registered in full, a state older than the known one, or one
                beyond a bound. Nothing was changed.
        """
        group = self._brokers.get(broker.name)
        known = group.addresses if group is not None else {}
        if broker.broker_id < 0:
            raise refuse(f"register broker failed: a broker id is not negative (got {broker.broker_id})")
        if len(self._live) >= BROKERS_MAX and (broker.cluster, broker.address) not in self._live:
            raise refuse(f"register broker failed: {BROKERS_MAX} addresses are registered already")
        live = self._live.get((broker.cluster, broker.address))
        if live is None or live.connection != connection:
            over_it = sum(each.connection == connection for each in self._live.values())
            if over_it >= BROKERS_OF_CONNECTION_MAX:
                raise refuse(f"register broker failed: {over_it} addresses are registered over this connection already")
        if broker.broker_id not in known and len(registered.topics) == 1:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: {broker.name} id {broker.broker_id} sent one topic before all of its topics",
            )
        self._refuse_stale(broker, registered.data_version, known.get(broker.broker_id))

        self._leave_other_name(broker)
        if broker.name in self._leaving:
            self._forget_topics(broker.name, lambda _: True)
            del self._leaving[broker.name]
        if group is None:
            group = self._brokers[broker.name] = _BrokerGroup(broker.cluster, broker.name)
        known_before = group.addresses.get(broker.broker_id)
        is_first = known_before is None
        lowest_before = min(group.addresses, default=None)
        self._enter_group(group, broker)
        if group.enable_acting_master and lowest_before is not None and broker.broker_id < lowest_before:
            others = tuple(address for number, address in group.addresses.items() if number != broker.broker_id)
            came = MinIdChange(broker.name, broker.broker_id, broker.address, others, ha_address=broker.ha_address)
            self.min_id_changes.append(came)
        left_out = registered.left_out
        acts_as_master = broker.enable_acting_master is not None and broker.broker_id == min(group.addresses)
        if broker.broker_id == MASTER_ID or acts_as_master:
            read_only = broker.broker_id != MASTER_ID and group.enable_acting_master
            left_out += self._take_topics(broker, registered, read_only=read_only, all_new=is_first)
            if forget_missing_topics:
                self._forget_topics(broker.name, lambda topic: topic not in registered.topics)
        # A registration of a single topic does not bring what is lacking; one of all topics does.
        is_full = len(registered.topics) >= len(self._topics_of.get(broker.name, ()))
        lacks_topics = left_out > 0 or (live is not None and live.lacks_topics and not is_full)
        self._live[broker.cluster, broker.address] = _Live(broker, connection, registered.data_version, now, lacks_topics)
        other = known_before if known_before != broker.address else None
        return attrs.evolve(self._master_of(broker, group), replaced_address=other, left_out=left_out)

    def _has_room(self, broker_name: str, topic: str) -> bool:
        """Whether a topic of a broker fits the bounds; one that is there already does."""
        if topic in self._topics_of.get(broker_name, ()):
            return True
        if self._entries >= QUEUE_ENTRIES_MAX:
            return False
        is_known = topic in self._topics
        return is_known or (len(self._topics) < TOPICS_KNOWN_MAX and self._topics_bytes + _bytes_of(topic) <= TOPICS_BYTES_MAX)

    def _enter_topic(self, broker_name: str, topic: str) -> dict[str, TopicConfig]:
        """List a topic of a broker, and return its queues by broker name."""
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._topics[topic] = {}
            self._topics_bytes += _bytes_of(topic)
        listed = self._topics_of.get(broker_name)
        if listed is None:
            listed = self._topics_of[broker_name] = set()
        if topic not in listed:
            listed.add(topic)
            self._entries += 1
        return queues

    def _refuse_stale(self, broker: Broker, version: DataVersion, old_address: str | None) -> None:
        # A master that was replaced under its own id may return late; the newer state stays.
        if old_address is None or old_address == broker.address:
            return
        old = self._live.get((broker.cluster, old_address))
        if old is not None and old.data_version.state_version > version.state_version:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"register broker failed: {old_address} has registered a later state as {broker.name} id {broker.broker_id}",
            )

    def _leave_other_name(self, broker: Broker) -> None:
        """Remove the address from the name under which it registered before, for nothing else would ever remove it there."""
        live = self._live.get((broker.cluster, broker.address))
        if live is not None and live.broker.name != broker.name:
            self.unregister(live.broker.cluster, live.broker.name, broker.address)

    def _enter_group(self, group: _BrokerGroup, broker: Broker) -> None:
        replaced = group.addresses.get(broker.broker_id)
        if replaced is not None and replaced != broker.address:
            self._live.pop((group.cluster, replaced), None)
        if group.cluster != broker.cluster:
            # What the address registered in the other cluster would expire, and take the name away from this one.
            self._live.pop((group.cluster, broker.address), None)
            self._leave_cluster(group)
        group.cluster = broker.cluster
        group.enable_acting_master = bool(broker.enable_acting_master)
        group.zone = broker.zone
        self._clusters.setdefault(broker.cluster, set()).add(broker.name)
        # The same process registers under another id: a slave became master, or a master became slave.
        for broker_id in [number for number, address in group.addresses.items() if address == broker.address]:
            if broker_id != broker.broker_id:
                del group.addresses[broker_id]
        group.addresses[broker.broker_id] = broker.address

    def _take_topics(self, broker: Broker, registered: RegisteredTopics, *, read_only: bool, all_new: bool) -> int:
        """Enter the topics of a broker; return how many of them do not fit and were left out."""
        live = self._live.get((broker.cluster, broker.address))
        changed = all_new or live is None or live.data_version != registered.data_version
        left_out, name, topics = 0, broker.name, registered.topics
        all_fit = (  # the ordinary case, found out without a look at each topic
            self._entries + len(topics) <= QUEUE_ENTRIES_MAX
            and len(self._topics) + len(topics) <= TOPICS_KNOWN_MAX
            and self._topics_bytes + ESCAPED_BYTES_MAX * (sum(map(len, topics)) + len(topics)) <= TOPICS_BYTES_MAX
        )
        for topic, config in topics.items():
            queues = self._topics.get(topic)
            if queues is None or name not in queues:
                if all_fit or self._has_room(name, topic):
                    self._enter_topic(name, topic)[name] = config
                else:
                    left_out += 1
            elif changed:
                queues[name] = config
        if read_only:
            self._change_permission(name, lambda perm: perm & ~PERM_WRITE)
        return left_out

    def _unlist_topic(self, broker_name: str, topic: str) -> None:
        """Remove one broker from a topic, and the topic with its last broker."""
        queues = self._topics[topic]
        del queues[broker_name]
        if not queues:
            del self._topics[topic]
            self._topics_bytes -= _bytes_of(topic)
        listed = self._topics_of[broker_name]
        listed.discard(topic)
        self._entries -= 1
        if not listed:
            del self._topics_of[broker_name]

    def _master_of(self, broker: Broker, group: _BrokerGroup) -> Registered:
        master = group.addresses.get(MASTER_ID)
        if broker.broker_id == MASTER_ID or master is None:
            return Registered()
        live = self._live.get((broker.cluster, master))
        return Registered(master, live.broker.ha_address if live is not None else "")

    def unregister(self, cluster: str, broker_name: str, address: str) -> None:
        """Remove an address, if it is registered under this name; with the last address of a name its routes end."""
        live = self._live.get((cluster, address))
        group = self._brokers.get(broker_name)
        if live is None or live.broker.name != broker_name or group is None:
            return
        del self._live[cluster, address]
        lowest_before = min(group.addresses)
        group.addresses = {number: other for number, other in group.addresses.items() if other != address}
        if group.enable_acting_master and group.addresses and (lowest := min(group.addresses)) != lowest_before:
            rest = tuple(group.addresses.values())
            self.min_id_changes.append(MinIdChange(broker_name, lowest, group.addresses[lowest], rest, offline_address=address))
        if not group.addresses:
            del self._brokers[broker_name]
            self._leave_cluster(group)
            if broker_name in self._topics_of:
                self._leaving[broker_name] = None
        elif group.enable_acting_master and MASTER_ID not in group.addresses:
            self._change_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def _leave_cluster(self, group: _BrokerGroup) -> None:
        names = self._clusters.get(group.cluster, set())
        names.discard(group.name)
        if not names:
            self._clusters.pop(group.cluster, None)

    def _forget_topics(self, broker_name: str, gone: Callable[[str], bool]) -> None:
        for topic in [topic for topic in self._topics_of.get(broker_name, ()) if gone(topic)]:
            self._unlist_topic(broker_name, topic)

    def unlist(self, topics_max: int) -> bool:
        """Remove topics of names that have left, at most so many; returns whether there are more."""
        for name in list(self._leaving):
            part = list(islice(self._topics_of[name], topics_max))
            for topic in part:
                self._unlist_topic(name, topic)
            topics_max -= len(part)
            if name in self._topics_of:
                return True
            del self._leaving[name]
        return False

    def refresh(self, cluster: str, address: str, now: float) -> None:
        """Extend the registration of an address; nothing happens if it is not registered."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.refreshed = now

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """The version that an address registered last, or None."""
        live = self._live.get((cluster, address))
        return live.data_version if live is not None else None

    def lacks_topics(self, cluster: str, address: str) -> bool:
        """Whether topics that an address registered are not there any more, or never were."""
        live = self._live.get((cluster, address))
        return live is not None and live.lacks_topics

    def expire(self, now: float) -> list[tuple[Broker, Connection]]:
        """Remove brokers that were silent for longer than their timeout, at most `EXPIRED_MAX`.

        Returns: them with their connections, to be closed.
        """
        silent = [live for live in self._live.values() if live.refreshed + live.broker.timeout_seconds < now][:EXPIRED_MAX]
        for live in silent:
            self.unregister(live.broker.cluster, live.broker.name, live.broker.address)
        return [(live.broker, live.connection) for live in silent]

    def connection_closed(self, connection: Connection) -> list[Broker]:
        """Remove the brokers that last registered over a connection; returns them."""
        lost = [live.broker for live in self._live.values() if live.connection is connection]
        for broker in lost:
            self.unregister(broker.cluster, broker.name, broker.address)
        return lost

    # queries of clients

    def route(self, topic: str, *, acting_masters: bool = False) -> dict[str, Any] | None:
        """The route of a topic as TopicRouteData, or None if no broker serves it."""
        queues = self._topics.get(topic, {})
        names = sorted(name for name in queues if name in self._brokers)
        if not names:
            return None
        acting = acting_masters and not topic.startswith(MEMBER_TOPIC_PREFIX)
        return {
            "brokerDatas": [self._seen(self._brokers[name], queues[name], acting=acting) for name in names],
            "filterServerTable": {},
            "queueDatas": [_queue_data(name, queues[name]) for name in names],
        }

    def _seen(self, group: _BrokerGroup, config: TopicConfig, *, acting: bool) -> dict[str, Any]:
        addresses = dict(group.addresses)
        if acting and group.enable_acting_master and MASTER_ID not in addresses and not config.perm & PERM_WRITE:
            # Clients read only from brokers with an id 0, and none of them can send to a queue without write permission.
            addresses[MASTER_ID] = addresses.pop(min(addresses))
        return group.to_json(addresses)

    def cluster_info(self) -> dict[str, Any]:
        """All brokers and clusters, as ClusterInfo."""
        return {
            "brokerAddrTable": {name: group.to_json() for name, group in self._brokers.items()},
            "clusterAddrTable": {cluster: sorted(names) for cluster, names in self._clusters.items()},
        }

    def members(self, cluster: str, broker_name: str) -> dict[str, Any]:
        """The addresses of one broker name, as BrokerMemberGroup; none for an unknown name."""
        group = self._brokers.get(broker_name)
        known = group is not None and group.cluster == cluster
        return {"brokerAddrs": dict(group.addresses) if group and known else {}, "brokerName": broker_name, "cluster": cluster}

    def flagged_topics(self, wanted: Callable[[int], bool]) -> list[str]:
        """Names of all topics of which some broker has a sysflag other than 0 that `wanted` accepts."""
        found: list[str] = []
        for topic, queues in self._topics.items():
            for config in queues.values():
                if config.topic_sys_flag and wanted(config.topic_sys_flag):
                    found.append(topic)
                    break
        return _sorted(found)

    def all_topics(self) -> list[str]:
        """Names of all topics."""
        return _sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Names of all topics that a broker of the cluster serves."""
        return _sorted(set[str]().union(*(self._topics_of.get(name, ()) for name in self._clusters.get(cluster, ()))))

    def system_topics(self) -> tuple[list[str], str | None]:
        """The topics named after clusters and brokers, and the address of some broker, which knows the rest."""
        address = next((address for group in self._brokers.values() for address in group.addresses.values()), None)
        return sorted(self._clusters.keys() | self._brokers.keys()), address

    # changes by administrators

    def register_topic(self, topic: str, queues: Iterable[tuple[str, TopicConfig]]) -> None:
        """Add a topic's queues on registered brokers; those on unknown brokers are ignored.

        Raises:
            RequestRefused: there is no room for it. Brokers before the one that the remark names have the topic.
        """
        for name, config in queues:
            if name in self._brokers:
                if not self._has_room(name, topic):
                    known = f"{len(self._topics)} topics with {self._topics_bytes} bytes and {self._entries} entries of brokers"
                    raise refuse(f"the topic does not fit on {name}: there are {known}")
                self._enter_topic(name, topic)[name] = config

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic from the brokers of one cluster, or from all.

        A broker on which the topic was created again meanwhile registers all of its topics again.
        """
        for name in list(self._topics.get(topic, {})):
            group = self._brokers.get(name)
            if group is not None and (cluster is None or group.cluster == cluster):
                self._unlist_topic(name, topic)
                for address in group.addresses.values():
                    if live := self._live.get((group.cluster, address)):
                        live.lacks_topics = True

    def wipe_write_permission(self, broker_name: str) -> int:
        """Remove the write permission from all topics of a broker; returns their number."""
        return self._change_permission(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Give all topics of a broker read and write permission, as RocketMQ without the inherit bit; returns their number."""
        return self._change_permission(broker_name, lambda _: PERM_READ_WRITE)

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        served = self._topics_of.get(broker_name, ())
        changed: dict[TopicConfig, TopicConfig] = {}  # a broker's topics are alike
        for topic in served:
            queues = self._topics[topic]
            before = queues[broker_name]
            after = changed.get(before)
            if after is None:
                after = changed[before] = attrs.evolve(before, perm=change(before.perm))
            queues[broker_name] = after
        return len(served)
