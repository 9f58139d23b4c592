"""`ledgermq topic`: list, create, change, delete, look at."""

from __future__ import annotations

from typing import Any

import click

from ..client.admin import open_admin
from ..message.flags import PERM_READ, PERM_READ_WRITE, PERM_WRITE
from ..message.message import DLQ_PREFIX, RETRY_PREFIX
from .clients import chosen_tls, json_option, namesrv_option, pairs, talks_to_cluster
from .output import print_json, print_rows, when

PERMISSIONS = {"rw": PERM_READ_WRITE, "r": PERM_READ, "w": PERM_WRITE}
SYSTEM_TOPICS = frozenset(
    ("TBW102", "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC")
)
SYSTEM_PREFIXES = ("RMQ_SYS_", "rmq_sys_", RETRY_PREFIX, DLQ_PREFIX)


@click.group("topic")
def command() -> None:
    """Topics and their queues."""


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also topics of the system, of retries and of dead letters.")
@click.option("--cluster", help="Only of this cluster.")
@namesrv_option
@json_option
@talks_to_cluster
async def list_topics(everything: bool, cluster: str | None, namesrv: str, as_json: bool) -> None:
    """Names of all topics."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        if cluster is not None and cluster not in (known := {broker.cluster for broker in (await admin.cluster()).brokers}):
            raise click.ClickException(f"there is no cluster {cluster!r}: known are {', '.join(sorted(known)) or 'none'}")
        topics = await admin.topics(cluster=cluster)
        if not everything:
            brokers = (await admin.cluster()).brokers
            own = SYSTEM_TOPICS | {broker.name for broker in brokers} | {broker.cluster for broker in brokers}
            own |= {f"{broker.cluster}_REPLY_TOPIC" for broker in brokers}
            topics = [topic for topic in topics if topic not in own and not topic.startswith(SYSTEM_PREFIXES)]
    if as_json:
        print_json(topics)
    else:
        for topic in topics:
            click.echo(topic)


def _shape_options(function: Any) -> Any:
    for option in (
        click.option("--queues", type=click.IntRange(1, 65535), default=8, show_default=True, help="Per broker."),
        click.option("--perm", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True),
        click.option("--order", is_flag=True, help="Mark the topic as ordered."),
        click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="RocketMQ 5 topic attribute."),
        click.option("--cluster", help="On the brokers of this cluster only."),
        click.option("--broker", help="On this broker only: its name, or HOST:PORT."),
        namesrv_option,
        json_option,
    ):
        function = option(function)
    return function


@command.command("create")
@click.argument("topic")
@_shape_options
@talks_to_cluster
async def create(**options: Any) -> None:
    """Create a topic on every master."""
    await _shape(**options)


@command.command("update")
@click.argument("topic")
@_shape_options
@talks_to_cluster
async def update(**options: Any) -> None:
    """Change a topic: what is not given gets its default, as in RocketMQ's tools."""
    await _shape(**options)


async def _shape(
    topic: str,
    queues: int,
    perm: str,
    order: bool,
    attributes: tuple[str, ...],
    cluster: str | None,
    broker: str | None,
    namesrv: str,
    as_json: bool,
) -> None:
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        await admin.create_topic(
            topic,
            queues=queues,
            perm=PERMISSIONS[perm],
            order=order,
            attributes=pairs(attributes, "--attribute"),
            cluster=cluster,
            broker=broker,
        )
    if as_json:
        print_json({"topic": topic, "queues": queues, "perm": perm})
    else:
        click.echo(f"topic {topic}: {queues} queues per broker, permission {perm}")


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
        await admin.delete_topic(topic, cluster=cluster)  # in any case: a broker may hold what the name server has forgotten
    if not there:
        raise click.ClickException(f"there is no topic {topic!r}")
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
    """What each queue of a topic holds, and which groups read it."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        stats = await admin.topic_stats(topic)
        groups = await admin.topic_groups(topic)
    rows: list[dict[str, Any]] = [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "min": held.min_offset,
            "max": held.max_offset,
            "messages": held.max_offset - held.min_offset,
            "last": when(held.last_update_timestamp),
            "lastUpdateTimestamp": held.last_update_timestamp,
        }
        for queue, held in stats.items()
    ]
    if as_json:
        print_json({"topic": topic, "queues": rows, "groups": groups})
        return
    print_rows(rows, ("broker", "queue", "min", "max", "messages", "last"), as_json=False)
    click.echo(f"{sum(row['messages'] for row in rows)} messages; groups: {', '.join(groups) or 'none'}")


@command.command("route")
@click.argument("topic")
@namesrv_option
@json_option
@talks_to_cluster
async def route(topic: str, namesrv: str, as_json: bool) -> None:
    """What clients are told about a topic."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        found = await admin.topic_route(topic)
    members = {broker.name: broker for broker in found.brokers}
    rows = [
        {
            "broker": queue.broker_name,
            "cluster": members[queue.broker_name].cluster if queue.broker_name in members else None,
            "read": queue.read_queues,
            "write": queue.write_queues,
            "perm": queue.perm,
            "addresses": [f"{number}={address}" for number, address in sorted(members[queue.broker_name].addresses.items())]
            if queue.broker_name in members
            else [],
        }
        for queue in found.queues
    ]
    print_rows(rows, ("broker", "cluster", "read", "write", "perm", "addresses"), as_json=as_json)
