"""`ledgermq namesrv`: run a name server."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import click

from ..ha.controller.config import EMBEDDED, KEYS, ControllerConfig
from ..ha.controller.server import open_controller
from ..ha.errors import HaError
from ..message.errors import JsonError
from ..namesrv.config import NamesrvConfig, read_namesrv_conf
from ..namesrv.errors import BadNamesrvConfig
from ..namesrv.server import Namesrv, open_namesrv
from ..remoting.errors import BadSetting
from ..store.errors import StoreError
from ..world.address import Address
from ..world.events import get_logger
from ..world.real import real_world
from .controller import announce, controller_config
from .logs import LogFormat, log_options, log_to_stderr
from .serving import properties_of, serve, text_of

log = get_logger(__name__)


@click.command("namesrv")
@click.option(
    "-c", "--config", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="RocketMQ's namesrv.conf."
)
@click.option("--host", help="The address to listen on; all by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="9876 by default; 0 takes a free one.")
@click.option("-p", "print_config", is_flag=True, help="Print the configuration and end.")
@log_options("info")
def command(
    file: Path | None, host: str | None, port: int | None, print_config: bool, log_level: str, log_format: LogFormat | None
) -> None:
    """Run a name server until Ctrl-C or SIGTERM."""
    log_to_stderr(log_level, log_format)
    config = _config(file, host, port)
    if print_config:
        click.echo(config.to_properties(), nl=False)
        return
    controller = None
    if config.enable_controller_in_namesrv:
        flags = {"bindAddress": config.bind_address}
        controller = controller_config(properties_of(file) if file is not None else {}, flags, file, embedded=True)
    serve(
        _open(config, controller),
        _announce,
        JsonError,
        BadSetting,
        HaError,
        StoreError,
        port_options="--port",
        on_hangup=lambda _: log.info("hangup_taken", reason="a name server reads its file at the start alone"),
    )


def _config(file: Path | None, host: str | None, port: int | None) -> NamesrvConfig:
    home = os.path.expanduser("~/namesrv")
    config = NamesrvConfig(kv_config_path=f"{home}/kvConfig.json", config_store_path=f"{home}/namesrv.properties")
    try:
        if file is not None:
            config = read_namesrv_conf(text_of(file), config, keys_of_controller=(*KEYS, *EMBEDDED, "haSecretFile"))
    except BadNamesrvConfig as error:
        raise click.BadParameter(f"{file}: {error}", param_hint="-c") from error
    given = {"bindAddress": host, "listenPort": None if port is None else str(port)}
    return config.with_entries({key: value for key, value in given.items() if value is not None})


@asynccontextmanager
async def _open(config: NamesrvConfig, controller: ControllerConfig | None) -> AsyncGenerator[tuple[Namesrv, str]]:
    """A name server, and the line that announces its controller, if it has one."""
    world = real_world()
    async with AsyncExitStack() as opened:
        line = ""
        if controller is not None:
            line = f"{announce(await opened.enter_async_context(open_controller(controller, world)))}\n"
        yield await opened.enter_async_context(open_namesrv(config, world)), line


def _announce(served: tuple[Namesrv, str]) -> str:
    namesrv, line = served
    return f"{line}The name server boot success, listening on {Address(namesrv.config.bind_address, namesrv.port)}"
