"""`ledgermq group`: consumer groups, where they stand, and setting them elsewhere."""

from __future__ import annotations

from typing import Any

import attrs
import click

from ..client.admin import open_admin
from ..client.errors import NotOnline
from .clients import Moment, chosen_tls, json_option, namesrv_option, talks_to_cluster
from .output import print_json, print_rows, when


@click.group("group")
def command() -> None:
    """Consumer groups and their positions."""


@command.command("list")
@namesrv_option
@json_option
@talks_to_cluster
async def list_groups(namesrv: str, as_json: bool) -> None:
    """All consumer groups."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        groups = await admin.groups()
    rows = [{"group": name, **configuration} for name, configuration in groups.items()]
    print_rows(
        rows,
        ("group", "consumeEnable", "consumeBroadcastEnable", "retryMaxTimes", "retryQueueNums"),
        as_json=as_json,
        nothing="no groups",
    )


@command.command("show")
@click.argument("group")
@click.option("--topic", help="Only its queues of this topic.")
@namesrv_option
@json_option
@talks_to_cluster
async def show(group: str, topic: str | None, namesrv: str, as_json: bool) -> None:
    """Where a group stands in each queue, how far behind it is, and who its members are."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        stats = await admin.group_stats(group, topic)
        if not stats and group not in await admin.groups():
            raise click.ClickException(f"there is no group {group!r}")
        try:
            connections = await admin.group_connections(group)
        except NotOnline:
            connections = None
    rows: list[dict[str, Any]] = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "position": position.consumer_offset,
            "end": position.broker_offset,
            "lag": position.lag,
            "last": when(position.last_timestamp),
            "lastTimestamp": position.last_timestamp,
        }
        for queue, position in stats.items()
    ]
    members = [attrs.asdict(member) for member in connections.members] if connections else []
    if as_json:
        subscriptions = dict(connections.subscriptions) if connections else {}
        print_json({"group": group, "queues": rows, "members": members, "subscriptions": subscriptions})
        return
    print_rows(
        rows,
        ("topic", "broker", "queue", "position", "end", "lag", "last"),
        as_json=False,
        nothing=f"the group {group} has no positions{f' in {topic}' if topic else ''}",
    )
    click.echo(f"{sum(row['lag'] for row in rows)} behind; {len(members)} members online")
    print_rows(members, ("client_id", "address", "language", "version"), as_json=False)


@command.command("reset")
@click.argument("group")
@click.argument("topic")
@click.option("--to", "timestamp_ms", type=Moment(), required=True, help="earliest, latest, 10m (ago), a date, milliseconds.")
@namesrv_option
@json_option
@talks_to_cluster
async def reset(group: str, topic: str, timestamp_ms: int, namesrv: str, as_json: bool) -> None:
    """Let a group go on elsewhere in a topic; members that are online are told."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        offsets = await admin.reset_offsets(group, topic, timestamp_ms)
    rows = [
        {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, "position": offset}
        for queue, offset in offsets.items()
    ]
    print_rows(rows, ("topic", "broker", "queue", "position"), as_json=as_json, nothing="no queue was changed")


@command.command("create")
@click.argument("group")
@click.option(
    "--retries", type=click.IntRange(-1, 2**31 - 1), default=16, show_default=True, help="Before a message is a dead letter."
)
@click.option("--retry-queues", type=click.IntRange(1, 65535), default=1, show_default=True)
@click.option("--orderly", is_flag=True, help="Consumed in order (RocketMQ 5).")
@click.option("--no-broadcast", is_flag=True, help="Forbid broadcasting consumers.")
@click.option("--cluster", help="On the brokers of this cluster only.")
@namesrv_option
@json_option
@talks_to_cluster
async def create(
    group: str,
    retries: int,
    retry_queues: int,
    orderly: bool,
    no_broadcast: bool,
    cluster: str | None,
    namesrv: str,
    as_json: bool,
) -> None:
    """Create a consumer group, or change it."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        await admin.create_group(
            group,
            cluster=cluster,
            retryMaxTimes=retries,
            retryQueueNums=retry_queues,
            consumeMessageOrderly=orderly,
            consumeBroadcastEnable=not no_broadcast,
        )
    if as_json:
        print_json({"group": group, "retryMaxTimes": retries})
    else:
        click.echo(f"group {group}: {retries} retries")


@command.command("delete")
@click.argument("group")
@click.option("--keep-offsets", is_flag=True, help="So that it goes on where it stands if it comes back.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
@json_option
@talks_to_cluster
async def delete(group: str, keep_offsets: bool, yes: bool, namesrv: str, as_json: bool) -> None:
    """Delete a consumer group and its positions."""
    if not yes:
        click.confirm(f"Delete the group {group}{'' if keep_offsets else ' and its positions'}?", abort=True, err=True)
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        there = group in await admin.groups()
        await admin.delete_group(group, remove_offsets=not keep_offsets)  # in any case: there may be positions without it
    if not there:
        raise click.ClickException(f"there is no group {group!r}")
    if as_json:
        print_json({"group": group, "deleted": True})
    else:
        click.echo(f"group {group} deleted")
