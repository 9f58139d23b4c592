"""Requests of living clients: heartbeats, membership, offsets, queue locks (RocketMQ ClientManageProcessor and others).

Codes 14, 15, 29 to 32, 34, 35, 38, 41, 42 and 46. Every change of a group's members or topics is told to all of its
connections, the one that caused it included, so that they share the queues out anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ..message.errors import JsonError
from ..message.json import OF_STRANGERS_BYTES_MAX, dumps, loads
from ..message.message import MessageQueue
from ..message.numbers import int_of
from ..message.units import QueueId
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand, encode_frame
from ..remoting.errors import RequestRefused
from ..remoting.server import ServerConnection
from .clients import CLUSTERING, CONSUME_FROM_LAST_OFFSET, CONSUME_PASSIVELY, Member
from .locks import LOCKS_FILE
from .pull import expression_refusal
from .subscription import TAG, BadExpression, Subscription
from .topics import retry_topic

if TYPE_CHECKING:
    from .broker import Broker


GROUPS_PER_HEARTBEAT_MAX = 1024
"""Groups of one heartbeat: each unknown one is created with its retry topic."""
NOTIFIED_AT_ONCE_MAX = 64
"""Members that are notified in one turn of the event loop; those of larger groups are notified in several."""
NOTICE_PAUSE_SECONDS = 0.1
"""Pause before the members of large groups are notified again; changes of that time are notified together."""


def body_of(request: RemotingCommand) -> dict[str, Any]:
    """The JSON object that a request carries.

    Raises:
        RequestRefused: the body is none.
    """
    try:
        body = loads(request.body, loose_bytes_max=OF_STRANGERS_BYTES_MAX)
    except JsonError as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"request {request.code}: the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"request {request.code}: the body is not a JSON object")
    return body  # pyright: ignore[reportUnknownVariableType]


@attrs.define(eq=False)
class ClientRequests:
    """Answers clients of one broker."""

    broker: Broker
    _to_notify: set[str] = attrs.field(factory=set[str])
    """Large groups whose members are to hear that they must rebalance."""
    _wake: trio.Event = attrs.field(factory=trio.Event)

    def register(self) -> None:
        """Take over the requests and the end of connections."""
        dispatcher = self.broker.dispatcher
        for code, handler in (
            (RequestCode.QUERY_CONSUMER_OFFSET, self.query_offset),
            (RequestCode.UPDATE_CONSUMER_OFFSET, self.commit_offset),
            (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search_offset),
            (RequestCode.GET_MAX_OFFSET, self.max_offset),
            (RequestCode.GET_MIN_OFFSET, self.min_offset),
            (RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest_store_time),
            (RequestCode.HEART_BEAT, self.heartbeat),
            (RequestCode.UNREGISTER_CLIENT, self.unregister),
            (RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.consumer_list),
            (RequestCode.LOCK_BATCH_MQ, self.lock),
            (RequestCode.UNLOCK_BATCH_MQ, self.unlock),
            (RequestCode.CHECK_CLIENT_CONFIG, self.check_client_config),
        ):
            dispatcher.register(code, handler)
        dispatcher.on_close.append(self.connection_closed)

    # ---------------------------------------------------------------- members

    def heartbeat(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        body = body_of(request)
        try:
            self._heartbeat(connection, request, body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the heartbeat is not one: {type(error).__name__}: {error}"
            ) from error
        return request.response()

    def _heartbeat(self, connection: ServerConnection, request: RemotingCommand, body: Mapping[str, Any]) -> None:
        broker, clock = self.broker, self.broker.world.clock
        client_id = str(body["clientID"])
        now, now_ms = clock.monotonic(), clock.wall_ms()
        if body.get("withoutSub"):
            broker.consumers.refresh(connection, client_id, now, now_ms)
            broker.producers.refresh(connection, client_id, now, now_ms)
            return
        language = request.language or "OTHER"
        # All of the body is read before any of it counts.
        consumers = [
            (
                str(group["groupName"]),
                [Subscription.from_json(item) for item in group.get("subscriptionDataSet") or ()],
                {
                    "consume_type": str(group.get("consumeType") or CONSUME_PASSIVELY),
                    "message_model": str(group.get("messageModel") or CLUSTERING),
                    "consume_from_where": str(group.get("consumeFromWhere") or CONSUME_FROM_LAST_OFFSET),
                },
                2 if group.get("unitMode") else 0,
            )
            for group in body.get("consumerDataSet") or ()
        ]
        producers = [str(group["groupName"]) for group in body.get("producerDataSet") or ()]
        if (count := len(consumers) + len(producers)) > GROUPS_PER_HEARTBEAT_MAX:
            raise ValueError(f"{count} groups, {GROUPS_PER_HEARTBEAT_MAX} are allowed")
        for name, _, _, topic_sys_flag in consumers:
            self._admit(name, topic_sys_flag)
        for name, subscriptions, settings, _ in consumers:
            member = Member(connection, client_id, language, request.version, now, now_ms)
            if broker.consumers.register(name, member, subscriptions, settings):
                self.notify_group(name)
        for name in producers:
            broker.producers.register(name, Member(connection, client_id, language, request.version, now, now_ms))

    def _admit(self, group: str, topic_sys_flag: int) -> None:
        """Make sure that the group and its retry topic exist; a slave gets both from its master."""
        broker = self.broker
        config = broker.groups.find(group)
        if config is not None and config.retry_queue_nums > 0 and not broker.role.is_replica:
            broker.topics.create_for_group(retry_topic(group), config.retry_queue_nums, topic_sys_flag)

    def notify_group(self, group: str) -> None:
        """Let all consumers of a group know that they must rebalance (request 40, oneway)."""
        broker = self.broker
        living = broker.consumers.get(group)
        if living is None or living.is_broadcasting or not broker.config.notify_consumer_ids_changed_enable:
            return
        config = broker.groups.get(group)
        if config is not None and not config.notify_consumer_ids_changed_enable:
            return
        if len(living.members) <= NOTIFIED_AT_ONCE_MAX:
            _notify(living.connections, group)
            return
        # Each of many members that leave together would otherwise have all the others notified.
        self._to_notify.add(group)
        self._wake.set()

    async def run(self) -> None:
        """Notify the members of large groups, a part of them in each turn, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            groups, self._to_notify = self._to_notify, set()
            for group in sorted(groups):
                living = self.broker.consumers.get(group)
                connections = living.connections if living is not None else []
                for at in range(0, len(connections), NOTIFIED_AT_ONCE_MAX):
                    _notify(connections[at : at + NOTIFIED_AT_ONCE_MAX], group)
                    await trio.lowlevel.checkpoint()
            await trio.sleep(NOTICE_PAUSE_SECONDS)

    def unregister(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        client_id = request.text("clientID")
        producer_group, consumer_group = request.ext.get("producerGroup"), request.ext.get("consumerGroup")
        if producer_group:
            self.broker.producers.unregister(producer_group, connection, client_id)
        if consumer_group and self.broker.consumers.unregister(consumer_group, connection, client_id):
            self.notify_group(consumer_group)
        return request.response()

    def consumer_list(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        group = request.text("consumerGroup")
        living = self.broker.consumers.get(group)
        if living is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer of the group {group} is connected here")
        return request.response(body=dumps({"consumerIdList": living.client_ids}))

    def connection_closed(self, connection: ServerConnection) -> None:
        self.broker.producers.drop(connection)
        for group in self.broker.consumers.drop(connection):
            self.notify_group(group)

    def expire(self, now: float) -> None:
        """Drop clients that have sent no heartbeat for too long, and their connections."""
        broker = self.broker
        expired = broker.consumers.expire(now)
        for group in expired.groups:
            self.notify_group(group)
        for connection in {*expired.connections, *broker.producers.expire(now)}:
            broker.server.close_connection(connection)
        broker.locks.expire(now)

    def check_client_config(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        described: Any = body_of(request).get("subscriptionData")
        if not isinstance(described, dict):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the request names no subscription")
        value: dict[str, Any] = described  # pyright: ignore[reportUnknownVariableType]
        try:
            kind = str(value.get("expressionType") or TAG)
            subscription = Subscription.parse(str(value.get("topic", "")), str(value.get("subString") or ""), 0, kind)
        except BadExpression as error:
            raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        if not subscription.is_tag:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, expression_refusal(subscription))
        return request.response()

    # ---------------------------------------------------------------- offsets

    def query_offset(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        broker = self.broker
        group, topic, queue_id = request.text("consumerGroup"), request.text("topic"), request.integer("queueId")
        offset = broker.offsets.query(group, topic, queue_id)
        if offset is None:
            # A new group on a young queue begins at its first message, whatever the consumer asks for.
            store = broker.store
            young = store.min_offset(topic, queue_id) <= 0 and (
                store.unit(topic, queue_id, 0) is None or store.is_in_memory(topic, queue_id, 0)
            )
            if not young or not request.boolean("setZeroIfNotFound", default=True):
                raise RequestRefused(
                    ResponseCode.QUERY_NOT_FOUND, f"the group {group} has no offset for queue {queue_id} of {topic}"
                )
            offset = 0
        return request.response(ext={"offset": offset})

    def commit_offset(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        broker = self.broker
        group, topic = request.text("consumerGroup"), request.text("topic")
        queue_id, offset = request.integer("queueId"), request.integer("commitOffset")
        config = broker.topics.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic!r} does not exist; nothing was committed")
        queue_nums = max(config.read_queue_nums, config.write_queue_nums)
        if not 0 <= queue_id < queue_nums and queue_id not in broker.store.queue_ids(topic):
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} is not one of the {queue_nums} queues of {topic}; nothing was committed",
            )
        if broker.groups.find(group) is None:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"the consumer group {group!r} does not exist; nothing was committed"
            )
        broker.commit_offset(group, topic, queue_id, offset)
        return request.response()

    def search_offset(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        upper = request.ext.get("boundaryType", "").lower() == "upper"
        self.broker.store.catch_up()
        offset = self.broker.store.offset_by_time(
            request.text("topic"), request.integer("queueId"), request.integer("timestamp"), upper=upper
        )
        return request.response(ext={"offset": offset})

    def max_offset(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        self.broker.store.catch_up()  # whoever has just sent a message finds it behind the end otherwise
        offset = self.broker.store.max_offset(request.text("topic"), request.integer("queueId"))
        return request.response(ext={"offset": offset})

    def min_offset(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        offset = self.broker.store.min_offset(request.text("topic"), request.integer("queueId"))
        return request.response(ext={"offset": offset})

    def earliest_store_time(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        timestamp = self.broker.store.earliest_store_time(request.text("topic"), request.integer("queueId"))
        return request.response(ext={"timestamp": timestamp})

    # ---------------------------------------------------------------- queue locks

    def lock(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand | None:
        """Answer a renewal at once; an owner that is new hears of it when the disk has it, for a restart must not forget it."""
        broker = self.broker
        group, client_id, queues = self._lock_request(request)
        changes = broker.locks.changes
        known = filter(self._is_here, queues)
        held = broker.locks.lock(group, client_id, known, broker.world.clock.monotonic())
        answer = request.response(body=dumps({"lockOKMQSet": list(map(queue_to_json, held))}))
        if broker.locks.changes == changes:
            return answer
        assert broker.dispatcher.nursery is not None, "locks are given while the broker serves"
        broker.dispatcher.nursery.start_soon(self._answer_when_kept, connection, answer)
        return None

    async def _answer_when_kept(self, connection: ServerConnection, answer: RemotingCommand) -> None:
        await self.broker.persistence.write(LOCKS_FILE)  # a disk that refuses is logged; it stops no consumer
        connection.push(encode_frame(answer))

    def _is_here(self, queue: MessageQueue) -> bool:
        config = self.broker.topics.get(queue.topic)
        return config is not None and 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def unlock(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        group, client_id, queues = self._lock_request(request)
        self.broker.locks.unlock(group, client_id, queues)
        self.broker.persistence.tables[LOCKS_FILE].wake()
        return request.response()

    def _lock_request(self, request: RemotingCommand) -> tuple[str, str, list[MessageQueue]]:
        body = body_of(request)
        try:
            queues = [
                MessageQueue(str(item["topic"]), str(item["brokerName"]), QueueId(int_of(item["queueId"])))
                for item in body.get("mqSet") or ()
            ]
            return str(body["consumerGroup"]), str(body["clientId"]), queues
        except (KeyError, TypeError, ValueError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the lock request is not one: {type(error).__name__}: {error}"
            ) from error


def _notify(connections: Iterable[ServerConnection], group: str) -> None:
    for connection in connections:
        connection.notify(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}))


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    """A message queue as bodies carry it."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
