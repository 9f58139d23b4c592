"""`ledgermq group`: consumer groups, their settings and their offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import click

from ..client.admin import open_admin
from ..client.admin.errors import GroupExists
from ..client.errors import NotOnline
from . import redrive
from .clients import Moment, chosen_tls, json_option, namesrv_option, talks_to_cluster, watch_option, watchable
from .output import moment_or_none, print_json, print_rows, snaked, warn_without_master, when
from .reasons import SuggestingGroup

SYSTEM_GROUPS = frozenset(
    (
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "DEFAULT_CONSUMER",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    )
)
"""The groups that every RocketMQ broker has."""


@click.group("group", cls=SuggestingGroup)
def command() -> None:
    """Consumer groups and their positions."""


command.add_command(redrive.command)


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also groups of the system.")
@namesrv_option
@json_option
@talks_to_cluster
async def list_groups(everything: bool, namesrv: str, as_json: bool) -> None:
    """List all consumer groups."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        groups = await admin.groups()
        warn_without_master((await admin.cluster()).without_master())
    rows = [_settings_row(name, settings) for name, settings in groups.items() if everything or name not in SYSTEM_GROUPS]
    print_rows(
        rows,
        ("group", "consume_enable", "consume_broadcast_enable", "retry_max_times", "retry_queue_nums"),
        as_json=as_json,
        nothing="no groups",
    )


def _settings_row(group: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"group": group, **{name: each for name, each in snaked(dict(settings)).items() if name != "group_name"}}


@command.command("show")
@click.argument("group")
@click.option("--topic", help="Only its queues of this topic.")
@namesrv_option
@json_option
@watch_option
@talks_to_cluster
@watchable
async def show(group: str, topic: str | None, namesrv: str, as_json: bool) -> None:
    """Show the offsets and the lag of a group in each queue, and its members."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        stats = await admin.group_stats(group, topic)
        lost = await admin.lost_messages(group)
        try:
            connections = await admin.group_connections(group)
        except NotOnline:
            connections = None
        headless = (await admin.cluster()).without_master()
    rows: list[dict[str, Any]] = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "position": position.consumer_offset,
            "end": position.broker_offset,
            "lag": position.lag,
            "last_timestamp": moment_or_none(position.last_timestamp),
        }
        for queue, position in stats.items()
    ]
    members = [attrs.asdict(member) for member in connections.members] if connections else []
    if as_json:
        subscriptions = dict(connections.subscriptions) if connections else {}
        print_json(
            {
                "group": group,
                "queues": rows,
                "members": members,
                "subscriptions": subscriptions,
                "lost": lost,
                "without_master": headless,
            }
        )
        return
    warn_without_master(headless)
    print_rows(
        [{**row, "last": when(row["last_timestamp"])} for row in rows],
        ("topic", "broker", "queue", "position", "end", "lag", "last"),
        as_json=False,
        nothing=f"the group {group} has no positions{f' in {topic}' if topic else ''}",
    )
    click.echo(f"{sum(row['lag'] for row in rows)} behind; {len(members)} members online")
    if lost:
        click.echo(f"lost, because they were deleted before the group had read them: {_counts(lost)}")
    print_rows(members, ("client_id", "address", "language", "version"), as_json=False)


def _counts(lost: Mapping[str, int]) -> str:
    return ", ".join(f"{count} messages of {topic}" for topic, count in lost.items())


@command.command("connections")
@click.argument("group")
@namesrv_option
@json_option
@watch_option
@talks_to_cluster
@watchable
async def connections(group: str, namesrv: str, as_json: bool) -> None:
    """Show the members of a group that are online, and what they subscribe to."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        found = await admin.group_connections(group)
    if as_json:
        print_json(attrs.asdict(found))
        return
    print_rows(
        [attrs.asdict(member) for member in found.members], ("client_id", "address", "language", "version"), as_json=False
    )
    click.echo(f"{found.consume_type}, {found.message_model}, {found.consume_from}")
    for topic, expression in sorted(found.subscriptions.items()):
        click.echo(f"{topic}: {expression}")


@command.command("clone")
@click.argument("source")
@click.argument("target")
@click.argument("topic")
@namesrv_option
@talks_to_cluster
async def clone(source: str, target: str, topic: str, namesrv: str) -> None:
    """Let the group TARGET go on in TOPIC where SOURCE is; members of TARGET that are online do not notice."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        offsets = await admin.clone_offsets(source, target, topic)
    if not offsets:
        raise click.ClickException(f"{source} has no position in {topic}; nothing was changed")
    click.echo(f"{target} is where {source} is in {topic}; queues: {len(offsets)}")


@command.command("reset")
@click.argument("group")
@click.argument("topic")
@click.option("--to", "timestamp_ms", type=Moment(), required=True, help="earliest, latest, 10m (ago), a date, milliseconds.")
@namesrv_option
@json_option
@talks_to_cluster
async def reset(group: str, topic: str, timestamp_ms: int, namesrv: str, as_json: bool) -> None:
    """Move a group to a point in time in a topic; online members are notified."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        offsets = await admin.reset_offsets(group, topic, timestamp_ms)
    rows = [
        {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, "position": offset}
        for queue, offset in offsets.items()
    ]
    print_rows(rows, ("topic", "broker", "queue", "position"), as_json=as_json, nothing="no queue was changed")


RETRIES = click.IntRange(-1, 2**31 - 1)
RETRY_QUEUES = click.IntRange(1, 65535)
_SETTINGS = {
    "retries": "retryMaxTimes",
    "retry_queues": "retryQueueNums",
    "orderly": "consumeMessageOrderly",
    "broadcast": "consumeBroadcastEnable",
    "enable": "consumeEnable",
}
"""RocketMQ's name of the setting of each option."""


def _setting_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--retries", type=RETRIES, help="Before a message is a dead letter; 16 by default."),
        click.option("--retry-queues", type=RETRY_QUEUES, help="Queues of its retry topic per broker; 1 by default."),
        click.option("--orderly/--no-orderly", default=None, help="Consumed in order (RocketMQ 5); no by default."),
        click.option("--broadcast/--no-broadcast", default=None, help="Whether members may broadcast; yes by default."),
        click.option("--enable/--disable", default=None, help="Whether the group may consume at all; yes by default."),
        click.option("--cluster", help="On the brokers of this cluster only."),
        click.option("--broker", help="On this broker only: its name, or HOST:PORT."),
        namesrv_option,
        json_option,
    ):
        function = option(function)
    return function


@command.command("create")
@click.argument("group")
@_setting_options
@talks_to_cluster
async def create(group: str, namesrv: str, as_json: bool, cluster: str | None, broker: str | None, **options: Any) -> None:
    """Create a consumer group.

    A group that exists with these settings is left as it is; with other settings it is an error, and nothing is changed.
    """
    try:
        async with open_admin(namesrv, tls=chosen_tls()) as admin:
            settings = await admin.create_group(group, cluster=cluster, broker=broker, **_given(options))
    except GroupExists as error:
        raise click.ClickException(f"{error}\nChange it with `ledgermq group update {group}`.") from error
    _print_settings(group, settings, as_json=as_json)


@command.command("update")
@click.argument("group")
@_setting_options
@talks_to_cluster
async def update(group: str, namesrv: str, as_json: bool, cluster: str | None, broker: str | None, **options: Any) -> None:
    """Change the given settings of a consumer group; the others stay as they are."""
    if not (given := _given(options)):
        raise click.UsageError("say what to change, for example --retries 3")
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        settings = await admin.update_group(group, cluster=cluster, broker=broker, **given)
    _print_settings(group, settings, as_json=as_json)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {_SETTINGS[name]: value for name, value in options.items() if value is not None}


def _print_settings(group: str, settings: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        rows = [{**_settings_row(group, each), "broker": broker} for broker, each in settings.items()]
        print_json({"group": group, "brokers": rows})
        return
    for broker, each in sorted(settings.items()):
        words = [f"{each['retryMaxTimes']} retries"]
        words += ["in order"] if each["consumeMessageOrderly"] else []
        words += [] if each["consumeBroadcastEnable"] else ["no broadcasting"]
        words += [] if each["consumeEnable"] else ["disabled"]
        click.echo(f"group {group} on {broker}: {', '.join(words)}")


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
        await admin.delete_group(group, remove_offsets=not keep_offsets)  # always, because offsets may exist without the group
    if not there:
        left = "" if keep_offsets else "; if any positions were left of it, they are deleted now"
        raise click.ClickException(f"there is no group {group!r}{left}")
    if as_json:
        print_json({"group": group, "deleted": True})
    else:
        click.echo(f"group {group} deleted")
