"""Answers requests from the route table and the KV configuration (RocketMQ DefaultRequestProcessor).

Every request is answered from memory in the same turn, except changes of the KV configuration and of the name server's
configuration, which must be on disk before they are answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import attrs
import orjson
import trio

from ..message.data_version import DataVersion
from ..message.json import OF_STRANGERS_BYTES_MAX, REFERENCE, dumps, dumps_strict, loads
from ..message.numbers import int_of
from ..remoting.bounds import checked_name, refuse
from ..remoting.changed_settings import KeptFile, requested_changes
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import FRAME_SIZE_MAX, RemotingCommand
from ..remoting.dispatcher import Dispatcher
from ..remoting.errors import RequestRefused
from ..remoting.java_properties import PROPERTIES_BYTES_MAX, write_properties
from ..remoting.registration import CHANGED_TOPICS_ALONE, LEFT_OUT_TOPICS, REPLACED_ADDRESS
from ..remoting.server import ServerConnection
from ..world.events import get_logger
from ..world.real import World
from .bounds import KV_CHARACTERS_MAX, TOPIC_CHARACTERS_MAX, VALUE_CHARACTERS_MAX, checked_address
from .config import CHANGEABLE, KEYS, NamesrvConfig
from .errors import BadNamesrvConfig
from .kv_config import ENTRY_CHARACTERS, ORDER_TOPIC_CONFIG, KvConfig
from .registration import TopicConfig, read_registration
from .routes import BROKER_TIMEOUT_SECONDS, UNIT, UNIT_SUB, Broker, MinIdChange, RouteTable

T = TypeVar("T")

log = get_logger(__name__)

STRICT_JSON_VERSION = 401
"""V4_9_4: clients from this version on read only strict JSON."""


@attrs.define(eq=False, repr=False)
class Handlers:
    """The request handlers of one name server."""

    config: NamesrvConfig
    world: World
    file: KeptFile
    """That of `configStorePath`."""
    kv_file: KeptFile
    """That of `kvConfigPath`."""
    kv_config: KvConfig
    routes: RouteTable[ServerConnection] = attrs.field(factory=RouteTable[ServerConnection])
    on_min_id_change: list[Callable[[MinIdChange], None]] = attrs.field(factory=list[Callable[[MinIdChange], None]])
    """Called for each change if `notify_min_broker_id_changed` is set."""
    changes: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """The settings that administrators changed, which is the content of `file`; it is read at the start."""
    left: trio.Event = attrs.field(factory=trio.Event)
    """Set when brokers may have left whose topics are to be unlisted."""
    # Two administrators may change the same file concurrently; the second write has both changes.
    _saving: trio.Lock = attrs.field(factory=trio.Lock)

    def register(self, dispatcher: Dispatcher) -> None:
        """Register all handlers at a dispatcher."""
        at_once: dict[RequestCode, Callable[[RemotingCommand], RemotingCommand]] = {
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.get_broker_member_group,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            RequestCode.GET_KV_CONFIG: self.get_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.get_kv_list,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.get_topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.get_unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.get_unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.get_unit_sub_topics_without_unit,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_permission,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }
        once_on_disk: dict[RequestCode, Callable[[RemotingCommand], Awaitable[RemotingCommand]]] = {
            RequestCode.PUT_KV_CONFIG: self.put_kv_config,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv_config,
        }
        dispatcher.register_waiting(
            RequestCode.UPDATE_NAMESRV_CONFIG, _of_request_alone(self.update_config), body_bytes_max=PROPERTIES_BYTES_MAX
        )
        dispatcher.register(RequestCode.REGISTER_BROKER, self.register_broker, body_bytes_max=FRAME_SIZE_MAX)
        for code, answer in at_once.items():
            dispatcher.register(code, _of_request_alone(answer))
        for code, wait in once_on_disk.items():
            dispatcher.register_waiting(code, _of_request_alone(wait))
        dispatcher.on_close.append(self.connection_closed)

    # brokers

    def register_broker(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        ha_address, zone = request.text("haServerAddr", ""), request.ext.get("__ZONE_NAME")
        broker = Broker(
            cluster=checked_name("clusterName", request.text("clusterName")),
            name=checked_name("brokerName", request.text("brokerName")),
            broker_id=request.integer("brokerId"),
            address=checked_address("brokerAddr", request.text("brokerAddr")),
            ha_address=checked_address("haServerAddr", ha_address) if ha_address else "",
            timeout_seconds=request.integer("heartbeatTimeoutMillis", round(BROKER_TIMEOUT_SECONDS * 1000)) / 1000,
            enable_acting_master=request.boolean("enableActingMaster") if "enableActingMaster" in request.ext else None,
            zone=checked_name("zone", zone) if zone else zone,
        )
        topics = read_registration(request.body, request.integer("bodyCrc32", 0))
        is_new = self.routes.data_version(broker.cluster, broker.address) is None
        registered = self.routes.register(
            broker,
            topics,
            connection,
            self.world.clock.monotonic(),
            forget_missing_topics=self.config.delete_topic_with_broker_registration
            and not request.boolean(CHANGED_TOPICS_ALONE),
        )
        if is_new:
            log.info("broker_registered", broker=broker.name, broker_id=broker.broker_id, address=broker.address)
        if registered.replaced_address is not None:
            # Either one of the two has the other's name and id by mistake, or it has replaced the other.
            log.warning(
                "broker_replaced",
                broker=broker.name,
                broker_id=broker.broker_id,
                address=broker.address,
                replaced_address=registered.replaced_address,
            )
        if registered.left_out:
            log.warning("topics_left_out", broker=broker.name, address=broker.address, topics=registered.left_out)
        self._brokers_changed()
        order = self.kv_config.namespace(ORDER_TOPIC_CONFIG) if self.config.return_order_topic_config_to_broker else None
        return request.response(
            ext={
                "haServerAddr": registered.master_ha_address or None,
                "masterAddr": registered.master_address or None,
                REPLACED_ADDRESS: registered.replaced_address,
                LEFT_OUT_TOPICS: registered.left_out or None,
            },
            body=dumps({"table": order}) if order is not None else b"",
        )

    def unregister_broker(self, request: RemotingCommand) -> RemotingCommand:
        name, address = request.text("brokerName"), request.text("brokerAddr")
        self.routes.unregister(request.text("clusterName"), name, address)
        log.info("broker_unregistered", broker=name, address=address)
        self._brokers_changed()
        return request.response()

    def query_data_version(self, request: RemotingCommand) -> RemotingCommand:
        cluster, address = request.text("clusterName"), request.text("brokerAddr")
        stored = self.routes.data_version(cluster, address)
        asked = _data_version_of(request)
        self.routes.refresh(cluster, address, self.world.clock.monotonic())
        body = dumps(stored.to_json()) if stored is not None else b""
        return request.response(ext={"changed": stored != asked or self.routes.lacks_topics(cluster, address)}, body=body)

    def broker_heartbeat(self, request: RemotingCommand) -> RemotingCommand:
        self.routes.refresh(request.text("clusterName"), request.text("brokerAddr"), self.world.clock.monotonic())
        return request.response()

    def get_broker_member_group(self, request: RemotingCommand) -> RemotingCommand:
        members = self.routes.members(request.text("clusterName"), request.text("brokerName"))
        return request.response(body=dumps({"brokerMemberGroup": members}))

    def connection_closed(self, connection: ServerConnection) -> None:
        """Remove the brokers that registered over a connection that ended."""
        for broker in self.routes.connection_closed(connection):
            log.warning("broker_lost", broker=broker.name, address=broker.address, reason="its connection ended")
        self._brokers_changed()

    def expire_brokers(self) -> list[ServerConnection]:
        """Remove silent brokers, not too many at once; returns their connections, which the caller closes."""
        expired = self.routes.expire(self.world.clock.monotonic())
        for broker, _ in expired:
            log.warning("broker_lost", broker=broker.name, address=broker.address, reason="it did not register in time")
        self._brokers_changed()
        return [connection for _, connection in expired]

    def _brokers_changed(self) -> None:
        self.left.set()
        changes, self.routes.min_id_changes = self.routes.min_id_changes, []
        if self.config.notify_min_broker_id_changed:
            for change in changes:
                for notify in self.on_min_id_change:
                    notify(change)

    # routes and topics

    def get_route(self, request: RemotingCommand) -> RemotingCommand:
        topic = request.text("topic")
        route = self.routes.route(topic, acting_masters=self.config.support_acting_master)
        if route is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"no broker has registered the topic {topic}")
        if self.config.order_message_enable:
            route["orderTopicConf"] = self.kv_config.get(ORDER_TOPIC_CONFIG, topic)
        strict = request.version >= STRICT_JSON_VERSION or request.boolean("acceptStandardJsonOnly")
        return request.response(body=dumps_strict(route) if strict else dumps(route))

    def get_cluster_info(self, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=dumps(self.routes.cluster_info()))

    def register_topic(self, request: RemotingCommand) -> RemotingCommand:
        topic = checked_name("topic", request.text("topic"), TOPIC_CHARACTERS_MAX)
        try:
            queues = [
                (
                    str(queue["brokerName"]),
                    TopicConfig(
                        int_of(queue["readQueueNums"]),
                        int_of(queue["writeQueueNums"]),
                        int_of(queue["perm"]),
                        int_of(queue.get("topicSysFlag", 0)),
                    ),
                )
                for queue in loads(request.body, loose_bytes_max=OF_STRANGERS_BYTES_MAX).get("queueDatas") or ()
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not a topic route: {error!r}") from error
        self.routes.register_topic(topic, queues)
        return request.response()

    def delete_topic(self, request: RemotingCommand) -> RemotingCommand:
        topic, cluster = request.text("topic"), request.ext.get("clusterName")
        self.routes.delete_topic(topic, cluster)
        log.info("topic_deleted", topic=topic, cluster=cluster)
        return request.response()

    def get_all_topics(self, request: RemotingCommand) -> RemotingCommand:
        return self._topic_list(request, self.config.enable_all_topic_list, self.routes.all_topics)

    def get_topics_of_cluster(self, request: RemotingCommand) -> RemotingCommand:
        cluster = request.text("cluster")
        return self._topic_list(request, self.config.enable_topic_list, lambda: self.routes.topics_of_cluster(cluster))

    def get_unit_topics(self, request: RemotingCommand) -> RemotingCommand:
        return self._topic_list(
            request, self.config.enable_topic_list, lambda: self.routes.flagged_topics(lambda flag: bool(flag & UNIT))
        )

    def get_unit_sub_topics(self, request: RemotingCommand) -> RemotingCommand:
        return self._topic_list(
            request, self.config.enable_topic_list, lambda: self.routes.flagged_topics(lambda flag: bool(flag & UNIT_SUB))
        )

    def get_unit_sub_topics_without_unit(self, request: RemotingCommand) -> RemotingCommand:
        return self._topic_list(
            request, self.config.enable_topic_list, lambda: self.routes.flagged_topics(lambda flag: flag & 3 == UNIT_SUB)
        )

    def get_system_topics(self, request: RemotingCommand) -> RemotingCommand:
        topics, address = self.routes.system_topics()
        return request.response(body=dumps({"brokerAddr": address, "topicList": topics}))

    def _topic_list(self, request: RemotingCommand, enabled: bool, topics: Callable[[], list[str]]) -> RemotingCommand:
        if not enabled:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "disable")
        return request.response(body=orjson.dumps({"topicList": topics()}))

    def wipe_write_permission(self, request: RemotingCommand) -> RemotingCommand:
        return request.response(ext={"wipeTopicCount": self.routes.wipe_write_permission(request.text("brokerName"))})

    def add_write_permission(self, request: RemotingCommand) -> RemotingCommand:
        return request.response(ext={"addTopicCount": self.routes.add_write_permission(request.text("brokerName"))})

    # configuration

    def get_kv_config(self, request: RemotingCommand) -> RemotingCommand:
        namespace, key = request.text("namespace"), request.text("key")
        value = self.kv_config.get(namespace, key)
        if value is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"no value of {key} in the namespace {namespace}")
        return request.response(ext={"value": value})

    def get_kv_list(self, request: RemotingCommand) -> RemotingCommand:
        namespace = request.text("namespace")
        entries = self.kv_config.namespace(namespace)
        if entries is None:
            raise RequestRefused(ResponseCode.QUERY_NOT_FOUND, f"no namespace {namespace}")
        return request.response(body=dumps({"table": entries}))

    async def put_kv_config(self, request: RemotingCommand) -> RemotingCommand:
        namespace, key = (checked_name(name, request.text(name)) for name in ("namespace", "key"))
        value = request.text("value")
        if REFERENCE in (namespace, key):
            raise refuse(f"readers of JSON take {REFERENCE} for a reference, so it is no namespace and no key")
        if len(value) > VALUE_CHARACTERS_MAX:
            raise refuse(f"a value has at most {VALUE_CHARACTERS_MAX} characters (got {len(value)})")
        async with self._saving:
            changed = self.kv_config.with_value(namespace, key, value)
            if changed.characters > KV_CHARACTERS_MAX:
                raise refuse(
                    f"all namespaces together have at most {KV_CHARACTERS_MAX} characters, "
                    f"and each entry counts for {ENTRY_CHARACTERS} besides its own"
                )
            await self.kv_file.save(self.world, changed.to_bytes())
            self.kv_config = changed  # only what is on disk is served, so that no value disappears at a restart
        return request.response()

    async def delete_kv_config(self, request: RemotingCommand) -> RemotingCommand:
        async with self._saving:
            changed = self.kv_config.without(request.text("namespace"), request.text("key"))
            await self.kv_file.save(self.world, changed.to_bytes())
            self.kv_config = changed
        return request.response()

    def get_config(self, request: RemotingCommand) -> RemotingCommand:
        return request.response(body=self.config.to_properties().encode())

    async def update_config(self, request: RemotingCommand) -> RemotingCommand:
        entries = requested_changes(request, "name server", KEYS, CHANGEABLE, self.config.config_black_list)
        async with self._saving:
            try:
                changed = self.config.with_entries(entries)
            except BadNamesrvConfig as error:
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error
            changes = {**self.changes, **entries}
            await self.file.save(self.world, write_properties(changes).encode())
            self.config, self.changes = changed, changes
        log.info("config_changed", entries=entries)
        return request.response()


def _of_request_alone(answer: Callable[[RemotingCommand], T]) -> Callable[[ServerConnection, RemotingCommand], T]:
    return lambda _, request: answer(request)


def _data_version_of(request: RemotingCommand) -> DataVersion:
    value: Any = loads(request.body, loose_bytes_max=OF_STRANGERS_BYTES_MAX)
    try:
        return DataVersion.from_json(value)
    except (AttributeError, TypeError, ValueError) as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the body is not a data version: {error}") from error
