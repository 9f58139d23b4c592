"""The command `ledgermq dashboard`: its options, its password, and the web server."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
import trio

from ...client.admin import open_admin
from ...client.errors import ClientError
from ...world.address import Address, is_loopback_host
from ...world.events import ROOT_LOGGER
from ...world.tls import ClientTls
from ..clients import chosen_tls, namesrv_option
from ..logs import LogFormat, log_options, log_to_stderr
from ..serving import serve, text_of

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

PASSWORD_VARIABLE = "LEDGERMQ_DASHBOARD_PASSWORD"  # noqa: S105 - the name of a variable
PASSWORD_CHARACTERS_MIN = 12
GRACEFUL_SECONDS = 1.0
"""How long requests may still take when the server stops."""
READ_SECONDS = 120
"""A connection that brings nothing for this time is closed; the slowest change, of a DLedger group, takes half of it."""


@click.command("dashboard")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; beyond loopback a password is needed."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8082, show_default=True, help="0 takes a free one.")
@click.option(
    "--allow-changes",
    is_flag=True,
    help="Also hand over leadership, redrive dead letters and disable users; by default only show.",
)
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=f"The first line of this file is asked for at the login. Also ${PASSWORD_VARIABLE}, which holds the password itself.",
)
@namesrv_option
@log_options("info")
def command(
    host: str,
    port: int,
    allow_changes: bool,
    password_file: Path | None,
    namesrv: str,
    log_level: str,
    log_format: LogFormat | None,
) -> None:
    """Serve web pages about a cluster until Ctrl-C or SIGTERM; needs `pip install 'ledgermq[dashboard]'`."""
    log_to_stderr(log_level, log_format)
    password = _password(password_file)
    if password is None and not is_loopback_host(host):
        raise click.UsageError(
            f"whoever reaches {host} could see the cluster: give a password by --password-file or ${PASSWORD_VARIABLE}, or "
            "listen on 127.0.0.1; nothing was started"
        )
    address = Address(host, port)
    opened = open_dashboard(address, namesrv, tls=chosen_tls(), allow_changes=allow_changes, password=password)
    serve(opened, lambda url: f"The dashboard is at {url}", ClientError, port_options="--port")


def _password(file: Path | None) -> str | None:
    password = text_of(file).partition("\n")[0].strip() if file is not None else os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        return None
    if len(password) < PASSWORD_CHARACTERS_MIN:
        raise click.UsageError(
            f"the password in {file or f'${PASSWORD_VARIABLE}'} has {len(password)} characters and needs "
            f"{PASSWORD_CHARACTERS_MIN}; nothing was started"
        )
    return password


@asynccontextmanager
async def open_dashboard(
    address: Address,
    namesrv: str,
    *,
    tls: bool | ClientTls = False,
    allow_changes: bool = False,
    password: str | None = None,
) -> AsyncGenerator[str]:
    """Serve the dashboard for the length of an `async with` block; gives the address of its first page.

    Raises:
        click.ClickException: the extra `dashboard` is not installed.
        OSError: the address cannot be listened on.
        ClientError: the address of a name server is malformed.
    """
    try:
        import hypercorn.trio  # noqa: PLC0415 - an extra, which only this command needs

        from .app import Dashboard  # noqa: PLC0415
        from .guard import Login  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException("ledgermq dashboard needs a web server: pip install 'ledgermq[dashboard]'") from error
    config = hypercorn.Config()
    config.bind = [str(address)]
    config.graceful_timeout = GRACEFUL_SECONDS
    config.read_timeout = READ_SECONDS
    config.include_server_header = False
    config.errorlog = logging.getLogger(f"{ROOT_LOGGER}.hypercorn")
    config.errorlog.setLevel(logging.WARNING)
    stop = trio.Event()
    async with open_admin(namesrv, tls=tls) as admin, trio.open_nursery() as nursery:
        login = Login(password) if password is not None else None
        dashboard = Dashboard(admin, namesrv, tls, allow_changes, login)
        application = cast("ASGIFramework", dashboard.application())  # both describe ASGI, with types of their own
        run = partial(hypercorn.trio.serve, application, config, shutdown_trigger=stop.wait)  # pyright: ignore[reportUnknownMemberType] - its type for WSGI has holes
        urls: list[str] = await nursery.start(run)
        try:
            yield urls[0]
        finally:
            stop.set()
