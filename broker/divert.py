"""Where a message goes instead of the topic it names: into the delay topic, or from a retry topic to the dead letters.

Pure: both work on the message as it is about to be put (RocketMQ HookUtils, handleRetryAndDLQ).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..message.message import DLQ_PREFIX, RETRY_PREFIX, IncomingMessage
from ..message.properties import (
    DELAY,
    NAME_END,
    PROPERTY_END,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    decode_properties,
)
from ..remoting.command import RemotingCommand
from ..store.config import SCHEDULE_TOPIC
from .groups import GroupTable
from .topics import TopicTable

VERSION_WITH_MAX_RECONSUME_TIMES = 121
"""Clients from V3_4_9 on bring their own limit of retries."""


def encode_as_found(properties: Mapping[str, str]) -> str:
    """Write properties that a stored message had, also those that no message should have: a U+0001 inside a value."""
    return "".join(f"{name}{NAME_END}{value}{PROPERTY_END}" for name, value in properties.items())


def divert_delayed(message: IncomingMessage, level_max: int) -> None:
    """Send a message with a delay level into the delay topic; level 0 and below leave it alone.

    Raises:
        ValueError: the level is not a number. The message is as it was.
    """
    properties = decode_properties(message.properties)
    level = min(int(properties[DELAY]), level_max)
    if level <= 0:
        return
    for timer in (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS):
        properties.pop(timer, None)  # a delay level wins over a timer
    real = {DELAY: str(level), REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    message.properties = encode_as_found(properties | real)
    message.topic = SCHEDULE_TOPIC
    message.queue_id = level - 1


def redirect_retry(
    message: IncomingMessage,
    request: RemotingCommand,
    topics: TopicTable,
    groups: GroupTable,
    orderly: Callable[[str], bool],
) -> None:
    """Send a message that has been retried often enough to its group's dead letters, undelayed.

    Args:
        orderly: whether members of a group hold queues. They send a message only when its retries are used up, and count as
            often as it has been retried; others count the retry that they ask for, too.
    """
    group = message.topic.removeprefix(RETRY_PREFIX)
    config = groups.find(group)
    limit = config.retry_max_times if config is not None else 0
    if request.version >= VERSION_WITH_MAX_RECONSUME_TIMES and request.ext.get("l"):
        limit = int(request.ext["l"])
    allowed = limit - 1 if orderly(group) else limit
    if message.reconsume_times <= allowed or config is None:
        return
    properties = decode_properties(message.properties)
    properties.pop(DELAY, None)
    message.properties = encode_as_found(properties)
    message.topic = DLQ_PREFIX + group
    message.queue_id = 0
    topics.create_for_group(message.topic, 1)
