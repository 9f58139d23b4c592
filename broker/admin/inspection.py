"""Requests of administrators and tools about topics, groups and clients, which change nothing (RocketMQ AdminBrokerProcessor).

Objects with message queues or integers as keys are written as in RocketMQ, with unquoted keys, which tools of every version
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import attrs
import orjson
import trio

from ...message.json import dumps, queue_key
from ...message.message import MessageQueue
from ...message.numbers import LONG_MAX
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import FRAME_SIZE_MAX, RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...store.message_store import MessageStore
from ...world.clock import Clock
from ...world.slices import ROWS_PER_SLICE, in_slices
from ..live_config import LiveConfig
from ..stats import Stats, StatsRate
from ..tables.clients import ConsumerGroup, Consumers, Member, Producers
from ..tables.groups import GroupTable
from ..tables.offsets import LOST_KEY, ConsumerOffsets
from ..tables.topics import BENCHMARK_TOPIC, NOT_FOR_CLIENTS, TEMPLATE_TOPIC, TRACE_TOPIC, TopicConfig, TopicTable

QUEUES_PER_TURN = 200
"""The most queues that are read in one turn of the event loop; more are read in several turns."""
ANSWER_BYTES_MAX = FRAME_SIZE_MAX - 64 * 1024
"""The most bytes of queue tables in one answer; a larger answer is refused."""

Answer = Callable[[RemotingCommand], Any]
"""Makes the body of an answer."""


def _handler(answer: Answer) -> Callable[[ServerConnection, RemotingCommand], RemotingCommand]:
    def handle(_connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=dumps(answer(request)))

    return handle


def _waiting_handler(
    answer: Callable[[RemotingCommand], Awaitable[Any]],
) -> Callable[[ServerConnection, RemotingCommand], Awaitable[RemotingCommand]]:
    async def handle(_connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        content = await answer(request)
        await trio.lowlevel.checkpoint()  # the content may have been joined in this turn, and may have 16 MiB
        return request.response(body=dumps(content))

    return handle


@attrs.define(eq=False)
class _QueueTable:
    """A JSON object with message queues as keys, which is made in slices, one in each turn of the event loop."""

    room: int = ANSWER_BYTES_MAX
    """How many bytes may still be added to the answer."""
    entries: list[bytes] = attrs.field(factory=list[bytes])

    async def take(self, queues: Iterable[tuple[MessageQueue, dict[str, int]]], sums: Counter[str] | None = None) -> None:
        """Add queues, and their numbers by name to `sums`; raises RequestRefused if the answer would be too long."""
        async for piece in in_slices(queues, QUEUES_PER_TURN):
            for queue, numbers in piece:
                entry = queue_key(queue) + b":" + orjson.dumps(numbers)
                self.room -= len(entry) + 1
                self.entries.append(entry)
                if sums is not None:
                    sums.update(numbers)
            if self.room < 0:
                raise too_long()

    @property
    def joined(self) -> bytes:
        return b"{%b}" % b",".join(self.entries)

    @property
    def encoded(self) -> orjson.Fragment:
        return orjson.Fragment(self.joined)


@attrs.define(eq=False, kw_only=True, repr=False)
class Inspection:
    """The answers to these requests; each method takes a request and returns the content of the answer's body."""

    config: LiveConfig
    address: str
    """The address at which clients reach this broker, `host:port`."""
    clock: Clock
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    stats: Stats
    consumers: Consumers
    producers: Producers

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        answers: tuple[tuple[RequestCode, Answer], ...] = (
            (RequestCode.GET_CONSUMER_CONNECTION_LIST, self.consumer_connections),
            (RequestCode.GET_PRODUCER_CONNECTION_LIST, self.producer_connections),
            (RequestCode.GET_ALL_PRODUCER_INFO, self.all_producers),
            (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic),
            (RequestCode.QUERY_TOPICS_BY_CONSUMER, self.topics_of_group),
            (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, self.subscription),
            (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics),
            (RequestCode.VIEW_BROKER_STATS_DATA, self.statistics),
            (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.request_modes),
        )
        for code, answer in answers:
            dispatcher.register(code, _handler(answer))
        # Answers that read many queues do it in slices.
        slow = {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.consume_time_spans,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction_offsets,
        }
        dispatcher.register_long({code: _waiting_handler(handler) for code, handler in slow.items()})

    # ---------------------------------------------------------------- positions

    async def topic_stats(self, request: RemotingCommand) -> Any:
        """202: the first and next offset of each queue of a topic, and when its newest message was stored."""
        topic = self._topic(request.text("topic"))
        store, name = self.store, topic.topic_name
        store.catch_up()

        def positions() -> Iterator[tuple[MessageQueue, dict[str, int]]]:
            for queue in self._queues(name, max(topic.read_queue_nums, topic.write_queue_nums)):
                high = store.max_offset(name, queue.queue_id)
                newest_ms = store.store_time(name, queue.queue_id, high - 1) if high > 0 else 0
                low = max(store.min_offset(name, queue.queue_id), 0)
                yield queue, {"lastUpdateTimestamp": max(newest_ms, 0), "maxOffset": high, "minOffset": low}

        table = _QueueTable()
        await table.take(positions())
        return {"offsetTable": table.encoded, "topicPutTps": self.stats.topic_put_tps(name)}

    async def consume_stats(self, request: RemotingCommand) -> Any:
        """208: the offsets of a group on a topic, on several topics, or on all on which it has offsets."""
        group = request.text("consumerGroup")
        wanted = request.text("topic", "") or request.text("topicList", "")
        topics = [name for part in wanted.split(";") if (name := part.strip())]
        self.store.catch_up()
        table, tps = _QueueTable(), 0.0
        for topic in self._consumed_topics(group, sorted({*topics} or self.offsets.topics_of(group))):
            await table.take(self._positions(group, topic))
            tps += self.stats.group_get_tps(group, topic.topic_name)
        lost = self.offsets.lost_of(group)
        return {"consumeTps": tps, "offsetTable": table.encoded, **({LOST_KEY: lost} if lost else {})}

    def _consumed_topics(self, group: str, names: Iterable[str]) -> Iterator[TopicConfig]:
        """The topics of `names` that exist here and to which the group, if it has members, subscribes."""
        living = self.consumers.get(group)
        for name in names:
            topic = self.topics.get(name)
            if topic is not None and (living is None or not living.subscriptions or name in living.subscriptions):
                yield topic

    def _positions(self, group: str, topic: TopicConfig) -> Iterator[tuple[MessageQueue, dict[str, int]]]:
        store, name = self.store, topic.topic_name
        committed = self.offsets.of(group, name)
        for queue in self._queues(name, topic.read_queue_nums):
            queue_id = queue.queue_id
            offset = max(committed.get(queue_id, 0), 0)
            consumed_ms = store.store_time(name, queue_id, offset - 1) if offset > 0 else 0
            yield (
                queue,
                {
                    "brokerOffset": store.max_offset(name, queue_id),
                    "consumerOffset": offset,
                    "lastTimestamp": max(consumed_ms, 0),
                    # Messages between the two offsets have been pulled and are being consumed.
                    "pullOffset": max(offset, self.stats.got_to(group, name, queue_id)),
                },
            )

    async def broker_consume_stats(self, request: RemotingCommand) -> Any:
        """317: the offsets of every group on its ordered topics, or on its other topics."""
        ordered = request.boolean("isOrder")
        self.store.catch_up()
        topics_of: dict[str, list[str]] = {group: [] for group in sorted(self.groups.groups)}
        async for piece in in_slices(self.offsets.table.walk(), ROWS_PER_SLICE):
            for (name, group), _ in piece:
                topic = self.topics.get(name)
                if group in topics_of and topic is not None and topic.order == ordered:
                    topics_of[group].append(name)
        parts: list[bytes] = []  # joined once: each time takes some 15 ms for the longest answer
        sums: Counter[str] = Counter()
        room = ANSWER_BYTES_MAX
        for group, names in topics_of.items():
            parts.append(b"%b{%b:[" % (b"," if parts else b"[", orjson.dumps(group)))
            separator = b""
            for topic in self._consumed_topics(group, sorted(names)):
                table = _QueueTable(room)
                await table.take(self._positions(group, topic), sums)
                if table.entries:
                    tps = self.stats.group_get_tps(group, topic.topic_name)
                    parts += (separator, b'{"consumeTps":%b,"offsetTable":%b}' % (orjson.dumps(tps), table.joined))
                    separator, room = b",", table.room
            parts.append(b"]}")
        parts.append(b"]" if parts else b"[]")
        joined = b"".join(parts)
        await trio.lowlevel.checkpoint()  # the answer is copied twice more, each time for some 15 ms
        return {
            "brokerAddr": self.address,
            "consumeStatsList": orjson.Fragment(joined),
            "totalDiff": _java_long(sums["brokerOffset"] - sums["consumerOffset"]),
            "totalInflightDiff": _java_long(sums["pullOffset"] - sums["consumerOffset"]),
        }

    async def consume_time_spans(self, request: RemotingCommand) -> Any:
        """303: the store times of the oldest, the last consumed and the newest message of each queue."""
        topic, group = self._topic(request.text("topic")), request.text("group")
        store, name = self.store, topic.topic_name
        now_ms = self.clock.wall_ms()
        store.catch_up()

        def span(queue_id: int) -> dict[str, Any]:
            oldest_ms = store.earliest_store_time(name, queue_id)
            newest_ms = store.store_time(name, queue_id, store.max_offset(name, queue_id) - 1)
            offset = self.offsets.query(group, name, queue_id) or 0
            consumed_ms = store.store_time(name, queue_id, offset - 1) if offset > 0 else oldest_ms
            # The lag of a group is the age of the next message to consume, or 0 if there is none.
            next_ms = store.store_time(name, queue_id, offset) if offset < store.max_offset(name, queue_id) else -1
            return {
                "consumeTimeStamp": consumed_ms,
                "consumeTimeStampStr": _time_text(consumed_ms),
                "delayTime": now_ms - next_ms if next_ms >= 0 else 0,
                "maxTimeStamp": newest_ms,
                "maxTimeStampStr": _time_text(newest_ms),
                "messageQueue": {"brokerName": self.config.now.broker_name, "queueId": queue_id, "topic": name},
                "minTimeStamp": oldest_ms,
                "minTimeStampStr": _time_text(oldest_ms),
            }

        spans: list[bytes] = []
        size = 0
        async for piece in in_slices(range(topic.write_queue_nums), QUEUES_PER_TURN):
            spans += [orjson.dumps(span(queue_id)) for queue_id in piece]
            size += sum(map(len, spans[-len(piece) :]))
            if size > ANSWER_BYTES_MAX:
                raise too_long()
        return {"consumeTimeSpanSet": orjson.Fragment(b"[" + b",".join(spans) + b"]")}

    async def correction_offsets(self, request: RemotingCommand) -> Any:
        """308: the lowest offset of the topic's groups on each queue; Long.MAX if that of the compared group is lower."""
        topic, compared = request.text("topic"), request.text("compareGroup")
        offsets, store = self.offsets, self.store
        without = {name.strip() for name in request.text("filterGroups", "").split(",")}
        groups = offsets.groups_of(topic) - without
        lowest: dict[int, int] = {}
        async for piece in in_slices(row for group in groups for row in offsets.of(group, topic).items()):
            for queue_id, offset in piece:
                if offset >= store.min_offset(topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        entries: list[bytes] = []
        below = {queue_id for queue_id, offset in offsets.of(compared, topic).items() if lowest.get(queue_id, -1) > offset}
        async for rows in in_slices(sorted(lowest.items())):
            entries += [b"%d:%d" % (queue_id, LONG_MAX if queue_id in below else offset) for queue_id, offset in rows]
        return {"correctionOffsets": orjson.Fragment(b"{" + b",".join(entries) + b"}")}

    # ---------------------------------------------------------------- clients

    def consumer_connections(self, request: RemotingCommand) -> Any:
        """203: the consumers of a group and its subscriptions."""
        group = request.text("consumerGroup")
        living = self.consumers.get(group)
        if living is None:
            raise not_online(group)
        return {
            "connectionSet": [_connection(member) for member in living.members.values()],
            "consumeFromWhere": living.consume_from_where,
            "consumeType": living.consume_type,
            "messageModel": living.message_model,
            "subscriptionTable": {topic: what.to_json() for topic, what in living.subscriptions.items()},
        }

    def producer_connections(self, request: RemotingCommand) -> Any:
        """204: the producers of a group."""
        group = request.text("producerGroup")
        members = self.producers.members(group)
        if not members:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no producer of the group {group!r} is connected")
        return {"connectionSet": [_connection(member) for member in members]}

    def all_producers(self, _request: RemotingCommand) -> Any:
        """328: all producers by group."""
        producers = self.producers
        return {
            "data": {
                group: [
                    {
                        "clientId": member.client_id,
                        "language": member.language,
                        "lastUpdateTimestamp": member.last_heartbeat_ms,
                        "remoteIP": str(member.connection.remote),
                        "version": member.version,
                    }
                    for member in producers.members(group)
                ]
                for group in producers.groups
            }
        }

    def groups_of_topic(self, request: RemotingCommand) -> Any:
        """300: the groups that subscribe to a topic now or have offsets on it."""
        topic = request.text("topic")
        groups = self.consumers.groups_of_topic(topic) | self.offsets.groups_of(topic)
        return {"groupList": sorted(groups)}

    def topics_of_group(self, request: RemotingCommand) -> Any:
        """343: the topics on which a group has offsets."""
        topics = self.offsets.topics_of(request.text("group"))
        return {"brokerAddr": self.address, "topicList": sorted(topics)}

    def subscription(self, request: RemotingCommand) -> Any:
        """345: the subscription of a group with members to a topic."""
        group, topic = request.text("group"), request.text("topic")
        wanted = _subscription(self.consumers.get(group), topic)
        return {"group": group, "subscriptionData": wanted, "topic": topic}

    # ---------------------------------------------------------------- the rest

    def system_topics(self, _request: RemotingCommand) -> Any:
        """305: the topics that belong to the broker itself."""
        topics = self.topics
        present = {name for name in topics.topics if topics.is_system(name)}
        return {"topicList": sorted(present | NOT_FOR_CLIENTS | {TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC})}

    def statistics(self, request: RemotingCommand) -> Any:
        """315: the rates of one key in one statistics set."""
        name, key = request.text("statsName"), request.text("statsKey")
        view = self.stats.view(name, key)
        if view is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the statistics {name} hold nothing about {key!r}")
        return {"statsDay": _rate(view.day), "statsHour": _rate(view.hour), "statsMinute": _rate(view.minute)}

    def request_modes(self, _request: RemotingCommand) -> Any:
        """402: the groups that use pop requests instead of pulls, which this broker does not have."""
        return {"messageRequestModeMap": {}}

    def _topic(self, name: str) -> TopicConfig:
        topic = self.topics.get(name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {name!r} on this broker")
        return topic

    def _queues(self, topic: str, count: int) -> Iterator[MessageQueue]:
        broker_name = self.config.now.broker_name
        return (MessageQueue(topic, broker_name, queue_id) for queue_id in range(count))


def too_long() -> RequestRefused:
    """The refusal of an answer with more than `ANSWER_BYTES_MAX` bytes."""
    return RequestRefused(ResponseCode.SYSTEM_ERROR, f"the answer would have more than {ANSWER_BYTES_MAX} bytes")


def not_online(group: str) -> RequestRefused:
    """The refusal if a group has no connected member."""
    return RequestRefused(ResponseCode.CONSUMER_NOT_ONLINE, f"no consumer of the group {group!r} is connected")


def _subscription(living: ConsumerGroup | None, topic: str) -> dict[str, Any] | None:
    subscription = living.subscriptions.get(topic) if living is not None else None
    return subscription.to_json() if subscription is not None else None


def _connection(member: Member) -> dict[str, Any]:
    return {
        "clientAddr": str(member.connection.remote),
        "clientId": member.client_id,
        "language": member.language,
        "version": member.version,
    }


def _rate(rate: StatsRate) -> dict[str, Any]:
    return {"avgpt": rate.avgpt, "sum": rate.sum, "tps": rate.tps}


def _time_text(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{moment.microsecond // 1000:03d}"


def _java_long(total: int) -> int:
    """The nearest number of 64 bits; a slave keeps any offset that a client commits, so a sum of them may have more."""
    return min(max(total, -LONG_MAX), LONG_MAX)
