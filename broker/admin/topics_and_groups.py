"""Changes of topics, groups and files by administrators (RocketMQ AdminBrokerProcessor).

The handlers of requests from mqadmin and admin clients that create, change, delete and clean. A request with a fault is refused
whole, with a remark. If the log refuses a later part of a request, the remark says how much was done. Names in requests are
checked before they are used in a table or a path.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeGuard, cast

import attrs

from ...message.flags import PERM_INHERIT, PERM_READ_WRITE
from ...message.json import OF_STRANGERS_BYTES_MAX, REFERENCE, dumps, loads
from ...message.numbers import is_digits
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import AnswerPolicy, Dispatcher
from ...remoting.errors import RequestRefused
from ...remoting.server import ServerConnection
from ...store.keeping.cleaning import Cleaner
from ...store.message_store import MessageStore
from ...world.slices import ROWS_PER_SLICE, in_slices, rows_of
from ..json_values import table_of
from ..requests.answer_policies import Applied, Known, Routed
from ..tables.clients import Consumers
from ..tables.deletions import Deletions
from ..tables.groups import GroupConfig, GroupTable, group_name_fault
from ..tables.offsets import ConsumerOffsets
from ..tables.table_log import TableLog
from ..tables.topics import SINGLE_TAG, TopicConfig, TopicTable, topic_name_fault

QUEUE_NUMS_MAX = 16_384
"""The most read or write queues of a topic; more are refused, because each queue needs a file and space in every route."""
PERM_MASK = PERM_READ_WRITE | PERM_INHERIT
FILTER_TYPES = (SINGLE_TAG, "MULTI_TAG")

TOPIC_ATTRIBUTES: Mapping[str, Collection[str] | None] = {
    "queue.type": ("SimpleCQ",),
    "cleanup.policy": ("DELETE",),
    "message.type": ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED"),
    "reserve.time": None,
}
"""The attribute keys of topics and the values that are valid here; None means any number."""


@attrs.define(eq=False, kw_only=True, repr=False)
class Administration:
    """The handlers of changes."""

    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    consumers: Consumers
    deletions: Deletions
    table_log: TableLog
    known: Known
    policy: AnswerPolicy | None
    """Which nodes delete what is not used."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        applied, routed = Applied(self.table_log), Routed(self.table_log, self.known)
        for code, handler, policy in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC, self.put_topic, routed),
            (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, self.put_topics, routed),
            (RequestCode.GET_TOPIC_CONFIG, self.show_topic, None),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.put_group, applied),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.put_groups, applied),
            (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, self.show_group, None),
            (RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, self.forbid_group, applied),
        ):
            dispatcher.register(code, handler, policy=policy)
        for code, waiting in (
            (RequestCode.DELETE_TOPIC_IN_BROKER, self.delete_topic),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, self.delete_group),
        ):
            dispatcher.register_waiting(code, waiting)
        dispatcher.register_long({RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics}, policy=self.policy)
        dispatcher.register_long(
            {
                RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
                RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired_segments,
            }
        )
        dispatcher.register_long(
            {RequestCode.CLONE_GROUP_OFFSET: self.clone_offsets}, policy=Applied(self.table_log, gathered=True)
        )

    # ---------------------------------------------------------------- topics

    def put_topic(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """17: create or change one topic."""
        topic = request.text("topic")
        given = {
            "topicName": topic,
            "readQueueNums": request.integer("readQueueNums"),
            "writeQueueNums": request.integer("writeQueueNums"),
            "perm": request.integer("perm"),
            "topicFilterType": request.text("topicFilterType", SINGLE_TAG),
            "topicSysFlag": request.integer("topicSysFlag", 0),
            "order": request.boolean("order"),
        }
        self.table_log.put_topics(self._topic(given, parse_attributes(request.text("attributes", ""))))
        return request.response()

    def put_topics(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """18: create or change topics; none of them if one has a fault."""
        configs = [self._topic(given, _changes_of(given)) for given in _listed(request, "topicConfigList")]
        if configs:
            self.table_log.put_topics(*configs)
        return request.response()

    def _topic(self, given: Mapping[str, Any], changes: Mapping[str, str]) -> TopicConfig:
        try:
            config = TopicConfig.from_json(given)
        except (KeyError, TypeError, ValueError) as error:
            raise _invalid(f"a topic of the request is not one: {error!r}") from error
        name = config.topic_name
        fault = topic_name_fault(name)
        if fault is not None:
            raise _invalid(fault)
        if self.topics.is_system(name):
            raise _invalid(f"{name} is a topic of the system; it cannot be created or changed")
        for count in (config.read_queue_nums, config.write_queue_nums):
            if not 0 <= count <= QUEUE_NUMS_MAX:
                raise _invalid(f"a topic has 0 to {QUEUE_NUMS_MAX} queues (got {count})")
        if config.perm & ~PERM_MASK:
            raise _invalid(f"perm is made of 4 (read), 2 (write) and 1 (inherit) (got {config.perm})")
        if config.topic_filter_type not in FILTER_TYPES:
            raise _invalid(f"topicFilterType is one of {', '.join(FILTER_TYPES)} (got {config.topic_filter_type!r})")
        known = self.table_log.topic(name)
        attributes = altered_attributes(known.attributes if known is not None else {}, changes)
        for key, value in attributes.items():
            _check_topic_attribute(key, value)
        return attrs.evolve(config, attributes=attributes)

    async def delete_topic(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """215: delete a topic with its messages and every group's offsets on it."""
        topic = request.text("topic")
        fault = topic_name_fault(topic)
        if fault is not None:
            raise _invalid(fault)
        if self.topics.is_system(topic):
            raise _invalid(f"{topic} is a topic of the system; it cannot be deleted")
        await self.deletions.delete_topic(topic)
        return request.response()

    def show_topic(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """351: one topic's settings."""
        topic = request.text("topic")
        config = self.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {topic!r} on this broker")
        return request.response(body=dumps(config.to_json()))

    # ---------------------------------------------------------------- groups

    def put_group(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """200: create or change one group."""
        given = loads(request.body or b"{}", loose_bytes_max=OF_STRANGERS_BYTES_MAX)
        if not isinstance(given, dict):
            raise _invalid("the body is not a group")
        self.table_log.put_groups(self._group(cast("dict[str, Any]", given)))
        return request.response()

    def put_groups(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """225: create or change groups; none of them if one has a fault."""
        configs = [self._group(given) for given in _listed(request, "groupConfigList")]
        if configs:
            self.table_log.put_groups(*configs)
        return request.response()

    def _group(self, given: Mapping[str, Any]) -> GroupConfig:
        try:
            config = GroupConfig.from_json(given)
        except (KeyError, TypeError, ValueError) as error:
            raise _invalid(f"a group of the request is not one: {error!r}") from error
        fault = group_name_fault(config.group_name)
        if fault is not None:
            raise _invalid(fault)
        if config.retry_queue_nums < 0 or config.retry_queue_nums > QUEUE_NUMS_MAX:
            raise _invalid(f"retryQueueNums is 0 to {QUEUE_NUMS_MAX} (got {config.retry_queue_nums})")
        if not -(1 << 31) <= config.retry_max_times < 1 << 31:  # a larger one would break the table for every Java client
            raise _invalid(f"retryMaxTimes is a number of 32 bits (got {config.retry_max_times})")
        known = self.table_log.group(config.group_name)
        before: Mapping[str, str] = known.others.get("attributes") or {} if known is not None else {}
        others = {**config.others, "attributes": altered_attributes(before, _changes_of(given))}
        if f'"{REFERENCE}":'.encode() in dumps(others):  # in a text, a backslash precedes each quotation mark
            raise _invalid(
                f"readers of JSON take {REFERENCE} for a reference, so a group has no setting or attribute of that name"
            )
        return attrs.evolve(config, others=others)

    async def delete_group(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """207: delete a group's settings and, if requested, its consumer offsets."""
        # 5.x and 4.9 spell the field differently.
        offsets = request.boolean("cleanOffset") or request.boolean("removeOffset")
        group = request.text("groupName")
        fault = group_name_fault(group)
        if fault is not None and self.groups.get(group) is None:
            raise _invalid(fault)
        await self.deletions.delete_group(group, offsets=offsets)
        return request.response()

    def show_group(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """352: one group's settings; if it would be created by being used, the settings that it would have."""
        group = request.text("group")
        groups = self.groups
        config = groups.get(group)
        if config is None:
            if not groups.auto_create or group_name_fault(group) is not None:
                raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no group {group!r} on this broker")
            config = GroupConfig(group)
        return request.response(body=dumps(config.to_json()))

    def forbid_group(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """353: forbid or allow a group to read a topic, and answer whether it may."""
        group, topic = request.text("group"), request.text("topic")
        fault = group_name_fault(group) or topic_name_fault(topic)
        if fault is not None:
            raise _invalid(fault)
        if "readable" in request.ext:
            readable = request.boolean("readable")
            self.table_log.set_forbidden(group, topic, forbidden=not readable)
        else:
            readable = not self.groups.is_forbidden(group, topic)
        return request.response(body=dumps({"group": group, "readable": readable, "topic": topic}))

    async def clone_offsets(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """314: copy the offsets of one group to another, on one topic or on all that the first has consumed."""
        source, target = request.text("srcGroup"), request.text("destGroup")
        fault = group_name_fault(target)
        if fault is not None:
            raise _invalid(fault)
        offsets, topic, offline = self.offsets, request.text("topic", ""), request.boolean("offline")
        copied = [(name, offsets.of(source, name)) for name in ([topic] if topic else sorted(offsets.topics_of(source)))]
        done = 0
        async for piece in in_slices(copied, ROWS_PER_SLICE, rows_of):
            # Another node may have been elected since the last turn.
            if (refusal := self.store.writability.refusal) is not None:
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"{refusal}: the offsets of {source} on {done} of {len(copied)} topics were copied to {target}, no others",
                )
            done += len(piece)
            living = self.consumers.get(source)
            for name, _ in piece:
                if living is not None and not offline and name not in living.subscriptions:
                    continue  # the group no longer consumes it
                if self.topics.get(name) is not None:
                    offsets.clone(source, target, name)
        return request.response()

    # ---------------------------------------------------------------- files

    async def clean_queues(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """306: delete queue files whose messages have expired."""
        await self._cleaner().follow_log()
        return request.response()

    async def clean_topics(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """316: delete the messages of topics that no longer exist."""
        await self.deletions.delete_unused_topics()
        return request.response()

    async def delete_expired_segments(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """329: delete the expired segments of the log now instead of at `deleteWhen`."""
        await self._cleaner().delete_expired()
        return request.response()

    def _cleaner(self) -> Cleaner:
        cleaner = self.store.cleaner
        if cleaner is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the store has not been opened for cleaning")
        return cleaner


def parse_attributes(text: str) -> dict[str, str]:
    """Read `+key=value,-key` as mqadmin writes it; the keys in the result keep their sign.

    Raises:
        RequestRefused: an item has no sign, or has a `+` but no value.
    """
    changes: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = item.partition("=")
        if item[0] not in "+-" or len(key) < 2 or (item[0] == "+" and not separator):
            raise _invalid(f"attributes are changed by +key=value and -key (got {item!r})")
        changes[key.strip()] = value.strip()
    return changes


def _changes_of(given: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in table_of(given.get("attributes"), "attributes").items()}
    except TypeError as error:
        raise _invalid(str(error)) from error


def altered_attributes(before: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Apply changes: `+key` sets, and so does `key` without a sign, as this broker itself shows it; `-key` deletes.

    Raises:
        RequestRefused: a key to delete does not exist. Nothing was changed.
    """
    after = dict(before)
    for signed, value in changes.items():
        if not signed.startswith("-"):
            after[signed.removeprefix("+")] = value
        elif after.pop(signed[1:], None) is None:
            raise _invalid(f"there is no attribute {signed[1:]!r} to delete")
    return after


def _check_topic_attribute(key: str, value: str) -> None:
    if key not in TOPIC_ATTRIBUTES:
        raise _invalid(f"topics have the attributes {', '.join(TOPIC_ATTRIBUTES)} (got {key!r})")
    values = TOPIC_ATTRIBUTES[key]
    if values is None:
        if not is_digits(value.removeprefix("-")):
            raise _invalid(f"{key} is a number (got {value!r})")
    elif value not in values:
        raise _invalid(f"{key} is one of {', '.join(values)} here (got {value!r})")


def _listed(request: RemotingCommand, name: str) -> list[dict[str, Any]]:
    body = loads(request.body or b"{}", loose_bytes_max=OF_STRANGERS_BYTES_MAX)
    items: Any = cast("dict[str, Any]", body).get(name) if isinstance(body, dict) else None
    if not _is_list_of_objects(items):
        raise _invalid(f"the body has no list of objects {name}")
    return items


def _is_list_of_objects(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in cast("list[object]", value))


def _invalid(remark: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
