"""`ledgermq consume`: print messages, as a member of a group or without one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from math import inf
from typing import Any

import attrs
import click

from ..client.admin import open_admin
from ..client.admin.calls import ADMIN_GROUP
from ..client.consumer import Consumer, open_consumer
from ..client.pull import open_pull_consumer
from ..client.received import ReceivedMessage
from ..client.subscription import ConsumeFrom
from ..message.message import MessageQueue
from .clients import Moment, chosen_tls, json_option, namesrv_option, talks_to_cluster
from .output import body_fields, print_json, when
from .reading import LOOK_SECONDS, BoundedReader, StallWatch

MESSAGES_PER_GET = 256


@click.command("consume")
@click.argument("topic")
@click.option("--group", help="Take messages as a member of this group; without it they are only looked at.")
@click.option("--from-beginning", is_flag=True, help="Start at the oldest message; a group that has been here goes on.")
@click.option("--since", type=Moment(has_latest=False), help="Start at this time: 10m (ago), a date. Not with --group.")
@click.option("--tag", default="*", help="Only these tags, as a || b.")
@click.option("--max", "count_max", type=click.IntRange(min=1), help="End after so many.")
@click.option("--follow/--no-follow", default=None, help="Wait for more, or end with what is there.")
@click.option("-v", "--verbose", is_flag=True, help="Before each body its queue, offset, time, tag and keys.")
@namesrv_option
@json_option
@talks_to_cluster
async def command(
    topic: str,
    group: str | None,
    from_beginning: bool,
    since: int | None,
    tag: str,
    count_max: int | None,
    follow: bool | None,
    verbose: bool,
    namesrv: str,
    as_json: bool,
) -> None:
    """Print the bodies of messages, one a line.

    Without --group no offsets are committed: the command waits for new messages, or with --from-beginning or --since prints
    the stored ones and ends, unless --follow. With --group messages are shared with its other members and acknowledged once
    printed; the command ends when this member's queues are read up to their ends at the start, unless --follow.
    """
    if group is not None and since is not None:
        raise click.UsageError("--since is for looking on; move a group with `ledgermq group reset`")
    if from_beginning and since is not None:
        raise click.UsageError("--from-beginning and --since exclude each other")
    sink = Sink(count_max, verbose, as_json)
    if group is not None:
        await _take(namesrv, group, topic, tag, from_beginning, follow or False, sink)
    else:
        start = 0 if from_beginning else since
        await _look(namesrv, topic, tag, start, start is None if follow is None else follow, sink)


@attrs.define(eq=False)
class Sink:
    """Prints messages up to a maximal number."""

    left: int | None
    verbose: bool
    as_json: bool
    shown: int = 0

    def show(self, messages: Sequence[ReceivedMessage]) -> None:
        """Print and acknowledge messages, at most as many as are left to print."""
        wanted = messages if self.left is None else messages[: self.left]
        for message in wanted:
            _print(message, self.verbose, self.as_json)
        # Flushed before acknowledging: a broken pipe raises here, and the messages stay unacknowledged.
        sys.stdout.flush()
        for message in wanted:
            message.ack_now()
        self.shown += len(wanted)
        if self.left is not None:
            self.left -= len(wanted)

    @property
    def full(self) -> bool:
        return self.left is not None and self.left <= 0


async def _take(namesrv: str, group: str, topic: str, tag: str, from_beginning: bool, follow: bool, sink: Sink) -> None:
    first = ConsumeFrom.FIRST if from_beginning else ConsumeFrom.LAST
    tls = chosen_tls()
    async with open_admin(namesrv, tls=tls) as admin, AsyncExitStack() as stack:
        # This raises for an unknown topic, for which no message would come. The ends are read before the first pull, because a
        # pull that is held for its tag does not return for other messages that come later, and would seem to be behind them.
        queues = (await admin.topic_route(topic)).subscribe_queues()
        ends = {queue: (await admin.queue_range(queue))[1] for queue in queues}
        consumer = await stack.enter_async_context(
            open_consumer(namesrv, group, {topic: tag}, ack="explicit", consume_from=first, tls=tls)
        )
        watch = StallWatch()
        while not sink.full:
            messages = await consumer.get_many(MESSAGES_PER_GET, None if follow else LOOK_SECONDS)
            sink.show(messages)
            if follow:
                continue
            for queue in consumer.queues:
                if queue not in ends:  # a queue of the retry topic, or a new one of the topic
                    ends[queue] = (await admin.queue_range(queue))[1]
            unread = _unread(consumer, ends)
            if not unread:
                if not consumer.queues and not (health := await consumer.healthy()):
                    raise click.ClickException(f"{group} has got no queue of {topic}: {'; '.join(health.problems)}")
                break
            if not messages:
                watch.poll_got_nothing(unread)
    if not sink.shown and not follow:
        click.echo(f"Nothing new for {group}; --follow waits, `ledgermq group reset` goes back.", err=True)


def _unread(consumer: Consumer, ends: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """The queues of a member that are not read to their ends, and up to which offset each is; the others are paused."""
    offsets = {queue: source.assigned.committable for queue, source in consumer.sources.items()}
    unread = {queue: offset for queue, offset in offsets.items() if offset < ends.get(queue, inf)}
    consumer.pause(offsets.keys() - unread.keys())
    return unread


async def _look(namesrv: str, topic: str, tag: str, start_ms: int | None, follow: bool, sink: Sink) -> None:
    async with (
        open_admin(namesrv, tls=chosen_tls()) as admin,
        open_pull_consumer(namesrv, ADMIN_GROUP, tls=chosen_tls()) as consumer,
    ):
        ends: dict[MessageQueue, int] = {}
        starts: dict[MessageQueue, int] = {}
        for queue in await consumer.queues(topic):
            first, last = await admin.queue_range(queue)
            ends[queue] = last
            starts[queue] = last if start_ms is None else first if not start_ms else await admin.offset_at(queue, start_ms)
        unread = {queue for queue in ends if starts[queue] < ends[queue]}
        read = ends if follow else unread
        await consumer.assign(read, tag)
        for queue in read:
            await consumer.seek(queue, starts[queue])
        if follow and not unread:
            click.echo(f"Waiting for messages of {topic}; Ctrl-C ends.", err=True)
        take = consumer.poll if follow else BoundedReader(consumer, {queue: ends[queue] for queue in unread}).take
        while not sink.full and (messages := await take()):
            sink.show(messages)


def _print(message: ReceivedMessage, verbose: bool, as_json: bool) -> None:
    if as_json:
        print_json(_fields(message))
        return
    if verbose:
        words = [str(message.queue), f"offset {message.queue_offset}", when(message.store_timestamp)]
        words += [f"tag {message.tag}"] if message.tag else []
        words += [f"keys {' '.join(message.keys)}"] if message.keys else []
        words += [f"again ({message.reconsume_times})"] if message.reconsume_times else []
        click.echo(f"{'  '.join(words)}  ", nl=False)
    sys.stdout.buffer.write(message.body + b"\n")


def _fields(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "broker_name": message.queue.broker_name,
        "queue_id": message.queue.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "tag": message.tag,
        "keys": message.keys,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "reconsume_times": message.reconsume_times,
        "properties": dict(message.properties),
        **body_fields(message.body),
    }
