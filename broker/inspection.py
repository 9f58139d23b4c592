"""What administrators and tools ask about topics, groups and clients (RocketMQ AdminBrokerProcessor): reads only.

Bodies keyed by MessageQueue or integers are written as RocketMQ writes them, with bare keys, which every version's tools read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs

from ..message.json import dumps
from ..message.message import MessageQueue
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand
from ..remoting.errors import RequestRefused
from ..remoting.server import ServerConnection
from .clients import ConsumerGroup, Member
from .stats import StatsRate
from .topics import BENCHMARK_TOPIC, NOT_FOR_CLIENTS, TEMPLATE_TOPIC, TRACE_TOPIC, TopicConfig

if TYPE_CHECKING:
    from .broker import Broker

JAVA_LONG_MAX = (1 << 63) - 1

Answer = Callable[[RemotingCommand], Any]
"""Makes the body of an answer."""


def register(broker: Broker) -> None:
    """Let the broker answer the requests of this module."""
    inspection = Inspection(broker)
    answers: tuple[tuple[RequestCode, Answer], ...] = (
        (RequestCode.GET_TOPIC_STATS_INFO, inspection.topic_stats),
        (RequestCode.GET_CONSUME_STATS, inspection.consume_stats),
        (RequestCode.GET_BROKER_CONSUME_STATS, inspection.broker_consume_stats),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, inspection.consume_time_spans),
        (RequestCode.QUERY_CORRECTION_OFFSET, inspection.correction_offsets),
        (RequestCode.GET_CONSUMER_CONNECTION_LIST, inspection.consumer_connections),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, inspection.producer_connections),
        (RequestCode.GET_ALL_PRODUCER_INFO, inspection.producers),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, inspection.groups_of_topic),
        (RequestCode.QUERY_TOPICS_BY_CONSUMER, inspection.topics_of_group),
        (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, inspection.subscription),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, inspection.system_topics),
        (RequestCode.VIEW_BROKER_STATS_DATA, inspection.stats),
        (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, inspection.request_modes),
    )
    for code, answer in answers:
        broker.dispatcher.register(code, _handler(answer))


def _handler(answer: Answer) -> Callable[[ServerConnection, RemotingCommand], RemotingCommand]:
    def handle(_connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=dumps(answer(request)))

    return handle


@attrs.define(eq=False)
class Inspection:
    """The answers, over one broker; each takes a request and returns what its body says."""

    broker: Broker

    # ---------------------------------------------------------------- positions

    def topic_stats(self, request: RemotingCommand) -> Any:
        """202: first and next offset of each queue of a topic, and when the newest message came."""
        topic = self._topic(request.text("topic"))
        store, name = self.broker.store, topic.topic_name
        store.catch_up()
        offsets: dict[MessageQueue, dict[str, int]] = {}
        for queue in self._queues(name, max(topic.read_queue_nums, topic.write_queue_nums)):
            queue_id = queue.queue_id
            high = store.max_offset(name, queue_id)
            offsets[queue] = {
                "lastUpdateTimestamp": max(store.store_time(name, queue_id, high - 1), 0) if high > 0 else 0,
                "maxOffset": high,
                "minOffset": max(store.min_offset(name, queue_id), 0),
            }
        return {"offsetTable": offsets, "topicPutTps": self.broker.stats.topic_put_tps(name)}

    def consume_stats(self, request: RemotingCommand) -> Any:
        """208: where a group stands on a topic, on several, or on all that it has offsets on."""
        group = request.text("consumerGroup")
        wanted = request.text("topic", "") or request.text("topicList", "")
        topics = [name for part in wanted.split(";") if (name := part.strip())]
        return self._consume_stats(group, topics or sorted(self.broker.offsets.topics_of(group)))

    def _consume_stats(self, group: str, topics: Iterable[str]) -> dict[str, Any]:
        broker = self.broker
        broker.store.catch_up()
        living = broker.consumers.get(group)
        table: dict[MessageQueue, dict[str, int]] = {}
        tps = 0.0
        for name in topics:
            topic = broker.topics.get(name)
            if topic is None or (living is not None and living.subscriptions and name not in living.subscriptions):
                continue
            table.update(self._positions(group, topic))
            tps += broker.stats.group_get_tps(group, name)
        return {"consumeTps": tps, "offsetTable": table}

    def _positions(self, group: str, topic: TopicConfig) -> Iterator[tuple[MessageQueue, dict[str, int]]]:
        store, name = self.broker.store, topic.topic_name
        committed = self.broker.offsets.of(group, name)
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
                    # What lies between is on its way through a consumer.
                    "pullOffset": max(offset, self.broker.stats.got_to(group, name, queue_id)),
                },
            )

    def broker_consume_stats(self, request: RemotingCommand) -> Any:
        """317: where every group stands on its ordered, or on its other topics."""
        broker, ordered = self.broker, request.boolean("isOrder")
        topics_of: dict[str, list[str]] = {group: [] for group in sorted(broker.groups.groups)}
        for name, group in sorted(broker.offsets.table):
            topic = broker.topics.get(name)
            if group in topics_of and topic is not None and topic.order == ordered:
                topics_of[group].append(name)
        groups: list[dict[str, Any]] = []
        behind, in_flight = 0, 0
        for group, names in topics_of.items():
            stats = [of_topic for name in names if (of_topic := self._consume_stats(group, [name]))["offsetTable"]]
            for at in (at for of_topic in stats for at in of_topic["offsetTable"].values()):
                behind += at["brokerOffset"] - at["consumerOffset"]
                in_flight += at["pullOffset"] - at["consumerOffset"]
            groups.append({group: stats})
        return {"brokerAddr": broker.address, "consumeStatsList": groups, "totalDiff": behind, "totalInflightDiff": in_flight}

    def consume_time_spans(self, request: RemotingCommand) -> Any:
        """303: oldest, consumed and newest message of each queue, by store time."""
        topic, group = self._topic(request.text("topic")), request.text("group")
        broker, store, name = self.broker, self.broker.store, topic.topic_name
        now_ms = broker.world.clock.wall_ms()
        spans: list[dict[str, Any]] = []
        for queue in self._queues(name, topic.write_queue_nums):
            queue_id = queue.queue_id
            oldest_ms = store.earliest_store_time(name, queue_id)
            newest_ms = store.store_time(name, queue_id, store.max_offset(name, queue_id) - 1)
            offset = broker.offsets.query(group, name, queue_id) or 0
            consumed_ms = store.store_time(name, queue_id, offset - 1) if offset > 0 else oldest_ms
            # A group that has consumed all lags by nothing, else by the age of the next message.
            next_ms = store.store_time(name, queue_id, offset) if offset < store.max_offset(name, queue_id) else -1
            spans.append(
                {
                    "consumeTimeStamp": consumed_ms,
                    "consumeTimeStampStr": _time_text(consumed_ms),
                    "delayTime": now_ms - next_ms if next_ms >= 0 else 0,
                    "maxTimeStamp": newest_ms,
                    "maxTimeStampStr": _time_text(newest_ms),
                    "messageQueue": {"brokerName": queue.broker_name, "queueId": queue_id, "topic": name},
                    "minTimeStamp": oldest_ms,
                    "minTimeStampStr": _time_text(oldest_ms),
                }
            )
        return {"consumeTimeSpanSet": spans}

    def correction_offsets(self, request: RemotingCommand) -> Any:
        """308: per queue the lowest offset of the topic's groups; Long.MAX where the compared group is lower still."""
        topic, compared = request.text("topic"), request.text("compareGroup")
        offsets, store = self.broker.offsets, self.broker.store
        without = {name.strip() for name in request.text("filterGroups", "").split(",")}
        lowest: dict[int, int] = {}
        for group in offsets.groups_of(topic) - without:
            for queue_id, offset in offsets.of(group, topic).items():
                if offset >= store.min_offset(topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in offsets.of(compared, topic).items():
            if lowest.get(queue_id, -1) > offset:
                lowest[queue_id] = JAVA_LONG_MAX
        return {"correctionOffsets": lowest}

    # ---------------------------------------------------------------- clients

    def consumer_connections(self, request: RemotingCommand) -> Any:
        """203: who consumes for a group, and what."""
        group = request.text("consumerGroup")
        living = self.broker.consumers.get(group)
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
        """204: who produces for a group."""
        group = request.text("producerGroup")
        members = self.broker.producers.members(group)
        if not members:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no producer of the group {group!r} is connected")
        return {"connectionSet": [_connection(member) for member in members]}

    def producers(self, _request: RemotingCommand) -> Any:
        """328: all producers by group."""
        producers = self.broker.producers
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
        """300: groups that subscribe to a topic now or have offsets on it."""
        topic = request.text("topic")
        groups = self.broker.consumers.groups_of_topic(topic) | self.broker.offsets.groups_of(topic)
        return {"groupList": sorted(groups)}

    def topics_of_group(self, request: RemotingCommand) -> Any:
        """343: topics that a group has offsets on."""
        topics = self.broker.offsets.topics_of(request.text("group"))
        return {"brokerAddr": self.broker.address, "topicList": sorted(topics)}

    def subscription(self, request: RemotingCommand) -> Any:
        """345: what a living group wants of a topic."""
        group, topic = request.text("group"), request.text("topic")
        wanted = _subscription(self.broker.consumers.get(group), topic)
        return {"group": group, "subscriptionData": wanted, "topic": topic}

    # ---------------------------------------------------------------- the rest

    def system_topics(self, _request: RemotingCommand) -> Any:
        """305: topics that are the broker's own."""
        topics = self.broker.topics
        present = {name for name in topics.topics if topics.is_system(name)}
        return {"topicList": sorted(present | NOT_FOR_CLIENTS | {TEMPLATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC})}

    def stats(self, request: RemotingCommand) -> Any:
        """315: one key of one statistics set."""
        name, key = request.text("statsName"), request.text("statsKey")
        view = self.broker.stats.view(name, key)
        if view is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the statistics {name} hold nothing about {key!r}")
        return {"statsDay": _rate(view.day), "statsHour": _rate(view.hour), "statsMinute": _rate(view.minute)}

    def request_modes(self, _request: RemotingCommand) -> Any:
        """402: which groups pop instead of pulling: none here."""
        return {"messageRequestModeMap": {}}

    def _topic(self, name: str) -> TopicConfig:
        topic = self.broker.topics.get(name)
        if topic is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {name!r} on this broker")
        return topic

    def _queues(self, topic: str, count: int) -> Iterator[MessageQueue]:
        broker_name = self.broker.config.broker_name
        return (MessageQueue(topic, broker_name, queue_id) for queue_id in range(count))


def not_online(group: str) -> RequestRefused:
    """The answer where a group has no living member."""
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
