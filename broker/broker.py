"""A broker as a whole: its tables, its tasks, the order in which they start and stop (RocketMQ BrokerController).

Start: listen, open the store, load the tables, register the handlers, serve, start the tasks, register with name servers;
whoever connects before serving waits in the backlog. Stop: leave the name servers' routes, take no more messages, answer what
waits, write the tables, close connections, close the store; a client that is cut off finds the route gone already.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncGenerator, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import trio
from trio.abc import Listener

from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.dispatcher import Dispatcher
from ..remoting.errors import RequestRefused
from ..remoting.server import RemotingServer
from ..remoting.tls import open_tls
from ..store.message_store import MessageStore
from ..store.opening import open_message_store
from ..world.events import get_logger
from ..world.network import Network, Stream
from ..world.real import World, real_world
from ..world.supervision import keep_running
from ..world.ticks import next_tick
from ..world.tls import TlsAcceptor
from .admin import dledger_group, inspection, relay, runtime, settings, topics_and_groups
from .admin.queries import Queries
from .client_requests import ClientRequests
from .clients import SCAN_SECONDS, Consumers, Producers
from .config import BrokerConfig
from .delay import DelayDelivery
from .deletions import GROUPS_FILE, OFFSETS_FILE, TOPICS_FILE, Deletions
from .dledger import DLedgerReplication
from .groups import GroupTable
from .locks import LOCKS_FILE, QueueLocks
from .offsets import ConsumerOffsets
from .persistence import LOG_OFFSET_KEY, Persistence, encoded
from .pull import PullService
from .registration import Registration
from .replicated_tables import ReplicatedTables
from .replication import ClassicReplication
from .retry import SendBack
from .role import LiveRole, Phase, RoleState
from .send import SEND_CODES, SendHandler
from .slave_sync import SlaveSync
from .stats import Stats
from .topics import TopicTable

log = get_logger(__name__)

HOUSEKEEPING_SECONDS = 1.0
SETTLE_SECONDS = 0.3
"""How long a stop waits for answers that wait for a flush or a slave."""
STOP_SECONDS = 0.9
VIP_PORT_DISTANCE = 2
"""Old clients send to the listen port less this."""


@attrs.define(eq=False)
class Broker:
    """One running broker."""

    config: BrokerConfig
    world: World
    store: MessageStore
    host: str
    """The address that clients are given."""
    port: int
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    persistence: Persistence
    stats: Stats
    started_ms: int
    replication: ClassicReplication | DLedgerReplication
    role: LiveRole
    tables: ReplicatedTables | None = attrs.field(init=False, default=None)
    """In DLedger mode, the tables' part in the log."""
    network: Network
    """By which this broker opens connections to name servers and brokers; encrypted if it is told so."""
    tls: TlsAcceptor
    dispatcher: Dispatcher = attrs.field(factory=Dispatcher)
    producers: Producers = attrs.field(factory=Producers)
    consumers: Consumers = attrs.field(factory=Consumers)
    locks: QueueLocks = attrs.field(factory=QueueLocks)
    server: RemotingServer = attrs.field(init=False)
    sends: SendHandler = attrs.field(init=False)
    pulls: PullService = attrs.field(init=False)
    delay: DelayDelivery = attrs.field(init=False)
    deletions: Deletions = attrs.field(init=False)
    registration: Registration = attrs.field(init=False)
    clients: ClientRequests = attrs.field(init=False)

    def __repr__(self) -> str:
        return f"<Broker {self.config.broker_name}:{self.config.broker_id} at {self.address}>"

    def __attrs_post_init__(self) -> None:
        self.server = RemotingServer(self.dispatcher, self.world.network, self.world.clock, tls=self.tls)
        self.pulls = PullService(self)
        self.delay = DelayDelivery(self)
        self.deletions = Deletions(self)
        self.registration = Registration(self)
        self.clients = ClientRequests(self)

    @property
    def address(self) -> str:
        """Where clients reach this broker, `host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def ha_address(self) -> str:
        """Where slaves fetch the log, `host:port`."""
        return f"{self.config.broker_ip2 or self.host}:{self.replication.ha_port}"

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit a group's offset as a client or a slave gives it, on a master at most the end of the queue.

        A slave may have shown what its master has lost since: a group beyond the end would pass over what comes there next. A
        slave itself cannot tell, for it may be behind its master.
        """
        if self.role.takes_puts and offset > (end := self.store.next_offset(topic, queue_id)):
            log.warning("commit_beyond_queue", group=group, topic=topic, queue_id=queue_id, offset=offset, end=end)
            offset = end
        self.offsets.commit(group, topic, queue_id, offset)

    def queues_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """The ends of queues have moved back: so do groups that are beyond them."""
        if moved := self.offsets.keep_inside(ends):
            log.warning("consumer_offsets_moved_back", messages=moved)

    def register_handlers(self) -> None:
        """Let the dispatcher know who answers what."""
        self.sends = SendHandler(
            self.config, self.store, self.topics, self.groups, self.stats, self.world.randomness, self._is_orderly
        )
        self.dispatcher.register_run(SEND_CODES, self.sends.handle)
        self.pulls.register()
        self.clients.register()
        self.dispatcher.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self.registration.min_id_changed)
        send_back = SendBack(
            self.store,
            self.topics,
            self.groups,
            self.stats,
            self.world.randomness,
            lambda: self.config,
            lambda: self.role.refusal,
        )
        send_back.register(self.dispatcher)
        Queries(self.store, self.consumers, lambda: self.config).register(self.dispatcher)
        secret = self.config.ha_secret.encode()
        SlaveSync(self.topics, self.groups, self.offsets, self.delay.to_json, self._check_leads, secret).register(
            self.dispatcher
        )
        if isinstance(self.replication, DLedgerReplication):
            dledger_group.register(self, self.replication.node.replica)
        for module in (topics_and_groups, settings, runtime, inspection, relay):
            module.register(self)

    def _check_leads(self) -> None:
        if self.tables is not None and not self.role.takes_puts:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the tables of this node may be old: {self.role.refusal}")

    def _is_orderly(self, group: str) -> bool:
        return self.locks.are_held(group, self.world.clock.monotonic())

    def load_tables(self) -> None:
        """Read the tables' files, and keep them from now on."""
        keep, config = self.persistence.keep, self.config
        # Topics are found again by their messages; without offsets all groups would pass over what they have not consumed.
        self.persistence.load(OFFSETS_FILE, self.offsets.load, replaceable=False)
        self.persistence.load("delayOffset.json", self.delay.load)
        topics_file = keep(TOPICS_FILE, self._with_log_offset(self.topics.to_json), lambda: self.topics.version.counter)
        groups_file = keep(GROUPS_FILE, self._with_log_offset(self.groups.to_json), lambda: self.groups.version.counter)
        keep(
            OFFSETS_FILE,
            lambda: encoded(self._with_log_offset(self.offsets.to_json)()),
            lambda: self.offsets.changes,
            config.flush_consumer_offset_interval / 1000,
        )
        keep(
            "delayOffset.json",
            self.delay.durable_json,
            self.delay.durable_changes,
            config.flush_delay_offset_interval / 1000,
        )
        now = self.world.clock.monotonic()
        self.persistence.load(LOCKS_FILE, lambda stored: self.locks.load(stored, now))
        keep(LOCKS_FILE, self.locks.to_json, lambda: self.locks.changes)
        self.store.on_queues_cut.append(self.queues_cut)
        self.topics.on_change.append(lambda _: topics_file.wake())
        self.groups.on_change.append(groups_file.wake)
        self.deletions.follow_log()

    def _ends_of_groups(self) -> dict[tuple[str, int], int]:
        """The end of every queue that a group has an offset on."""
        table = self.offsets.table
        return {(topic, at): self.store.max_offset(topic, at) for (topic, _), queues in table.items() for at in queues}

    def _with_log_offset(self, to_json: Callable[[], Mapping[str, Any]]) -> Callable[[], dict[str, Any]]:
        """What the file of a table gets: the table, and up to where in the log it contains all deletions."""
        return lambda: {LOG_OFFSET_KEY: self.deletions.log_offset, **to_json()}

    def adopt_topics(self, but: AbstractSet[str] = frozenset()) -> None:
        """Take up topics whose messages are in the store, though nobody told of them; `but` these, which were deleted."""
        queue_nums = {topic: max(self.store.queue_ids(topic)) + 1 for topic in self.store.topics() - but}
        if adopted := self.topics.adopt(queue_nums):
            log.warning("topics_adopted", topics=adopted)

    async def start(self, nursery: trio.Nursery, listeners: list[Listener[Stream]]) -> None:
        """Serve, start the tasks and register; everything runs in `nursery`."""
        self.dispatcher.nursery = nursery
        self.role.on(Phase.STOP_TAKING, self._stop_taking)
        self.role.on(Phase.SETTLE, self._settle)
        self.replication.observe(self, nursery)
        self.role.on(Phase.REBUILD, self._rebuild)
        self.role.on(Phase.SERVE, self._serve)
        self.role.on(Phase.REGISTER, self._register)
        nursery.start_soon(keep_running, "held pulls", self.pulls.run)
        nursery.start_soon(self.delay.run)
        await self.replication.start()
        await nursery.start(self.server.serve, listeners)
        self.persistence.start(nursery)
        nursery.start_soon(keep_running, "housekeeping", self._keep_house)
        nursery.start_soon(keep_running, "notices to consumers", self.clients.run)
        await nursery.start(self.registration.run)

    async def _stop_taking(self, _old: RoleState, _new: RoleState) -> None:
        self.store.writability.role_refusal = self.role.refusal
        self.store.is_replica = self.role.is_replica

    async def _settle(self, _old: RoleState, _new: RoleState) -> None:
        await self._answer_waiting()

    async def _rebuild(self, _old: RoleState, new: RoleState) -> None:
        if new.role.takes_puts:
            if moved := self.offsets.keep_inside(self._ends_of_groups()):
                log.warning("consumer_offsets_moved_back", messages=moved)
            self.adopt_topics()

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
            self.stats.tick(clock.wall_ms())
            if now >= scan_at:
                scan_at = now + SCAN_SECONDS
                self.clients.expire(now)

    async def stop(self) -> None:
        """Hand over, leave the routes, take no more messages, answer what waits, write the tables."""
        await self.replication.node.hand_over()
        await self.registration.unregister()
        self.store.writability.shut_down = True
        await self._answer_waiting()
        await self.persistence.write_all()

    async def _answer_waiting(self) -> None:
        """Give puts that wait for a flush or for other nodes a moment to be answered."""
        if self.store.waits:
            settled = trio.Event()
            self.store.when_all_stored(lambda _: settled.set())
            with trio.move_on_after(SETTLE_SECONDS):
                await settled.wait()
        await trio.lowlevel.checkpoint()  # the writers send what has been answered


@asynccontextmanager
async def open_broker(config: BrokerConfig, world: World | None = None) -> AsyncGenerator[Broker]:
    """Run a broker for the length of an `async with` block.

    Entering returns when the broker serves and every name server that answers at once knows it. A listen port of 0 takes a free
    one, without a VIP port beside it.

    Raises:
        OSError: a port is taken, or the disk refused.
        StoreError: the store cannot be opened; nothing of it was changed.
        BadTable: a file of topics, groups or offsets is damaged.
        BadTlsSetting, TlsFailed: TLS cannot be spoken as configured.
    Durability: on leaving, everything is on the medium.
    Cancellation: stops as leaving does, in under a second.
    """
    world = world or real_world()
    tls, network = await open_tls(config.tls, world)
    listeners = await _listen(config, world)
    try:
        port = world.network.listener_port(listeners[0])
        host = config.broker_ip1 or world.network.own_host()
        replication = (
            DLedgerReplication.of(config) if config.enable_dleger_commit_log else ClassicReplication.of(config, world, port)
        )
        store_host = (_numeric(host, world), port)
        store_config = attrs.evolve(config.store_config(), memory_bytes=world.memory_bytes)
        async with open_message_store(
            world, store_config, store_host=store_host, open_commit_log=replication.open_commit_log
        ) as store:
            broker = _assemble(config, world, store, host, port, replication, network, tls)
            async with trio.open_nursery() as nursery:
                await broker.start(nursery, listeners)
                log.info("broker_started", name=config.broker_name, address=broker.address, store=config.store_path_root_dir)
                try:
                    yield broker
                finally:
                    with trio.CancelScope(shield=True), trio.move_on_after(STOP_SECONDS):
                        await broker.stop()
                    nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):  # deliveries of delayed messages are on the medium now
            await broker.persistence.write_all()
        log.info("broker_stopped", name=config.broker_name, address=broker.address)
    finally:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()


def start_broker(config: BrokerConfig | None = None, world: World | None = None) -> AbstractAsyncContextManager[Broker]:
    """Run a broker inside this program, with RocketMQ's defaults where nothing else is said; see `open_broker`."""
    return open_broker(config or BrokerConfig(), world)


def _assemble(
    config: BrokerConfig,
    world: World,
    store: MessageStore,
    host: str,
    port: int,
    replication: ClassicReplication | DLedgerReplication,
    network: Network,
    tls: TlsAcceptor,
) -> Broker:
    now_ms = world.clock.wall_ms
    persistence = Persistence(world.disk, world.workers, f"{config.store_path_root_dir}/config")
    broker = Broker(
        config=config,
        world=world,
        store=store,
        host=host,
        port=port,
        topics=persistence.load(TOPICS_FILE, lambda stored: TopicTable.of(config, now_ms, stored)),
        groups=persistence.load(GROUPS_FILE, lambda stored: GroupTable.of(config, now_ms, stored)),
        offsets=ConsumerOffsets(),
        persistence=persistence,
        stats=Stats(config.broker_cluster_name, now_ms()),
        started_ms=now_ms(),
        replication=replication,
        role=LiveRole(replication.first_role, world.clock),
        network=network,
        tls=tls,
    )
    store.writability.role_refusal, store.is_replica = broker.role.refusal, broker.role.is_replica
    if config.enable_dleger_commit_log:
        broker.tables = ReplicatedTables(broker)
    broker.load_tables()
    broker.adopt_topics()
    broker.register_handlers()
    return broker


async def _listen(config: BrokerConfig, world: World) -> list[Listener[Stream]]:
    ports = [config.listen_port]
    if config.listen_port > VIP_PORT_DISTANCE:
        ports.append(config.listen_port - VIP_PORT_DISTANCE)
    listeners: list[Listener[Stream]] = []
    try:
        for port in ports:
            listeners += await world.network.open_listeners(config.bind_address, port)
    except BaseException:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()
        raise
    return listeners


def _numeric(host: str, world: World) -> str:
    """The address that message ids carry; a broker that clients know by name still has a number."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return world.network.own_host()
    return host
