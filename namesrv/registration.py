"""What a broker registers: its topics and their version, read from either form of the body (RocketMQ RegisterBrokerBody).

The form is told by the first byte, not by the `compressed` field, which some brokers of 5.x set wrongly.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Any, cast

import attrs

from ..message.errors import JsonError
from ..message.json import OF_STRANGERS_BYTES_MAX, loads
from ..remoting.codes import ResponseCode
from ..remoting.errors import RequestRefused

EXPANDED_BYTES_MAX = 64 * 1024 * 1024
"""What a compressed body may grow to: a million topics. Beyond it somebody tries to fill our memory."""

_ZLIB_FIRST_BYTE = 0x78
_CRC_MASK = 0x7FFFFFFF
_INT = struct.Struct(">i")


@attrs.frozen
class DataVersion:
    """Which state of its topics a broker registered; compared as a whole."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


@attrs.frozen
class TopicConfig:
    """What of a broker's topic the name server keeps."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@attrs.frozen
class RegisteredTopics:
    """The content of a registration."""

    data_version: DataVersion
    topics: Mapping[str, TopicConfig]


def read_registration(body: bytes, crc32: int) -> RegisteredTopics:
    """Read the body of a registration; an empty one registers no topics.

    Raises:
        RequestRefused: the checksum does not fit, or the body is not one. Nothing is registered.
    """
    if crc32 and zlib.crc32(body) & _CRC_MASK != crc32:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"crc32 not match: the body has {zlib.crc32(body) & _CRC_MASK}")
    if not body:
        return RegisteredTopics(DataVersion(), {})
    try:
        if body[0] == _ZLIB_FIRST_BYTE:
            return _read_compressed(_expand(body))
        return _read_json(loads(body, loose_bytes_max=OF_STRANGERS_BYTES_MAX))
    except (JsonError, struct.error, zlib.error, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"the body of a registration does not add up: {type(error).__name__}: {error}"
        ) from error


def read_data_version(value: Any) -> DataVersion:
    """Read a DataVersion; one that is absent is all zeros, as a 4.9 broker's `stateVersion` is."""
    if value is None:
        return DataVersion()
    fields = cast("Mapping[str, Any]", value)
    return DataVersion(int(fields.get("counter", 0)), int(fields.get("timestamp", 0)), int(fields.get("stateVersion", 0)))


def _expand(body: bytes) -> bytes:
    expander = zlib.decompressobj()
    expanded = expander.decompress(body, EXPANDED_BYTES_MAX)
    if not expander.eof:
        raise ValueError(f"cut off, or more than {EXPANDED_BYTES_MAX} bytes once expanded")
    return expanded


def _read_json(value: Any) -> RegisteredTopics:
    # Brokers before V3_0_11 sent the inner wrapper alone.
    wrapper: Mapping[str, Any] = value.get("topicConfigSerializeWrapper") or value
    table: Mapping[str, Any] = wrapper.get("topicConfigTable") or {}
    return RegisteredTopics(
        read_data_version(wrapper.get("dataVersion")),
        {
            topic: TopicConfig(
                int(config.get("readQueueNums", 16)),
                int(config.get("writeQueueNums", 16)),
                int(config.get("perm", 6)),
                int(config.get("topicSysFlag", 0)),
            )
            for topic, config in table.items()
        },
    )


def _read_compressed(expanded: bytes) -> RegisteredTopics:
    version, position = _piece(expanded, 0)
    (count,) = _INT.unpack_from(expanded, position)
    position += _INT.size
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        line, position = _piece(expanded, position)
        # name, read queues, write queues, perm, filter type and, from 5.x, attributes: one space between them.
        name, reads, writes, perm = line.decode().split(" ", 4)[:4]
        topics[name] = TopicConfig(int(reads), int(writes), int(perm))
    # Filter servers and static-topic mappings follow; neither is ours to serve.
    return RegisteredTopics(read_data_version(loads(version, loose_bytes_max=OF_STRANGERS_BYTES_MAX)), topics)


def _piece(buffer: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _INT.unpack_from(buffer, position)
    start = position + _INT.size
    if size < 0 or start + size > len(buffer):
        raise ValueError(f"length {size} at byte {position} passes the end at {len(buffer)}")
    return buffer[start : start + size], start + size
