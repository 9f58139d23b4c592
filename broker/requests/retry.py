"""Messages that a consumer failed to process: they go to its retry topic for a later try, or to its dead letter topic.

CONSUMER_SEND_MSG_BACK (36) copies the message (RocketMQ SendMessageProcessor). The copy is a delayed message, whose level grows
with the number of failures. `divert` applies the same rules to clients that send to the retry topic themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs

from ...message.flags import PERM_WRITE
from ...message.layout import decode_record, encode_host
from ...message.message import IncomingMessage, StoredMessage
from ...message.properties import (
    DELAY,
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    SEND_NUMBER,
    UNIQUE_KEY,
    WAIT,
)
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...store.message_store import MessageStore
from ...store.statuses import PutStatus
from ...world.randomness import Randomness
from ..access.positions import Positions
from ..divert import VERSION_WITH_MAX_RECONSUME_TIMES, divert_delayed, encode_as_found
from ..live_config import LiveConfig
from ..role import LiveRole
from ..stats import Stats
from ..tables.groups import GroupConfig, GroupTable
from ..tables.table_log import TableLog
from ..tables.topics import DLQ_QUEUES, TopicTable, dlq_topic, retry_topic

FIRST_RETRY_LEVEL = 3
"""The delay level after the first failure; each further failure adds one."""

_MESSAGE_ID = re.compile(r"[0-9A-Fa-f]{32}")
"""Matches a unique key, or the IPv4 address of a broker with an offset in its log."""
_STORED_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


def retries_max(group: GroupConfig, request: RemotingCommand) -> int:
    """How often a message is retried: the client's limit if its version sends one, else the group's."""
    asked = request.integer("maxReconsumeTimes", -1) if request.version >= VERSION_WITH_MAX_RECONSUME_TIMES else -1
    return asked if asked >= 0 else group.retry_max_times


@attrs.define(eq=False, kw_only=True, repr=False)
class SendBack:
    """Answers CONSUMER_SEND_MSG_BACK."""

    config: LiveConfig
    store: MessageStore
    positions: Positions
    role: LiveRole
    topics: TopicTable
    table_log: TableLog
    groups: GroupTable
    stats: Stats
    randomness: Randomness

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handler."""
        dispatcher.register(RequestCode.CONSUMER_SEND_MSG_BACK, self.handle)

    def handle(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
        """Copy a failed message to the group's retry topic, or to its dead letter topic.

        Durability: the answer is sent when the copy is as durable as the broker's mode promises, because the consumer then
        commits an offset after the original.
        """
        name = request.text("group")
        group = self.groups.find(name)
        if group is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the consumer group {name!r} does not exist; create it first"
            )
        if (refusal := self.role.refusal) is not None:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"{refusal}; the message was not sent back")
        config = self.config.now
        if not config.broker_permission & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION, f"the broker {config.broker_name} is not writable; nothing was stored"
            )
        if group.retry_queue_nums <= 0:
            return request.response()
        record = self.positions.message_at(connection, request, request.integer("offset"))
        stored = decode_record(record)
        if not self.store.is_sound(stored.physical_offset, record):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the message at commit log offset {stored.physical_offset} is damaged on the disk of this broker; nothing was "
                "stored; send a copy instead",
            )
        if _is_another(stored, request.text("originMsgId", "")):
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the message at commit log offset {stored.physical_offset} is {stored.properties[UNIQUE_KEY]}, not "
                f"{request.text('originMsgId')}: this broker never had that one, or has lost it; send a copy instead",
            )
        # Anybody may send a message with this property, so a name that is no topic's is not counted.
        original_topic = stored.properties.get(RETRY_TOPIC, "")
        if self.topics.get(original_topic) is None:
            original_topic = stored.topic
        message = self._copy(group, stored, request)
        batch = self.store.put([message])
        if not batch.statuses[0].stored:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the message could not be sent back: {batch.statuses[0].name} {batch.remark}"
            )
        self.stats.copy_put(message.topic, batch.sizes[0])
        self.stats.send_back(name, original_topic)
        if message.topic == dlq_topic(name):
            self.stats.dead_letter_put(name, original_topic)
        if not self.store.waits:
            return request.response()
        self.store.when_stored(batch, _answer_later(connection, request))
        return None

    def _copy(self, group: GroupConfig, stored: StoredMessage, request: RemotingCommand) -> IncomingMessage:
        level = request.integer("delayLevel", 0)
        dead = level < 0 or stored.reconsume_times >= retries_max(group, request)
        properties = dict(stored.properties)
        properties.setdefault(RETRY_TOPIC, stored.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, stored.message_id)
        properties[WAIT] = "false"
        properties.pop(DELAY, None)
        properties.pop(SEND_NUMBER, None)
        if dead:
            topic, queue_nums = dlq_topic(group.group_name), DLQ_QUEUES
            properties.setdefault(DLQ_ORIGIN_TOPIC, properties[RETRY_TOPIC])
            properties.setdefault(DLQ_ORIGIN_MESSAGE_ID, properties[ORIGIN_MESSAGE_ID])
        else:
            topic, queue_nums = retry_topic(group.group_name), group.retry_queue_nums
            properties[DELAY] = str(level or FIRST_RETRY_LEVEL + stored.reconsume_times)
        config = self.topics.for_group(topic, queue_nums, 2 if request.boolean("unitMode") else 0)
        self.table_log.require_topic(config)
        if not config.is_writable:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"the topic {topic} may not be written")
        message = IncomingMessage(
            topic=topic,
            queue_id=0 if dead else self.randomness.randrange(max(config.write_queue_nums, 1)),
            body=stored.body,
            properties=encode_as_found(properties),
            flag=stored.flag,
            sys_flag=stored.sys_flag,
            born_timestamp=stored.born_timestamp,
            born_host=encode_host(*stored.born_host),
            reconsume_times=stored.reconsume_times + 1,
        )
        if DELAY in properties:
            divert_delayed(message, self.store.dispatcher.tags_codes.level_max)
        return message


def _is_another(stored: StoredMessage, wanted: str) -> bool:
    """Whether a consumer means another message than the one that is stored at the offset in its request.

    A new master may have another message at the offset where the consumer read the failed one. Consumers identify the failed
    one by its unique key, or by address and offset.
    """
    unique_key = stored.properties.get(UNIQUE_KEY)
    if unique_key is None or not _MESSAGE_ID.fullmatch(wanted):
        return False
    return wanted.upper() != unique_key.upper() and int(wanted[16:], 16) != stored.physical_offset


def _answer_later(connection: ServerConnection, request: RemotingCommand) -> Callable[[PutStatus], None]:
    def done(status: PutStatus) -> None:
        # A consumer treats every code but SUCCESS as a failure and sends again, which may add a copy but loses none.
        connection.answer(request, _STORED_CODES.get(status, ResponseCode.SYSTEM_ERROR), remark=status.name)

    return done
