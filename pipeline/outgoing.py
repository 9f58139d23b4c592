"""Turns rows into messages: checks them, writes their properties, and computes their fingerprints. Pure.

A fingerprint depends on the content of a row, not on when or where the row was sent. A repeated task sends exactly the rows
whose fingerprints are not among the stored messages. Two rows with equal content are interchangeable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import attrs
import pyarrow as pa

from ..message.batch import encode_batch
from ..message.message import MessageQueue
from ..message.properties import (
    DELAY,
    KEYS,
    NAME_END,
    PROPERTY_END,
    SEND_NUMBER,
    SENT_PROPERTIES_BYTES_MAX,
    SHARDING_KEY,
    TAGS,
    UNIQUE_KEY,
    WAIT,
)
from ..message.strings import string_hash
from .errors import NotWritten

TRANSACTION = "SPARK_TXN"
"""The property with the query, the batch and the partition that wrote a message."""
DELAY_LEVEL_MAX = 18
OF_BROKERS = frozenset(
    (
        UNIQUE_KEY, WAIT, DELAY, TRANSACTION, SEND_NUMBER, "MSG_REGION", "TRACE_ON", "CLUSTER", "REAL_TOPIC", "REAL_QID",
        "TRAN_MSG", "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS", "TIMER_OUT_MS", "INNER_NUM", "INNER_BASE", "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS", "1ST_POP_TIME", "POP_CK", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET",
    )
)  # fmt: skip
"""Properties that clients and brokers set themselves. If a row was read from a topic, they are not written again."""

Array = Any


@attrs.define(eq=False)
class Outgoing:
    """One message to be sent."""

    topic: str
    queue_id: int | None
    broker_name: str | None
    sharding_key: str | None
    body: bytes
    flag: int
    properties: str
    """The property string without the unique key and the transaction."""
    delay_level: int
    born_ms: int | None
    fingerprint: bytes

    @property
    def size(self) -> int:
        """The approximate number of bytes that the message adds to a request."""
        return len(self.body) + len(self.properties) + 128


_ORDER = (
    "topic", "queueId", "brokerName", "shardingKey", "body", "flag", "properties", "tags", "keys", "delayLevel",
    "bornTimestamp",
)  # fmt: skip


@attrs.frozen
class Rows:
    """Turns rows of one schema into messages."""

    columns: Mapping[str, str]
    """The sink's name of each column."""
    topic: str | None
    """The topic of all rows; it overrides their column."""
    message_bytes_max: int
    allow_null_body: bool

    @property
    def _has_kafka_key(self) -> bool:
        """Whether rows have keys as in Kafka, where those with the same key go to one partition."""
        return any(name.lower() == "key" and target == "keys" for name, target in self.columns.items())

    def messages(self, batch: Array, place: str) -> Iterator[Outgoing]:
        """Yield the messages of a record batch.

        Args:
            batch: with the columns of the schema.
            place: names the partition in errors.

        Raises:
            NotWritten: a row cannot be sent; the error names the row.
        """
        cells = {target: self._values(batch.column(name), target) for name, target in self.columns.items()}
        nothing = [None] * batch.num_rows
        for row, values in enumerate(zip(*(cells.get(name, nothing) for name in _ORDER), strict=True)):
            yield self._message(values, f"row {row} of a batch of {place}")

    @staticmethod
    def _values(column: Array, target: str) -> list[Any]:
        if target == "body":
            column = column.cast(pa.binary())
        elif target == "bornTimestamp":
            column = column.cast(pa.int64())
        return list(column.to_pylist())

    def _message(self, values: tuple[Any, ...], place: str) -> Outgoing:
        topic, queue_id, broker_name, sharding_key, body, flag, own, tags, keys, delay_level, born = values
        topic = self.topic or topic
        if not topic:
            raise NotWritten(f"{place} has no topic, and the option 'topic' is not given. Nothing of this batch was sent")
        if body is None:
            if not self.allow_null_body:
                raise NotWritten(
                    f"{place} has a null body; filter such rows, or set the option 'allowNullBody' to 'true' to send it empty. "
                    "Nothing of this batch was sent"
                )
            body = b""
        if len(body) > self.message_bytes_max:
            raise NotWritten(
                f"{place} has a body of {len(body)} bytes, {self.message_bytes_max} are allowed (option 'maxMessageBytes', "
                "and the broker's maxMessageSize). Nothing of this batch was sent"
            )
        if delay_level is not None and not 0 <= delay_level <= DELAY_LEVEL_MAX:
            raise NotWritten(f"{place} has the delay level {delay_level}, 0 to {DELAY_LEVEL_MAX} are allowed")
        if isinstance(keys, bytes):
            keys = _decoded(keys, f"{place} has a key")
        properties = written_properties(_named(own, place), tags, keys, sharding_key, place)
        return Outgoing(
            topic, queue_id, broker_name, sharding_key or (keys if self._has_kafka_key else None), body, flag or 0,
            properties, delay_level or 0,
            None if born is None else born // 1000, fingerprint(topic, body, flag or 0, properties),
        )  # fmt: skip


def _named(own: Any, place: str) -> dict[str, str]:
    """Return properties by name, from a map or from headers as Spark's Kafka source has them.

    Raises:
        NotWritten: a header is not text.
    """
    found: dict[str, str] = {}
    for item in own or ():
        name, value = (item["key"], item["value"]) if isinstance(item, dict) else item
        found[name] = _decoded(value, f"{place} has a header {name!r}") if isinstance(value, bytes) else value
    return found


def _decoded(value: bytes, what: str) -> str:
    """Return bytes as text; `what` begins the error if they are none."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise NotWritten(f"{what} that is not UTF-8; a property is text. Nothing of this batch was sent") from error


def fingerprint(topic: str, body: bytes, flag: int, properties: str) -> bytes:
    """Return sixteen bytes that identify the content of a message."""
    hashed = blake2b(f"{topic}\0{flag}\0{properties}\0".encode("utf-8", "replace"), digest_size=16)
    hashed.update(body)
    return hashed.digest()


def written_properties(
    own: Mapping[str, str], tags: str | None, keys: str | None, sharding_key: str | None, place: str = ""
) -> str:
    """Return the properties that come from a row, in a fixed order.

    Raises:
        NotWritten: a name or value contains a separator, or there are more bytes than a message can hold.
    """
    properties = {name: value for name, value in own.items() if name and value and name not in OF_BROKERS}
    properties |= {name: value for name, value in ((TAGS, tags), (KEYS, keys), (SHARDING_KEY, sharding_key)) if value}
    text = "".join(f"{name}{NAME_END}{properties[name]}{PROPERTY_END}" for name in sorted(properties))
    if text.count(NAME_END) != len(properties) or text.count(PROPERTY_END) != len(properties):
        raise NotWritten(f"{place} has U+0001 or U+0002 in its tags, keys or properties. Nothing of this batch was sent")
    size = len(text.encode("utf-8", "replace"))
    if size > SENT_PROPERTIES_BYTES_MAX - 200:  # the properties that are added later are shorter
        allowed = SENT_PROPERTIES_BYTES_MAX - 200
        raise NotWritten(f"{place} has properties of {size} bytes, {allowed} are allowed. Nothing of this batch was sent")
    return text


def choose_queue(message: Outgoing, queues: list[MessageQueue], turn: int) -> MessageQueue:
    """Return the queue of a message: the one that the row names, the one of its sharding key, or the next one in turn.

    Raises:
        NotWritten: the row names a queue that cannot be written.
    """
    if message.queue_id is not None:
        for queue in queues:
            if queue.queue_id == message.queue_id and message.broker_name in (None, queue.broker_name):
                return queue
        if message.broker_name is not None and not any(queue.broker_name == message.broker_name for queue in queues):
            # Rows from another cluster name a broker that this one does not have; the number of the queue keeps their order.
            for queue in queues:
                if queue.queue_id == message.queue_id:
                    return queue
        known = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)
        raise NotWritten(
            f"column 'queueId': the topic {message.topic!r} has no queue {message.queue_id} that can be written; it has {known}"
        )
    if message.sharding_key:
        return queues[abs(string_hash(message.sharding_key)) % len(queues)]
    return queues[turn % len(queues)]


def full_properties(message: Outgoing, unique_key: str, transaction: str | None) -> str:
    """Return the whole property string of a message."""
    text = f"{message.properties}{UNIQUE_KEY}{NAME_END}{unique_key}{PROPERTY_END}{WAIT}{NAME_END}true{PROPERTY_END}"
    if message.delay_level:
        text += f"{DELAY}{NAME_END}{message.delay_level}{PROPERTY_END}"
    return text if transaction is None else f"{text}{TRANSACTION}{NAME_END}{transaction}{PROPERTY_END}"


def encode_many(messages: list[tuple[Outgoing, str]]) -> bytes:
    """Return the body of a request with several messages, each with its whole properties."""
    return encode_batch((message.flag, message.body, properties.encode("utf-8", "replace")) for message, properties in messages)
