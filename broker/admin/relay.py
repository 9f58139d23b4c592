"""Requests of administrators to a client, through the broker to which it is connected (RocketMQ Broker2Client).

These are 307, 309, 222 and 223. The client's answer is returned unchanged. Requests are never retried: a client that is
disconnected or too slow is reported in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import attrs
import orjson
import trio

from ...message.errors import BadMessageId, JsonError
from ...message.json import OF_STRANGERS_BYTES_MAX, dumps, loads, message_queue_of, queue_key
from ...message.message import MessageId, MessageQueue
from ...message.numbers import long_of
from ...message.units import QueueId
from ...remoting.codes import RequestCode, ResponseCode
from ...remoting.command import RemotingCommand
from ...remoting.dispatcher import BODY_BYTES_MAX, Dispatcher
from ...remoting.errors import CallTimeout, ConnectionLost, RequestRefused
from ...remoting.server import ServerConnection
from ...store.message_store import MessageStore
from ...world.events import get_logger
from ...world.slices import in_slices
from ..access.positions import Positions
from ..live_config import LiveConfig
from ..requests.answer_policies import Applied
from ..tables.clients import ConsumerGroup, Consumers, Member
from ..tables.commits import Commits
from ..tables.groups import GroupTable
from ..tables.offsets import ConsumerOffsets
from ..tables.table_log import TableLog
from ..tables.topics import TopicTable
from .inspection import ANSWER_BYTES_MAX, QUEUES_PER_TURN, not_online, too_long

log = get_logger(__name__)

CREDENTIALS = frozenset(("AccessKey", "Signature", "SecurityToken"))
"""The signature of an administrator's tool, which is meant for the broker only and is not sent to clients."""
CALL_SECONDS = 10.0
"""How long a client may take to answer before the request fails, as in RocketMQ; tools wait a little longer."""
ASKED_PER_TURN = 64
"""The most consumers to which a request is sent in one turn of the event loop."""
RESET_BYTES_PER_TURN = 4 << 20
"""The most bytes of resets that are sent in one turn of the event loop; a reset of many queues has more than a megabyte."""
LATEST = -1
"""As the timestamp of a reset, this means the end of the queue; as a queue or offset, that none is given."""


@attrs.define(eq=False, kw_only=True, repr=False)
class Relay:
    """The handlers of these requests."""

    config: LiveConfig
    store: MessageStore
    positions: Positions
    topics: TopicTable
    groups: GroupTable
    offsets: ConsumerOffsets
    commits: Commits
    consumers: Consumers
    table_log: TableLog
    group_reset: Callable[[str, str], None]
    """Answers the held pulls of a group on a topic after a reset."""

    def register(self, dispatcher: Dispatcher) -> None:
        """Register the handlers."""
        dispatcher.register_waiting(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info)
        dispatcher.register_waiting(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)
        dispatcher.register_long({RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status})
        dispatcher.register_long(
            {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offsets}, policy=Applied(self.table_log, gathered=True)
        )

    # ---------------------------------------------------------------- passed on unchanged

    async def running_info(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """307: the state that one consumer reports about itself."""
        return await self._pass_on(request, _fields_for_client(request))

    async def consume_directly(self, connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """309: make one consumer consume one stored message now."""
        try:
            offset = MessageId.parse(request.text("msgId")).physical_offset
        except BadMessageId as error:
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        record = self.positions.message_at(connection, request, offset)
        topic, group = self.topics.get(request.ext.get("topic", "")), self.groups.get(request.text("consumerGroup"))
        ext = {
            **_fields_for_client(request),
            "brokerName": self.config.now.broker_name,
            "topicSysFlag": str(topic.topic_sys_flag if topic is not None else 0),
            "groupSysFlag": str(group.others.get("groupSysFlag") or 0 if group is not None else 0),
        }
        return await self._pass_on(request, ext, bytes(record))

    async def _pass_on(self, request: RemotingCommand, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        group, client_id = request.text("consumerGroup"), request.text("clientId")
        living = self.consumers.get(group)
        member = living.find(client_id) if living is not None else None
        if member is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer {client_id!r} of the group {group!r} is connected")
        try:
            answer = await member.connection.call(RemotingCommand(request.code, ext, body), CALL_SECONDS)
        except CallTimeout as error:
            raise RequestRefused(ResponseCode.CONSUME_MSG_TIMEOUT, f"the consumer {client_id}: {error}") from error
        except ConnectionLost as error:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"the consumer {client_id}: {error}") from error
        return request.response(answer.code, answer.ext, answer.body, answer.remark)

    # ---------------------------------------------------------------- offsets of consumers

    async def consumer_status(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """223: the offsets on a topic that the consumers of a group report; those that do not answer are left out."""
        group, topic = request.text("group"), request.text("topic")
        wanted = request.text("clientAddr", "")
        living = self.consumers.get(group)
        if living is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"no consumer of the group {group!r} is connected")
        members = [member for member in living.members.values() if not wanted or wanted == member.client_id]
        tables = _StatusTables(group, ANSWER_BYTES_MAX)
        async with trio.open_nursery() as nursery:
            async for piece in in_slices(members, ASKED_PER_TURN):
                for member in piece:
                    nursery.start_soon(self._ask_status, member, topic, tables, nursery.cancel_scope)
        if tables.room < 0:
            raise too_long()
        return request.response(body=dumps({"consumerTable": tables.encoded, "messageQueueTable": {}}))

    async def _ask_status(self, member: Member, topic: str, tables: _StatusTables, asking: trio.CancelScope) -> None:
        command = RemotingCommand(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": tables.group})
        try:
            answer = await member.connection.call(command, CALL_SECONDS)
            tables.room -= len(answer.body)
            if tables.room < 0:
                asking.cancel()
            await tables.take(member.client_id, answer)
        except (CallTimeout, ConnectionLost, JsonError, AttributeError, TypeError, ValueError) as error:
            log.warning("consumer_status_missing", group=tables.group, client_id=member.client_id, reason=str(error))

    async def reset_offsets(self, _connection: ServerConnection, request: RemotingCommand) -> RemotingCommand:
        """222: reset a group to a time, or one queue to an offset.

        The offsets are stored here and sent to connected consumers, which would otherwise continue and overwrite them. If none
        is connected, the answer says so (206), and tools then store the same offsets again. With `useServerSideResetOffset`
        no consumer has to be connected: the answer to the next pull gives the new offset.
        """
        group, topic = request.text("group"), request.text("topic")
        server_side = self.config.now.use_server_side_reset_offset
        move = self.offsets.reset if server_side else self.commits.commit
        self.store.catch_up()  # what was acknowledged before is before the ends of the queues
        entries: list[bytes] = []
        listed: list[bytes] = []
        queues = self._queues_to_reset(request, group, topic)
        async for piece in in_slices(queues, QUEUES_PER_TURN):
            if (lost := self.store.writability.hard_refusal) is not None:  # since the last turn
                raise RequestRefused(
                    ResponseCode.SYSTEM_ERROR,
                    f"{lost}: {group} was reset on {len(entries)} queues of {topic}, and not on those from {piece[0]} on",
                )
            for queue_id, offset in self._targets(request, group, topic, piece).items():
                move(group, topic, queue_id, offset)
                queue = MessageQueue(topic, self.config.now.broker_name, QueueId(queue_id))
                entries.append(b"%b:%d" % (queue_key(queue), offset))
                listed.append(
                    orjson.dumps({"brokerName": queue.broker_name, "offset": offset, "queueId": queue_id, "topic": queue.topic})
                )
        table = orjson.Fragment(b"{%b}" % b",".join(entries))
        living = self.consumers.get(group)
        log.info("offsets_reset", group=group, topic=topic, consumers=len(living.members) if living is not None else 0)
        if server_side:
            self.group_reset(group, topic)
            return request.response(body=dumps({"offsetTable": table}))
        if living is None:
            refusal = not_online(group)
            raise RequestRefused(refusal.code, f"{refusal.remark}; its stored offsets on {topic} were reset")
        await self._send_reset(living, request, table, orjson.Fragment(b"[%b]" % b",".join(listed)))
        return request.response(body=dumps({"offsetTable": table}))

    def _queues_to_reset(self, request: RemotingCommand, group: str, topic: str) -> Sequence[int]:
        config = self.topics.get(topic)
        if config is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {topic!r} on this broker")
        if self.groups.get(group) is None and not self.offsets.of(group, topic):
            raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"there is no group {group!r} on this broker")
        wanted = request.integer("queueId", LATEST)
        if wanted >= config.read_queue_nums:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, f"{topic} has {config.read_queue_nums} queues (got queueId {wanted})"
            )
        return range(config.read_queue_nums) if wanted < 0 else (wanted,)

    def _targets(self, request: RemotingCommand, group: str, topic: str, queue_ids: Iterable[int]) -> dict[int, int]:
        store, committed = self.store, self.offsets.of(group, topic)
        timestamp, forced = request.integer("timestamp", LATEST), request.boolean("isForce")
        wanted, explicit = request.integer("queueId", LATEST), request.integer("offset", LATEST)
        targets: dict[int, int] = {}
        for queue_id in queue_ids:
            low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            if explicit >= 0 and wanted >= 0:
                if not low <= explicit <= high:
                    raise RequestRefused(
                        ResponseCode.INVALID_PARAMETER, f"queue {queue_id} holds offsets {low} to {high} (got {explicit})"
                    )
                targets[queue_id] = explicit
                continue
            target = high if timestamp == LATEST else store.offset_by_time(topic, queue_id, timestamp)
            if forced:
                targets[queue_id] = target
            elif queue_id in committed:
                # Without force a group only moves back. On a queue without a commit its members may be reading at any offset,
                # and the offset of the timestamp could be ahead of it.
                targets[queue_id] = min(target, committed[queue_id])
        return targets

    async def _send_reset(
        self, living: ConsumerGroup, request: RemotingCommand, table: orjson.Fragment, queues: orjson.Fragment
    ) -> None:
        ext = {
            "topic": request.text("topic"),
            "group": request.text("group"),
            "timestamp": str(request.integer("timestamp", LATEST)),
            "isForce": "true" if request.boolean("isForce") else "false",
        }
        body = dumps({"offsetTable": table})
        # The C++ client reads only a list.
        listed = dumps({"offsetTable": queues})
        # The request names no client, so one is enough for all clients of a connection.
        languages = {member.connection: member.language for member in living.members.values()}
        per_turn = max(min(RESET_BYTES_PER_TURN // len(body), ASKED_PER_TURN), 1)
        async for piece in in_slices(languages.items(), per_turn):
            for connection, language in piece:
                content = listed if language == "CPP" else body
                connection.notify(RemotingCommand(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), content))


@attrs.define(eq=False)
class _StatusTables:
    """The offsets that the consumers of a group report, encoded one consumer per turn of the event loop."""

    group: str
    room: int
    """How many bytes of answers may still come; the encoded ones are about as long."""
    _entries: dict[str, bytes] = attrs.field(factory=dict[str, bytes])
    _taking: trio.Lock = attrs.field(factory=trio.Lock)

    async def take(self, client_id: str, answer: RemotingCommand) -> None:
        """Add the answer of a consumer.

        Raises:
            JsonError, AttributeError, TypeError, ValueError: it is not a table of offsets. Nothing was added.
        """
        async with self._taking:
            body = cast("dict[str, Any]", _json_of(answer) if answer.code == ResponseCode.SUCCESS and answer.body else {})
            offsets = cast("dict[str, Any]", body.get("messageQueueTable") or {})
            table = {message_queue_of(key): long_of(offset) for key, offset in offsets.items()}
            self._entries[client_id] = dumps({client_id: table})[1:-1]

    @property
    def encoded(self) -> orjson.Fragment:
        """The tables of all consumers, by client id."""
        return orjson.Fragment(b"{%b}" % b",".join(self._entries[client_id] for client_id in sorted(self._entries)))


def _fields_for_client(request: RemotingCommand) -> dict[str, str]:
    return {name: value for name, value in request.ext.items() if name not in CREDENTIALS}


def _json_of(answer: RemotingCommand) -> Any:
    """Read the body of a client's answer; as bodies of requests, it is limited because it is read on the event loop."""
    if len(answer.body) > BODY_BYTES_MAX:
        raise JsonError(f"{len(answer.body)} bytes, {BODY_BYTES_MAX} are allowed", 0)
    return loads(answer.body, loose_bytes_max=OF_STRANGERS_BYTES_MAX)
