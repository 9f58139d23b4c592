"""What applications send and receive, and how messages and queues are named."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic

import attrs
import msgspec

from .errors import BadMessageId
from .properties import DELAY, KEYS, TAGS, UNIQUE_KEY
from .units import PhysicalOffset, QueueId, QueueOffset

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Body = TypeVar("Body", default=bytes)
else:
    from typing import TypeVar

    Body = TypeVar("Body")  # defaults come with Python 3.13

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"

_PORT_AND_OFFSET = struct.Struct(">iq")
_PORT_MAX = 65535


def _no_properties() -> dict[str, str]:
    return {}


@attrs.frozen
class Message(Generic[Body]):
    """A message to be sent.

    Args:
        topic: 1..127 characters of `A-Z a-z 0-9 % | - _`.
        body: the payload, at most the broker's `maxMessageSize` (4 MiB by default): bytes, or what an `encode` takes.
        tag: the label by which consumers filter. Expressions separate tags by `||` and ignore space around them, so no
            expression names a tag that contains `||` or begins or ends with a space.
        keys: each finds the message again through the broker's key index; no spaces inside a key.
        delay_level: 0 = at once; 1..18 = RocketMQ's levels 1s 5s 10s 30s 1m ... 2h.
        properties: the application's own; neither names nor values may hold U+0001 or U+0002. RocketMQ's format has no empty
            values: consumers do not see a property whose value is empty.
        flag: the application's own 32 bits.
        wait_stored: False lets the broker answer before flush and replication.
    """

    topic: str
    body: Body
    tag: str | None = None
    keys: Sequence[str] = ()
    delay_level: int = 0
    properties: Mapping[str, str] = attrs.field(factory=_no_properties)
    flag: int = 0
    wait_stored: bool = True


@attrs.frozen(order=True)
class MessageQueue:
    """One queue of a topic on one broker name."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"


@attrs.frozen
class MessageId:
    """An offset message id: the broker that stored the message, and where."""

    host: str
    port: int
    physical_offset: PhysicalOffset

    def __str__(self) -> str:
        packed = ipaddress.ip_address(self.host).packed + _PORT_AND_OFFSET.pack(self.port, self.physical_offset)
        return packed.hex().upper()

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read 32 (IPv4) or 56 (IPv6) hex digits.

        Raises:
            BadMessageId: anything else.
        """
        try:
            packed = bytes.fromhex(text)
        except ValueError as error:
            raise BadMessageId(f"a message id is 32 or 56 hex digits (got {text!r})") from error
        if len(packed) not in (16, 28):
            raise BadMessageId(f"a message id is 32 or 56 hex digits (got {len(text)} characters)")
        port, physical_offset = _PORT_AND_OFFSET.unpack(packed[-12:])
        if not 0 <= port <= _PORT_MAX:
            raise BadMessageId(f"the port in a message id is 0 to {_PORT_MAX} (got {port}): this may be a producer's unique id")
        return cls(str(ipaddress.ip_address(packed[:-12])), port, PhysicalOffset(physical_offset))


@attrs.frozen
class StoredMessage:
    """A message as the broker stored it; `body` may still be compressed, as `sys_flag` says."""

    topic: str
    queue_id: QueueId
    queue_offset: QueueOffset
    physical_offset: PhysicalOffset
    body: bytes
    properties: Mapping[str, str]
    flag: int
    sys_flag: int
    body_crc: int
    born_timestamp: int
    born_host: tuple[str, int]
    store_timestamp: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    size: int
    message_id: str

    @property
    def tag(self) -> str | None:
        return self.properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(KEYS, "").split()

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(UNIQUE_KEY)

    @property
    def delay_level(self) -> int:
        level = self.properties.get(DELAY, "0")
        return int(level) if level.isascii() and level.isdigit() and len(level) < 10 else 0


class IncomingMessage(msgspec.Struct, eq=False, gc=False):
    """One message to be put; times in ms, hosts packed by `encode_host`. A msgspec structure: one is created per message."""

    topic: str
    queue_id: int
    body: bytes
    properties: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
