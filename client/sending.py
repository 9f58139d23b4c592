"""Encodes a message into the frame of a send request, and decodes the answer into a `SendResult`. Pure.

Sending is the hot path, so a frame is made by formatting bytes once: the parts common to all messages of a queue are in its
template. Names and letters are those of RocketMQ's SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from itertools import repeat
from typing import Any

import attrs
import orjson

from ..message.batch import encode_batch, item_size
from ..message.message import Message, MessageQueue
from ..message.properties import (
    DELAY,
    KEYS,
    NAME_END,
    PROPERTIES_BYTES_MAX,
    PROPERTY_END,
    SHARDING_KEY,
    TAGS,
    UNIQUE_KEY,
    WAIT,
)
from ..message.send_number import OFFSETS_FIELD, REPEATED_FIELD
from ..remoting.codes import RequestCode
from ..remoting.command import ONEWAY_FLAG, OUR_LANGUAGE, PROTOCOL_VERSION, RemotingCommand, frame_start
from ..world.address import Address
from .arguments import INT_MAX, check_delay_level, check_integer, check_keys, check_properties, check_switch, check_text
from .compression import COMPRESS_OVER_BYTES, Compression
from .errors import BadAnswer, InvalidArgument, MessageTooLarge, refusal
from .retry import RETRIES, SEND_TIMEOUT_SECONDS
from .route import AUTO_CREATE_QUEUES, AUTO_CREATE_TOPIC

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""By default larger bodies and batches are refused (`maxMessageSize` of RocketMQ's clients)."""

KEY_SEPARATOR = " "

_OWN_FIELDS = {TAGS: "tag", KEYS: "keys", DELAY: "delay_level", WAIT: "wait_stored"}
_PROPERTIES_CHARACTERS_SAFE = PROPERTIES_BYTES_MAX // 4  # no UTF-8 character needs more than four bytes


@attrs.frozen
class ProducerOptions:
    """The options of a producer."""

    send_timeout_seconds: float = SEND_TIMEOUT_SECONDS
    """The time limit of one send, for all attempts together."""
    retries: int = RETRIES
    """How often a send is retried after failures that may have stored the message, if the retry may store it again."""
    compression: Compression | None = Compression.ZLIB
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    message_bytes_max: int = MESSAGE_BYTES_MAX
    avoid_slow_brokers: bool = True
    """Whether brokers that answered late are avoided (RocketMQ `sendLatencyFaultEnable`)."""
    retry_unless_ok: bool = False
    """Whether a message that is stored with less than its broker's guarantees is sent to another broker as well (RocketMQ
    `retryAnotherBrokerWhenNotStoreOK`)."""
    idempotent: bool = True
    """Whether sends have numbers, by which brokers of ours store a message once however often it is retried."""
    plain_bytes_max: int = attrs.field(init=False)
    """Bodies up to this size are neither compressed nor refused."""

    def __attrs_post_init__(self) -> None:
        plain = self.message_bytes_max
        if self.compression is not None:
            plain = min(plain, self.compress_over_bytes - 1)
        object.__setattr__(self, "plain_bytes_max", plain)


@attrs.frozen
class Outgoing:
    """An encoded message or batch, which every attempt sends."""

    sys_flag: int
    born_ms: int
    flag: int
    properties: bytes
    body: bytes
    batch: bool = False
    number: bytes = b""
    """The field with the number of the send, as a piece of JSON; empty if it has none."""


class SendStatus(Enum):
    """The durability of a message when the broker answered: RocketMQ's four put statuses that mean that it is stored."""

    SEND_OK = 0
    """All that the broker's mode guarantees: written, and flushed or replicated if it is configured so."""
    FLUSH_DISK_TIMEOUT = 10
    """Written, but the flush to the medium was not confirmed in time."""
    SLAVE_NOT_AVAILABLE = 11
    """Written, but too few slaves are connected, or they are too far behind."""
    FLUSH_SLAVE_TIMEOUT = 12
    """Written, but slaves did not confirm it in time."""


_STATUSES = {status.value: status for status in SendStatus}


# Frozen by its setters, which its constructor bypasses: half the cost of `attrs.frozen`, and one is made per sent message.
@attrs.define(on_setattr=attrs.setters.frozen, unsafe_hash=True)
class SendResult:
    """An acknowledged message.

    `message_id` is the unique id, made by the client before sending. `offset_message_id` contains the place where the broker
    stored it, for a delayed message that in the delay topic. `queue_offset` is its offset in `queue`. With `repeated`, an
    earlier attempt had stored the message, and this is its place.
    """

    message_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus
    offset_message_id: str
    transaction_id: str | None = None
    repeated: bool = False


@attrs.define(eq=False)
class Target:
    """One queue with its broker's address and its frame templates."""

    queue: MessageQueue
    address: Address
    single: bytes
    batch: bytes


@attrs.define(eq=False)
class Publication:
    """The writable queues of one topic; `counter` chooses the next one."""

    topic: str
    queues: tuple[MessageQueue, ...]
    targets: tuple[Target, ...]
    broker_count: int
    counter: int


def encoded(message: Message[Any], encode: Callable[[Any], bytes]) -> Message:
    """A message with the body that an application's `encode` makes of it.

    Raises:
        InvalidArgument: `encode` raises, or `message` is no message.
    """
    if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance] - it comes from the application
        return message  # checked later, with the other fields
    try:
        body = encode(message.body)
    except Exception as error:
        raise InvalidArgument(f"the body of a message to {message.topic!r} cannot be encoded: {error!r}") from error
    return attrs.evolve(message, body=body)


def property_text(message: Message, unique_id: str, key: str | None = None) -> str:
    """Write the property string of a message.

    Raises:
        InvalidArgument: a value has the wrong type or is out of range, a name or value contains a separator, a key contains a
            space, or a property has a field of its own in `Message`.
        MessageTooLarge: the properties have more than 32767 bytes.
    """
    if message.wait_stored is True:
        wait = "true"
    else:
        check_switch("wait_stored", message.wait_stored)
        wait = "false"
    text = f"{UNIQUE_KEY}{NAME_END}{unique_id}{PROPERTY_END}{WAIT}{NAME_END}{wait}{PROPERTY_END}"
    flag, delay_level = message.flag, message.delay_level
    if flag == delay_level == 0 and message.tag is None and not message.keys and not message.properties and key is None:
        return text
    check_integer("flag", flag, -INT_MAX - 1, INT_MAX)
    count = 2
    if message.tag is not None:
        text += f"{TAGS}{NAME_END}{check_text('tag', message.tag, empty=True)}{PROPERTY_END}"
        count += 1
    if message.keys:
        check_keys(message.keys)
        text += f"{KEYS}{NAME_END}{KEY_SEPARATOR.join(message.keys)}{PROPERTY_END}"
        count += 1
    if check_delay_level(delay_level):
        text += f"{DELAY}{NAME_END}{message.delay_level}{PROPERTY_END}"
        count += 1
    if key is not None and SHARDING_KEY not in message.properties:
        text += f"{SHARDING_KEY}{NAME_END}{key}{PROPERTY_END}"
        count += 1
    check_properties(message.properties)
    for name, value in message.properties.items():
        if name in _OWN_FIELDS:
            raise InvalidArgument(f"property {name!r} is set through the field {_OWN_FIELDS[name]!r} of the message")
        text += f"{name}{NAME_END}{value}{PROPERTY_END}"
        count += 1
    if text.count(NAME_END) != count or text.count(PROPERTY_END) != count:
        raise InvalidArgument("tag, keys and properties must not hold U+0001 or U+0002")
    if len(text) > _PROPERTIES_CHARACTERS_SAFE and (size := len(text.encode("utf-8", "replace"))) > PROPERTIES_BYTES_MAX:
        raise MessageTooLarge("properties", size, PROPERTIES_BYTES_MAX)
    return text


def target_of(group: str, queue: MessageQueue, address: Address) -> Target:
    """Prepare the templates of one queue.

    The `%` fields: sysFlag, born ms, flag, properties (JSON text), number (a piece of JSON), flag bits, opaque.
    """
    return Target(
        queue,
        address,
        _template(RequestCode.SEND_MESSAGE_V2, group, queue, batch=False),
        _template(RequestCode.SEND_BATCH_MESSAGE, group, queue, batch=True),
    )


def _template(code: RequestCode, group: str, queue: MessageQueue, *, batch: bool) -> bytes:
    def quoted(text: str) -> bytes:
        return orjson.dumps(text).replace(b"%", b"%%")

    return b"".join(
        (
            b'{"code":%d,"extFields":{"a":' % code,
            quoted(group),
            b',"b":',
            quoted(queue.topic),
            b',"c":"%b","d":"%d","e":"%d",' % (AUTO_CREATE_TOPIC.encode(), AUTO_CREATE_QUEUES, queue.queue_id),
            b'"f":"%d","g":"%d","h":"%d","i":%b,"j":"0","k":"false",',
            b'"m":"%b","n":' % (b"true" if batch else b"false"),
            quoted(queue.broker_name),
            b'%b},"flag":%d,"language":"',
            OUR_LANGUAGE.encode(),
            b'","opaque":%d,"serializeTypeCurrentRPC":"JSON",',
            b'"version":%d}' % PROTOCOL_VERSION,
        )
    )


def frame_parts(
    template: bytes,
    sys_flag: int,
    born_ms: int,
    flag: int,
    properties: bytes,
    opaque: int,
    body: bytes,
    number: bytes = b"",
    *,
    oneway: bool = False,
) -> tuple[bytes, bytes]:
    """Fill a template; the body is returned as a piece of its own, so that it is not copied."""
    header = template % (sys_flag, born_ms, flag, properties, number, ONEWAY_FLAG if oneway else 0, opaque)
    size = len(header)
    return frame_start(size, len(body)) + header, body


def json_text(properties: str) -> bytes:
    """A property string as JSON text.

    Raises:
        InvalidArgument: the text contains a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        return orjson.dumps(properties)
    except orjson.JSONEncodeError as error:
        raise InvalidArgument(f"tag, keys or properties: {error}") from error


@attrs.frozen
class Batch:
    """Messages of one topic, encoded as the body of one request."""

    topic: str
    unique_ids: tuple[str, ...]
    body: bytes
    wait_stored: bool


def encode_messages(
    messages: Iterable[Message], unique_ids: Iterable[str], size_max: int, keys: Iterable[str | None] | None = None
) -> Batch:
    """Encode messages as one batch, each with its sharding key if `keys` has one for it.

    Raises:
        InvalidArgument: there are several topics, a delay or no message, or `property_text` refuses a message.
        MessageTooLarge: the batch is larger than `size_max`. Send the messages in several batches.
    """
    topics: set[str] = set()
    ids: list[str] = []
    items: list[tuple[int, bytes, bytes]] = []
    wait_stored = False
    size = 0
    for message, unique_id, key in zip(messages, unique_ids, repeat(None) if keys is None else keys, strict=False):
        if message.delay_level:
            raise InvalidArgument("a message of a batch cannot be delayed; send it alone")
        topics.add(message.topic)
        ids.append(unique_id)
        try:
            properties = property_text(message, unique_id, key).encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"tag, keys or properties: {error}") from error
        wait_stored |= message.wait_stored
        size += item_size(message.body, properties)
        items.append((message.flag, message.body, properties))
    if len(topics) != 1:
        raise InvalidArgument(f"a batch has messages of exactly one topic (got {sorted(topics)})")
    if size > size_max:  # checked before they are copied into one buffer, which could exceed the memory
        raise MessageTooLarge("batch", size, size_max)
    return Batch(topics.pop(), tuple(ids), encode_batch(items), wait_stored)


def batch_properties(*, wait_stored: bool) -> bytes:
    """The property string of a batch itself, as JSON text."""
    return json_text(f"{WAIT}{NAME_END}{'true' if wait_stored else 'false'}{PROPERTY_END}")


def result_of(answer: RemotingCommand, unique_id: str, queue: MessageQueue, address: Address) -> SendResult:
    """Read the answer to a send.

    Raises:
        Refused: the broker did not store the message.
        BadAnswer: the message is stored, but the answer lacks its id or offset.
    """
    status = _STATUSES.get(answer.code)
    if status is None:
        raise refusal(answer.code, answer.remark, str(address))
    ext = answer.ext
    try:
        offset, offset_id, transaction_id = int(ext["queueOffset"]), ext["msgId"], ext.get("transactionId")
        if REPEATED_FIELD in ext:
            queue = MessageQueue(queue.topic, queue.broker_name, int(ext["queueId"]))
            return SendResult(unique_id, queue, offset, status, offset_id, transaction_id, repeated=True)
        return SendResult(unique_id, queue, offset, status, offset_id, transaction_id)
    except (KeyError, ValueError) as error:
        raise BadAnswer(str(address), f"msgId and queueOffset: {error}") from error


def results_of(answer: RemotingCommand, batch: Batch, queue: MessageQueue, address: Address) -> list[SendResult]:
    """Read the answer to a batch; raises as `result_of` does."""
    first = result_of(answer, "", queue, address)
    # The answer to a batch has one id per message; brokers with batch queues (5.x) send a single one.
    offset_ids = first.offset_message_id.split(",")
    if len(offset_ids) != len(batch.unique_ids):
        offset_ids = [first.offset_message_id] * len(batch.unique_ids)
    offsets: Iterable[int] = range(first.queue_offset, first.queue_offset + len(offset_ids))
    if OFFSETS_FIELD in answer.ext:  # an earlier attempt had stored some of the messages, or all
        offsets = map(int, answer.ext[OFFSETS_FIELD].split(","))
    return [
        SendResult(unique_id, first.queue, offset, first.status, offset_id, first.transaction_id, first.repeated)
        for unique_id, offset, offset_id in zip(batch.unique_ids, offsets, offset_ids, strict=True)
    ]
