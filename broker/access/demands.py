"""What each request asks for: the actions on topics, groups and the cluster that its sender must be allowed. Pure.

RocketMQ 5 decides some requests by the same table and lets others through unchecked. Here every request has a row, and a code
without one is for super users only. Fields that a handler reads in place of another are asked for together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ...message.message import RETRY_PREFIX
from ...remoting.codes import RequestCode as Code
from ...remoting.codes import ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.errors import RequestRefused
from ..request_bodies import body_of
from .policies import CLUSTER, CREATE, DELETE, GET, GROUP, LIST, PUB, SUB, TOPIC, UPDATE, Demand

_Read = Callable[[RemotingCommand], Iterable[Demand]]


class _Field(NamedTuple):
    """A header field with the name of a topic or a group."""

    kind: str
    name: str
    actions: tuple[str, ...]
    is_optional: bool = False

    def demands(self, request: RemotingCommand) -> Iterator[Demand]:
        value = request.ext.get(self.name, "")
        if value or not self.is_optional:
            yield named(self.kind, value or request.text(self.name), self.actions)


def named(kind: str, name: str, actions: tuple[str, ...]) -> Demand:
    """A demand for a topic or group; the retry topic of a group belongs to the group, for whoever consumes or sends to it."""
    if kind == TOPIC and name.startswith(RETRY_PREFIX):
        return Demand(GROUP, name.removeprefix(RETRY_PREFIX), (SUB,) if actions == (PUB,) else actions)
    return Demand(kind, name, actions)


def _topic(name: str, *actions: str, optional: bool = False) -> _Field:
    return _Field(TOPIC, name, actions, optional)


def _group(name: str, *actions: str, optional: bool = False) -> _Field:
    return _Field(GROUP, name, actions, optional)


def _of_fields(*fields: _Field) -> _Read:
    return lambda request: [demand for field in fields for demand in field.demands(request)]


def _on_all(kind: str, *actions: str) -> _Read:
    demand = Demand(kind, "", actions)
    return lambda _: (demand,)


def _items(value: Any, of: str) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):  # pyright: ignore[reportUnknownVariableType]
        raise TypeError(f"{of} is not a list of objects")
    return value  # pyright: ignore[reportUnknownVariableType]


def _heartbeat(request: RemotingCommand) -> Iterator[Demand]:
    for group in _items(body_of(request).get("consumerDataSet"), "consumerDataSet"):
        yield named(GROUP, str(group["groupName"]), (SUB,))
        for subscription in _items(group.get("subscriptionDataSet"), "subscriptionDataSet"):
            yield named(TOPIC, str(subscription["topic"]), (SUB,))


def _locks(request: RemotingCommand) -> Iterator[Demand]:
    body = body_of(request)
    yield named(GROUP, str(body["consumerGroup"]), (SUB,))
    for topic in {str(queue["topic"]) for queue in _items(body.get("mqSet"), "mqSet")}:
        yield named(TOPIC, topic, (SUB,))


def _created(kind: str, field: str, of_list: str = "") -> _Read:
    """A request that creates or changes the topic or group in its body, or a list of them."""

    def read(request: RemotingCommand) -> Iterator[Demand]:
        body = body_of(request)
        for each in _items(body.get(of_list), of_list) if of_list else [body]:
            yield named(kind, str(each[field]), (CREATE,))

    return read


_SUB_OR_GET, _SUB_OR_UPDATE = (SUB, GET), (SUB, UPDATE)
_PULLS = _of_fields(_topic("topic", SUB), _group("consumerGroup", SUB))
# A consumer needs the positions of its topic to begin; RocketMQ asks for Get, which its own consumers do not have.
_POSITIONS = _of_fields(_topic("topic", *_SUB_OR_GET))
_READS, _CHANGES = _on_all(CLUSTER, GET), _on_all(CLUSTER, UPDATE)
_CONSUMPTION = _of_fields(_group("consumerGroup", GET), _topic("topic", GET, optional=True))
_GROUPS_TOPIC = _of_fields(_group("group", GET), _topic("topic", GET, optional=True))


def _send_v2(request: RemotingCommand) -> Iterable[Demand]:
    return (named(TOPIC, request.text("b"), (PUB,)),)  # as `_of_fields` would, for the most frequent requests


def _nothing(_: RemotingCommand) -> Iterable[Demand]:
    return ()


ASKED: Mapping[int, _Read] = {
    # The handler takes the short names of version 2, too.
    Code.SEND_MESSAGE: _of_fields(_topic("topic", PUB, optional=True), _topic("b", PUB, optional=True)),
    Code.SEND_MESSAGE_V2: _send_v2,
    Code.SEND_BATCH_MESSAGE: _send_v2,
    Code.CONSUMER_SEND_MSG_BACK: _of_fields(_group("group", SUB)),
    Code.PULL_MESSAGE: _PULLS,
    Code.LITE_PULL_MESSAGE: _PULLS,
    Code.QUERY_MESSAGE: _POSITIONS,
    Code.QUERY_CONSUMER_OFFSET: _of_fields(_group("consumerGroup", *_SUB_OR_GET), _topic("topic", *_SUB_OR_GET)),
    Code.UPDATE_CONSUMER_OFFSET: _of_fields(_group("consumerGroup", *_SUB_OR_UPDATE), _topic("topic", *_SUB_OR_UPDATE)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _POSITIONS,
    Code.GET_MAX_OFFSET: _POSITIONS,
    Code.GET_MIN_OFFSET: _POSITIONS,
    Code.GET_EARLIEST_MSG_STORETIME: _POSITIONS,
    Code.VIEW_MESSAGE_BY_ID: _nothing,  # `Positions` checks the topic of the message
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _of_fields(_group("consumerGroup", SUB, optional=True)),
    Code.GET_CONSUMER_LIST_BY_GROUP: _of_fields(_group("consumerGroup", *_SUB_OR_GET)),
    Code.CHECK_CLIENT_CONFIG: _nothing,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.FENCE_PRODUCER: _of_fields(_topic("topic", PUB)),  # it writes an event, as a send writes a message
    # topics and groups
    Code.UPDATE_AND_CREATE_TOPIC: _of_fields(_topic("topic", CREATE)),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _created(TOPIC, "topicName", "topicConfigList"),
    Code.DELETE_TOPIC_IN_BROKER: _of_fields(_topic("topic", DELETE)),
    Code.GET_TOPIC_CONFIG: _of_fields(_topic("topic", GET)),
    Code.GET_ALL_TOPIC_CONFIG: _on_all(TOPIC, LIST, GET),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _created(GROUP, "groupName"),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _created(GROUP, "groupName", "groupConfigList"),
    Code.DELETE_SUBSCRIPTIONGROUP: _of_fields(_group("groupName", DELETE)),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _of_fields(_group("group", GET)),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _on_all(GROUP, LIST, GET),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _of_fields(_group("group", UPDATE), _topic("topic", UPDATE)),
    # positions of groups
    Code.GET_TOPIC_STATS_INFO: _of_fields(_topic("topic", GET)),
    Code.GET_CONSUMER_CONNECTION_LIST: _of_fields(_group("consumerGroup", GET)),
    Code.GET_CONSUME_STATS: _CONSUMPTION,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _of_fields(_topic("topic", GET)),
    Code.QUERY_CONSUME_TIME_SPAN: _of_fields(_group("group", GET), _topic("topic", GET)),
    Code.QUERY_TOPICS_BY_CONSUMER: _of_fields(_group("group", GET)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _GROUPS_TOPIC,
    Code.QUERY_CONSUME_QUEUE: _of_fields(_topic("topic", GET), _group("consumerGroup", GET, optional=True)),
    Code.QUERY_CORRECTION_OFFSET: _of_fields(_topic("topic", GET), _group("compareGroup", GET)),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _of_fields(_topic("topic", UPDATE), _group("group", UPDATE)),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _of_fields(_topic("topic", GET), _group("group", GET)),
    Code.CLONE_GROUP_OFFSET: _of_fields(
        _group("srcGroup", UPDATE), _group("destGroup", UPDATE), _topic("topic", UPDATE, optional=True)
    ),
    Code.GET_CONSUMER_RUNNING_INFO: _of_fields(_group("consumerGroup", GET)),
    Code.CONSUME_MESSAGE_DIRECTLY: _of_fields(_group("consumerGroup", SUB)),
    # the broker
    Code.UPDATE_BROKER_CONFIG: _CHANGES,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGES,
    Code.CLEAN_UNUSED_TOPIC: _CHANGES,
    Code.DELETE_EXPIRED_COMMITLOG: _CHANGES,
    Code.CHANGE_DLEDGER_GROUP: _CHANGES,
    Code.GET_BROKER_CONFIG: _READS,
    Code.GET_BROKER_RUNTIME_INFO: _READS,
    Code.GET_BROKER_HA_STATUS: _READS,
    Code.GET_BROKER_EPOCH_CACHE: _READS,
    Code.EXCHANGE_BROKER_HA_INFO: _READS,
    Code.GET_ALL_CONSUMER_OFFSET: _READS,
    Code.GET_ALL_DELAY_OFFSET: _READS,
    Code.GET_PRODUCER_CONNECTION_LIST: _READS,
    Code.GET_ALL_PRODUCER_INFO: _READS,
    Code.GET_BROKER_CONSUME_STATS: _READS,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _READS,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _READS,
    Code.VIEW_BROKER_STATS_DATA: _READS,
    # users and rights
    Code.AUTH_CREATE_USER: _CHANGES,
    Code.AUTH_UPDATE_USER: _CHANGES,
    Code.AUTH_DELETE_USER: _CHANGES,
    Code.AUTH_GET_USER: _READS,
    Code.AUTH_LIST_USER: _READS,
    Code.AUTH_CREATE_ACL: _CHANGES,
    Code.AUTH_UPDATE_ACL: _CHANGES,
    Code.AUTH_DELETE_ACL: _CHANGES,
    Code.AUTH_GET_ACL: _READS,
    Code.AUTH_LIST_ACL: _READS,
}
"""For each request code a function that reads from a request what it asks for."""


def demands_of(request: RemotingCommand, cluster: str) -> list[Demand]:
    """What a request that is `ASKED` asks for, all of which must be allowed.

    Args:
        cluster: the name of this broker's cluster.

    Raises:
        RequestRefused: the request lacks a field, or its body cannot be read.
    """
    try:
        demands = list(ASKED[request.code](request))
    except (KeyError, TypeError) as error:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"request {request.code}: the body is not what it should be: {error}"
        ) from error
    if demands and demands[0].kind == CLUSTER:  # then it is the only one
        return [Demand(CLUSTER, cluster, demands[0].actions)]
    return demands
