"""`ledgermq controller`: run a controller, which elects the masters of plain HA groups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import click

from ..ha.controller.config import ControllerConfig, read_controller_conf
from ..ha.controller.errors import BadControllerConfig
from ..ha.controller.server import Controller, open_controller
from ..ha.errors import HaError
from ..remoting.errors import BadSetting
from ..remoting.java_properties import write_properties
from ..store.errors import StoreError
from ..world.events import get_logger
from ..world.real import real_world
from .logs import LogFormat, log_options, log_to_stderr
from .secrets import with_secrets
from .server_group import ServerGroup
from .serving import properties_of, serve

log = get_logger(__name__)


@click.group(
    "controller", cls=ServerGroup, invoke_without_command=True, module="controller_admin", names=["status", "elect", "forget"]
)
@click.option(
    "-c", "--config", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="RocketMQ's controller.conf."
)
@click.option("--host", help="The address to listen on; all by default.")
@click.option("--port", type=click.IntRange(0, 65535), help="Where brokers ask, 19876 by default; 0 takes a free one.")
@click.option("-p", "print_config", is_flag=True, help="Print the configuration and end.")
@log_options("info")
def command(
    file: Path | None, host: str | None, port: int | None, print_config: bool, log_level: str, log_format: LogFormat | None
) -> None:
    """Run a controller until Ctrl-C or SIGTERM.

    A controller elects the masters of plain HA groups, and keeps for each the replicas that are in sync. Run one, or three on
    three machines with the same controllerDLegerPeers, each with its controllerDLegerSelfId. They talk to each other at the
    addresses of controllerDLegerPeers; brokers and administrators ask at listenPort.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    log_to_stderr(log_level, log_format)
    entries = properties_of(file) if file is not None else {}
    config = controller_config(entries, {"bindAddress": host, "listenPort": None if port is None else str(port)}, file)
    if print_config:
        click.echo(config.to_properties(), nl=False)
        return
    serve(
        open_controller(config, real_world()),
        announce,
        BadSetting,
        HaError,
        StoreError,
        port_options="--port, or controllerDLegerPeers",
        on_hangup=lambda _: log.info("hangup_taken_by_controller", reason="a controller reads its file at the start alone"),
    )


def controller_config(
    entries: Mapping[str, str], flags: Mapping[str, str | None], file: Path | None, *, embedded: bool = False
) -> ControllerConfig:
    """The configuration from the entries of a file and from flags, which have priority.

    Raises:
        click.UsageError: a value is not allowed.
    """
    home = os.path.expanduser("~/controller")
    base = ControllerConfig(store_path=home, config_store_path=f"{home}/controller.properties")
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        known = with_secrets(dict(entries), BadControllerConfig)
        known.pop("haSecretFile", None)
        return read_controller_conf(write_properties(known), base, embedded=embedded).with_entries(given)
    except BadControllerConfig as error:
        raise click.UsageError(f"{file}: {error}" if file is not None else str(error)) from error


def announce(controller: Controller) -> str:
    """The line that says that a controller serves."""
    return f"The controller boot success, asked at {controller.address}"
