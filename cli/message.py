"""`ledgermq message`: find single messages and show all their fields."""

from __future__ import annotations

import attrs
import click

from ..client.admin import LATEST, open_admin
from ..client.admin.calls import ADMIN_GROUP
from ..client.pull import open_pull_consumer
from ..message.message import MessageQueue, StoredMessage
from ..message.units import QueueId
from .clients import Moment, chosen_tls, json_option, namesrv_option, talks_to_cluster
from .output import print_message, print_rows, stored_fields, text_or_hex, when
from .reading import BoundedReader
from .reasons import SuggestingGroup

COLUMNS = ("message_id", "queue_id", "queue_offset", "stored", "tag", "keys", "body")


@click.group("message", cls=SuggestingGroup)
def command() -> None:
    """Single messages."""


@command.command("show")
@click.argument("message_id")
@click.option("--topic", help="Needed for a producer's unique id; an offset id is found without.")
@namesrv_option
@json_option
@talks_to_cluster
async def show(message_id: str, topic: str | None, namesrv: str, as_json: bool) -> None:
    """Show a message by its id."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        message = await admin.message_by_id(message_id, topic)
    print_message(message, as_json=as_json)


@command.command("by-key")
@click.argument("topic")
@click.argument("key")
@click.option("--max", "count_max", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--since", type=Moment(has_latest=False), default=0, help="Stored then or later; 10m for ten minutes ago.")
@namesrv_option
@json_option
@talks_to_cluster
async def by_key(topic: str, key: str, count_max: int, since: int, namesrv: str, as_json: bool) -> None:
    """Find messages by one of their keys, through the brokers' index."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        found = await admin.messages_by_key(topic, key, messages_max=count_max, begin_ms=since)
    _print_found(found, as_json=as_json, nothing=f"no message with the key {key!r} in {topic}")


@command.command("by-offset")
@click.argument("topic")
@click.argument("offset", type=click.IntRange(min=0))
@click.option("--queue", "queue_id", type=click.IntRange(min=0), required=True)
@click.option("--broker", help="Its name; needed where several brokers have the topic.")
@namesrv_option
@json_option
@talks_to_cluster
async def by_offset(topic: str, offset: int, queue_id: int, broker: str | None, namesrv: str, as_json: bool) -> None:
    """Show the message with an offset in a queue."""
    async with open_admin(namesrv, tls=chosen_tls()) as admin:
        names = sorted({queue.broker_name for queue in (await admin.topic_route(topic)).queues})
        if broker is None and len(names) != 1:
            raise click.UsageError(f"several brokers have the topic {topic}: choose one with --broker ({', '.join(names)})")
        if broker is not None and broker not in names:
            raise click.UsageError(f"no broker {broker!r} has the topic {topic}: known are {', '.join(names)}")
        message = await admin.message_at(MessageQueue(topic, broker or names[0], QueueId(queue_id)), offset)
    print_message(message, as_json=as_json)


@command.command("find")
@click.argument("topic")
@click.option("--since", type=Moment(), default="1h", show_default=True, help="Stored then or later.")
@click.option("--until", type=Moment(), default="latest", show_default=True, help="Stored before.")
@click.option("--tag", help="With this tag; several as a || b.")
@click.option("--contains", help="With this text in the body.")
@click.option("--max", "count_max", type=click.IntRange(min=1), default=64, show_default=True)
@namesrv_option
@json_option
@talks_to_cluster
async def find(
    topic: str, since: int, until: int, tag: str | None, contains: str | None, count_max: int, namesrv: str, as_json: bool
) -> None:
    """Search all messages of a period of time, without an index."""
    wanted = contains.encode() if contains else b""
    found: list[StoredMessage] = []
    async with (
        open_admin(namesrv, tls=chosen_tls()) as admin,
        open_pull_consumer(namesrv, ADMIN_GROUP, tls=chosen_tls()) as consumer,
    ):
        ends: dict[MessageQueue, int] = {}
        starts: dict[MessageQueue, int] = {}
        for queue in await consumer.queues(topic):
            first, last = await admin.queue_range(queue)
            starts[queue] = first if since == 0 else last if since == LATEST else await admin.offset_at(queue, since)
            ends[queue] = last if until == LATEST else await admin.offset_at(queue, until)
        unread = {queue: end for queue, end in ends.items() if starts[queue] < end}
        await consumer.assign(unread, tag or "*")
        for queue in unread:
            await consumer.seek(queue, starts[queue])
        reader = BoundedReader(consumer, unread)
        while len(found) < count_max and (messages := await reader.take()):
            found += [attrs.evolve(message.stored(), body=message.body) for message in messages if wanted in message.body]
    found.sort(key=lambda message: message.store_timestamp)
    _print_found(found[:count_max], as_json=as_json, nothing=f"no such message in {topic}")


def _print_found(found: list[StoredMessage], *, as_json: bool, nothing: str) -> None:
    rows = [
        {
            **stored_fields(message),
            **({} if as_json else {"body": text_or_hex(message.body)[:60], "stored": when(message.store_timestamp)}),
        }
        for message in found
    ]
    print_rows(rows, COLUMNS, as_json=as_json)
    if not found:
        raise click.ClickException(nothing)
