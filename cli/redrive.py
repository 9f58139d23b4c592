"""`ledgermq group redrive`: hand a group its dead letters once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from ..client.admin import Admin, open_admin
from ..client.errors import ClientError, NoRoute, NoRouteReason
from ..client.producer import Producer, open_producer
from ..client.pull import MESSAGES_PER_POLL, PullConsumer, open_pull_consumer
from ..client.received import ReceivedMessage
from ..message.message import DLQ_PREFIX, RETRY_PREFIX, Message, MessageQueue
from ..message.properties import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    KEYS,
    MAX_RECONSUME_TIMES,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TAGS,
    WAIT,
)
from ..world.tls import ClientTls
from .clients import chosen_tls, json_option, namesrv_option, talks_to_cluster
from .output import print_json
from .reading import BoundedReader, Stalled

REDRIVE_PREFIX = "REDRIVE_"
"""With the name of a group behind it, the group whose position says how far its dead letters were handed out."""
_LEFT_OUT = frozenset((DELAY, DLQ_ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, KEYS, MAX_RECONSUME_TIMES, RECONSUME_TIME, TAGS, WAIT))
"""Properties of the deliveries that failed, which the next ones begin without, and those that are fields of a message."""


@click.command("redrive")
@click.argument("group")
@click.option("--max", "count_max", type=click.IntRange(min=1), help="End after so many.")
@namesrv_option
@json_option
@talks_to_cluster
async def command(group: str, count_max: int | None, namesrv: str, as_json: bool) -> None:
    """Hand a group its dead letters once more, as if they had never failed.

    They go to the group's retry topic, so that no other group gets them again. How far the dead letters have been handed out is
    the position of the group REDRIVE_GROUP, which `ledgermq group reset` moves back. A command that is interrupted may hand out
    the last 256 twice.
    """
    count = await redrive(namesrv, group, count_max, chosen_tls())
    if as_json:
        print_json({"group": group, "messages": count})
    else:
        click.echo(f"{count} dead letters of {group} go to it again")


async def redrive(namesrv: str, group: str, count_max: int | None, tls: bool | ClientTls) -> int:
    """Hand a group its dead letters once more, at most `count_max` of them; returns how many.

    Raises:
        click.ClickException: not all were handed out; the text says how many were.
        ClientError: a broker cannot be reached or refuses.
    """
    async with (
        open_admin(namesrv, tls=tls) as admin,
        open_pull_consumer(namesrv, REDRIVE_PREFIX + group, pull_messages_max=MESSAGES_PER_POLL, tls=tls) as letters,
        open_producer(namesrv, tls=tls) as producer,
    ):
        queues = await _letters_of(admin, group, letters)
        ends = {queue: (await admin.queue_range(queue))[1] for queue in queues}
        await letters.assign(queues)
        return await _redrive(group, letters, ends, producer, count_max)


async def _letters_of(admin: Admin, group: str, letters: PullConsumer) -> list[MessageQueue]:
    try:
        return await letters.queues(DLQ_PREFIX + group)
    except NoRoute as error:
        if error.reason is not NoRouteReason.TOPIC_UNKNOWN:
            raise
        if group not in await admin.groups():
            raise click.ClickException(f"there is no group {group!r}") from error
        return []  # a group's first dead letter creates their topic


async def _redrive(
    group: str, letters: PullConsumer, ends: Mapping[MessageQueue, int], producer: Producer, count_max: int | None
) -> int:
    count, reader = 0, BoundedReader(letters, ends)
    try:
        while (left := None if count_max is None else count_max - count) != 0 and (batch := (await reader.take())[:left]):
            await _hand_out(group, producer, batch, count)
            count += len(batch)
            # Not the positions of the consumer, which may be behind letters that were not handed out.
            for queue, offset in {letter.queue: letter.queue_offset + 1 for letter in batch}.items():
                await letters.commit(queue, offset)
    except Stalled as error:
        raise click.ClickException(f"{error.message}; {count} dead letters were handed out") from error
    return count


async def _hand_out(group: str, producer: Producer, batch: Sequence[ReceivedMessage], before: int) -> None:
    results = await producer.send_many([_retry_of(group, letter) for letter in batch])
    failures = [result for result in results if isinstance(result, ClientError)]
    if failures:
        raise click.ClickException(
            f"{len(failures)} of {len(batch)} dead letters were not handed out: {failures[0]}. {before} before them were; "
            "the command begins with these once more"
        )


def _retry_of(group: str, letter: ReceivedMessage) -> Message:
    record = letter.stored()
    origin = record.properties.get(DLQ_ORIGIN_TOPIC) or record.properties.get(RETRY_TOPIC) or record.topic
    properties = {name: value for name, value in record.properties.items() if name not in _LEFT_OUT}
    return Message(
        RETRY_PREFIX + group,
        letter.body,
        tag=record.tag or None,
        keys=record.keys,
        properties={**properties, RETRY_TOPIC: origin},
        flag=record.flag,
    )
