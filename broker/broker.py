"""A broker as a whole: its parts, its services and its tasks (RocketMQ BrokerController)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs
import trio
from trio.abc import Listener

from ..ha.node import ReplicationNode
from ..native import scan_sends
from ..remoting.dispatcher import Dispatcher, Service
from ..remoting.errors import RequestRefused
from ..remoting.metrics import Latencies, LoopTurns
from ..remoting.monitoring import Monitoring
from ..remoting.server import RemotingServer
from ..store.keeping.scrub import Scrubber
from ..store.message_store import MessageStore
from ..world.address import Address, bare_host
from ..world.events import get_logger
from ..world.network import Network, Stream
from ..world.real import World
from ..world.slices import in_slices
from ..world.supervision import keep_running
from ..world.ticks import next_tick
from ..world.tls import TlsAcceptor
from .access.control import AccessControl
from .access.opening import access_of
from .access.plain_acl import PlainAccessControl
from .access.positions import Positions
from .admin.access import AccessAdministration
from .admin.inspection import Inspection
from .admin.queries import Queries
from .admin.relay import Relay
from .admin.runtime import Runtime
from .admin.settings import Settings
from .admin.topics_and_groups import Administration
from .config import BrokerConfig
from .delay import DelayDelivery
from .live_config import LiveConfig
from .metrics import Metrics
from .modes.mode import Mode
from .modes.replication import Replication
from .monitoring import Readiness
from .registration import Registration
from .requests.client_requests import ClientRequests
from .requests.lock_requests import LockRequests
from .requests.offset_requests import OffsetRequests
from .requests.pull import PullService
from .requests.retry import SendBack
from .requests.send import SendHandler
from .requests.slave_sync import SlaveSync
from .role import LiveRole
from .role_change import BrokerRoleChange, answer_waiting
from .stats import Stats
from .tables.clients import SCAN_SECONDS, Consumers, Producers
from .tables.commits import Commits
from .tables.consumption import Consumption
from .tables.deletions import Deletions
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

HOUSEKEEPING_SECONDS = 1.0
"""How often the broker answers overdue pulls, updates its statistics and reads back a part of its log."""


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
    _began: float = attrs.field(init=False)
    """When it was made, by the monotonic clock."""

    def __repr__(self) -> str:
        return f"<Broker {self.config.broker_name}:{self.config.broker_id} at {self.address}>"

    def __attrs_post_init__(self) -> None:
        """Build the parts, each after those that it uses; then load the tables and register the request codes."""
        clock, store, role = self.world.clock, self.store, self.role
        topics, groups, offsets = self.topics, self.groups, self.offsets
        self._began = clock.monotonic()
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
        self._load_tables()
        self._register_services()

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

    def _register_services(self) -> None:
        """Register the request codes."""
        services: list[Service] = [self.pulls, self.clients, self.registration, self.settings, *self._other_services()]
        for service in services:
            service.register(self.dispatcher)

    def _other_services(self) -> Iterator[Service]:
        """The services that the broker only registers and never calls."""
        config, clock, store, role = self.live_config, self.world.clock, self.store, self.role
        topics, groups, offsets = self.topics, self.groups, self.offsets
        table_log, decides = self.table_log, self.replication.decides
        positions = Positions(store, self.access)
        yield SendHandler(
            config=config,
            store=store,
            topics=topics,
            table_log=table_log,
            groups=groups,
            stats=self.stats,
            randomness=self.world.randomness,
            orderly=lambda group: self.locks.are_held(group, clock.monotonic()),
            registration=self.registration,
            numbered=self.numbered,
            record_max=self.mode.record_max,
        )
        yield self.numbered
        yield SendBack(
            config=config,
            store=store,
            positions=positions,
            role=role,
            topics=topics,
            table_log=table_log,
            groups=groups,
            stats=self.stats,
            randomness=self.world.randomness,
        )
        yield OffsetRequests(
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            commits=self.commits,
            clock=clock,
            policy=decides,
        )
        yield LockRequests(
            broker_name=self.config.broker_name,
            clock=clock,
            topics=topics,
            locks=self.locks,
            table_log=table_log,
            store=store,
            policy=decides,
        )
        yield SlaveSync(tables=self.tables, role=role, store=store, secret=self.config.ha_secret.encode())
        yield AccessAdministration(
            table_log=table_log, configured=self.config.configured_users, is_checked=self.access is not None
        )
        yield Queries(config=config, store=store, positions=positions, consumers=self.consumers)
        yield Runtime(clock=clock, store=store, stats=self.stats, delay=self.delay, replication_status=self.replication.status)
        yield Administration(
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            consumers=self.consumers,
            deletions=Deletions(store=store, role=role, tables=self.tables, table_log=table_log),
            table_log=table_log,
            known=self.registration,
            policy=decides,
        )
        yield Inspection(
            config=config,
            address=self.address,
            clock=clock,
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            stats=self.stats,
            consumers=self.consumers,
            producers=self.producers,
        )
        yield Relay(
            config=config,
            store=store,
            positions=positions,
            topics=topics,
            groups=groups,
            offsets=offsets,
            commits=self.commits,
            consumers=self.consumers,
            table_log=table_log,
            group_reset=self.pulls.group_reset,
        )
        yield from self.mode.services()

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
        nursery.start_soon(keep_running, "housekeeping", self._keep_house)
        nursery.start_soon(keep_running, "notices to consumers", self.clients.run)
        if isinstance(self.access, PlainAccessControl):
            nursery.start_soon(keep_running, "reading of changed accounts", self.access.watch)
        await nursery.start(self.registration.run)

    def monitoring(self, turns: LoopTurns, latencies: Latencies) -> Monitoring:
        """What operators' tools may ask over HTTP."""
        metrics = Metrics(
            cluster=self.config.broker_cluster_name,
            broker=self.config.broker_name,
            store=self.store,
            role=self.role,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            consumers=self.consumers,
            producers=self.producers,
            stats=self.stats,
            scrubber=self.scrubber,
            replication=self.replication.status,
            lag_bytes=lambda: self.node.lag_bytes,
            turns=turns,
            latencies=latencies,
        )
        readiness = Readiness(
            config=self.live_config,
            store=self.store,
            role=self.role,
            registration=self.registration,
            is_following=lambda: self.node.is_following,
            lag_bytes=lambda: self.node.lag_bytes,
        )
        return Monitoring(metrics.text, readiness.faults)

    async def _keep_house(self) -> None:
        clock = self.world.clock
        scan_at = clock.monotonic() + SCAN_SECONDS
        while True:
            await next_tick(HOUSEKEEPING_SECONDS)
            now = clock.monotonic()
            self.pulls.sweep(now)
            # Not the time of day, which may be set back or forward: rates are of the time that has passed.
            self.stats.tick(self.stats.started_ms + round((now - self._began) * 1000))
            if self.scrubber.is_due:
                self.dispatcher.start_soon(keep_running, "scrubbing", self.scrubber.tick)
            if now >= scan_at:
                scan_at = now + SCAN_SECONDS
                self.clients.expire(now)
                await self._end_leases(now)

    async def _end_leases(self, now: float) -> None:
        """End the leases that nobody has renewed in time, in several turns: those of a client that is gone end together."""
        async for keys in in_slices(self.locks.keys()):
            if self.role.takes_puts and (expired := self.locks.expired(keys, now)):  # renewals are known to the master alone
                with suppress(RequestRefused):
                    self.table_log.put_leases(expired)

    async def stop(self) -> None:
        """Append the last commits, hand over leadership, unregister, refuse new messages, answer puts, write the tables."""
        await self.table_log.append_gathered()
        await self.node.hand_over()
        await self.registration.unregister()
        self.store.writability.shut_down = True
        await answer_waiting(self.store)
        self.store.catch_up()
        await self.persistence.write_all()
