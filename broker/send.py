"""The put path: SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, a whole receive's worth at once.

One run of send requests becomes one put and one write of answers. Where the mode waits (flush, slaves), the answers of the run
wait together, in one callback. What is not an ordinary message (batches, delays, retries) takes the slower turn in `_admit`.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ..message.batch import decode_batch
from ..message.errors import CorruptBatch
from ..message.flags import HOST_BITS, PERM_WRITE, TRANSACTION_MASK
from ..message.layout import encode_host
from ..message.message import RETRY_PREFIX
from ..message.properties import (
    CLUSTER,
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    WAIT,
    decode_properties,
    encode_properties,
    join_properties,
)
from ..remoting.codes import RequestCode, ResponseCode
from ..remoting.command import ONEWAY_FLAG, OUR_LANGUAGE, PROTOCOL_VERSION, RemotingCommand, Wire, encode_frame, frame_of
from ..remoting.errors import RequestRefused
from ..remoting.server import ServerConnection
from ..store.message_store import IncomingMessage, MessageStore, PutBatch
from ..store.statuses import PutStatus
from ..world.randomness import Randomness
from .config import BrokerConfig
from .divert import divert_delayed, redirect_retry
from .groups import GroupTable
from .stats import Stats
from .topics import TopicConfig, TopicTable

SEND_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)

# SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE spell the fields with letters, SEND_MESSAGE in full.
_LONG_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}

NOT_FOR_CLIENTS = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
"""Topics that only the broker itself writes to."""

_SPECIAL = (DELAY, TRANSACTION_PREPARED, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)

_CODES = {
    PutStatus.PUT_OK: ResponseCode.SUCCESS,
    PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
}

_ANSWER = (
    b'{"code":%d,"extFields":{"MSG_REGION":"%b","TRACE_ON":"%b","msgId":"%b","queueId":"%d","queueOffset":"%d"},"flag":1,'
    b'"language":"' + OUR_LANGUAGE.encode() + b'","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
    b'"version":' + str(PROTOCOL_VERSION).encode() + b"}"
)

_Sent = tuple[RemotingCommand, int, int]
"""A request, and which messages of the put are its: first and one behind the last."""


@attrs.define(eq=False)
class SendHandler:
    """Turns send requests into puts."""

    config: BrokerConfig
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    stats: Stats
    randomness: Randomness
    _message_id_start: bytes = attrs.field(init=False)
    _cluster: str = attrs.field(init=False)
    _answer: bytes = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._message_id_start = self.store.store_host.hex().upper().encode()
        self._cluster = encode_properties({CLUSTER: self.config.broker_cluster_name})
        region = self.config.region_id.encode()
        trace_on = b"true" if self.config.trace_on else b"false"
        self._answer = _ANSWER.replace(b"%b", region, 1).replace(b"%b", trace_on, 1)

    def handle(self, connection: ServerConnection, requests: list[RemotingCommand]) -> None:
        """Put what a run of requests brings, and answer each."""
        messages: list[IncomingMessage] = []
        sent: list[_Sent] = []
        host = born_host(connection)
        admit = self._admit
        for request in requests:
            try:
                first = len(messages)
                if admit(request, host, messages):
                    sent.append((request, first, len(messages)))
                    continue
                self._put(connection, messages[:first], sent)  # keeps the order of what one client sends
                self._put(connection, messages[first:], [(request, 0, len(messages) - first)], together=True)
                messages, sent = [], []
            except RequestRefused as error:
                del messages[first:]
                self.stats.put_failed(1)
                connection.answer(request, error.code, remark=error.remark)
            except (KeyError, ValueError) as error:
                del messages[first:]
                self.stats.put_failed(1)
                connection.answer(request, ResponseCode.SYSTEM_ERROR, remark=_bad_field(request, error))
        self._put(connection, messages, sent)

    def _admit(self, request: RemotingCommand, host: bytes, messages: list[IncomingMessage]) -> bool:
        """Append the request's message, or the messages of its batch, to `messages`; False means: put these together, alone."""
        ext = request.ext
        if request.code == RequestCode.SEND_MESSAGE:
            ext = request.ext = {_LONG_NAMES.get(name, name): value for name, value in ext.items()}
        topic, queue_id, flags, properties = ext["b"], int(ext["e"]), int(ext["f"]), ext.get("i") or ""
        config = self.topics.topics.get(topic)
        if config is None or topic in NOT_FOR_CLIENTS or not config.perm & PERM_WRITE:
            config = self._writable_topic(request, topic)
        if queue_id < 0:
            queue_id = ext_queue = self.randomness.randrange(max(config.write_queue_nums, 1))
            ext["e"] = str(ext_queue)
        elif queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"queue {queue_id} of topic {topic} does not exist: there are {config.write_queue_nums} to write and "
                f"{config.read_queue_nums} to read; the message was not stored",
            )
        if ext.get("m") == "true":
            self._admit_batch(request, topic, queue_id, host, messages)
            return False
        properties = join_properties(properties, self._cluster)
        decoded = decode_properties(properties)
        reconsume_times = ext.get("j")
        message = IncomingMessage(
            topic,
            queue_id,
            request.body,
            properties,
            int(ext["h"]),
            flags & ~HOST_BITS,
            int(ext["g"]),
            host,
            int(reconsume_times) if reconsume_times else 0,
            0,
            decoded,
        )
        if topic.startswith(RETRY_PREFIX):
            redirect_retry(message, request, self.topics, self.groups)
            decoded = message.decoded or decoded
        if not decoded.keys().isdisjoint(_SPECIAL):
            self._admit_special(message, decoded)
        messages.append(message)
        return True

    def _writable_topic(self, request: RemotingCommand, topic: str) -> TopicConfig:
        if topic in NOT_FOR_CLIENTS:
            raise RequestRefused(ResponseCode.NO_PERMISSION, f"topic {topic} is the broker's own; the message was not stored")
        config: TopicConfig | None
        if topic.startswith(RETRY_PREFIX):
            group = self.groups.find(topic.removeprefix(RETRY_PREFIX))
            if group is None:
                raise RequestRefused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                    f"group {topic.removeprefix(RETRY_PREFIX)} does not exist; the message was not stored",
                )
            config = self.topics.create_for_group(topic, group.retry_queue_nums)
        else:
            queue_nums = int(request.ext.get("d") or self.config.default_topic_queue_nums)
            config = self.topics.create_by_send(topic, request.ext.get("c") or "", queue_nums)
        if config is None:
            raise RequestRefused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {topic} does not exist and may not be created by sending; the message was not stored",
            )
        if not config.is_writable or not self.config.broker_permission & PERM_WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"topic {topic} on broker {self.config.broker_name} is not writable; the message was not stored",
            )
        return config

    def _admit_batch(
        self, request: RemotingCommand, topic: str, queue_id: int, host: bytes, messages: list[IncomingMessage]
    ) -> None:
        if topic.startswith(RETRY_PREFIX):
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, f"a batch cannot be sent to the retry topic {topic}")
        if len(request.body) > self.config.max_message_size:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the batch has {len(request.body)} bytes, maxMessageSize is {self.config.max_message_size}; "
                "nothing of it was stored",
            )
        ext = request.ext
        try:
            items = decode_batch(request.body)
        except CorruptBatch as error:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}; nothing of it was stored"
            ) from error
        if not items or int(ext["f"]) & TRANSACTION_MASK or DELAY in decode_properties(ext.get("i") or ""):
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL, "a batch is neither empty, delayed nor transactional; nothing of it was stored"
            )
        flags, born = int(ext["f"]) & ~HOST_BITS, int(ext["g"])
        for flag, body, properties in items:
            text = join_properties(properties.decode("utf-8", "replace"), self._cluster)
            messages.append(IncomingMessage(topic, queue_id, body, text, flag, flags, born, host))

    def _admit_special(self, message: IncomingMessage, decoded: dict[str, str]) -> None:
        if decoded.get(TRANSACTION_PREPARED) == "true":
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"broker {self.config.broker_name} does not take transactional messages; the message was not stored",
            )
        if DELAY in decoded:
            divert_delayed(message, decoded, self.store.dispatcher.tags_codes.level_max)
        elif not decoded.keys().isdisjoint((TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)):
            # Stored as an ordinary message it would be delivered at once: too early is worse than refused.
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "timerWheelEnable is false: timer messages are not taken, use a delay level; the message was not stored",
            )

    def _put(
        self,
        connection: ServerConnection,
        messages: list[IncomingMessage],
        sent: list[_Sent],
        *,
        together: bool = False,
    ) -> None:
        if not messages:
            return
        store = self.store
        batch = store.put(messages, together=together)
        self._count(messages, batch)
        if not store.log.waits or not batch.end:
            self._answer_all(connection, sent, batch, PutStatus.PUT_OK)
            return
        at_once = [one for one in sent if not _waits(one, messages, batch)]
        if at_once:
            self._answer_all(connection, at_once, batch, PutStatus.PUT_OK)
            sent = [one for one in sent if _waits(one, messages, batch)]
        if sent:
            store.log.when_done(
                batch.end,
                store.put_deadline(),
                self._answer_later(connection, sent, batch),
            )

    def _answer_later(self, connection: ServerConnection, sent: list[_Sent], batch: PutBatch) -> Callable[[PutStatus], None]:
        return lambda status: self._answer_all(connection, sent, batch, status)

    def _count(self, messages: list[IncomingMessage], batch: PutBatch) -> None:
        topic, count, size = messages[0].topic, 0, 0
        for message, status in zip(messages, batch.statuses, strict=True):
            if status is not PutStatus.PUT_OK:
                self.stats.put_failed(1)
                continue
            if message.topic != topic:
                self.stats.topic_put(topic, count, size)
                topic, count, size = message.topic, 0, 0
            count += 1
            size += len(message.body)
        self.stats.topic_put(topic, count, size)

    def _answer_all(
        self,
        connection: ServerConnection,
        sent: list[_Sent],
        batch: PutBatch,
        status: PutStatus,
    ) -> None:
        """Answer requests whose messages were appended with `status`, and the others with their own."""
        template, id_start = self._answer, self._message_id_start
        statuses, physical_offsets, queue_offsets = batch.statuses, batch.physical_offsets, batch.queue_offsets
        answers: list[bytes] = []
        for request, first, stop in sent:
            if request.flag & ONEWAY_FLAG:
                continue
            if statuses[first] is not PutStatus.PUT_OK:
                code = _CODES.get(statuses[first], ResponseCode.SYSTEM_ERROR)
                answers.append(encode_frame(request.response(code, remark=batch.remark)))
                continue
            code = _CODES[status]
            message_id = b"%b%016X" % (id_start, physical_offsets[first])
            if stop - first > 1:
                message_id = b",".join(b"%b%016X" % (id_start, offset) for offset in physical_offsets[first:stop])
            if request.wire is Wire.JSON:
                header = template % (code, message_id, int(request.ext["e"]), queue_offsets[first], request.opaque)
                answers.append(frame_of(Wire.JSON, header))
            else:
                ext = {
                    "MSG_REGION": self.config.region_id,
                    "TRACE_ON": self.config.trace_on,
                    "msgId": message_id.decode(),
                    "queueId": request.ext["e"],
                    "queueOffset": queue_offsets[first],
                }
                answers.append(encode_frame(request.response(code, ext)))
        if answers:
            connection.push(b"".join(answers))


def born_host(connection: ServerConnection) -> bytes:
    """The address of the connection's peer, as messages carry it."""
    host = connection.attachments.get("born_host")
    if host is None:
        host = connection.attachments["born_host"] = encode_host(connection.remote.host, connection.remote.port)
    return host


def _waits(one: _Sent, messages: list[IncomingMessage], batch: PutBatch) -> bool:
    message = messages[one[1]]
    decoded = message.decoded if message.decoded is not None else decode_properties(message.properties)
    return batch.statuses[one[1]] is PutStatus.PUT_OK and decoded.get(WAIT) != "false"


def _bad_field(request: RemotingCommand, error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"send request {request.code} lacks the field {error}; the message was not stored"
    return f"send request {request.code}: {error}; the message was not stored"
