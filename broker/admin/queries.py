"""Queries of messages by key or offset, and of the entries of queues (RocketMQ QueryMessageProcessor): 12, 33 and 321."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from ...message.json import dumps
from ...message.layout import span_of, topic_of
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import FRAME_SIZE_MAX, RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...store.message_store import MessageStore
from ..access.positions import Positions
from ..live_config import LiveConfig
from ..tables.clients import Consumers

ANSWER_BYTES_MAX = FRAME_SIZE_MAX - 64 * 1024
"""The most bytes of records in one answer; clients close the connection if a frame is larger than `FRAME_SIZE_MAX`."""
UNITS_MAX = 1000
"""The most queue entries in one answer, even if the request asks for more; tools ask for ten at a time."""


@attrs.define(eq=False, kw_only=True, repr=False)
class Queries:
    """The handlers of queries."""

    config: LiveConfig
    store: MessageStore
    positions: Positions
    consumers: Consumers
    _searching: trio.Lock = attrs.field(factory=trio.Lock)
    """Held by the search that reads entries in this turn of the event loop."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.register_waiting(RequestCode.QUERY_MESSAGE, self.by_key)
        dispatcher.register(RequestCode.VIEW_MESSAGE_BY_ID, self.by_position)
        dispatcher.register(RequestCode.QUERY_CONSUME_QUEUE, self.queue_entries)

    async def by_key(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
        """12: the records whose KEYS or UNIQ_KEY contain the key, as many as fit one frame."""
        count_max = request.integer("maxNum")
        if request.boolean("_UNIQUE_KEY_QUERY"):
            count_max = self.config.now.default_query_max_num
        self.store.catch_up()
        topic = request.text("topic")
        search = self.store.search(
            topic,
            request.text("key"),
            count_max,
            request.integer("beginTimestamp"),
            request.integer("endTimestamp"),
        )
        is_complete = search is None
        while search is not None and not is_complete:
            if connection.is_given_up:
                return None
            async with self._searching:  # the searches of all clients take turns
                is_complete = search.step()
        result = self.store.found(search)
        ext = {
            "indexLastUpdatePhyoffset": result.last_update_offset,
            "indexLastUpdateTimestamp": result.last_update_ms,
        }
        records: list[memoryview] = []
        room = ANSWER_BYTES_MAX
        for record in result.slices:
            # Entries have hashes, and the same hash may be that of a topic which the sender may not read.
            span = span_of(record, 0, len(record))
            if span is None or topic_of(record, span) != topic:
                continue
            room -= len(record)
            if room < 0:
                break
            records.append(record)
        if not records:
            remark = "no message has this key, or none within the time range"
            return request.response(ResponseCode.QUERY_NOT_FOUND, ext, remark=remark)
        return request.response(ext=ext, body=b"".join(records))

    def by_position(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """33: the record at a physical offset, which clients take from a message id."""
        return request.response(body=bytes(self.positions.message_at(connection, request, request.integer("offset"))))

    def queue_entries(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """321: entries of a queue as they are stored, and whether each matches a group's filter."""
        store = self.store
        topic, queue_id, start = request.text("topic"), request.integer("queueId"), request.integer("index")
        store.catch_up()
        if queue_id not in store.queue_ids(topic):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the queue {queue_id} of {topic!r} has no entries here")
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        living = self.consumers.get(request.text("consumerGroup", ""))
        subscription = living.subscriptions.get(topic) if living is not None else None
        entries: list[dict[str, Any]] = []
        wanted = min(max(request.integer("count"), 0), UNITS_MAX)
        for physical_offset, size, tags_code in store.units(topic, queue_id, max(start, low), wanted):
            passes = subscription is not None and (subscription.codes is None or tags_code in subscription.codes)
            entries.append({"eval": passes, "physicOffset": physical_offset, "physicSize": size, "tagsCode": tags_code})
        body = {
            "maxQueueIndex": high,
            "minQueueIndex": low,
            "queueData": entries,
            "subscriptionData": subscription.to_json() if subscription is not None else None,
        }
        return request.response(body=dumps(body))
