"""The trio shell of a controller: it listens, takes part in the group of controllers and passes requests to the handlers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from ...remoting.changed_settings import open_kept_file, read_changes
from ...remoting.dispatcher import Dispatcher
from ...remoting.monitoring import open_monitoring
from ...remoting.server import RemotingServer, ServerLimits
from ...remoting.tls import open_tls
from ...store.locking import StoreLock, lock_store
from ...world.disk import Disk
from ...world.network import Address, closing
from ...world.real import World
from ..classic.table_proofs import node_credentials
from .access import NodeAccess
from .config import CHANGEABLE, ControllerConfig
from .errors import BadControllerConfig
from .member import ControllerMember, open_member
from .metrics import monitoring_of
from .notices import Notices
from .service import ControllerService
from .state import BrokerSet


@attrs.define(eq=False)
class Controller:
    """A controller that is serving."""

    address: Address
    """The address that it gives to brokers, through the other controllers, too."""
    node: ControllerMember
    dispatcher: Dispatcher
    service: ControllerService

    def __repr__(self) -> str:
        return f"<Controller at {self.address}>"

    @property
    def config(self) -> ControllerConfig:
        """The configuration with all changes that administrators have made."""
        return self.service.config


@asynccontextmanager
async def open_controller(config: ControllerConfig, world: World) -> AsyncGenerator[Controller]:
    """Serve for the length of an `async with` block.

    Raises:
        OSError: a port is taken, or the disk failed. Nothing is left open.
        StoreInUse: another controller has the same directory. Nothing was changed.
        WrongHaSetting, BadControllerConfig: settings cannot work. Nothing was started.
        BadTlsSetting, TlsFailed: TLS cannot be used as configured.
        CorruptLedger, CorruptHardState, CorruptEvents: the log cannot be used; see these classes.
    """
    config.replica_settings(config.listen_port)  # refuses a configuration before anything is opened
    tls, network = await open_tls(config.tls, world)
    dispatcher = Dispatcher()
    limits = ServerLimits(idle_seconds=config.server_channel_max_idle_time_seconds)
    server = RemotingServer(dispatcher, world.network, world.clock, limits, tls)
    async with AsyncExitStack() as opened:
        file = await opened.enter_async_context(open_kept_file(world, "configStorePath", config.config_store_path))
        changes = await world.workers.run(_load_changes, config, world)
        config = config.with_entries(changes)
        opened.callback((await world.workers.run(_lock, world.disk, config.store_path)).release)
        listeners = list(await world.network.open_listeners(config.bind_address, config.listen_port))
        await opened.enter_async_context(closing(listeners))
        settings = config.replica_settings(world.network.listener_port(listeners[0]))
        node = await opened.enter_async_context(
            open_member(
                world,
                settings,
                unclean=config.enable_elect_unclean_master,
                look_seconds=config.scan_not_active_broker_interval / 1000,
            )
        )
        nursery = await opened.enter_async_context(trio.open_nursery())
        service = ControllerService(node, config, world, file, changes)
        service.register(dispatcher)
        dispatcher.nursery = nursery
        credentials = node_credentials(config.ha_secret.encode())
        if config.authentication_enabled and credentials is not None:
            dispatcher.access = NodeAccess(credentials, world.clock)
        notices = Notices(network, nursery)

        def notify(one: BrokerSet) -> None:
            if service.config.notify_broker_role_changed:
                notices.send(one, [broker_id for broker_id in one.replicas if node.situation.is_alive(one, broker_id)])

        node.on_new_set.append(notify)
        await opened.enter_async_context(
            open_monitoring(
                config.metrics_exporter_type,
                config.metrics_prom_exporter_host,
                config.metrics_prom_exporter_port,
                world,
                dispatcher,
                partial(monitoring_of, service),
            )
        )
        await nursery.start(server.serve, listeners)
        yield Controller(Address.parse(settings.serves), node, dispatcher, service)
        nursery.cancel_scope.cancel()


def _lock(disk: Disk, directory: str) -> StoreLock:
    """Take the directory for this controller alone: two that wrote one log would each undo what the other has promised."""
    disk.make_directories(directory)
    return lock_store(disk, directory)


def _load_changes(config: ControllerConfig, world: World) -> dict[str, str]:
    path = config.config_store_path
    try:
        return read_changes(world.disk, path, CHANGEABLE)
    except ValueError as error:
        raise BadControllerConfig("configStorePath", path, f"a file of properties in UTF-8 ({error})") from error
