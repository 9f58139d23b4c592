"""Opening a broker and stopping it: everything that it stands on is opened before it, and closed behind it.

Start: listen, open the store, load the tables, register the handlers, serve, start the tasks, register with name servers.
Connections that are opened before the broker serves wait in the listen backlog. Stop: unregister from the name servers, refuse
new messages, answer waiting requests, write the tables, close connections, close the store. A client whose connection is
closed therefore finds no route to this broker any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import attrs
import trio
from trio.abc import Listener

from ..remoting.monitoring import open_monitoring
from ..remoting.tls import open_tls
from ..store.message_store import MessageStore
from ..store.opening import open_message_store
from ..world.address import Address, bare_host, is_loopback_host, is_numeric_host
from ..world.events import get_logger
from ..world.network import Network, Stream, closing
from ..world.real import World, real_world
from ..world.tls import TlsAcceptor
from .broker import Broker
from .config import BrokerConfig
from .live_config import LiveConfig
from .modes.mode import Mode, mode_of
from .monitoring import monitoring_of
from .role import LiveRole
from .role_change import tell_store
from .services import services_of
from .stats import Stats
from .storage import world_of_store
from .tables.groups import GroupTable
from .tables.persistence import GROUPS_FILE, TOPICS_FILE, Persistence
from .tables.topics import TopicTable

log = get_logger(__name__)

STOP_SECONDS = 0.9
"""After this time an unfinished stop is cancelled and the broker's tasks end."""
VIP_PORT_DISTANCE = 2
"""The broker also listens on its listen port minus this number, to which old clients send."""
_OPEN_TO_ALL = "whoever reaches the port may do everything: set authenticationEnabled and authorizationEnabled"


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
                partial(monitoring_of, broker),
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
    tell_store(store, role)
    broker = Broker(
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
    for service in services_of(broker):
        service.register(broker.dispatcher)
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
        async with closing(listeners):
            raise
    return listeners
