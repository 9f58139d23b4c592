"""The admin client: topics, groups, offsets, messages, brokers and name servers, as RocketMQ's mqadmin asks for them.

Every call is one or a few requests and returns values; nothing is cached and nothing runs in between. What concerns the whole
cluster goes to every master, what concerns all name servers to every one of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import attrs
import trio

from ..message.errors import BadMessageId
from ..message.flags import PERM_READ_WRITE, PULL_SUBSCRIPTION
from ..message.json import dumps, loads, message_queue_of
from ..message.layout import decode_record, decode_records
from ..message.message import MessageId, MessageQueue, StoredMessage
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import RemotingCommand
from ..remoting.java_properties import read_properties, write_properties
from ..world.network import Address
from ..world.real import World, real_world
from ..world.tls import ClientTls
from .admin_values import Cluster, Connection, GroupConnections, GroupPosition, QueueRange
from .arguments import (
    INT_MAX,
    LONG_MAX,
    QUEUES_MAX,
    check_group,
    check_integer,
    check_properties,
    check_queue,
    check_text,
    check_topic,
)
from .compression import decompress
from .errors import EVERY_TOPIC, InvalidArgument, NoRoute, NoRouteReason, NotFound, NotOnline, Refused, TopicNotExist, refusal
from .queue_calls import (
    commit_offset,
    committed_offset,
    integer_of,
    master_of,
    max_offset,
    member_of,
    min_offset,
    offset_at,
    request,
)
from .route import TopicRoute, parse_broker
from .session import Session, open_session
from .unique_id import sent_at_ms

ADMIN_GROUP = "TOOLS_CONSUMER"
QUEUES = 8
QUERY_SECONDS = 18.0
ADMIN_SECONDS = 5.0
MESSAGES_PER_QUERY = 64
CLOCK_SKEW_MS = 1000
LATEST = -1
"""As a timestamp: behind the newest message."""


@attrs.define(eq=False)
class Admin:
    """Administers a cluster; made by `open_admin`.

    All calls raise `Unreachable`, `NoAnswer` or a `Refused` when a server cannot be asked or does not want to.
    """

    _session: Session

    # ---------------------------------------------------------------------------------------------------------- topics

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = QUEUES,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int = PERM_READ_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Create a topic, or change it, on every master of `cluster` (of all clusters without it) or on one broker.

        Args:
            topic: its name.
            queues: per broker, for reading and writing alike.
            read_queues: if different.
            write_queues: if different.
            perm: 6 read and write, 4 read, 2 write.
            order: marks the topic as ordered.
            attributes: RocketMQ 5 topic attributes, as `message.type`.
            cluster: by name.
            broker: a broker name or `host:port`.
        """
        check_topic(topic)
        read = check_integer("queues", queues, 0, QUEUES_MAX) if read_queues is None else read_queues
        write = queues if write_queues is None else write_queues
        check_integer("perm", perm, 0, PERM_READ_WRITE)
        check_properties(attributes or {}, "attributes")
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": check_integer("read_queues", read, 0, QUEUES_MAX),
            "writeQueueNums": check_integer("write_queues", write, 0, QUEUES_MAX),
            "perm": perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": order,
            "attributes": ",".join(f"+{name}={value}" for name, value in (attributes or {}).items()) or None,
        }
        for address in await self._masters(cluster, broker):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages, on every broker that has it and on the name servers."""
        check_topic(topic)
        for address in await self._masters(cluster, None):
            await self._ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        await self._ask_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic, "clusterName": cluster})

    async def topics(self, *, cluster: str | None = None) -> list[str]:
        """Names of all topics, system and retry topics too, sorted."""
        if cluster is None:
            command = request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            command = request(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})
        body = _body(await self._session.ask_name_server(command))
        return sorted(set(body.get("topicList") or ()))

    async def topic_route(self, topic: str) -> TopicRoute:
        """Where a topic lives.

        Raises:
            NoRoute: unknown topic, or no name server.
        """
        check_topic(topic)
        return await self._session.refresh_route(topic)

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueRange]:
        """What each queue of a topic holds, by its masters."""
        stats: dict[MessageQueue, QueueRange] = {}
        for address in _masters_of(await self.topic_route(topic)):
            answer = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            for key, item in _table(answer, "offsetTable").items():
                values = (item["minOffset"], item["maxOffset"], item["lastUpdateTimestamp"])
                stats[message_queue_of(key)] = QueueRange(*map(int, values))
        return dict(sorted(stats.items()))

    async def topic_config(self, topic: str, broker: str) -> dict[str, Any]:
        """The topic's configuration on one broker (RocketMQ `TopicConfig`)."""
        check_topic(topic)
        (address,) = await self._masters(None, broker)
        return _body(await self._ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": True}))

    async def topic_groups(self, topic: str) -> list[str]:
        """Groups that consume a topic, or did."""
        groups: set[str] = set()
        for address in _masters_of(await self.topic_route(topic)):
            answer = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
            groups.update(_body(answer).get("groupList") or ())
        return sorted(groups)

    # ---------------------------------------------------------------------------------------------------------- groups

    async def create_group(
        self, group: str, *, cluster: str | None = None, broker: str | None = None, **configuration: Any
    ) -> None:
        """Create a consumer group, or change it; `configuration` are keys of RocketMQ's `SubscriptionGroupConfig`."""
        check_group(group)
        body = dumps({**GROUP_DEFAULTS, **configuration, "groupName": group})
        for address in await self._masters(cluster, broker):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(self, group: str, *, remove_offsets: bool = True, cluster: str | None = None) -> None:
        """Delete a consumer group, by default with its offsets."""
        check_group(group)
        fields = {"groupName": group, "cleanOffset": remove_offsets, "removeOffset": remove_offsets}
        for address in await self._masters(cluster, None):
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    async def groups(self) -> dict[str, dict[str, Any]]:
        """All consumer groups with their configuration."""
        groups: dict[str, dict[str, Any]] = {}
        for address in await self._masters(None, None):
            answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            groups.update(_table(answer, "subscriptionGroupTable"))
        return dict(sorted(groups.items()))

    async def group_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, GroupPosition]:
        """Where a group stands in every queue that it has offsets for."""
        check_group(group)
        if topic is not None:
            check_topic(topic)
        stats: dict[MessageQueue, GroupPosition] = {}
        for address in await self._masters(None, None):
            fields = {"consumerGroup": group, "topic": topic}
            answer = await self._ask(address, RequestCode.GET_CONSUME_STATS, fields)
            for key, item in _table(answer, "offsetTable").items():
                values = (item["brokerOffset"], item["consumerOffset"], item["lastTimestamp"])
                stats[message_queue_of(key)] = GroupPosition(*map(int, values))
        return dict(sorted(stats.items()))

    async def group_connections(self, group: str) -> GroupConnections:
        """The members of a group that are online, over all brokers.

        Raises:
            NotOnline: none is.
        """
        check_group(group)
        members: dict[str, Connection] = {}
        first: dict[str, Any] = {}
        offline: NotOnline | None = None
        for address in await self._masters(None, None):
            try:
                body = _body(await self._ask(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}))
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
        for address in await self._masters(None, None):
            command = request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})
            answer = await self._session.call(address, command, ADMIN_SECONDS)
            if answer.code == ResponseCode.SUCCESS:  # 1 stands for "none here"
                body = _body(answer)
                members.update((item["clientId"], _connection(item)) for item in body.get("connectionSet") or ())
        return [members[client_id] for client_id in sorted(members)]

    async def running_info(self, group: str, client_id: str) -> dict[str, Any]:
        """What one online member says about itself (RocketMQ `ConsumerRunningInfo`)."""
        check_group(group)
        check_text("client_id", client_id)
        failure: Refused = NotOnline(ResponseCode.CONSUMER_NOT_ONLINE, f"{client_id} is not online", group)
        for address in await self._masters(None, None):
            fields = {"consumerGroup": group, "clientId": client_id, "jstackEnable": False}
            try:
                return _body(await self._ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, fields, seconds=15.0))
            except Refused as error:
                failure = error
        raise failure

    # --------------------------------------------------------------------------------------------------------- offsets

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int, *, force: bool = True) -> dict[MessageQueue, int]:
        """Let a group go on at a time in every queue of a topic; online members are told at once.

        Args:
            group: the consumer group.
            topic: the topic.
            timestamp_ms: the first message stored then or later; `LATEST` for behind the newest.
            force: also forward; otherwise only back.

        Returns: the new offsets.
        """
        check_group(group)
        check_integer("timestamp_ms", timestamp_ms, LATEST, LONG_MAX)
        offsets: dict[MessageQueue, int] = {}
        for address in _masters_of(await self.topic_route(topic)):
            fields = {"topic": topic, "group": group, "timestamp": timestamp_ms, "isForce": force}
            try:
                answer = await self._ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            except Refused as error:
                # Nobody is online, or nothing was ever committed: then the offsets are ours to set.
                if not isinstance(error, NotOnline) and error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                offsets.update(await self._reset_offline(group, topic, address, timestamp_ms, force=force))
                continue
            table = _table(answer, "offsetTable")
            offsets.update((message_queue_of(key), int(offset)) for key, offset in table.items())
        return dict(sorted(offsets.items()))

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store where a group stands in one queue; members that are online do not notice."""
        check_group(group)
        check_queue("queue", queue)
        check_integer("offset", offset, 0, LONG_MAX)
        await self._know(queue.topic)
        await commit_offset(self._session, group, queue, offset)

    async def offset_of(self, group: str, queue: MessageQueue) -> int | None:
        """Where a group stands in one queue; None if it never committed."""
        check_group(group)
        check_queue("queue", queue)
        await self._know(queue.topic)
        return await committed_offset(self._session, group, queue)

    async def clone_offsets(self, source_group: str, target_group: str, topic: str) -> None:
        """Let `target_group` stand where `source_group` stands."""
        check_group(source_group, "source_group")
        check_group(target_group, "target_group")
        for queue, position in (await self.group_stats(source_group, topic)).items():
            await self.set_offset(target_group, queue, position.consumer_offset)

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

    # -------------------------------------------------------------------------------------------------------- messages

    async def message_by_id(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """Find a message by its offset message id, or with `topic` by its unique id as well; the body is decompressed.

        Raises:
            NotFound: there is none.
        """
        check_text("message_id", message_id)
        try:
            where = MessageId.parse(message_id)
            command = request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": where.physical_offset, "topic": topic})
            if topic is None or await self._is_broker(Address(where.host, where.port)):
                answer = await self._session.ask(Address(where.host, where.port), command, QUERY_SECONDS)
                return _plain(decode_record(answer.body))
        except (BadMessageId, ValueError) as error:
            if topic is None:
                raise InvalidArgument(f"{message_id!r} is no offset message id; a unique id needs its topic") from error
        except Refused as error:
            raise NotFound(ResponseCode.QUERY_NOT_FOUND, error.remark, error.address) from error
        assert topic is not None
        found = await self.messages_by_unique_key(topic, message_id)
        if not found:
            raise NotFound(ResponseCode.QUERY_NOT_FOUND, f"no message {message_id} in {topic}", topic)
        return found[0]

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        messages_max: int = MESSAGES_PER_QUERY,
        begin_ms: int = 0,
        end_ms: int = LONG_MAX,
    ) -> list[StoredMessage]:
        """Find messages by one of their keys, oldest first."""
        check_topic(topic)
        check_text("key", key)
        check_integer("messages_max", messages_max, 1, INT_MAX)
        check_integer("begin_ms", begin_ms, 0, LONG_MAX)
        check_integer("end_ms", end_ms, 0, LONG_MAX)
        found = await self._query(topic, key, messages_max, begin_ms, end_ms, unique=False)
        return [message for message in found if key in message.keys]

    async def messages_by_unique_key(self, topic: str, unique_key: str) -> list[StoredMessage]:
        """Find a message by the id that its producer gave it; several if it was stored several times."""
        check_topic(topic)
        check_text("unique_key", unique_key)
        begin_ms = 0
        with suppress(ValueError):  # made by a client with ids of another layout: search all of time
            begin_ms = sent_at_ms(unique_key, self._session.world.clock.wall_ms()) - CLOCK_SKEW_MS
        found = await self._query(topic, unique_key, 32, max(0, begin_ms), LONG_MAX, unique=True)
        if not found and begin_ms:
            found = await self._query(topic, unique_key, 32, 0, LONG_MAX, unique=True)
        return [message for message in found if message.unique_key == unique_key]

    async def message_at(self, queue: MessageQueue, offset: int) -> StoredMessage:
        """The message with one offset in a queue.

        Raises:
            NotFound: there is none.
        """
        check_queue("queue", queue)
        check_integer("offset", offset, 0, LONG_MAX)
        await self._know(queue.topic)
        address = await member_of(self._session, queue)
        fields = {
            "consumerGroup": ADMIN_GROUP,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "queueOffset": offset,
            "maxMsgNums": 1,
            "sysFlag": PULL_SUBSCRIPTION,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        answer = await self._session.call(address, request(RequestCode.PULL_MESSAGE, fields), QUERY_SECONDS)
        if answer.code in _NOTHING_PULLED:
            raise NotFound(ResponseCode.QUERY_NOT_FOUND, f"no message with offset {offset} in {queue}", str(address))
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, str(address))
        return _plain(decode_record(answer.body))

    async def _query(
        self, topic: str, key: str, messages_max: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[StoredMessage]:
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": messages_max,
            "beginTimestamp": begin_ms,
            "endTimestamp": end_ms,
            "_UNIQUE_KEY_QUERY": unique,
        }
        found: list[StoredMessage] = []
        for broker in (await self.topic_route(topic)).brokers:
            address = broker.addresses.get(0) or next(iter(broker.addresses.values()))
            command = request(RequestCode.QUERY_MESSAGE, fields)
            try:
                answer = await self._session.ask(address, command, QUERY_SECONDS)
            except (NotFound, TopicNotExist):
                continue
            found += map(_plain, decode_records(answer.body))
        return sorted(found, key=lambda message: message.store_timestamp)

    async def _is_broker(self, address: Address) -> bool:
        return any(address in broker.addresses.values() for broker in (await self.cluster()).brokers)

    # --------------------------------------------------------------------------------------------------------- cluster

    async def cluster(self) -> Cluster:
        """All brokers that the name server knows."""
        answer = await self._session.ask_name_server(request(RequestCode.GET_BROKER_CLUSTER_INFO))
        brokers = map(parse_broker, _table(answer, "brokerAddrTable").values())
        return Cluster(tuple(sorted(brokers, key=lambda broker: (broker.cluster, broker.name))))

    async def broker_config(self, broker: str) -> dict[str, str]:
        """The configuration of a broker, given as broker name (its master) or `host:port`."""
        (address,) = await self._masters(None, broker)
        return read_properties((await self._ask(address, RequestCode.GET_BROKER_CONFIG)).body.decode())

    async def update_broker_config(self, broker: str, entries: Mapping[str, str]) -> None:
        """Change configuration keys of a running broker."""
        check_properties(entries, "entries")
        (address,) = await self._masters(None, broker)
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=write_properties(entries).encode())

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """What a broker says about itself now (RocketMQ `brokerStatus`)."""
        (address,) = await self._masters(None, broker)
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(_table(answer, "table").items()))

    async def ha_status(self, broker: str) -> dict[str, Any]:
        """How replication stands, as a master or slave sees it (RocketMQ `haStatus`)."""
        (address,) = await self._masters(None, broker)
        return _body(await self._ask(address, RequestCode.GET_BROKER_HA_STATUS))

    async def set_writable(self, broker_name: str, *, writable: bool) -> int:
        """Take write permission from all topics of a broker in the routes, or give it back; returns how many changed."""
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if writable else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        field = "addTopicCount" if writable else "wipeTopicCount"
        counts = [
            integer_of(answer, field, address)
            for address, answer in await self._ask_name_servers(code, {"brokerName": broker_name})
        ]
        return max(counts)

    async def name_server_config(self) -> dict[str, str]:
        """The configuration of the name server that answers first."""
        answer = await self._session.ask_name_server(request(RequestCode.GET_NAMESRV_CONFIG))
        return read_properties(answer.body.decode())

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store an entry in the KV configuration of every name server."""
        await self._ask_name_servers(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Read an entry of the KV configuration; None if it is not there."""
        command = request(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})
        try:
            return (await self._session.ask_name_server(command)).ext.get("value")
        except NotFound:
            return None

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete an entry of the KV configuration of every name server."""
        await self._ask_name_servers(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    # ----------------------------------------------------------------------------------------------------------- queues

    async def queue_range(self, queue: MessageQueue) -> tuple[int, int]:
        """The smallest offset of a queue and the one that its next message will get."""
        check_queue("queue", queue)
        await self._know(queue.topic)
        return await min_offset(self._session, queue), await max_offset(self._session, queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message of a queue stored at `timestamp_ms` or later."""
        check_queue("queue", queue)
        check_integer("timestamp_ms", timestamp_ms, 0, LONG_MAX)
        await self._know(queue.topic)
        await master_of(self._session, queue)
        return await offset_at(self._session, queue, timestamp_ms)

    async def _know(self, topic: str) -> None:
        if topic not in self._session.routes.routes:
            await self._session.refresh_route(topic)

    async def _ask(
        self,
        address: Address,
        code: RequestCode,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        seconds: float = ADMIN_SECONDS,
    ) -> RemotingCommand:
        return await self._session.ask(address, request(code, fields, body), seconds)

    async def _ask_name_servers(self, code: RequestCode, fields: Mapping[str, Any]) -> list[tuple[Address, RemotingCommand]]:
        return [(address, await self._ask(address, code, fields)) for address in self._session.name_servers]

    async def _masters(self, cluster: str | None, broker: str | None) -> list[Address]:
        """The masters that are meant.

        Raises:
            InvalidArgument: the name server knows no such broker or cluster, or an address is none.
            NoRoute: the name server knows no broker at all.
        """
        for name, value in (("cluster", cluster), ("broker", broker)):
            if value is not None:
                check_text(name, value)
        if broker is not None and ":" in broker:
            try:
                return [Address.parse(broker)]
            except ValueError as error:
                raise InvalidArgument(f"broker: {error}") from error
        known = await self.cluster()
        if broker is not None:
            found = [each.addresses[0] for each in known.brokers if each.name == broker and 0 in each.addresses]
        else:
            found = known.masters(cluster)
        if not found:
            if not known.brokers:
                raise NoRoute(EVERY_TOPIC, NoRouteReason.NO_BROKER)
            if broker is not None:
                raise InvalidArgument(
                    f"no master of a broker {broker!r}: known are {_listed(each.name for each in known.brokers)}"
                )
            if cluster is not None:
                raise InvalidArgument(
                    f"no master in a cluster {cluster!r}: known are {_listed(each.cluster for each in known.brokers)}"
                )
            raise NoRoute(EVERY_TOPIC, NoRouteReason.NO_MASTER_AT_ALL)
        return found


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

_NOTHING_PULLED = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


def _body(answer: RemotingCommand) -> dict[str, Any]:
    return loads(answer.body) if answer.body else {}


def _table(answer: RemotingCommand, name: str) -> dict[str, Any]:
    return _body(answer).get(name) or {}


def _plain(message: StoredMessage) -> StoredMessage:
    return attrs.evolve(message, body=decompress(message.body, message.sys_flag))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _masters_of(route: TopicRoute) -> list[Address]:
    masters = [broker.addresses[0] for broker in route.brokers if 0 in broker.addresses]
    if not masters:
        raise NoRoute(route.topic, NoRouteReason.NO_MASTER)
    return masters


def _connection(item: Mapping[str, Any]) -> Connection:
    language = str(item.get("language") or "")
    return Connection(str(item["clientId"]), str(item.get("clientAddr") or ""), language, int(item.get("version") or 0))


@asynccontextmanager
async def open_admin(
    namesrv: str | Iterable[str], *, tls: bool | ClientTls = False, world: World | None = None
) -> AsyncGenerator[Admin]:
    """An admin client for the length of an `async with` block; it opens connections as they are needed."""
    async with open_session(namesrv, world or real_world(), tls=tls) as session:
        yield Admin(session)
        await trio.lowlevel.checkpoint()
