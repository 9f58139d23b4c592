"""The part of RocketMQ remoting that a benchmark needs: JSON requests on one blocking connection.

It is deliberately independent of `ledgermq.remoting`: the same few lines drive either broker, and a bug in our codec
cannot cancel itself out. Codes and field names are RocketMQ's.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

import attrs

SUCCESS = 0
SYSTEM_BUSY = 2
PULL_MESSAGE = 11
UPDATE_CONSUMER_OFFSET = 15
UPDATE_AND_CREATE_TOPIC = 17
GET_MAX_OFFSET = 30
HEART_BEAT = 34
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
SEND_MESSAGE_V2 = 310

# The ordinal of release 5.5.0 in RocketMQ's list of versions.
_VERSION = 513
_PREFIX = struct.Struct(">II")


class RequestRefusedError(Exception):
    """A server answered a request with another code than SUCCESS."""

    def __init__(self, request_code: int, response_code: int, remark: str) -> None:
        self.response_code = response_code
        super().__init__(f"request {request_code} was answered {response_code}: {remark}")


@attrs.frozen
class Reply:
    code: int
    ext_fields: dict[str, str]
    remark: str
    body: bytes


def encode(code: int, ext_fields: Mapping[str, str], *, opaque: int = 0, body: bytes = b"") -> bytes:
    """Encode one request frame, its JSON keys in the order in which the Java client writes them."""
    header = json.dumps(
        {
            "code": code,
            "extFields": dict(ext_fields),
            "flag": 0,
            "language": "JAVA",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": _VERSION,
        },
        separators=(",", ":"),
    ).encode()
    return _PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


def decode(frame: bytes) -> Reply:
    """Decode one response frame with a JSON header."""
    _, header_word = _PREFIX.unpack_from(frame)
    header_end = _PREFIX.size + (header_word & 0xFFFFFF)
    header: dict[str, Any] = json.loads(frame[_PREFIX.size : header_end])
    return Reply(header["code"], header.get("extFields") or {}, header.get("remark") or "", frame[header_end:])


def send_fields(topic: str, queue_id: int, *, unique_key: str, born_ms: int, queues: int = 8) -> dict[str, str]:
    """Return the header fields of a SEND_MESSAGE_V2 request as a Java producer fills them."""
    return {
        "a": "bench_producer",
        "b": topic,
        "c": "TBW102",
        "d": str(queues),
        "e": str(queue_id),
        "f": "0",
        "g": str(born_ms),
        "h": "0",
        "i": f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
    }


class Connection:
    """A blocking connection to a broker or name server: one request at a time."""

    def __init__(self, address: tuple[str, int], timeout: float = 30) -> None:
        self.socket = socket.create_connection(address, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, code: int, ext_fields: Mapping[str, str], body: bytes = b"") -> Reply:
        """Send one request and return its response, whatever its code."""
        self._opaque += 1
        self.socket.sendall(encode(code, ext_fields, opaque=self._opaque, body=body))
        return self.receive()

    def request(self, code: int, ext_fields: Mapping[str, str], body: bytes = b"") -> Reply:
        """Send one request and return its response; raise RequestRefusedError unless its code is SUCCESS."""
        reply = self.ask(code, ext_fields, body)
        if reply.code != SUCCESS:
            raise RequestRefusedError(code, reply.code, reply.remark)
        return reply

    def receive(self) -> Reply:
        length = self._receive_exactly(4)
        return decode(length + self._receive_exactly(int.from_bytes(length)))

    def _receive_exactly(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError("the peer closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def create_topic(self, topic: str, queues: int) -> None:
        self.request(
            UPDATE_AND_CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )

    def create_group(self, group: str) -> None:
        config = {"groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "brokerId": 0}
        limits = {"retryQueueNums": 1, "retryMaxTimes": 16, "consumeBroadcastEnable": True}
        limits["notifyConsumerIdsChangedEnable"] = True
        self.request(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(config | limits).encode())

    def send(self, topic: str, queue_id: int, body: bytes, *, unique_key: str, born_ms: int) -> Reply:
        return self.request(SEND_MESSAGE_V2, send_fields(topic, queue_id, unique_key=unique_key, born_ms=born_ms), body)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the next queue offset to be written."""
        reply = self.request(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
        return int(reply.ext_fields["offset"])

    def message_count(self, topic: str, queues: int) -> int:
        """Return how many messages all queues of a topic have received so far."""
        return sum(self.max_offset(topic, queue_id) for queue_id in range(queues))

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.request(
            UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)},
        )
