"""Single messages, found by id, by key or by their offset."""

from __future__ import annotations

from contextlib import suppress

import attrs

from ...message.errors import BadMessageId
from ...message.flags import PULL_SUBSCRIPTION
from ...message.layout import decode_record, decode_records
from ...message.message import MessageId, MessageQueue, StoredMessage
from ...message.units import MASTER_ID
from ...remoting.codes import RequestCode, ResponseCode
from ...world.network import Address
from ..arguments import INT_MAX, LONG_MAX, check_integer, check_queue, check_text, check_topic
from ..compression import decompress
from ..errors import InvalidArgument, NotFound, Refused, TopicNotExist, refusal
from ..queue_calls import member_of, request
from ..unique_id import sent_at_ms
from .calls import ADMIN_GROUP, QUERY_SECONDS, AdminCalls

MESSAGES_PER_QUERY = 64
CLOCK_SKEW_MS = 1000

_NOTHING_PULLED = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


@attrs.define(eq=False)
class MessageAdmin(AdminCalls):
    """The part of the admin client that concerns single messages."""

    async def message_by_id(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """Find a message by its offset message id, or with `topic` by its unique id too; the body is decompressed.

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
        broker: str | None = None,
    ) -> list[StoredMessage]:
        """Find messages by one of their keys, oldest first; with `broker`, a name or `host:port`, at this broker alone."""
        check_topic(topic)
        check_text("key", key)
        check_integer("messages_max", messages_max, 1, INT_MAX)
        check_integer("begin_ms", begin_ms, 0, LONG_MAX)
        check_integer("end_ms", end_ms, 0, LONG_MAX)
        found = await self._query(topic, key, messages_max, begin_ms, end_ms, broker, unique=False)
        return [message for message in found if key in message.keys]

    async def messages_by_unique_key(self, topic: str, unique_key: str, *, broker: str | None = None) -> list[StoredMessage]:
        """Find a message by the id that its producer gave it; more than one message if it was stored several times.

        With `broker`, a name or `host:port`, this broker alone is asked.
        """
        check_topic(topic)
        check_text("unique_key", unique_key)
        begin_ms = 0
        with suppress(ValueError):  # the client that sent it uses another layout of ids: search without a time limit
            begin_ms = sent_at_ms(unique_key, self._session.world.clock.wall_ms()) - CLOCK_SKEW_MS
        found = await self._query(topic, unique_key, 32, max(0, begin_ms), LONG_MAX, broker, unique=True)
        if not found and begin_ms:
            found = await self._query(topic, unique_key, 32, 0, LONG_MAX, broker, unique=True)
        return [message for message in found if message.unique_key == unique_key]

    async def message_at(self, queue: MessageQueue, offset: int) -> StoredMessage:
        """The message with one offset in a queue.

        Raises:
            NotFound: there is none.
        """
        check_queue("queue", queue)
        check_integer("offset", offset, 0, LONG_MAX)
        await self._learn_route(queue.topic)
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
        self, topic: str, key: str, messages_max: int, begin_ms: int, end_ms: int, broker: str | None, *, unique: bool
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
        for address in await self._readable_at(topic, broker):
            command = request(RequestCode.QUERY_MESSAGE, fields)
            try:
                answer = await self._session.ask(address, command, QUERY_SECONDS)
            except (NotFound, TopicNotExist):
                continue
            found += map(_plain, decode_records(answer.body))
        return sorted(found, key=lambda message: message.store_timestamp)

    async def _readable_at(self, topic: str, broker: str | None) -> list[Address]:
        """The given broker, or of each broker of the topic the master, or a slave if it has none."""
        if broker is not None:
            return await self._masters(None, broker)
        brokers = (await self._session.refresh_route(topic)).brokers
        return [each.addresses.get(MASTER_ID) or next(iter(each.addresses.values())) for each in brokers]

    async def _is_broker(self, address: Address) -> bool:
        return any(address in broker.addresses.values() for broker in (await self.cluster()).brokers)


def _plain(message: StoredMessage) -> StoredMessage:
    return attrs.evolve(message, body=decompress(message.body, message.sys_flag))
