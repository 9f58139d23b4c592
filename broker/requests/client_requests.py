"""Requests of connected clients: heartbeats and membership (RocketMQ ClientManageProcessor, ConsumerManageProcessor).

Codes 34, 35, 38 and 46. All connections of a group, including the one that caused the change, are notified of every change of
its members or topics, so that they distribute the queues again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import attrs
import trio

from ...message.json import dumps
from ...message.send_number import KNOWS_NUMBERS_FIELD
from ...remoting.bounds import checked_name
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import LANGUAGES, RemotingCommand
from ...remoting.dispatcher import Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...world.clock import Clock
from ...world.events import get_logger
from ..live_config import LiveConfig
from ..request_bodies import body_of
from ..role import LiveRole
from ..subscription import TAG, BadExpression, Subscription
from ..tables.clients import (
    CLUSTERING,
    CONSUME_ACTIVELY,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    ConsumerGroup,
    Consumers,
    Member,
    Producers,
)
from ..tables.groups import GroupConfig, GroupTable
from ..tables.table_log import TableLog
from ..tables.topics import TopicConfig, TopicTable, retry_topic
from .pull import expression_refusal

log = get_logger(__name__)

GROUPS_PER_HEARTBEAT_MAX = 1024
"""The most groups in one heartbeat; a larger one is refused, because each unknown group is created with its retry topic."""
CLIENT_ID_CHARACTERS_MAX = 512
"""The longest id of a client; a longer one is refused. RocketMQ's clients make it of address, process and instance name."""
TOPICS_LOGGED_MAX = 8
"""The most topics that a warning about one member names, so that a heartbeat with thousands makes no line of megabytes."""
NOTIFIED_AT_ONCE_MAX = 64
"""The most members that are notified in one turn of the event loop. If a change concerns more members, of one group or of many
groups together, they are notified in several turns."""
NOTICE_PAUSE_SECONDS = 0.1
"""The pause before members that were too many for one turn are notified again; changes during the pause cause one
notification."""


@attrs.define(eq=False, kw_only=True, repr=False)
class ClientRequests:
    """The handlers of these requests, and the notifications of groups' members."""

    config: LiveConfig
    clock: Clock
    role: LiveRole
    topics: TopicTable
    table_log: TableLog
    groups: GroupTable
    consumers: Consumers
    producers: Producers
    close_connection: Callable[[ServerConnection], None]
    _to_notify: set[str] = attrs.field(factory=set[str])
    """Groups whose members, too many for one turn, must be notified to rebalance."""
    _wake: trio.Event = attrs.field(factory=trio.Event)

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers and the callback for closed connections."""
        dispatcher.register(RequestCode.HEART_BEAT, self.heartbeat)
        dispatcher.register(RequestCode.UNREGISTER_CLIENT, self.unregister)
        dispatcher.register(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.consumer_list)
        dispatcher.register(RequestCode.CHECK_CLIENT_CONFIG, self.check_client_config)
        dispatcher.on_close.append(self.connection_closed)

    def heartbeat(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        body = body_of(request)
        try:
            self._heartbeat(connection, request, body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the heartbeat is not one: {type(error).__name__}: {error}"
            ) from error
        return request.response(ext={KNOWS_NUMBERS_FIELD: "true"})

    def _heartbeat(self, connection: ServerConnection, request: RemotingCommand, body: Mapping[str, Any]) -> None:
        clock = self.clock
        client_id = checked_name("client id", str(body["clientID"]), CLIENT_ID_CHARACTERS_MAX)
        now, now_ms = clock.monotonic(), clock.wall_ms()
        if body.get("withoutSub"):
            self.consumers.refresh(connection, client_id, now, now_ms)
            self.producers.refresh(connection, client_id, now, now_ms)
            return
        language = next((known for known in LANGUAGES if known == request.language), "OTHER")
        # The whole body is read before any of it is applied.
        consumers = [
            (
                checked_name("group", str(group["groupName"])),
                [Subscription.from_json(item) for item in group.get("subscriptionDataSet") or ()],
                {
                    "consume_type": checked_name("consumeType", str(group.get("consumeType") or CONSUME_PASSIVELY)),
                    "message_model": checked_name("messageModel", str(group.get("messageModel") or CLUSTERING)),
                    "consume_from_where": checked_name(
                        "consumeFromWhere", str(group.get("consumeFromWhere") or CONSUME_FROM_LAST_OFFSET)
                    ),
                },
                2 if group.get("unitMode") else 0,
            )
            for group in body.get("consumerDataSet") or ()
        ]
        producers = [checked_name("group", str(group["groupName"])) for group in body.get("producerDataSet") or ()]
        if (count := len(consumers) + len(producers)) > GROUPS_PER_HEARTBEAT_MAX:
            raise ValueError(f"{count} groups, {GROUPS_PER_HEARTBEAT_MAX} are allowed")
        refusal: RequestRefused | None = None  # of one group, whose other groups would otherwise expire
        with suppress(RequestRefused):  # then as many of them as fit are created below
            self._create([(name, topic_sys_flag) for name, _, _, topic_sys_flag in consumers])
        changed: list[str] = []
        for name, subscriptions, settings, topic_sys_flag in consumers:
            try:
                self._create([(name, topic_sys_flag)])
                member = Member(connection, client_id, language, request.version, now, now_ms)
                differing = self.consumers.differing(name, member, subscriptions)
                if differing and settings["consume_type"] != CONSUME_ACTIVELY:
                    # The group has one position in each queue: what one member filters out, no other member gets.
                    log.warning("subscriptions_differ", group=name, client_id=client_id, topics=differing[:TOPICS_LOGGED_MAX])
                if self.consumers.register(name, member, subscriptions, settings):
                    changed.append(name)
            except RequestRefused as error:
                refusal = refusal or RequestRefused(error.code, f"the consumer group {name}: {error.remark}")
        self.notify_groups(changed)
        for name in producers:
            try:
                self.producers.register(name, Member(connection, client_id, language, request.version, now, now_ms))
            except RequestRefused as error:
                refusal = refusal or RequestRefused(error.code, f"the producer group {name}: {error.remark}")
        if refusal is not None:
            raise refusal

    def _create(self, consumers: Iterable[tuple[str, int]]) -> None:
        """Propose the groups that do not exist, and their retry topics; a node that may not decide leaves that to the master.

        Args:
            consumers: names of groups, and the system flags of their retry topics.

        Raises:
            RequestRefused: there is no room for all of them, or the log takes no event. Some of them may have been created.
        """
        if not self.table_log.may_create:
            return
        groups = [
            GroupConfig(name) for name, _ in consumers if self.table_log.group(name) is None and self.groups.may_create(name)
        ]
        if groups:
            self.table_log.put_groups(*groups)
        topics: list[TopicConfig] = []
        for name, topic_sys_flag in consumers:
            config, topic = self.table_log.group(name), retry_topic(name)
            if config is not None and config.retry_queue_nums > 0 and self.table_log.topic(topic) is None:
                topics.append(self.topics.for_group(topic, config.retry_queue_nums, topic_sys_flag))
        if topics:
            self.table_log.put_topics(*topics)

    def notify_groups(self, groups: Iterable[str]) -> None:
        """Notify all consumers of these groups that they must rebalance (request 40, oneway)."""
        noticed = [living for group in groups if (living := self._noticed(group)) is not None]
        if sum(len(living.members) for living in noticed) <= NOTIFIED_AT_ONCE_MAX:
            for living in noticed:
                _notify(living.connections, living.name)
            return
        # If many members leave together, each one would otherwise cause a notification of all the others.
        self._to_notify.update(living.name for living in noticed)
        self._wake.set()

    def _noticed(self, group: str) -> ConsumerGroup | None:
        """The group, if it has members and they want to be notified."""
        living = self.consumers.get(group)
        if living is None or living.is_broadcasting or not self.config.now.notify_consumer_ids_changed_enable:
            return None
        config = self.groups.get(group)
        return living if config is None or config.notify_consumer_ids_changed_enable else None

    async def run(self) -> None:
        """Notify the members that were too many for one turn, a part of them in each turn, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            groups, self._to_notify = self._to_notify, set()
            for group in sorted(groups):
                living = self.consumers.get(group)
                connections = living.connections if living is not None else []
                for at in range(0, len(connections), NOTIFIED_AT_ONCE_MAX):
                    _notify(connections[at : at + NOTIFIED_AT_ONCE_MAX], group)
                    await trio.lowlevel.checkpoint()
            await trio.sleep(NOTICE_PAUSE_SECONDS)

    def unregister(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        client_id = request.text("clientID")
        producer_group, consumer_group = request.ext.get("producerGroup"), request.ext.get("consumerGroup")
        if producer_group:
            self.producers.unregister(producer_group, connection, client_id)
        if consumer_group and self.consumers.unregister(consumer_group, connection, client_id):
            self.notify_groups((consumer_group,))
        return request.response()

    def consumer_list(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        group = request.text("consumerGroup")
        living = self.consumers.get(group)
        if living is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer of the group {group} is connected here")
        return request.response(body=dumps({"consumerIdList": living.client_ids}))

    def connection_closed(self, connection: ServerConnection) -> None:
        self.producers.drop(connection)
        self.notify_groups(self.consumers.drop(connection))

    def expire(self, now: float) -> None:
        """Remove clients that have sent no heartbeat for too long, and close their connections."""
        expired = self.consumers.expire(now)
        self.notify_groups(expired.groups)
        for connection in dict.fromkeys((*expired.connections, *self.producers.expire(now))):
            self.close_connection(connection)

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


def _notify(connections: Iterable[ServerConnection], group: str) -> None:
    for connection in connections:
        connection.notify(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}))
