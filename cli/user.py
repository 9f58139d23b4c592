"""`ledgermq user`: the users of brokers with access control. Passwords are typed, or come from a file or standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from ..client.admin import Admin, open_admin
from .clients import chosen_tls, json_option, namesrv_option, talks_to_cluster
from .output import print_rows, warn_without_master
from .reasons import SuggestingGroup

COLUMNS = ("broker", "user", "super", "enabled")


@click.group("user", cls=SuggestingGroup)
def command() -> None:
    """Users of brokers, who sign requests: see `ledgermq acl` for what they may do."""


def place_options(function: Callable[..., None]) -> Callable[..., None]:
    """Choose the brokers of a command."""
    cluster = click.option("--cluster", help="On the brokers of this cluster only.")
    broker = click.option("--broker", help="On this broker only: its name, or HOST:PORT.")
    return cluster(broker(function))


async def warn_of_left_out(admin: Admin, cluster: str | None, broker: str | None) -> None:
    """Name the brokers that a listing of all brokers, or of a cluster, leaves out because they have no master."""
    if broker is None:
        warn_without_master((await admin.cluster()).without_master(cluster))


password_option = click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="The file with the password, - for standard input; otherwise it is typed.",
)
super_option = click.option("--super/--normal", "is_super", default=None, help="Whether the user may do everything.")


def _password(file: Path | None) -> str:
    if file is None:
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return typed
    read = sys.stdin.buffer.read if str(file) == "-" else file.read_bytes
    try:
        text = read().decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the password in {file} is not UTF-8") from error
    if not text.strip():
        raise click.UsageError(f"{file} has no password")
    return text.strip()


@command.command("create")
@click.argument("name")
@password_option
@super_option
@place_options
@namesrv_option
@talks_to_cluster
async def create(
    name: str, password_file: Path | None, is_super: bool | None, cluster: str | None, broker: str | None, namesrv: str
) -> None:
    """Create a user, who may do nothing yet unless it is --super."""
    password = _password(password_file)
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        brokers = await admin.create_user(name, password, is_super=bool(is_super), cluster=cluster, broker=broker)
    click.echo(f"user {name} on {', '.join(brokers)}")


@command.command("update")
@click.argument("name")
@click.option("--password", "changes_password", is_flag=True, help="Change the password, which is typed.")
@password_option
@super_option
@click.option("--enable/--disable", "is_enabled", default=None, help="Whether requests of the user are taken.")
@place_options
@namesrv_option
@talks_to_cluster
async def update(
    name: str,
    changes_password: bool,
    password_file: Path | None,
    is_super: bool | None,
    is_enabled: bool | None,
    cluster: str | None,
    broker: str | None,
    namesrv: str,
) -> None:
    """Change a user's password, type or status."""
    password = _password(password_file) if changes_password or password_file is not None else None
    if password is None and is_super is None and is_enabled is None:
        raise click.UsageError("say what to change: --password, --super or --normal, --enable or --disable")
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        brokers = await admin.update_user(
            name, password=password, is_super=is_super, is_enabled=is_enabled, cluster=cluster, broker=broker
        )
    click.echo(f"user {name} changed on {', '.join(brokers)}")


@command.command("delete")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@namesrv_option
@talks_to_cluster
async def delete(name: str, yes: bool, cluster: str | None, broker: str | None, namesrv: str) -> None:
    """Delete a user and its rights."""
    if not yes:
        click.confirm(f"Delete the user {name} and its rights?", abort=True)
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        brokers = await admin.delete_user(name, cluster=cluster, broker=broker)
    click.echo(f"user {name} deleted on {', '.join(brokers)}")


@command.command("list")
@click.argument("containing", default="")
@place_options
@namesrv_option
@json_option
@talks_to_cluster
async def list_users(containing: str, cluster: str | None, broker: str | None, namesrv: str, as_json: bool) -> None:
    """List the users, or those whose names contain a text."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        users = await admin.users(containing, cluster=cluster, broker=broker)
        await warn_of_left_out(admin, cluster, broker)
    rows = [{"broker": user.broker, "user": user.name, "super": user.is_super, "enabled": user.is_enabled} for user in users]
    print_rows(rows, COLUMNS, as_json=as_json, nothing="no users")


@command.command("show")
@click.argument("name")
@place_options
@namesrv_option
@json_option
@talks_to_cluster
async def show(name: str, cluster: str | None, broker: str | None, namesrv: str, as_json: bool) -> None:
    """Show a user on each broker."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        users = [user for user in await admin.users(name, cluster=cluster, broker=broker) if user.name == name]
        await warn_of_left_out(admin, cluster, broker)
    if not users:
        raise click.ClickException(f"there is no user {name}")
    rows = [{"broker": user.broker, "user": user.name, "super": user.is_super, "enabled": user.is_enabled} for user in users]
    print_rows(rows, COLUMNS, as_json=as_json)
