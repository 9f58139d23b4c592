"""`ledgermq broker`: run a broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import click
from click.core import ParameterSource

from ..broker.broker import Broker
from ..broker.config import KEYS, SECRET_KEYS, BrokerConfig, config_of
from ..broker.errors import BadConfig, BrokerError
from ..broker.opening import open_broker
from ..ha.errors import HaError
from ..remoting.errors import BadTlsSetting
from ..remoting.tls import TLS_KEYS
from ..store.errors import StoreError
from ..world.events import get_logger
from ..world.real import real_world
from .logs import LogFormat, log_options, log_to_stderr
from .secrets import with_secrets
from .server_group import ServerGroup
from .serving import properties_of, serve

log = get_logger(__name__)

_NAMES = {**KEYS, **{key: re.sub(r"\.|(?=[A-Z])", "_", key).lower() for key in TLS_KEYS}}
"""The parameter name of every configuration key."""


def _key_options(function: Callable[..., None]) -> Callable[..., None]:
    """Make every key of broker.conf a flag, in RocketMQ's spelling and in dashes; help does not list them."""
    for key, name in _NAMES.items():
        dashed = "--" + re.sub("_+", "-", name)
        spellings = [f"--{key}"] if f"--{key}" == dashed else [f"--{key}", dashed]
        function = click.option(*spellings, f"key_{name}", hidden=True)(function)
    return function


@click.group("broker", cls=ServerGroup, invoke_without_command=True, module="broker_admin", names=["config", "drain"])
@click.option(
    "-c", "--config", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="RocketMQ's broker.conf."
)
@click.option("-n", "--namesrv", envvar="LEDGERMQ_NAMESRV", help="Name servers, HOST:PORT;HOST:PORT.")
@click.option("-p", "print_config", is_flag=True, help="Print the configuration and end.")
@log_options("info")
@_key_options
def command(
    file: Path | None, namesrv: str | None, print_config: bool, log_level: str, log_format: LogFormat | None, **keys: str | None
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    SIGHUP reads the file again and applies the keys that may change while a broker runs; the log names those that need a
    restart.

    Every key of broker.conf is a flag too, in RocketMQ's spelling (--listenPort 10911) or in dashes (--listen-port 10911);
    -p shows all keys. A flag has priority over the file, and the file over $LEDGERMQ_NAMESRV.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    log_to_stderr(log_level, log_format)  # first, so that a warning about the configuration is not in the output of -p
    given = {name.removeprefix("key_"): value for name, value in keys.items() if value is not None}
    config = _config(file, namesrv, given)
    if print_config:
        click.echo(config.to_properties(), nl=False)
        return
    _warn(config)
    source = click.get_current_context().get_parameter_source("namesrv")
    configs = [config]

    def reload(broker: Broker) -> None:
        try:
            configs.append(_config(file, namesrv, given, source))
        except (click.ClickException, OSError) as error:
            log.error("broker_config_not_reloaded", reason=str(error))
        else:
            broker.settings.reload(configs.pop(0), configs[-1])

    serve(
        open_broker(config, real_world()),
        _announce,
        BrokerError,
        StoreError,
        HaError,
        BadTlsSetting,
        port_options="--listenPort or --haListenPort",
        on_hangup=reload,
    )


def _warn(config: BrokerConfig) -> None:
    """Warn about a configuration that works but is most likely a mistake."""
    if not config.namesrv_addr:
        log.warning("name_server_not_set", reason="no client finds this broker: set namesrvAddr, or give -n HOST:PORT")
        if config.is_slave and not config.ha_master_address:
            log.warning("master_address_not_set", reason="this slave has nobody to follow: set namesrvAddr or haMasterAddress")


def _config(
    file: Path | None, namesrv: str | None, given: dict[str, str], source: ParameterSource | None = None
) -> BrokerConfig:
    entries: dict[str, str] = {}
    source = source or click.get_current_context().get_parameter_source("namesrv")
    if namesrv is not None and source is ParameterSource.ENVIRONMENT:
        entries["namesrvAddr"] = namesrv
    try:
        if file is not None:
            entries |= properties_of(file)
        if namesrv is not None and source is not ParameterSource.ENVIRONMENT:
            entries["namesrvAddr"] = namesrv
        return config_of(
            with_secrets(entries | {key: given[name] for key, name in _NAMES.items() if name in given}, BadConfig, SECRET_KEYS)
        )
    except BadConfig as error:
        from_flag = _NAMES.get(error.key) in given or (error.key == "namesrvAddr" and entries.get("namesrvAddr") == namesrv)
        where = f"{file}: " if error.key in entries and not from_flag else ""
        raise click.UsageError(f"{where}{error}") from error


def _announce(broker: Broker) -> str:
    return f"The broker[{broker.config.broker_name}, {broker.address}] boot success"
