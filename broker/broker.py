"""A broker as a whole: its tables, its tasks and the order in which they start and stop (RocketMQ BrokerController).

Start: listen, open the store, load the tables, register the handlers, serve, start the tasks, register with name servers.
Connections that are opened before the broker serves wait in the listen backlog. Stop: unregister from the name servers, refuse
new messages, answer waiting requests, write the tables, close connections, close the store. A client whose connection is
closed therefore finds no route to this broker any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import attrs
import trio
from trio.abc import Listener

from ..ha.node import ReplicationNode
from ..native import scan_sends
from ..remoting.dispatcher import Dispatcher, Service
from ..remoting.errors import RequestRefused
from ..remoting.metrics import Latencies, LoopTurns
from ..remoting.monitoring import Monitoring, open_monitoring
from ..remoting.server import RemotingServer
from ..remoting.tls import open_tls
from ..store.keeping.scrub import Scrubber
from ..store.message_store import MessageStore
from ..store.opening import open_message_store
from ..world.address import Address, bare_host, is_loopback_host, is_numeric_host
from ..world.events import get_logger
from ..world.network import Network, Stream, closing
from ..world.real import World, real_world
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
from .modes.mode import Mode, mode_of
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
from .role import LiveRole, Phase, Role, RoleState
from .stats import Stats
from .storage import world_of_store
from .tables.adoption import adopt_stored
from .tables.clients import SCAN_SECONDS, Consumers, Producers
from .tables.commits import Commits
from .tables.consumption import Consumption
from .tables.deletions import Deletions
from .tables.groups import GroupTable
from .tables.locks import QueueLocks
from .tables.numbered_sends import NumberedSends
from .tables.offsets import ConsumerOffsets
from .tables.persistence import GROUPS_FILE, LOCKS_FILE, TOPICS_FILE, Persistence
from .tables.table_files import TableFiles
from .tables.table_log import TableLog
from .tables.tables import Tables
from .tables.topics import TopicTable

log = get_logger(__name__)

HOUSEKEEPING_SECONDS = 1.0
"""How often the broker answers overdue pulls, updates its statistics and reads back a part of its log."""
SETTLE_SECONDS = 0.3
"""The longest time that a stop or a change of role waits for puts that wait for a flush or a slave."""
STOP_SECONDS = 0.9
"""After this time an unfinished stop is cancelled and the broker's tasks end."""
_OPEN_TO_ALL = "whoever reaches the port may do everything: set authenticationEnabled and authorizationEnabled"
VIP_PORT_DISTANCE = 2
"""The broker also listens on its listen port minus this number, to which old clients send."""


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
        replication = self.replication
        self.role.begin(
            {
                Phase.STOP_TAKING: (self._stop_taking, replication.stop_taking),
                Phase.SETTLE: (self._settle, replication.end_role),
                Phase.REBUILD: (replication.begin_role, self._rebuild),
                Phase.SERVE: (replication.serve, self._serve),
                Phase.REGISTER: (self._register,),
            }
        )
        nursery.start_soon(keep_running, "held pulls", self.pulls.run)
        nursery.start_soon(keep_running, "delivery of delayed messages", self.delay.run)
        await replication.start(nursery)
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

    async def _stop_taking(self, _old: RoleState, _new: RoleState) -> None:
        self.store.writability.role_refusal = self.role.refusal
        self.store.is_replica = self.role.is_replica

    async def _settle(self, _old: RoleState, new: RoleState) -> None:
        await self._answer_waiting()
        if new.role is Role.SLAVE:  # in DLedger mode the locks are in the log
            self.locks.follow()
            await self.persistence.write(LOCKS_FILE)

    async def _rebuild(self, _old: RoleState, new: RoleState) -> None:
        if new.role.takes_puts:
            self.locks.lead(self.world.clock.monotonic())
            await self.commits.keep_inside_queues()
            if not self.tables.in_log or TOPICS_FILE in self.persistence.missing:
                await adopt_stored(self.topics, self.store)

    async def _serve(self, _old: RoleState, _new: RoleState) -> None:
        self.store.writability.role_refusal = self.role.refusal
        self.store.is_replica = self.role.is_replica
        self.delay.role_changed()
        self.pulls.look_again()

    async def _register(self, _old: RoleState, _new: RoleState) -> None:
        self.registration.register_again()

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
        await self._answer_waiting()
        self.store.catch_up()
        await self.persistence.write_all()

    async def _answer_waiting(self) -> None:
        """Wait until puts that wait for a flush or for other nodes are answered, at most `SETTLE_SECONDS`."""
        if self.store.waits:
            settled = trio.Event()
            self.store.when_all_stored(lambda _: settled.set())
            with trio.move_on_after(SETTLE_SECONDS):
                await settled.wait()
        await trio.lowlevel.checkpoint()  # lets the writers of connections send the answers


@asynccontextmanager
async def open_broker(config: BrokerConfig, world: World | None = None) -> AsyncGenerator[Broker]:
    """Run a broker for the length of an `async with` block.

    Entering returns when the broker serves and is registered with every name server that answers promptly. With a listen port
    of 0, the system chooses a free port and no VIP port is opened.

    Raises:
        OSError: a port is in use, or the disk failed.
        StoreError: the store cannot be opened; nothing in it was changed.
        BadTable: a file of topics, groups or offsets is damaged.
        BadAccountFile: the files of accounts cannot be read.
        BadTlsSetting, TlsFailed: TLS cannot be used as configured.
    Durability: on leaving, everything is on the medium.
    Cancellation: stops the broker as leaving does, in under a second.
    """
    world, events = world or real_world(), log.bind(broker=config.broker_name)
    tls, network = await open_tls(config.tls, world)
    listeners = await _listen(config, world)
    async with closing(listeners):
        port = world.network.listener_port(listeners[0])
        host = bare_host(config.broker_ip1) or world.network.own_host()
        mode = mode_of(config, world, Address(host, port))
        store_host = (host if is_numeric_host(host) else world.network.own_host(), port)  # message ids hold numbers
        store_config = attrs.evolve(config.store_config(), memory_bytes=world.memory_bytes)
        async with open_message_store(
            world_of_store(config, world),
            store_config,
            store_host=store_host,
            open_commit_log=mode.node.open_commit_log,
            log_directory=mode.node.log_directory,
        ) as store:
            broker = _assemble(config, world, store, mode, host, port, network, tls)
            pages = open_monitoring(
                config.metrics_exporter_type,
                config.metrics_prom_exporter_host,
                config.metrics_prom_exporter_port,
                world,
                broker.dispatcher,
                broker.monitoring,
            )
            async with pages, trio.open_nursery() as nursery:
                await broker.start(nursery, listeners)
                events.info("broker_started", address=broker.address, store=config.store_path_root_dir)
                if broker.access is None and not (is_loopback_host(config.bind_address) or config.tls.requires_certificates):
                    events.warning("access_not_controlled", bind_address=config.bind_address or "all", reason=_OPEN_TO_ALL)
                try:
                    yield broker
                finally:
                    with trio.CancelScope(shield=True), trio.move_on_after(STOP_SECONDS):
                        await broker.stop()
                    nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):  # deliveries of delayed messages are on the medium now
            await broker.persistence.write_all(always=True)
        events.info("broker_stopped", address=broker.address)


def start_broker(config: BrokerConfig | None = None, world: World | None = None) -> AbstractAsyncContextManager[Broker]:
    """Run a broker inside this program, with RocketMQ's defaults if `config` is None; see `open_broker`."""
    return open_broker(config or BrokerConfig(), world)


def _assemble(
    config: BrokerConfig,
    world: World,
    store: MessageStore,
    mode: Mode,
    host: str,
    port: int,
    network: Network,
    tls: TlsAcceptor,
) -> Broker:
    now_ms = world.clock.wall_ms
    persistence = Persistence(store.world.disk, world.workers, f"{config.store_path_root_dir}/config")
    role = LiveRole(mode.first_role, world.clock)
    store.writability.role_refusal, store.is_replica = role.refusal, role.is_replica
    return Broker(
        live_config=LiveConfig(config),
        world=world,
        store=store,
        mode=mode,
        host=host,
        port=port,
        persistence=persistence,
        topics=persistence.load(TOPICS_FILE, lambda stored: TopicTable.of(config, now_ms, stored)),
        groups=persistence.load(GROUPS_FILE, lambda stored: GroupTable.of(config, now_ms, stored)),
        stats=Stats(config.broker_cluster_name, now_ms()),
        role=role,
        network=network,
        tls=tls,
    )


async def _listen(config: BrokerConfig, world: World) -> list[Listener[Stream]]:
    ports = [config.listen_port]
    if config.listen_port > VIP_PORT_DISTANCE:
        ports.append(config.listen_port - VIP_PORT_DISTANCE)
    listeners: list[Listener[Stream]] = []
    try:
        for port in ports:
            listeners += await world.network.open_listeners(config.bind_address, port)
    except BaseException:
        async with closing(listeners):
            raise
    return listeners
