"""Consumer groups: their settings, their members and their offsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import attrs

from ...message.json import dumps, message_queue_of
from ...message.message import MessageQueue
from ...message.units import MASTER_ID
from ...remoting.codes import RequestCode, ResponseCode
from ...world.network import Address
from ..arguments import LONG_MAX, check_group, check_integer, check_queue, check_text, check_topic
from ..errors import BrokerSystemError, ClientError, InvalidArgument, NotOnline, Refused
from ..queue_calls import commit_offset, committed_offset, max_offset, offset_at, request
from ..route import TopicRoute
from .calls import ADMIN_SECONDS, LATEST, AdminCalls, add_progress, body_of, check_masters, masters_of, table_of
from .errors import GroupExists, NoSuchGroup
from .values import Connection, GroupConnections, GroupPosition


@attrs.define(eq=False)
class GroupAdmin(AdminCalls):
    """The part of the admin client that concerns consumer groups."""

    async def create_group(
        self, group: str, *, cluster: str | None = None, broker: str | None = None, **settings: Any
    ) -> dict[str, dict[str, Any]]:
        """Create a consumer group on every master; `settings` are keys of RocketMQ's `SubscriptionGroupConfig`.

        A master that has the group with these settings is left as it is.

        Returns: the settings by broker.

        Raises:
            GroupExists: a broker has the group with other settings. Nothing was changed.
            Unreachable: a broker has no master, or it cannot be reached; in the first case nothing was changed.
        """
        check_group(group)
        _check_settings(settings)
        wanted = {**GROUP_DEFAULTS, **settings}
        masters = await self._named_masters(cluster, broker, every=True)
        for name, address in masters:
            there = await self._group_settings(group, address)
            different = {key: there.get(key) for key, value in wanted.items() if there and there.get(key) != value}
            if different:
                raise GroupExists(group, name, different)
        body = dumps({**wanted, "groupName": group})
        requests = [(name, address, None, body) for name, address in masters]
        await self._change(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, requests)
        return {name: wanted for name, _ in masters}

    async def update_group(
        self, group: str, *, cluster: str | None = None, broker: str | None = None, **settings: Any
    ) -> dict[str, dict[str, Any]]:
        """Change the given settings of a consumer group on every master that has it, and leave all others as they are.

        Returns: the settings by broker.

        Raises:
            NoSuchGroup: no master has the group.
            Unreachable: a broker has no master, or it cannot be reached; in the first case nothing was changed.
        """
        check_group(group)
        _check_settings(settings)
        after: dict[str, tuple[Address, dict[str, Any]]] = {}
        for name, address in await self._named_masters(cluster, broker, every=True):
            there = await self._group_settings(group, address)
            if there:
                after[name] = address, {**there, **settings}
        if not after:
            raise NoSuchGroup(group)
        # A broker changes the attributes whose signed names it gets, and keeps all others.
        own: dict[str, Any] = {"groupName": group, "attributes": settings.get("attributes") or {}}
        requests = [(name, address, None, dumps({**wanted, **own})) for name, (address, wanted) in after.items()]
        await self._change(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, requests)
        return {name: wanted for name, (_, wanted) in after.items()}

    async def _group_settings(self, group: str, address: Address) -> dict[str, Any]:
        answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return _complete(table_of(answer, "subscriptionGroupTable").get(group) or {})

    async def delete_group(self, group: str, *, remove_offsets: bool = True, cluster: str | None = None) -> None:
        """Delete a consumer group, by default with its offsets.

        As with RocketMQ's tools, it is no error that no broker has it: offsets may exist without the group.

        Raises:
            Unreachable: a broker has no master, or it cannot be reached; in the first case nothing was changed.
        """
        check_group(group)
        fields = {"groupName": group, "cleanOffset": remove_offsets, "removeOffset": remove_offsets}
        masters = await self._named_masters(cluster, None, every=True)
        requests = [(name, address, fields, b"") for name, address in masters]
        await self._change(RequestCode.DELETE_SUBSCRIPTIONGROUP, requests)

    async def groups(self, *, broker: str | None = None) -> dict[str, dict[str, Any]]:
        """All consumer groups with their configuration; with `broker`, a name or `host:port`, those of this broker."""
        groups: dict[str, dict[str, Any]] = {}
        for address in await self._masters(None, broker):
            answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            table = table_of(answer, "subscriptionGroupTable")
            groups.update((name, _complete(settings)) for name, settings in table.items())
        return dict(sorted(groups.items()))

    async def group_stats(
        self, group: str, topic: str | None = None, *, broker: str | None = None
    ) -> dict[MessageQueue, GroupPosition]:
        """The position of a group in every queue for which it has an offset; with `broker`, in the queues of this broker.

        Raises:
            NoSuchGroup: no broker that was asked has the group, nor an offset of it.
        """
        check_group(group)
        if topic is not None:
            check_topic(topic)
        stats: dict[MessageQueue, GroupPosition] = {}
        for address in await self._masters(None, broker):
            fields = {"consumerGroup": group, "topic": topic}
            answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, fields)
            for key, item in table_of(answer, "offsetTable").items():
                values = (item["brokerOffset"], item["consumerOffset"], item["lastTimestamp"])
                stats[message_queue_of(key)] = GroupPosition(*map(int, values))
        if not any(position.consumer_offset for position in stats.values()) and group not in await self.groups(broker=broker):
            raise NoSuchGroup(group)
        return dict(sorted(stats.items()))

    async def lost_messages(self, group: str, *, broker: str | None = None) -> dict[str, int]:
        """How many messages of each topic were deleted before the group had read them; brokers of RocketMQ do not count."""
        check_group(group)
        lost: Counter[str] = Counter()
        for address in await self._masters(None, broker):
            answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})
            lost.update(table_of(answer, "lostMessages"))
        return dict(sorted(lost.items()))

    async def group_connections(self, group: str, *, broker: str | None = None) -> GroupConnections:
        """The members of a group that are online, over all brokers or at one.

        Raises:
            NotOnline: no member is online.
        """
        check_group(group)
        members: dict[str, Connection] = {}
        first: dict[str, Any] = {}
        offline: NotOnline | None = None
        for address in await self._masters(None, broker):
            try:
                body = body_of(await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}))
            except NotOnline as error:
                offline = error
                continue
            first = first or body
            members.update((item["clientId"], _connection(item)) for item in body.get("connectionSet") or ())
        if not members and offline is not None:
            raise offline
        table = cast("dict[str, dict[str, Any]]", first.get("subscriptionTable") or {})
        subscriptions = {topic: str(item.get("subString") or "*") for topic, item in table.items()}
        return GroupConnections(
            tuple(members[client_id] for client_id in sorted(members)),
            str(first.get("consumeType") or ""),
            str(first.get("messageModel") or ""),
            str(first.get("consumeFromWhere") or ""),
            subscriptions,
        )

    async def producer_connections(self, group: str) -> list[Connection]:
        """The producers of a group that are online, over all brokers."""
        check_group(group)
        members: dict[str, Connection] = {}
        for address in await self._masters():
            command = request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})
            answer = await self._session.call(address, command, ADMIN_SECONDS)
            if answer.code == ResponseCode.SUCCESS:  # code 1 means that this broker knows no producer of the group
                body = body_of(answer)
                members.update((item["clientId"], _connection(item)) for item in body.get("connectionSet") or ())
        return [members[client_id] for client_id in sorted(members)]

    async def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        """The state that one online member reports (RocketMQ `ConsumerRunningInfo`)."""
        check_group(group)
        check_text("client_id", client_id)
        failure: Refused = NotOnline(ResponseCode.CONSUMER_NOT_ONLINE, f"{client_id} is not online", group)
        for address in await self._masters(None, None):
            fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": False}
            try:
                return body_of(await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, fields, seconds=15.0))
            except Refused as error:
                failure = error
        raise failure

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int, *, force: bool = True) -> dict[MessageQueue, int]:
        """Move a group to a point in time in every queue of a topic; online members are notified at once.

        Args:
            group: the consumer group.
            topic: the topic.
            timestamp_ms: continue at the first message stored then or later; `LATEST` continues behind the newest message.
            force: move forward too; otherwise only backward.

        Returns: the new offsets; a broker that does not have the group has none.

        Raises:
            NoSuchGroup: no broker of the topic has the group.
            Unreachable: a broker of the topic has no master, which would have to be notified. Nothing was changed.
        """
        check_group(group)
        check_integer("timestamp_ms", timestamp_ms, LATEST, LONG_MAX)
        check_topic(topic)
        offsets: dict[MessageQueue, int] = {}
        masters = _every_master_of(await self._session.refresh_route(topic))
        having = list(masters)
        for name, address in masters.items():
            in_part = False
            try:
                moved = await self._reset_online(group, topic, address, timestamp_ms, force=force)
                if moved is None:
                    in_part = True
                    moved = await self._reset_offline(group, topic, address, timestamp_ms, force=force)
            except ClientError as error:
                if isinstance(error, Refused) and error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    having.remove(name)
                    continue
                add_progress(error, having, name, in_part=in_part)
                raise
            offsets.update(moved)
        if not having:
            raise NoSuchGroup(group)
        return dict(sorted(offsets.items()))

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store the offset of a group in one queue; online members are not notified."""
        check_group(group)
        check_queue("queue", queue)
        check_integer("offset", offset, 0, LONG_MAX)
        await self._learn_route(queue.topic)
        await commit_offset(self._session, group, queue, offset)

    async def offset_of(self, group: str, queue: MessageQueue) -> int | None:
        """The offset that a group has committed in one queue; None if it never committed."""
        check_group(group)
        check_queue("queue", queue)
        await self._learn_route(queue.topic)
        return await committed_offset(self._session, group, queue)

    async def clone_offsets(self, source_group: str, target_group: str, topic: str) -> dict[MessageQueue, int]:
        """Copy the offsets of `source_group` to `target_group`, for every queue in which `source_group` has committed one.

        Returns: the offsets that were copied; none if the group has committed none in the topic.

        Raises:
            NoRoute: there is no such topic.
            NoSuchGroup: no broker has `source_group`, nor an offset of it in the topic.
            Unreachable: a broker of the topic has no master, which has to take the offsets. Nothing was changed.
        """
        check_group(source_group, "source_group")
        check_group(target_group, "target_group")
        check_topic(topic)
        route = await self._session.refresh_route(topic)
        check_masters(route.brokers)
        found = [(each, await committed_offset(self._session, source_group, each)) for each in route.subscribe_queues()]
        offsets = {queue: offset for queue, offset in found if offset is not None}
        if not offsets and source_group not in await self.groups():
            raise NoSuchGroup(source_group)
        part_of: str | None = None
        for queue, offset in offsets.items():
            try:
                await commit_offset(self._session, target_group, queue, offset)
            except ClientError as error:
                names = sorted({each.broker_name for each in offsets})
                add_progress(error, names, queue.broker_name, in_part=queue.broker_name == part_of)
                raise
            part_of = queue.broker_name
        return offsets

    async def _reset_online(
        self, group: str, topic: str, address: Address, timestamp_ms: int, *, force: bool
    ) -> dict[MessageQueue, int] | None:
        """Let a broker reset a group and notify its members; None if none is online, or the group never committed an offset."""
        fields = {"topic": topic, "group": group, "timestamp": timestamp_ms, "isForce": force}
        try:
            answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        except (NotOnline, BrokerSystemError):
            return None
        return {message_queue_of(key): int(offset) for key, offset in table_of(answer, "offsetTable").items()}

    async def _reset_offline(
        self, group: str, topic: str, address: Address, timestamp_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        route = self._session.routes.routes[topic]
        here = {broker.name for broker in route.brokers if broker.addresses.get(0) == address}
        offsets: dict[MessageQueue, int] = {}
        for queue in route.subscribe_queues():
            if queue.broker_name not in here:
                continue
            latest = timestamp_ms == LATEST
            offset = await (max_offset(self._session, queue) if latest else offset_at(self._session, queue, timestamp_ms))
            before = await committed_offset(self._session, group, queue)
            if force or before is None or offset < before:
                await commit_offset(self._session, group, queue, offset)
                offsets[queue] = offset
        return offsets


GROUP_DEFAULTS: Mapping[str, Any] = {
    "consumeEnable": True,
    "consumeFromMinEnable": True,
    "consumeBroadcastEnable": True,
    "consumeMessageOrderly": False,
    "retryQueueNums": 1,
    "retryMaxTimes": 16,
    "brokerId": 0,
    "whichBrokerWhenConsumeSlowly": 1,
    "notifyConsumerIdsChangedEnable": True,
}
"""RocketMQ's defaults of a `SubscriptionGroupConfig`."""
_OTHER_SETTINGS = ("groupRetryPolicy", "groupSysFlag", "consumeTimeoutMinute", "subscriptionDataSet", "attributes")
"""The keys of RocketMQ's whose defaults brokers fill in."""


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse a setting that no `SubscriptionGroupConfig` has; a broker would ignore it."""
    for key in settings:
        if key not in GROUP_DEFAULTS and key not in _OTHER_SETTINGS:
            known = ", ".join((*GROUP_DEFAULTS, *_OTHER_SETTINGS))
            raise InvalidArgument(f"a group has no setting {key!r}, nothing was changed; there are {known}")


def _complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a group with those that its broker leaves out because they are the defaults."""
    return {**GROUP_DEFAULTS, **settings} if settings else {}


def _every_master_of(route: TopicRoute) -> dict[str, Address]:
    masters_of(route)
    check_masters(route.brokers)
    return {broker.name: broker.addresses[MASTER_ID] for broker in route.brokers}


def _connection(item: Mapping[str, Any]) -> Connection:
    language = str(item.get("language") or "")
    return Connection(str(item["clientId"]), str(item.get("clientAddr") or ""), language, int(item.get("version") or 0))
