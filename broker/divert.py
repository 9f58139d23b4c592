"""Redirection of messages before they are put: into the delay topic, or from a retry topic to the dead letters.

Pure: both functions change the message itself (RocketMQ HookUtils, handleRetryAndDLQ).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..message.message import DLQ_PREFIX, RETRY_PREFIX, IncomingMessage
from ..message.numbers import int_of, long_of
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
from .tables.groups import GroupTable

VERSION_WITH_MAX_RECONSUME_TIMES = 121
"""The protocol version of V3_4_9; clients from this version on send their own limit of retries."""


def encode_as_found(properties: Mapping[str, str]) -> str:
    """Encode the properties of a stored message unchanged, even if a value contains U+0001, which no message should have."""
    return "".join(f"{name}{NAME_END}{value}{PROPERTY_END}" for name, value in properties.items())


def divert_delayed(message: IncomingMessage, level_max: int) -> None:
    """Redirect a message with a delay level into the delay topic; at level 0 and below it stays unchanged.

    Raises:
        ValueError: the level is not a number. The message is unchanged.
    """
    properties = decode_properties(message.properties)
    level = min(long_of(properties[DELAY]), level_max)
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
    groups: GroupTable,
    orderly: Callable[[str], bool],
) -> bool:
    """Redirect a message whose retries are used up to its group's dead letters, without delay; returns whether it did.

    Args:
        orderly: whether members of a group have locked queues. They send a message only when its retries are used up, with
            the number of retries made; other consumers also count the retry that they request.
    """
    group = message.topic.removeprefix(RETRY_PREFIX)
    config = groups.find(group)
    limit = config.retry_max_times if config is not None else 0
    if request.version >= VERSION_WITH_MAX_RECONSUME_TIMES and request.ext.get("l"):
        limit = int_of(request.ext["l"])
    allowed = limit - 1 if orderly(group) else limit
    if message.reconsume_times <= allowed or config is None:
        return False
    properties = decode_properties(message.properties)
    properties.pop(DELAY, None)
    message.properties = encode_as_found(properties)
    message.topic = DLQ_PREFIX + group
    message.queue_id = 0
    return True
