"""`ledgermq topic`: list, create, change, delete and show topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs
import click

from ..client.admin import open_admin
from ..client.admin.errors import MessagesWouldBeHidden, TopicExists
from ..client.admin.topic_settings import PERMISSION_NAMES, QUEUES, TopicSettings
from ..client.admin.values import Cluster
from ..client.arguments import QUEUES_MAX
from ..message.flags import PERM_READ, PERM_READ_WRITE, PERM_WRITE
from ..message.message import DLQ_PREFIX, RETRY_PREFIX
from ..message.units import MASTER_ID
from .clients import chosen_tls, json_option, namesrv_option, pairs, talks_to_cluster
from .output import moment_or_none, print_json, print_rows, warn_without_master, when
from .reasons import SuggestingGroup

QUEUE_COUNT = click.IntRange(0, QUEUES_MAX)
NEW_QUEUE_COUNT = click.IntRange(1, QUEUES_MAX)
"""A new topic needs a queue; an existing one that is being closed may have none left to write."""
PERMISSIONS = {"rw": PERM_READ_WRITE, "r": PERM_READ, "w": PERM_WRITE}
SYSTEM_TOPICS = frozenset(
    ("TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC")
)
SYSTEM_PREFIXES = ("RMQ_SYS_", "rmq_sys_", RETRY_PREFIX, DLQ_PREFIX)


def of_applications(topics: Iterable[str], cluster: Cluster) -> list[str]:
    """The topics without those of the system, of retries and of dead letters."""
    own = SYSTEM_TOPICS | {broker.name for broker in cluster.brokers} | {broker.cluster for broker in cluster.brokers}
    own |= {f"{broker.cluster}_REPLY_TOPIC" for broker in cluster.brokers}
    return [topic for topic in topics if topic not in own and not topic.startswith(SYSTEM_PREFIXES)]


@click.group("topic", cls=SuggestingGroup)
def command() -> None:
    """Topics and their queues."""


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also topics of the system, of retries and of dead letters.")
@click.option("--cluster", help="Only of this cluster.")
@namesrv_option
@json_option
@talks_to_cluster
async def list_topics(everything: bool, cluster: str | None, namesrv: str, as_json: bool) -> None:
    """List the names of all topics."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        if cluster is not None and cluster not in (known := {broker.cluster for broker in (await admin.cluster()).brokers}):
            raise click.ClickException(f"there is no cluster {cluster!r}: known are {', '.join(sorted(known)) or 'none'}")
        topics = await admin.topics(cluster=cluster)
        if not everything:
            topics = of_applications(topics, await admin.cluster())
    if as_json:
        print_json(topics)
    else:
        for topic in topics:
            click.echo(topic)


def _setting_options(*, creating: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options for a topic's settings; when creating they have defaults, otherwise missing ones stay unchanged."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        for option in (
            click.option(
                "--queues",
                type=NEW_QUEUE_COUNT if creating else QUEUE_COUNT,
                default=QUEUES if creating else None,
                show_default=creating,
                help="Per broker, to read and to write.",
            ),
            click.option("--read-queues", type=QUEUE_COUNT, help="How many can be read, if not as many."),
            click.option("--write-queues", type=QUEUE_COUNT, help="How many can be sent to, if not as many."),
            click.option(
                "--perm", type=click.Choice(list(PERMISSIONS)), default="rw" if creating else None, show_default=creating
            ),
            click.option("--order/--no-order", default=False if creating else None, help="Mark the topic as ordered."),
            click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="RocketMQ 5 topic attribute."),
            click.option("--cluster", help="On the brokers of this cluster only."),
            click.option("--broker", help="On this broker only: its name, or HOST:PORT."),
            namesrv_option,
            json_option,
        ):
            function = option(function)
        return function

    return decorate


@command.command("create")
@click.argument("topic")
@_setting_options(creating=True)
@talks_to_cluster
async def create(topic: str, namesrv: str, as_json: bool, **options: Any) -> None:
    """Create a topic on every master.

    A topic that exists with these settings is left as it is; with other settings it is an error, and nothing is changed.
    """
    try:
        async with open_admin(namesrv, tls=chosen_tls()) as admin:
            settings = await admin.create_topic(topic, **_settings(options))
    except TopicExists as error:
        raise click.ClickException(f"{error}\nChange it with `ledgermq topic update {topic}`.") from error
    _print_settings(topic, settings, as_json=as_json)


@command.command("update")
@click.argument("topic")
@_setting_options(creating=False)
@click.option("--force", is_flag=True, help="Take queues away although messages in them cannot be read any more.")
@talks_to_cluster
async def update(topic: str, force: bool, namesrv: str, as_json: bool, **options: Any) -> None:
    """Change the given settings of a topic on every master that has it; the others stay as they are."""
    given = _settings(options)
    if all(given[name] in (None, {}) for name in given if name not in ("cluster", "broker")):
        raise click.UsageError("say what to change, for example --queues 16")
    try:
        async with open_admin(namesrv, tls=chosen_tls()) as admin:
            settings = await admin.update_topic(topic, force=force, **given)
    except MessagesWouldBeHidden as error:
        raise click.ClickException(
            f"{error}\nTake away the queues to write first (--write-queues), let the groups read the rest, then the queues to "
            "read (--read-queues); or give the messages up with --force."
        ) from error
    _print_settings(topic, settings, as_json=as_json)


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    perm: str | None = options["perm"]
    return {
        **options,
        "perm": None if perm is None else PERMISSIONS[perm],
        "attributes": pairs(options["attributes"], "--attribute"),
    }


def _print_settings(topic: str, settings: Mapping[str, TopicSettings], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"broker": broker, **attrs.asdict(each), "perm": PERMISSION_NAMES.get(each.perm, str(each.perm))}
            for broker, each in settings.items()
        ]
        print_json({"topic": topic, "brokers": rows})
        return
    for broker, each in sorted(settings.items()):
        click.echo(f"topic {topic} on {broker}: {each}")


@command.command("delete")
@click.argument("topic")
@click.option("--cluster", help="On the brokers of this cluster only.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@namesrv_option
@json_option
@talks_to_cluster
async def delete(topic: str, cluster: str | None, yes: bool, namesrv: str, as_json: bool) -> None:
    """Delete a topic with all its messages."""
    if not yes:
        click.confirm(f"Delete the topic {topic} with all its messages?", abort=True, err=True)
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        there = topic in await admin.topics(cluster=cluster)
        await admin.delete_topic(topic, cluster=cluster)  # even if it is not listed, because a broker may still have it
    if not there:
        raise click.ClickException(f"there is no topic {topic!r}; if anything was left of it, that is deleted now")
    if as_json:
        print_json({"topic": topic, "deleted": True})
    else:
        click.echo(f"topic {topic} deleted")


@command.command("show")
@click.argument("topic")
@namesrv_option
@json_option
@talks_to_cluster
async def show(topic: str, namesrv: str, as_json: bool) -> None:
    """Show the offsets of each queue of a topic, and the groups that read it."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        stats = await admin.topic_stats(topic)
        groups = await admin.topic_groups(topic)
        headless = [broker.name for broker in (await admin.topic_route(topic)).brokers if MASTER_ID not in broker.addresses]
    rows: list[dict[str, Any]] = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "min": held.min_offset,
            "max": held.max_offset,
            "messages": held.max_offset - held.min_offset,
            "last_timestamp": moment_or_none(held.last_update_timestamp),
        }
        for queue, held in stats.items()
    ]
    if as_json:
        print_json({"topic": topic, "queues": rows, "groups": groups, "without_master": headless})
        return
    warn_without_master(headless)
    shown = [{**row, "last": when(row["last_timestamp"])} for row in rows]
    print_rows(shown, ("broker", "queue", "min", "max", "messages", "last"), as_json=False)
    click.echo(f"{sum(row['messages'] for row in rows)} messages; groups: {', '.join(groups) or 'none'}")


@command.command("route")
@click.argument("topic")
@namesrv_option
@json_option
@talks_to_cluster
async def route(topic: str, namesrv: str, as_json: bool) -> None:
    """Show the route of a topic, as clients get it."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        found = await admin.topic_route(topic)
    members = {broker.name: broker for broker in found.brokers}
    rows = [
        {
            "broker": queue.broker_name,
            "cluster": members[queue.broker_name].cluster if queue.broker_name in members else None,
            "read": queue.read_queues,
            "write": queue.write_queues,
            "perm": PERMISSION_NAMES.get(queue.perm, str(queue.perm)),
            "addresses": {str(number): str(address) for number, address in sorted(members[queue.broker_name].addresses.items())}
            if queue.broker_name in members
            else {},
        }
        for queue in found.queues
    ]
    print_rows(rows, ("broker", "cluster", "read", "write", "perm", "addresses"), as_json=as_json)
