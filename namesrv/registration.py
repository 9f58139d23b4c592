"""What a broker registers: its topics and their version, read from either form of the body (RocketMQ RegisterBrokerBody).

The first byte decides the form, not the `compressed` field, which some brokers of 5.x set wrongly. A body is read on the event
loop and any peer may have sent it: only the needed fields of its JSON become objects, and `TOPICS_MAX` bounds their number.
Equal names of topics are one object, because the topics of many brokers are the same.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from sys import intern
from typing import Annotated, TypeVar

import attrs
import msgspec

from ..message.data_version import DataVersion
from ..message.errors import JsonError
from ..message.json import OF_STRANGERS_BYTES_MAX, loads
from ..message.layout import CRC_MASK
from ..message.numbers import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, int_of
from ..remoting.codes import ResponseCode
from ..remoting.errors import RequestRefused
from .bounds import TOPIC_CHARACTERS_MAX

TOPICS_MAX = 110_000
"""How many topics one broker may register; the largest frame holds some more as JSON, which takes some 125 bytes per topic."""
EXPANDED_BYTES_MAX = 16 * 1024 * 1024
"""The largest size of an expanded body, equal to that of a frame; a larger one is refused, as it could fill our memory."""
OBJECTS_MAX = 2 * TOPICS_MAX
"""How many JSON objects a body may hold: one per topic and, from 5.x on, one for the topic's attributes."""
CONFIGS_MAX = 4096
"""How many combinations of queues and permissions the topics of one broker may have, because each costs an object; most brokers
have a handful. Topics with further ones are left out."""
VERSION_BYTES_MAX = 4096
"""The largest version in a compressed body, in bytes; an ordinary one takes 80."""

K = TypeVar("K")

_ZLIB_FIRST_BYTE = 0x78
_INT = struct.Struct(">i")


@attrs.frozen
class TopicConfig:
    """The settings of one broker's topic that the name server keeps."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@attrs.frozen
class RegisteredTopics:
    """The content of a registration."""

    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    left_out: int = 0
    """How many more topics the broker has, which are beyond a bound."""


_Int = Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]
_Long = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]


class _Version(msgspec.Struct, rename="camel", gc=False):
    counter: _Long = 0
    timestamp: _Long = 0
    state_version: _Long = 0


class _Topic(msgspec.Struct, rename="camel", gc=False):
    read_queue_nums: _Int = 16
    write_queue_nums: _Int = 16
    perm: _Int = 6
    topic_sys_flag: _Int = 0


class _Wrapper(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, _Topic] | None = None
    data_version: _Version | None = None


class _Body(_Wrapper):
    """Brokers before V3_0_11 sent the inner wrapper alone."""

    topic_config_serialize_wrapper: _Wrapper | None = None


_decode_strictly = msgspec.json.Decoder(_Body, strict=False).decode  # a number may be text, as fastjson reads it


def read_registration(body: bytes, crc32: int) -> RegisteredTopics:
    """Read the body of a registration; an empty one registers no topics.

    Raises:
        RequestRefused: the checksum does not match, or the body is not a registration. Nothing was registered.
    """
    if crc32 and zlib.crc32(body) & CRC_MASK != crc32:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"crc32 not match: the body has {zlib.crc32(body) & CRC_MASK}")
    if not body:
        return RegisteredTopics(DataVersion(), {})
    try:
        if body[0] == _ZLIB_FIRST_BYTE:
            return _read_compressed(_expand(body))
        return _read_json(body)
    except (
        msgspec.MsgspecError,
        JsonError,
        struct.error,
        zlib.error,
        RecursionError,
        AttributeError,
        TypeError,
        ValueError,
    ) as error:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the body of a registration cannot be read: {type(error).__name__}: {error}"
        ) from error


def _expand(body: bytes) -> bytes:
    expander = zlib.decompressobj()
    expanded = expander.decompress(body, EXPANDED_BYTES_MAX)
    if not expander.eof:
        raise ValueError(f"the compressed body is truncated, or expands to more than {EXPANDED_BYTES_MAX} bytes")
    return expanded


def _read_json(body: bytes) -> RegisteredTopics:
    decoded = _decode(body)
    wrapper = decoded.topic_config_serialize_wrapper or decoded
    table = wrapper.topic_config_table or {}
    _check_count(len(table))
    configs: dict[tuple[int, int, int, int], TopicConfig] = {}  # a broker's topics are alike
    topics: dict[str, TopicConfig] = {}
    for name, topic in table.items():
        numbers = topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
        config = configs.get(numbers)
        if config is None:
            config = _new_config(configs, numbers, numbers)
        if config is not None and len(name) <= TOPIC_CHARACTERS_MAX:
            topics[intern(name)] = config
    version = wrapper.data_version or _Version()
    data_version = DataVersion(version.counter, version.timestamp, version.state_version)
    return RegisteredTopics(data_version, topics, len(table) - len(topics))


def _decode(body: bytes) -> _Body:
    if (count := body.count(b"{")) > OBJECTS_MAX:
        raise ValueError(f"{count} JSON objects, {OBJECTS_MAX} are allowed")
    if b'"$ref"' not in body:
        try:
            return _decode_strictly(body)
        except (msgspec.MsgspecError, ValueError):
            if len(body) > OF_STRANGERS_BYTES_MAX:
                raise
    return msgspec.convert(loads(body, loose_bytes_max=OF_STRANGERS_BYTES_MAX), _Body, strict=False)


def _check_count(count: int) -> None:
    if not 0 <= count <= TOPICS_MAX:
        raise ValueError(f"{count} topics, 0 to {TOPICS_MAX} are allowed")


def _read_compressed(expanded: bytes) -> RegisteredTopics:
    version, position = _piece(expanded, 0)
    if len(version) > VERSION_BYTES_MAX:
        raise ValueError(f"a version of {len(version)} bytes, {VERSION_BYTES_MAX} are allowed")
    (count,) = _INT.unpack_from(expanded, position)
    _check_count(count)
    position += _INT.size
    configs: dict[bytes, TopicConfig] = {}  # a broker's topics are alike
    topics: dict[str, TopicConfig] = {}
    left_out = 0
    for _ in range(count):
        line, position = _piece(expanded, position)
        name, _, words = line.partition(b" ")
        config = configs.get(words)
        if config is None:
            # Read queues, write queues, perm, filter type and, from 5.x, attributes: one space between them.
            reads, writes, perm = words.decode().split(" ", 3)[:3]
            config = _new_config(configs, words, (int_of(reads), int_of(writes), int_of(perm)))
        if config is not None and len(topic := name.decode()) <= TOPIC_CHARACTERS_MAX:
            topics[intern(topic)] = config
        else:
            left_out += 1
    # Filter servers and static-topic mappings follow; this name server keeps neither.
    data_version = DataVersion.from_json(loads(version, loose_bytes_max=VERSION_BYTES_MAX))
    return RegisteredTopics(data_version, topics, left_out)


def _new_config(configs: dict[K, TopicConfig], key: K, numbers: tuple[int, ...]) -> TopicConfig | None:
    """The settings of a topic; None if there are too many kinds already."""
    if len(configs) >= CONFIGS_MAX:
        return None
    config = configs[key] = TopicConfig(*numbers)
    return config


def _piece(buffer: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _INT.unpack_from(buffer, position)
    start = position + _INT.size
    if size < 0 or start + size > len(buffer):
        raise ValueError(f"length {size} at byte {position} goes beyond the end at {len(buffer)}")
    return buffer[start : start + size], start + size
