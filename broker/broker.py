"""A broker as a whole: its parts, its services and its tasks (RocketMQ BrokerController)."""

from __future__ import annotations

from typing import Any

import attrs
import trio
from trio.abc import Listener

from ..ha.node import ReplicationNode
from ..native import scan_sends
from ..remoting.dispatcher import Dispatcher
from ..remoting.server import RemotingServer
from ..store.keeping.scrub import Scrubber
from ..store.message_store import MessageStore
from ..world.address import Address, bare_host
from ..world.events import get_logger
from ..world.network import Network, Stream
from ..world.real import World
from ..world.supervision import keep_running
from ..world.tls import TlsAcceptor
from .access.control import AccessControl
from .access.opening import access_of
from .access.plain_acl import PlainAccessControl
from .admin.settings import Settings
from .config import BrokerConfig
from .delay import DelayDelivery
from .housekeeping import Housekeeping
from .live_config import LiveConfig
from .modes.mode import Mode
from .modes.replication import Replication
from .registration import Registration
from .requests.client_requests import ClientRequests
from .requests.pull import PullService
from .role import LiveRole
from .role_change import BrokerRoleChange, answer_waiting
from .stats import Stats
from .tables.clients import Consumers, Producers
from .tables.commits import Commits
from .tables.consumption import Consumption
from .tables.groups import GroupTable
from .tables.locks import QueueLocks
from .tables.numbered_sends import NumberedSends
from .tables.offsets import ConsumerOffsets
from .tables.persistence import Persistence
from .tables.table_files import TableFiles
from .tables.table_log import TableLog
from .tables.tables import Tables
from .tables.topics import TopicTable

log = get_logger(__name__)


@attrs.define(eq=False, kw_only=True)
class Broker:
    """One running broker: its parts, and which of them each service uses."""

    live_config: LiveConfig
    world: World
    store: MessageStore
    mode: Mode
    host: str
    """The address that clients are given."""
    port: int
    persistence: Persistence
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets = attrs.field(factory=ConsumerOffsets)
    stats: Stats
    role: LiveRole
    network: Network
    """Opens connections to name servers and brokers; encrypted if the configuration says so."""
    tls: TlsAcceptor
    dispatcher: Dispatcher = attrs.field(factory=Dispatcher)
    producers: Producers = attrs.field(factory=Producers)
    consumers: Consumers = attrs.field(factory=Consumers)
    locks: QueueLocks = attrs.field(factory=QueueLocks)
    server: RemotingServer = attrs.field(init=False)
    numbered: NumberedSends = attrs.field(init=False)
    commits: Commits = attrs.field(init=False)
    delay: DelayDelivery = attrs.field(init=False)
    replication: Replication[Any] = attrs.field(init=False)
    tables: Tables = attrs.field(init=False)
    access: AccessControl | PlainAccessControl | None = attrs.field(init=False)
    """Checks every request; None if everybody may do everything."""
    table_log: TableLog = attrs.field(init=False)
    registration: Registration = attrs.field(init=False)
    pulls: PullService = attrs.field(init=False)
    clients: ClientRequests = attrs.field(init=False)
    settings: Settings = attrs.field(init=False)
    scrubber: Scrubber = attrs.field(init=False)
    housekeeping: Housekeeping = attrs.field(init=False)

    def __repr__(self) -> str:
        return f"<Broker {self.config.broker_name}:{self.config.broker_id} at {self.address}>"

    def __attrs_post_init__(self) -> None:
        """Build the parts, each after those that it uses; then load the tables."""
        clock, store, role = self.world.clock, self.store, self.role
        topics, groups, offsets = self.topics, self.groups, self.offsets
        self.numbered = NumberedSends(store, clock)
        self.commits = Commits(offsets, store, role)
        self.delay = DelayDelivery(store, clock, role, self.stats, queue_nums=topics.readable_queues, mend=self.node.mend)
        self.tables = Tables(
            topics=topics,
            groups=groups,
            offsets=offsets,
            locks=self.locks,
            delay=self.delay,
            forget_topic=self._forget_topic,
            forget_group=self.stats.forget_group,
        )
        self.access = access_of(self.config, self.world, self.tables.access)
        self.dispatcher.access = self.access
        scan = scan_sends if self.access is None else None
        self.server = RemotingServer(self.dispatcher, self.world.network, clock, tls=self.tls, scan=scan)
        self.table_log = TableLog(store=store, role=role, tables=self.tables)
        self.delay.adopt = self.table_log.adopt_topic
        self.replication = self.mode.replication(
            config=self.config,
            store=store,
            role=role,
            tables=self.tables,
            table_log=self.table_log,
            persistence=self.persistence,
            network=self.network,
            clock=clock,
            secrets=self.world.secrets,
        )
        self.registration = Registration(
            config=self.live_config,
            network=self.network,
            clock=clock,
            role=role,
            topics=topics,
            address=self.address,
            ha_address=lambda: self.ha_address,
            is_removed=lambda: self.node.is_removed,
        )
        self.pulls = PullService(
            config=self.live_config,
            clock=clock,
            store=store,
            role=role,
            topics=topics,
            groups=groups,
            offsets=offsets,
            commits=self.commits,
            consumers=self.consumers,
            stats=self.stats,
            is_following=lambda: self.node.is_following,
            access=self.access,
            policy=self.replication.decides,
            leads=self.node.leads,
        )
        self.clients = ClientRequests(
            config=self.live_config,
            clock=clock,
            role=role,
            topics=topics,
            table_log=self.table_log,
            groups=groups,
            consumers=self.consumers,
            producers=self.producers,
            close_connection=self.server.close_connection,
        )
        if store.cleaner is not None:
            store.cleaner.readers = Consumption(store, offsets, self.consumers, self.delay)
        self.settings = Settings(config=self.live_config, clock=clock, store=store, topics=topics, groups=groups)
        self.scrubber = Scrubber(
            store=store,
            rate=lambda: self.config.scrub_bytes_per_second,
            framing_at=self.node.framing_at,
            mend=self.node.mend,
        )
        self.housekeeping = Housekeeping(
            clock=clock,
            began=clock.monotonic(),
            dispatcher=self.dispatcher,
            role=role,
            stats=self.stats,
            pulls=self.pulls,
            clients=self.clients,
            scrubber=self.scrubber,
            locks=self.locks,
            table_log=self.table_log,
        )
        self._load_tables()

    def _load_tables(self) -> None:
        TableFiles(
            persistence=self.persistence,
            clock=self.world.clock,
            store=self.store,
            role=self.role,
            tables=self.tables,
            table_log=self.table_log,
            commits=self.commits,
            numbered=self.numbered,
        ).load(self.config)

    def _forget_topic(self, topic: str) -> None:
        self.stats.forget_topic(topic)
        self.store.forget_topic(topic)

    @property
    def node(self) -> ReplicationNode:
        """The node of this broker in its group."""
        return self.mode.node

    @property
    def config(self) -> BrokerConfig:
        """The current configuration."""
        return self.live_config.now

    @property
    def address(self) -> str:
        """The address at which clients reach this broker, `host:port` with an IPv6 address in brackets."""
        return str(Address(self.host, self.port))

    @property
    def ha_address(self) -> str:
        """The address at which slaves fetch the log, `host:port` with an IPv6 address in brackets."""
        return str(Address(bare_host(self.config.broker_ip2) or self.host, self.node.port))

    async def start(self, nursery: trio.Nursery, listeners: list[Listener[Stream]]) -> None:
        """Serve, start the tasks and register; everything runs in `nursery`."""
        self.dispatcher.nursery = nursery
        self.role.begin(
            BrokerRoleChange(
                store=self.store,
                role=self.role,
                clock=self.world.clock,
                tables=self.tables,
                commits=self.commits,
                persistence=self.persistence,
                replication=self.replication,
                delay=self.delay,
                pulls=self.pulls,
                registration=self.registration,
            )
        )
        nursery.start_soon(keep_running, "held pulls", self.pulls.run)
        nursery.start_soon(keep_running, "delivery of delayed messages", self.delay.run)
        await self.replication.start(nursery)
        await nursery.start(self.server.serve, listeners)
        self.persistence.start(nursery)
        nursery.start_soon(keep_running, "housekeeping", self.housekeeping.run)
        nursery.start_soon(keep_running, "notices to consumers", self.clients.run)
        if isinstance(self.access, PlainAccessControl):
            nursery.start_soon(keep_running, "reading of changed accounts", self.access.watch)
        await nursery.start(self.registration.run)

    async def stop(self) -> None:
        """Append the last commits, hand over leadership, unregister, refuse new messages, answer puts, write the tables."""
        await self.table_log.append_gathered()
        await self.node.hand_over()
        await self.registration.unregister()
        self.store.writability.shut_down = True
        await answer_waiting(self.store)
        self.store.catch_up()
        await self.persistence.write_all()
