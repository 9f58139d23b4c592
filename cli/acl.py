"""`ledgermq acl`: what users of brokers with access control may do."""

from __future__ import annotations

from collections.abc import Iterable

import click

from ..client.admin import open_admin
from ..client.admin.values import Right
from .clients import chosen_tls, json_option, namesrv_option, talks_to_cluster
from .output import print_rows
from .reasons import SuggestingGroup
from .user import place_options, warn_of_left_out


@click.group("acl", cls=SuggestingGroup)
def command() -> None:
    """Rights of users: actions with topics, groups and the cluster.

    A RESOURCE is Topic:NAME, Topic:BEGINNING*, Topic:* or the same of Group and Cluster, or * for everything. The most exact
    one decides.
    """


@command.command("set")
@click.argument("user")
@click.argument("resource")
@click.argument("actions")
@click.option("--deny", is_flag=True, help="Forbid these actions instead of allowing them.")
@click.option("--source", "sources", multiple=True, help="Only for requests from this address or network; may be repeated.")
@place_options
@namesrv_option
@talks_to_cluster
async def set_right(
    user: str,
    resource: str,
    actions: str,
    deny: bool,
    sources: tuple[str, ...],
    cluster: str | None,
    broker: str | None,
    namesrv: str,
) -> None:
    """Allow USER these ACTIONS with RESOURCE: All, or some of Pub,Sub,Create,Update,Delete,Get,List.

    What was set for the same resource is replaced.
    """
    wanted = [action.strip() for action in actions.split(",") if action.strip()]
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        brokers = await admin.set_right(user, resource, wanted, allow=not deny, sources=sources, cluster=cluster, broker=broker)
    click.echo(f"{user} {'may not' if deny else 'may'} {', '.join(wanted)} {resource} on {', '.join(brokers)}")


@command.command("delete")
@click.argument("user")
@click.argument("resource", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@place_options
@namesrv_option
@talks_to_cluster
async def delete(user: str, resource: str | None, yes: bool, cluster: str | None, broker: str | None, namesrv: str) -> None:
    """Take away what was set for USER and RESOURCE, or everything of USER."""
    what = f"the rights of {user}{f' for {resource}' if resource else ''}"
    if not yes:
        click.confirm(f"Delete {what}?", abort=True)
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        brokers = await admin.delete_rights(user, resource, cluster=cluster, broker=broker)
    click.echo(f"deleted {what} on {', '.join(brokers)}")


@command.command("show")
@click.argument("user")
@place_options
@namesrv_option
@json_option
@talks_to_cluster
async def show(user: str, cluster: str | None, broker: str | None, namesrv: str, as_json: bool) -> None:
    """Show what USER may do."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        rights = await admin.rights(user, cluster=cluster, broker=broker)
        await warn_of_left_out(admin, cluster, broker)
    _print(rights, as_json, f"{user} has no rights")


@command.command("list")
@click.option("--resource", default="", help="Only rights for resources that contain this text.")
@place_options
@namesrv_option
@json_option
@talks_to_cluster
async def list_rights(resource: str, cluster: str | None, broker: str | None, namesrv: str, as_json: bool) -> None:
    """List the rights of all users."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        rights = await admin.rights(resource=resource, cluster=cluster, broker=broker)
        await warn_of_left_out(admin, cluster, broker)
    _print(rights, as_json, "no rights")


def _print(rights: Iterable[Right], as_json: bool, nothing: str) -> None:
    rows = [
        {
            "broker": right.broker,
            "user": right.user,
            "resource": right.resource,
            "actions": list(right.actions),
            "decision": "allow" if right.allows else "deny",
            "sources": list(right.sources),
            "policy": right.policy.lower(),
        }
        for right in rights
    ]
    print_rows(rows, ("broker", "user", "resource", "actions", "decision", "sources"), as_json=as_json, nothing=nothing)
