"""The trio shell of a name server: it listens, passes requests to the handlers and expires silent brokers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from ..message.errors import JsonError
from ..remoting.changed_settings import open_kept_file, read_changes
from ..remoting.dispatcher import Dispatcher
from ..remoting.monitoring import open_monitoring
from ..remoting.server import RemotingServer, ServerConnection, ServerLimits
from ..remoting.tls import open_tls
from ..world.events import get_logger
from ..world.files import read_file
from ..world.network import Address, closing
from ..world.real import World
from ..world.supervision import keep_running
from .config import CHANGEABLE, NamesrvConfig
from .errors import BadNamesrvConfig
from .handlers import Handlers
from .kv_config import KvConfig
from .metrics import monitoring_of
from .notices import Notices
from .routes import RouteTable

log = get_logger(__name__)

TOPICS_PER_TURN = 10_000
"""How many topics of brokers that have left are removed in one turn of the event loop, which takes some 15 ms."""
_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@attrs.define(eq=False)
class Namesrv:
    """A name server that is serving."""

    address: Address
    """The address under which clients of this machine reach it."""
    dispatcher: Dispatcher
    _handlers: Handlers

    def __repr__(self) -> str:
        return f"<Namesrv at {self.address}>"

    @property
    def port(self) -> int:
        return self.address.port

    @property
    def config(self) -> NamesrvConfig:
        """The configuration with all changes that administrators have made."""
        return self._handlers.config

    @property
    def routes(self) -> RouteTable[ServerConnection]:
        """The brokers and topics that are registered; callers must not change them."""
        return self._handlers.routes


@asynccontextmanager
async def open_namesrv(config: NamesrvConfig, world: World) -> AsyncGenerator[Namesrv]:
    """Serve for the length of an `async with` block.

    Raises:
        OSError: the port is taken, or the KV configuration cannot be read. Nothing is left open.
        JsonError: the KV configuration is damaged, and so is its backup.
        BadNamesrvConfig: the file of changes that administrators have made holds a value that is not allowed.
        BadTlsSetting, TlsFailed: TLS cannot be used as configured.
    """
    tls, network = await open_tls(config.tls, world)
    async with AsyncExitStack() as opened:
        file = await opened.enter_async_context(open_kept_file(world, "configStorePath", config.config_store_path))
        kv_file = await opened.enter_async_context(open_kept_file(world, "kvConfigPath", config.kv_config_path))
        changes = await world.workers.run(_load_changes, config, world)
        config = config.with_entries(changes)
        kv_config = await world.workers.run(_load_kv_config, config, world)
        handlers = Handlers(config, world, file, kv_file, kv_config, changes=changes)
        dispatcher = Dispatcher()
        handlers.register(dispatcher)
        limits = ServerLimits(idle_seconds=config.server_channel_max_idle_time_seconds)
        server = RemotingServer(dispatcher, world.network, world.clock, limits, tls)
        listeners = list(await world.network.open_listeners(config.bind_address, config.listen_port))
        await opened.enter_async_context(closing(listeners))
        port = world.network.listener_port(listeners[0])
        address = Address(_ANYWHERE.get(config.bind_address, config.bind_address), port)
        await opened.enter_async_context(
            open_monitoring(
                config.metrics_exporter_type,
                config.metrics_prom_exporter_host,
                config.metrics_prom_exporter_port,
                world,
                dispatcher,
                partial(monitoring_of, handlers.routes, str(address)),
            )
        )
        nursery = await opened.enter_async_context(trio.open_nursery())
        dispatcher.nursery = nursery
        handlers.on_min_id_change.append(Notices(network, nursery).send)
        await nursery.start(server.serve, listeners)
        nursery.start_soon(keep_running, "expiry of brokers", partial(_expire, handlers, server))
        nursery.start_soon(keep_running, "removal of topics", partial(_unlist, handlers))
        yield Namesrv(address, dispatcher, handlers)
        nursery.cancel_scope.cancel()


async def _expire(handlers: Handlers, server: RemotingServer) -> None:
    while True:
        await trio.sleep(handlers.config.scan_not_active_broker_interval / 1000)
        while expired := handlers.expire_brokers():
            for connection in expired:
                server.close_connection(connection)
            await handlers.world.processor.next_turn()


async def _unlist(handlers: Handlers) -> None:
    """Remove the topics of brokers that have left, in several turns of the event loop, until cancelled."""
    while True:
        await handlers.left.wait()
        handlers.left = trio.Event()
        while handlers.routes.unlist(TOPICS_PER_TURN):
            await handlers.world.processor.next_turn()


def _load_changes(config: NamesrvConfig, world: World) -> dict[str, str]:
    path = config.config_store_path
    try:
        return read_changes(world.disk, path, CHANGEABLE)
    except ValueError as error:
        raise BadNamesrvConfig("configStorePath", path, f"a file of properties in UTF-8 ({error})") from error


def _load_kv_config(config: NamesrvConfig, world: World) -> KvConfig:
    path = config.kv_config_path
    if not path or not (world.disk.exists(path) or world.disk.exists(f"{path}.bak")):
        return KvConfig()
    try:
        return KvConfig.from_bytes(read_file(world.disk, path))
    except (FileNotFoundError, JsonError) as error:
        log.warning("kv_config_backup_taken", path=path, reason=str(error))
        return KvConfig.from_bytes(read_file(world.disk, f"{path}.bak"))
