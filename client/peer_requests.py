"""The requests that brokers send to a consumer.

They are: members have changed (40), move to other offsets (220), report offsets (221), report the state (307), and consume a
message now (309). Bodies have RocketMQ's format, because Java tools write and read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Protocol

import attrs

from ..message.errors import JsonError, MessageError
from ..message.json import dumps, loads, message_queue_of
from ..message.layout import decode_record
from ..message.message import MessageQueue
from ..remoting.channel import Channel
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import PROTOCOL_VERSION, RemotingCommand
from ..world.events import get_logger
from .delivery import Source
from .direct import DirectDelivery
from .received import ReceivedMessage, split_records
from .subscription import Subscription

log = get_logger(__name__)


class Asked(Protocol):
    """The part of the consumer that requests of brokers concern."""

    group: str

    @property
    def sources(self) -> Mapping[MessageQueue, Source]: ...

    @property
    def subscriptions(self) -> Mapping[str, Subscription]: ...

    @property
    def properties(self) -> Mapping[str, str]:
        """The settings of the consumer, for the running info."""
        ...

    def members_changed(self) -> None: ...
    def reset(self, queue: MessageQueue, offset: int) -> None: ...
    def consume_directly(self, message: ReceivedMessage) -> bool:
        """Hand a message out before all others; False if too many such messages wait."""
        ...


@attrs.frozen
class PeerRequests:
    """Handles the requests of brokers for one consumer."""

    consumer: Asked

    def handlers(self) -> dict[int, Callable[[Channel, RemotingCommand], RemotingCommand | None]]:
        """The handlers by request code."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def members_changed(self, _: Channel, request: RemotingCommand) -> None:
        if request.ext.get("consumerGroup") == self.consumer.group:
            self.consumer.members_changed()

    def reset_offsets(self, channel: Channel, request: RemotingCommand) -> None:
        if request.ext.get("group") != self.consumer.group:
            return
        try:
            offsets = _offset_table(loads(request.body).get("offsetTable") or {})
        except (JsonError, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("offset_reset_unreadable", broker=str(channel.address), reason=str(error))
            return
        for queue, offset in offsets.items():
            self.consumer.reset(queue, offset)

    def status(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        topic = request.ext.get("topic")
        table = {queue: source.assigned.committable for queue, source in self.consumer.sources.items() if queue.topic == topic}
        return request.response(body=dumps({"messageQueueTable": table}))

    def running_info(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        consumer = self.consumer
        body = {
            "properties": {"PROP_CLIENT_VERSION": str(PROTOCOL_VERSION), **consumer.properties},
            "subscriptionSet": [subscription.wire() for subscription in consumer.subscriptions.values()],
            "mqTable": {queue: _queue_state(source) for queue, source in consumer.sources.items()},
            "mqPopTable": {},
            "statusTable": {},
            "userConsumerInfo": {},
        }
        return request.response(body=dumps(body))

    def consume_directly(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        def answer(outcome: str) -> None:
            result = {"order": False, "autoCommit": True, "consumeResult": outcome, "spentTimeMills": 0}
            channel.answer(request.response(body=dumps(result)))

        broker_name = request.ext.get("brokerName") or ""
        try:
            record = decode_record(request.body)
            origin = DirectDelivery(MessageQueue(record.topic, broker_name, record.queue_id), answer)
            message = split_records(origin, request.body)[0]  # it verifies the CRC too
        except MessageError as error:
            return request.response(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if self.consumer.consume_directly(message):
            return None
        return request.response(ResponseCode.SYSTEM_BUSY, remark="too many messages wait to be consumed directly")


def _offset_table(table: Any) -> dict[MessageQueue, int]:
    if isinstance(table, list):  # the format of brokers for administrators written in C++
        items: list[Any] = table  # pyright: ignore[reportUnknownVariableType]
        return {MessageQueue(item["topic"], item["brokerName"], int(item["queueId"])): int(item["offset"]) for item in items}
    return {message_queue_of(key): int(offset) for key, offset in table.items()}


def _queue_state(source: Source) -> dict[str, Any]:
    assigned = source.assigned
    first, last = assigned.pending_offsets or (0, 0)
    return {
        "commitOffset": assigned.committable,
        "cachedMsgMinOffset": first,
        "cachedMsgMaxOffset": last,
        "cachedMsgCount": assigned.pending,
        "cachedMsgSizeInMiB": assigned.held_bytes // (1024 * 1024),
        "transactionMsgMinOffset": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgCount": 0,
        "locked": 0 < source.locked_until < inf,
        "tryUnlockTimes": 0,
        "lastLockTimestamp": 0,
        "droped": source.dropped,
        "lastPullTimestamp": 0,
        "lastConsumeTimestamp": 0,
    }
